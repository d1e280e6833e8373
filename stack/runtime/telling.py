"""What a container says of itself: its tasks, how far behind they are, how fast it is."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Mapping

from stack.kafka.inputs import InputReader
from stack.model.plan import ContainerReport, TaskId, TaskReport, TaskState
from stack.runtime.intake import Intake
from stack.runtime.launch import Launch
from stack.runtime.opening import Opening
from stack.runtime.task import Task

_LAG_S = 0.5
_RATE_S = 0.9


class Telling:
    """Gathers in the loop's thread what the membership's thread reports."""

    def __init__(self, launch: Launch, clock: Callable[[], float]) -> None:
        self._launch = launch
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._clock = clock
        self._looked_at = clock()
        self._lags: dict[TaskId, int | None] = {}
        self._rated_at, self._rated, self._rate = clock(), 0, 0.0

    def look_at_lags(self, tasks: Mapping[TaskId, Task], reader: InputReader) -> None:
        """Note how far behind commits are. Not when asked: while it reads, the client lets nobody in."""
        now = self._clock()
        if now - self._looked_at >= _LAG_S:
            self._looked_at = now
            self._lags = {task: reader.lag(one.committed) for task, one in tasks.items()}

    def tasks(
        self,
        waiting: Collection[TaskId],
        openings: Mapping[TaskId, Opening],
        tasks: Mapping[TaskId, Task],
        intake: Intake,
        drained: Collection[TaskId] = (),
    ) -> dict[TaskId, TaskReport]:
        """Each task, whatever became of it so far."""
        found = {task: TaskReport(TaskState.WAITING) for task in list(waiting)}
        for task, opening in list(openings.items()):
            found[task] = TaskReport(TaskState.RESTORING, note=opening.note)
        for task in list(tasks):
            first = intake.is_bootstrapping(task)
            state = TaskState.BOOTSTRAPPING if first else TaskState.RUNNING
            if task in drained:
                state = TaskState.DRAINED
            found[task] = TaskReport(state, self._lags.get(task))
        return found

    def report(
        self,
        tasks: dict[TaskId, TaskReport],
        *,
        generation: int,
        commits: int,
        records: int,
        memory_bytes: int,
        counters: dict[str, int],
        faults: dict[str, int],
        still: str,
    ) -> ContainerReport:
        """All of it."""
        return ContainerReport(
            slot=self._launch.slot,
            attempt=self._launch.attempt,
            generation=generation,
            version=self._launch.spec.version,
            runner=self._launch.runner,
            host=self._host,
            pid=self._pid,
            commits=commits,
            records=records,
            records_per_s=self._rate_of(records),
            memory_bytes=memory_bytes,
            tasks=tasks,
            counters=counters,
            faults=faults,
            still=still,
        )

    def _rate_of(self, records: int) -> float:
        now = self._clock()
        if now - self._rated_at >= _RATE_S:
            self._rate = (records - self._rated) / (now - self._rated_at)
            self._rated_at, self._rated = now, records
        return round(self._rate, 1)


def counters_of(tasks: Mapping[TaskId, Task]) -> dict[str, int]:
    """The counters of all tasks, added up."""
    found: dict[str, int] = {}
    for task in list(tasks.values()):
        for name, amount in dict(task.context.counters).items():
            found[name] = found.get(name, 0) + amount
    return found
