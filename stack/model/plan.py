"""Who runs what: tasks on containers, with a generation number; and what containers report of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stack.model.job import MAIN_STAGE, JobSpec


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """One stage and one partition: the unit of state, order and recovery."""

    stage: str
    partition: int

    def __str__(self) -> str:
        return f"{self.stage}-{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """The task that `str` wrote; ValueError if it is none."""
        stage, _, partition = text.rpartition("-")
        return cls(stage, int(partition))


def tasks_of(partitions: int, stage: str = MAIN_STAGE) -> tuple[TaskId, ...]:
    """All tasks of a stage, in order."""
    return tuple(TaskId(stage, number) for number in range(partitions))


def job_tasks(spec: JobSpec) -> tuple[TaskId, ...]:
    """All tasks of a job, those of its first stage first."""
    return tuple(task for stage, partitions in spec.stages.items() for task in tasks_of(partitions, stage))


def task_number(spec: JobSpec, task: TaskId) -> int:
    """The place of a task among all tasks of its job."""
    before = 0
    for stage, partitions in spec.stages.items():
        if stage == task.stage:
            break
        before += partitions
    return before + task.partition


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """What one container does: which attempt of it is the valid one, and its tasks."""

    attempt: int
    tasks: tuple[TaskId, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole plan of a job. It is the only thing by which a runner tells containers what to do.

    A slot that is not in the plan has no container: one that runs commits, releases its tasks and ends.
    `since` is the generation in which a task came to its slot: it is opened once `released` says exactly
    that (see `stack.engine.ownership`). `holders` are other slots that may have had the task open when the
    plan was made. With `drain` containers read to the ends of their inputs as of now: first those of the
    first stage (1), then, with a plan of its own for each, those of the stages behind, which read what it has
    written. With the last of them drained they commit and end.
    """

    generation: int
    version: str
    slots: Mapping[int, SlotPlan] = field(default_factory=dict)
    since: Mapping[TaskId, int] = field(default_factory=dict)
    drain: int = 0
    holders: Mapping[TaskId, frozenset[int]] = field(default_factory=dict)


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain JSON values."""
    return {
        "format": 1,
        "generation": plan.generation,
        "version": plan.version,
        "drain": plan.drain,
        "slots": {
            str(slot): {"attempt": one.attempt, "tasks": [str(task) for task in one.tasks]}
            for slot, one in plan.slots.items()
        },
        "since": {str(task): generation for task, generation in plan.since.items()},
        "holders": {str(task): sorted(slots) for task, slots in plan.holders.items()},
    }


def plan_from_json(tree: Mapping[str, Any]) -> Plan:
    """The plan that `plan_to_json` wrote."""
    return Plan(
        generation=int(tree["generation"]),
        version=str(tree["version"]),
        drain=int(tree["drain"]),
        slots={
            int(slot): SlotPlan(int(one["attempt"]), tuple(map(TaskId.parse, one["tasks"])))
            for slot, one in tree["slots"].items()
        },
        since={TaskId.parse(task): int(generation) for task, generation in tree["since"].items()},
        holders={TaskId.parse(task): frozenset(slots) for task, slots in tree["holders"].items()},
    )


class TaskState(StrEnum):
    """Where a task of a container is on its way."""

    WAITING = "waiting"  # its old owner has not released it yet
    RESTORING = "restoring"
    BOOTSTRAPPING = "bootstrapping"
    RUNNING = "running"
    DRAINED = "drained"  # it has read all that it should, and waits for the stages behind it


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a container says of one task. `note` is for people: how a restore goes, why it waits."""

    state: TaskState
    lag: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ContainerReport:
    """What a container says of itself in its ZooKeeper node; `commits` counts since it started.

    `generation` is that of the newest plan that it has carried out: it has no task open that this plan
    gives to another slot, and has released those that it had.
    """

    slot: int
    attempt: int
    generation: int
    version: str
    runner: str
    host: str
    pid: int
    commits: int = 0
    records: int = 0
    records_per_s: float = 0.0
    memory_bytes: int = 0
    tasks: Mapping[TaskId, TaskReport] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    # Records that failed since it started, by what became of them.
    faults: Mapping[str, int] = field(default_factory=dict)
    # The request to stand still that it has carried out, see `Stillness`; empty while it works.
    still: str = ""


def report_to_json(report: ContainerReport) -> dict[str, Any]:
    """The report as plain JSON values."""
    tree = {name: getattr(report, name) for name in ContainerReport.__slots__}
    tree["tasks"] = {
        str(task): {"state": str(one.state), "lag": one.lag, "note": one.note}
        for task, one in report.tasks.items()
    }
    return tree


def report_from_json(tree: Mapping[str, Any]) -> ContainerReport:
    """The report that `report_to_json` wrote."""
    tasks = {
        TaskId.parse(task): TaskReport(TaskState(one["state"]), one["lag"], one["note"])
        for task, one in tree["tasks"].items()
    }
    return ContainerReport(**{**tree, "tasks": tasks})


class Reason(StrEnum):
    """Why a container ended."""

    STOPPED = "stopped"  # the plan said so; its tasks are committed and released
    DRAINED = "drained"  # as STOPPED, and its inputs were read to the end
    FENCED = "fenced"  # another attempt took over
    ORPHANED = "orphaned"  # its runner or its executor is gone
    LOST = "lost"  # ZooKeeper or Kafka was away too long, or the outcome of a commit is unknown; try again
    FAILED = "failed"  # the job's code or its data is at fault; see the message


@dataclass(frozen=True, slots=True)
class Ending:
    """How a container ended, as its runner learns it. `place` names the record where one is to blame.

    With `retry` the same may work next time; without, a person has to change something first.
    """

    reason: Reason
    message: str = ""
    hint: str = ""
    place: str = ""
    retry: bool = True
    detail: str = ""
