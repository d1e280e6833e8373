"""A point in the life of a job that somebody gave a name: the checkpoints of all its tasks in one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stack.model.checkpoint import Checkpoint
from stack.model.plan import TaskId


@dataclass(frozen=True, slots=True)
class Annotated:
    """A named point. `aligned`: all tasks stood still at it, so that it is one moment of the whole job."""

    job: str
    name: str
    time_ms: int
    by: str
    checkpoints: Mapping[TaskId, Checkpoint]
    values: Mapping[str, str] = field(default_factory=dict)
    aligned: bool = True


def annotation_key(job: str, name: str) -> bytes:
    """The key of a named point; no task's name begins with that sign."""
    return f"{job}/@{name}".encode()


def annotation_name(key: bytes) -> tuple[str, str]:
    """The job and the name behind a key."""
    job, _, name = key.decode().partition("/@")
    return job, name
