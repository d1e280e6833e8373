"""What a job is, as deployed: its code, inputs, stores and settings. The values behind the jobs feed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_STORE_NAME = re.compile(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?")
MAX_NAME_LENGTH = 60
MAIN_STAGE = "main"


class Guarantee(StrEnum):
    """How often an output can appear after a failure; state is exact with either."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class Desired(StrEnum):
    """What a person asked of a job."""

    RUNNING = "running"
    PAUSED = "paused"
    DRAINED = "drained"


class OnError(StrEnum):
    """What becomes of a record that a task cannot get past."""

    STOP = "stop"
    DEAD_LETTER = "dead-letter"
    SKIP = "skip"


class KeyCodec(StrEnum):
    """How keys of a store become bytes; the order of the bytes is the order of the keys."""

    STR = "str"
    INT = "int"
    BYTES = "bytes"


class ValueCodec(StrEnum):
    """How values of a store become bytes."""

    STR = "str"
    INT = "int"
    BYTES = "bytes"
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of a job, which the tasks of one of its stages read.

    Of a broadcast input every task reads all partitions, of any other only its own. A bootstrap input is
    read to its end before the first record of any input that is not.
    """

    feed: str
    broadcast: bool = False
    bootstrap: bool = False
    stage: str = MAIN_STAGE


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A named keyed state of a stage; `schema` is the text of the Avro schema where values are Avro."""

    name: str
    key: KeyCodec = KeyCodec.STR
    value: ValueCodec = ValueCodec.JSON
    schema: str | None = None
    stage: str = MAIN_STAGE


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """What is done about errors of the records of one input."""

    on_error: OnError = OnError.STOP
    retries: int = 0
    backoff_ms: int = 100
    # How long all tries of one record may take together.
    limit_ms: int = 15_000

    @property
    def guards(self) -> bool:
        """Whether anything but the end of the container may follow an error."""
        return self.on_error is not OnError.STOP or self.retries > 0


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What job.toml says apart from stores. It is not part of the job's version."""

    containers: int = 1
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    commit_min_ms: int = 10
    commit_max_ms: int = 500
    horizon_ms: int = 3_600_000
    # A container that grows past this is stopped and reported.
    memory_bytes: int = 2 << 30
    # For all stores of a container together: RocksDB's blocks and write buffers, and values kept decoded.
    cache_bytes: int = 256 << 20
    # One record may keep a task busy for this long; must stay below a third of the transaction's limit.
    record_limit_ms: int = 15_000
    # A new version must have committed by then, or the old one comes back.
    deploy_limit_ms: int = 60_000
    on_error: OnError = OnError.STOP
    # How often a record is tried again after an error that may pass, and how long before the first time.
    retries: int = 0
    retry_backoff_ms: int = 100
    # By input, where it is not the same for all.
    inputs_on_error: Mapping[str, OnError] = field(default_factory=dict)
    # Whether its containers write to the metrics feed.
    metrics: bool = True
    # How often a point is taken at which all its tasks stand still, where commits alone are none.
    align_ms: int = 300_000

    def errors_of(self, feed: str) -> ErrorPolicy:
        """What is done about errors of an input's records."""
        on_error = self.inputs_on_error.get(feed, self.on_error)
        return ErrorPolicy(on_error, self.retries, self.retry_backoff_ms, self.record_limit_ms)

    @property
    def keeps_dead_letters(self) -> bool:
        """Whether records of any input may become dead letters."""
        return OnError.DEAD_LETTER in (self.on_error, *self.inputs_on_error.values())


@dataclass(frozen=True, slots=True)
class CodePlace:
    """Where the packed code of a job stands in the stack's code feed: records first to last of it."""

    sha256: str
    first_offset: int
    last_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One version of a job with its settings, ready to run."""

    name: str
    version: str
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    stores: tuple[StoreSpec, ...]
    settings: JobSettings
    # The partition count of the first stage's inputs that are not broadcast: one task each.
    partitions: int
    code: CodePlace
    deployed_at_ms: int = 0
    # The stages behind the first, in the order in which records pass them, with as many tasks each.
    later_stages: tuple[tuple[str, int], ...] = ()

    @property
    def stages(self) -> dict[str, int]:
        """All stages in the order in which records pass them, with their partitions."""
        return {MAIN_STAGE: self.partitions, **dict(self.later_stages)}

    @property
    def inner_feeds(self) -> tuple[str, ...]:
        """The feeds between two stages: those that the job writes and reads itself."""
        return tuple(one.feed for one in self.inputs if one.feed in self.outputs)

    def inputs_of(self, stage: str) -> tuple[InputSpec, ...]:
        """What the tasks of a stage read."""
        return tuple(one for one in self.inputs if one.stage == stage)


@dataclass(frozen=True, slots=True)
class JobEntry:
    """One job in the jobs feed: what shall run, what ran before, and what a person asked for.

    `confirmed` is set once the version has committed; until then `previous` is what comes back if it fails.
    """

    spec: JobSpec
    desired: Desired = Desired.RUNNING
    confirmed: bool = False
    previous: JobSpec | None = None
    # The last version that was taken back, and why, as a sentence.
    rolled_back: str | None = None
    # Raised by whoever asks something of the job: a failed one is tried again, and a status tells its try.
    try_number: int = 0
    # The rewind that is under way; its containers stand still until it is done.
    rewind: str | None = None


def job_name_fault(name: str) -> str | None:
    """Why `name` cannot name a job, or None if it can."""
    if not _NAME.fullmatch(name):
        return "use lower-case letters, digits and dashes, a letter or digit at both ends"
    if len(name) > MAX_NAME_LENGTH:
        return f"it has {len(name)} characters, {MAX_NAME_LENGTH} are allowed"
    return None


def store_name_fault(name: str) -> str | None:
    """Why `name` cannot name a store, or None if it can."""
    if not _STORE_NAME.fullmatch(name):
        return "use lower-case letters, digits, dashes and underscores, a letter or digit at both ends"
    if len(name) > MAX_NAME_LENGTH:
        return f"it has {len(name)} characters, {MAX_NAME_LENGTH} are allowed"
    return None


def entry_to_json(entry: JobEntry) -> dict[str, Any]:
    """The entry as plain JSON values."""
    previous = entry.previous
    return {
        **_fields(entry),
        "spec": spec_to_json(entry.spec),
        "previous": None if previous is None else spec_to_json(previous),
    }


def spec_to_json(spec: JobSpec) -> dict[str, Any]:
    """The spec inside an entry."""
    return {
        **_fields(spec),
        "inputs": [_fields(one) for one in spec.inputs],
        "stores": [_fields(one) for one in spec.stores],
        "settings": _fields(spec.settings),
        "code": _fields(spec.code),
    }


def _fields(one: Any) -> dict[str, Any]:
    """What a flat value holds, by name."""
    return {name: getattr(one, name) for name in one.__slots__}


def entry_from_json(tree: Mapping[str, Any]) -> JobEntry:
    """The entry that `entry_to_json` wrote; KeyError, TypeError or ValueError if it is something else."""
    previous = tree["previous"]
    return JobEntry(
        spec=spec_from_json(tree["spec"]),
        desired=Desired(tree["desired"]),
        confirmed=bool(tree["confirmed"]),
        previous=None if previous is None else spec_from_json(previous),
        rolled_back=tree["rolled_back"],
        try_number=int(tree["try_number"]),
        rewind=tree.get("rewind"),
    )


def spec_from_json(tree: Mapping[str, Any]) -> JobSpec:
    """The spec inside an entry."""
    settings = dict(tree["settings"])
    settings["guarantee"] = Guarantee(settings["guarantee"])
    # What was written before there was a choice has none.
    settings["on_error"] = OnError(settings.get("on_error", OnError.STOP))
    by_input = settings.get("inputs_on_error", {})
    settings["inputs_on_error"] = {feed: OnError(word) for feed, word in by_input.items()}
    return JobSpec(
        name=tree["name"],
        version=tree["version"],
        inputs=tuple(InputSpec(**one) for one in tree["inputs"]),
        outputs=tuple(tree["outputs"]),
        stores=tuple(
            StoreSpec(
                one["name"],
                KeyCodec(one["key"]),
                ValueCodec(one["value"]),
                one["schema"],
                one.get("stage", MAIN_STAGE),
            )
            for one in tree["stores"]
        ),
        settings=JobSettings(**settings),
        partitions=int(tree["partitions"]),
        code=CodePlace(**tree["code"]),
        deployed_at_ms=int(tree["deployed_at_ms"]),
        later_stages=tuple((name, int(count)) for name, count in tree.get("later_stages", ())),
    )


def jobs_name(stack: str) -> str:
    """The topic of the jobs feed: what shall run, by job."""
    return f"_{stack}.jobs"


def code_name(stack: str) -> str:
    """The topic of the packed code of all jobs."""
    return f"_{stack}.code"


def logs_name(stack: str) -> str:
    """The topic of what the code of jobs says and prints."""
    return f"_{stack}.logs"


def changelog_name(stack: str, job: str, store: str) -> str:
    """The topic of a store's changelog."""
    return f"{stack}.{job}.{store}.changelog"


def dead_name(stack: str, job: str) -> str:
    """The topic of a job's dead letters."""
    return f"{stack}.{job}.dead"


def redrive_name(stack: str, job: str) -> str:
    """The topic by which dead letters come back to the tasks of a job; also the id of whoever writes it."""
    return f"{stack}.{job}.redrive"


def redriven_name(stack: str, job: str) -> str:
    """The topic of marks: which dead letters of a job were redriven."""
    return f"{stack}.{job}.redriven"


def rewind_id(stack: str, job: str) -> str:
    """The transactional id under which every rewind of a job writes."""
    return f"{stack}.{job}.rewind"


def transactional_id(stack: str, job: str, slot: int) -> str:
    """The id under which the container of a slot writes; whoever initialises it fences all others."""
    return f"{stack}.{job}.{slot}"


def group_name(stack: str, job: str, stage: str = MAIN_STAGE) -> str:
    """The consumer group that mirrors a stage's offsets for ordinary Kafka tools."""
    return f"{stack}.{job}.{stage}"
