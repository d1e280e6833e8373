"""What a container tells of itself every second: the values behind the metrics feed."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from stack.model.plan import TaskId, TaskState

FORMAT = 1
# Upper ends of the buckets; what is longer falls into one more. They are part of the format.
PROCESSING_BOUNDS_S = (
    *(0.000001, 0.0000025, 0.000005, 0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005),
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
COMMIT_BOUNDS_S = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# Counters that the stack itself keeps of records in trouble, beside those of the job's own code.
ERROR_KINDS = ("errors", "dead", "skipped", "retried")
_COUNTER_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9._-]{0,58}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many times fell into each bucket, and their sum. The bounds are those of its kind."""

    counts: tuple[int, ...]
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile_s(self, bounds_s: Sequence[float], share: float) -> float | None:
        """The time that a share of all stayed below, taken as even within its bucket; None without any."""
        wanted, below = share * self.count, 0
        for index, count in enumerate(self.counts):
            if count and below + count >= wanted:
                low = bounds_s[index - 1] if index else 0.0
                high = bounds_s[min(index, len(bounds_s) - 1)]
                return low + (high - low) * (wanted - below) / count
            below += count
        return None


class Times:
    """A histogram that is being filled, by one thread."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def add(self, each_s: float, count: int = 1) -> None:
        """So many that took so long each."""
        self._counts[bisect_left(self._bounds_s, each_s)] += count
        self._sum_s += each_s * count

    def taken(self) -> Histogram:
        """As it is now; any thread may ask."""
        return Histogram(tuple(self._counts), self._sum_s)


@dataclass(frozen=True, slots=True)
class StoreMetrics:
    """How large one store of one task is, as RocksDB estimates."""

    keys: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RestoreMetrics:
    """How far a task has come with restoring a store."""

    store: str
    records: int
    share: float
    left_s: float


@dataclass(frozen=True, slots=True)
class TaskMetrics:
    """One task. `lag` counts records from the last commit to the end of the inputs; `delay_ms` is how old
    the last record was, by its own time, when it was handled.
    """

    state: TaskState
    lag: int | None = None
    delay_ms: int | None = None
    restore: RestoreMetrics | None = None
    stores: Mapping[str, StoreMetrics] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommitMetrics:
    """The commits so far, and the last one. Sizes are those of everything in the transaction, not packed."""

    times: Histogram
    records: int = 0
    size_bytes: int = 0
    last_s: float = 0.0
    last_records: int = 0
    last_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ContainerMetrics:
    """One record of the metrics feed. Counts are since the container began."""

    time_ms: int
    job: str
    slot: int
    attempt: int
    version: str
    host: str
    pid: int
    began_ms: int
    memory_bytes: int
    records_in: Mapping[str, int]
    records_out: Mapping[str, int]
    in_per_s: float
    out_per_s: float
    commits: CommitMetrics
    processing: Histogram
    tasks: Mapping[TaskId, TaskMetrics] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)


def metrics_name(stack: str) -> str:
    """The topic of the metrics feed."""
    return f"_{stack}.metrics"


def metrics_key(job: str, slot: int) -> bytes:
    """The key of a container's records."""
    return f"{job}/{slot}".encode()


def metrics_to_json(one: ContainerMetrics) -> dict[str, Any]:
    """The metrics as plain JSON values."""
    tree = {name: getattr(one, name) for name in ContainerMetrics.__slots__}
    tree["commits"] = asdict(one.commits)
    tree["processing"] = asdict(one.processing)
    tree["tasks"] = {str(task): asdict(about) for task, about in one.tasks.items()}
    return {"format": FORMAT, "kind": "container", **tree}


def metrics_to_bytes(one: ContainerMetrics) -> bytes:
    """The value of a record of the metrics feed."""
    return json.dumps(metrics_to_json(one), separators=(",", ":"), ensure_ascii=False).encode()


def metrics_from_json(tree: Mapping[str, Any]) -> ContainerMetrics | None:
    """The metrics that `metrics_to_json` made; None if it is something else."""
    try:
        if tree["format"] != FORMAT or tree["kind"] != "container":
            return None
        plain = {name: tree[name] for name in ContainerMetrics.__slots__}
        commits = {**tree["commits"], "times": _histogram(tree["commits"]["times"], COMMIT_BOUNDS_S)}
        plain["commits"] = CommitMetrics(**commits)
        plain["processing"] = _histogram(tree["processing"], PROCESSING_BOUNDS_S)
        plain["tasks"] = {TaskId.parse(task): _task(about) for task, about in tree["tasks"].items()}
        return ContainerMetrics(**plain)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _histogram(tree: Mapping[str, Any], bounds_s: Sequence[float]) -> Histogram:
    counts = tuple(map(int, tree["counts"]))
    if len(counts) != len(bounds_s) + 1:
        raise ValueError(f"{len(counts)} buckets")
    return Histogram(counts, float(tree["sum_s"]))


def _task(tree: Mapping[str, Any]) -> TaskMetrics:
    restore = None if tree["restore"] is None else RestoreMetrics(**tree["restore"])
    stores = {name: StoreMetrics(**about) for name, about in tree["stores"].items()}
    return TaskMetrics(TaskState(tree["state"]), tree["lag"], tree["delay_ms"], restore, stores)


def merged(histograms: Iterable[Histogram]) -> Histogram | None:
    """Several of one kind as one; None without any."""
    found = list(histograms)
    if not found:
        return None
    counts = tuple(map(sum, zip(*(one.counts for one in found), strict=True)))
    return Histogram(counts, sum(one.sum_s for one in found))


def counter_fault(name: object, known: Collection[str]) -> str | None:
    """Why a job's code cannot count under a name beside those that it has; None if it can.

    Metrics of other systems take dots and dashes for underscores: two names must differ in more.
    """
    if not isinstance(name, str) or not _COUNTER_NAME.fullmatch(name):
        return (
            "the name must be letters, digits, dots, dashes and underscores, a letter in front and no sign "
            "at the end, at most 60 of them"
        )
    if name in ERROR_KINDS:
        return "the stack itself counts records in trouble under this name"
    twin = next((one for one in known if one != name and _plain(one) == _plain(name)), None)
    return None if twin is None else f"it would be the same metric as {twin!r}"


def _plain(name: str) -> str:
    return name.translate(str.maketrans(".-", "__")).lower()
