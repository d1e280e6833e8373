"""A point in the life of a job that somebody gave a name: the checkpoints of all its tasks in one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from stack.model.checkpoint import Checkpoint, OutputPoint
from stack.model.plan import TaskId

# Points that the stack takes by itself are named so, with their time.
ALIGNED_PREFIX = "aligned-"


@dataclass(frozen=True, slots=True)
class Annotated:
    """A named point. `aligned`: all tasks stood still at it, so that it is one moment of the whole job; what
    stages pass to each other was read to its end, and `outputs` tell where outputs ended.
    """

    job: str
    name: str
    time_ms: int
    by: str
    checkpoints: Mapping[TaskId, Checkpoint]
    values: Mapping[str, str] = field(default_factory=dict)
    aligned: bool = True
    outputs: Mapping[str, OutputPoint] = field(default_factory=dict)


def aligned_name(time_ms: int) -> str:
    """The name of a point that the stack took by itself."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{ALIGNED_PREFIX}{moment:%Y%m%dT%H%M%S}Z"


def annotation_key(job: str, name: str) -> bytes:
    """The key of a named point; no task's name begins with that sign."""
    return f"{job}/@{name}".encode()


def annotation_name(key: bytes) -> tuple[str, str]:
    """The job and the name behind a key."""
    job, _, name = key.decode().partition("/@")
    return job, name
