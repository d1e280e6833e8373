"""What the fleet says of itself: how a job is doing, who leads it, which runners there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class JobState(StrEnum):
    """How a job is doing, in one word."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"  # Spark has too few slots for it; the others work
    PAUSED = "paused"
    DRAINED = "drained"
    FAILED = "failed"  # a person has to do something: see message and hint
    STOPPING = "stopping"
    REWINDING = "rewinding"  # a rewind is under way, or was left half-way: repeat it


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What the runner of a job says of it. `place` names the record where one is to blame."""

    state: JobState
    message: str = ""
    hint: str = ""
    generation: int = 0
    slots_wanted: int = 0
    slots_ready: int = 0
    version: str = ""
    runner: str = ""
    # Two that say the same are equal, whenever they said it.
    time_ms: int = field(default=0, compare=False)
    place: str = ""
    detail: str = ""
    # Which try of the job this is about: `resume` and `deploy` raise it.
    try_number: int = 0


def status_to_json(status: JobStatus) -> dict[str, Any]:
    """The status as plain JSON values."""
    return {name: getattr(status, name) for name in JobStatus.__slots__}


def status_from_json(tree: Mapping[str, Any]) -> JobStatus:
    """The status that `status_to_json` wrote."""
    return JobStatus(**{**tree, "state": JobState(tree["state"])})


@dataclass(frozen=True, slots=True)
class RunnerPlace:
    """A runner and its process. The start time tells it from a later process with the same pid."""

    id: str
    host: str
    pid: int
    started: float
    spark: str = ""


def runner_to_json(place: RunnerPlace) -> dict[str, Any]:
    """The place as plain JSON values."""
    return {name: getattr(place, name) for name in RunnerPlace.__slots__}


def runner_from_json(tree: Mapping[str, Any]) -> RunnerPlace:
    """The place that `runner_to_json` wrote."""
    return RunnerPlace(**tree)
