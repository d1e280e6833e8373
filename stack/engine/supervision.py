"""What a runner remembers of a job, what it sees, and what it may do: the values of `supervise`.

Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stack.engine.planning import after_releases
from stack.model.fleet import JobState, JobStatus
from stack.model.job import JobEntry, JobSpec
from stack.model.plan import ContainerReport, Ending, Plan, TaskId

# A container that has not registered by then gets no tasks: Spark has no slot for it.
REGISTER_S = 8.0
# The same while Spark has not even loaded our code.
COLD_S = 30.0
# Unless the others have only just registered: then the machine is slow, and it will come, too.
OTHERS_S = 3.0
# How long a container that left ZooKeeper may take to end before another takes its place.
VANISHED_S = 0.5
# The same for one that shall end anyway.
GONE_S = 2.0
# How long a container that is told to stop may take before it is killed.
STOP_S = 30.0
# How long a Spark job that was cancelled is waited for. Its container is fenced then.
CANCELLED_S = 10.0
# A container that worked this long, or committed, was healthy: it is started again at once.
HEALTHY_S = 3.0
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 15.0
# The same fault this often in a row is not an accident.
SAME_FAULTS = 3
# Nor are this many faults of any kind.
ANY_FAULTS = 8


@dataclass(frozen=True, slots=True)
class Launched:
    """A Spark job that runs one attempt of a slot, or waits to."""

    attempt: int
    at: float
    registered_at: float | None = None
    vanished_at: float | None = None
    stop_at: float | None = None
    cancelled_at: float | None = None
    committed: bool = False


@dataclass(frozen=True, slots=True)
class Falls:
    """How often a slot's container ended early in a row, and of what."""

    quick: int = 0
    start_at: float = 0.0
    fault: str = ""
    same_faults: int = 0
    faults: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job stands still until a person does something, and which version and try it was."""

    version: str
    try_number: int
    message: str
    hint: str = ""
    place: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """All that a runner knows of a job from one look to the next."""

    plan: Plan | None = None
    # With what the containers of the plan were started.
    running: JobSpec | None = None
    launches: Mapping[int, Launched] = field(default_factory=dict)
    falls: Mapping[int, Falls] = field(default_factory=dict)
    # Other slots that may have a task open.
    holders: Mapping[TaskId, frozenset[int]] = field(default_factory=dict)
    # Slots whose transactional id is being taken over, with the generation of the plan at that time.
    fencing: Mapping[int, int] = field(default_factory=dict)
    drained: frozenset[int] = frozenset()
    # The try at which the inputs were read to their ends.
    drained_try: int | None = None
    # Since when a new version could have committed.
    proof_since: float | None = None
    failure: Failure | None = None
    # What was asked to be written to the jobs feed and is not seen there yet, with version and try.
    asked: frozenset[tuple[str, str, int]] = frozenset()
    status: JobStatus | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The Spark job of one attempt is over."""

    slot: int
    attempt: int
    ending: Ending


@dataclass(frozen=True, slots=True)
class Facts:
    """One look at the world. `entry` is None for a job that was removed; `stopping`: the runner ends."""

    now: float
    time_ms: int
    entry: JobEntry | None
    reports: tuple[ContainerReport, ...] = ()
    released: Mapping[TaskId, int] = field(default_factory=dict)
    endings: tuple[Ended, ...] = ()
    fenced: frozenset[int] = frozenset()
    stopping: bool = False
    runner: str = ""
    # Since when Spark has our code loaded, None if it has not.
    warm_at: float | None = 0.0


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Tell the containers."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class MarkReleased:
    """Nobody else has these tasks open any more."""

    generations: Mapping[TaskId, int]


@dataclass(frozen=True, slots=True)
class FenceSlot:
    """Take the slot's transactional id over, so that no container of it commits any more."""

    slot: int


@dataclass(frozen=True, slots=True)
class LaunchSlot:
    """Start a container."""

    slot: int
    attempt: int
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class CancelSlot:
    """End a container that does not end by itself."""

    slot: int
    attempt: int


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Tell people."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class ConfirmVersion:
    """Write to the jobs feed that the version has committed."""

    version: str


@dataclass(frozen=True, slots=True)
class RollBack:
    """Write to the jobs feed that the version before comes back, and why."""

    version: str
    reason: str


@dataclass(frozen=True, slots=True)
class RemoveJob:
    """Nothing of the job runs any more: remove its nodes."""


Order = (
    WritePlan
    | MarkReleased
    | FenceSlot
    | LaunchSlot
    | CancelSlot
    | SetStatus
    | ConfirmVersion
    | RollBack
    | RemoveJob
)


def recall(plan: Plan | None, released: Mapping[TaskId, int], status: JobStatus | None) -> Memory:
    """What a runner that takes a job over knows of it: the plan, and whether it stood still.

    Containers of the old plan may live on. They are fenced by the next attempt of their slot; a slot that
    gets none is fenced by the runner, as far as it may hold a task that was on its way elsewhere.
    """
    holders: dict[TaskId, frozenset[int]] = {}
    if plan is not None:
        left = after_releases(plan.holders, plan, released)
        holders = {task: slots for task, slots in left.items() if slots}
    failure, drained_try = None, None
    if status is not None and status.state is JobState.FAILED:
        failure = Failure(
            status.version, status.try_number, status.message, status.hint, status.place, status.detail
        )
    if status is not None and status.state is JobState.DRAINED:
        drained_try = status.try_number
    return Memory(plan=plan, holders=holders, failure=failure, drained_try=drained_try)
