"""The record of one commit of one task: where its inputs, its state and its outputs stood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stack.model.place import Place
from stack.model.plan import TaskId

# The annotation of a checkpoint that only says that a rewind is under way.
REWIND = "rewind"
# The slot of checkpoints that a command writes, not a container.
REWIND_SLOT = -1


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets of an input that are not to be handled: from `first` up to, but not with, `end`."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class InputPoint:
    """Where reading of one input continues. The topic id tells a feed that was made anew.

    `gaps` are what a task passes over by partition: outputs of a job that went back, which are no longer
    what it says.
    """

    topic: str
    topic_id: str
    partitions: int
    offsets: Mapping[int, int]
    gaps: Mapping[int, tuple[Gap, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StorePoint:
    """How far the changelog of one store reaches: the offset after the last delta of this commit."""

    topic: str
    topic_id: str
    end: int


@dataclass(frozen=True, slots=True)
class OutputPoint:
    """Where the partitions of one output ended, as `stack/engine/output_ends.py` tells.

    Where a commit has written: before it did; its records lie from there to where the next checkpoint of the
    same container says, among those of others. Where it has not: after the container last wrote there.
    `wrote` are the partitions that it may have written to, None if that was not noted: any.
    """

    topic: str
    topic_id: str
    ends: Sequence[int]
    wrote: frozenset[int] | None = None

    def may_have_written(self, partition: int) -> bool:
        """Whether the commit may have records in a partition."""
        return self.wrote is None or partition in self.wrote


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One commit of one task: by whom, when, and where everything stood with it."""

    job: str
    task: TaskId
    version: str
    number: int
    time_ms: int
    inputs: Mapping[str, InputPoint]
    stores: Mapping[str, StorePoint] = field(default_factory=dict)
    outputs: Mapping[str, OutputPoint] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    # The highest time of a record that the task has handled, None before the first.
    event_time_ms: int | None = None
    # The container that made it: by which plan, in which slot, as which attempt.
    generation: int = 0
    slot: int = -1
    attempt: int = 0
    # How far back commits could be restored when this one was made: what was compacted then stays so.
    horizon_ms: int = 0


def gaps_of(one: Checkpoint) -> dict[Place, tuple[Gap, ...]]:
    """What a task that continues at a checkpoint passes over, by place."""
    points = one.inputs.values()
    return {(point.topic, number): gaps for point in points for number, gaps in point.gaps.items()}


def checkpoint_key(job: str, task: TaskId) -> bytes:
    """The key of a task's checkpoints."""
    return f"{job}/{task}".encode()


def is_checkpoint_key(key: bytes | None) -> bool:
    """Whether a record of the checkpoints feed is a checkpoint, not something that is said of one."""
    return key is not None and key.partition(b"/")[2][:1].isalnum()
