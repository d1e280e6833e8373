"""Which partitions a container reads, for which of its tasks, from where and until when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stack.kafka.inputs import InputReader
from stack.model.place import Place
from stack.model.plan import TaskId
from stack.runtime.parts import Parts
from stack.runtime.task import Task


class Intake:
    """The inputs of the open tasks. A partition of a broadcast input is read once for all of them."""

    def __init__(self, parts: Parts, reader: InputReader) -> None:
        self._parts = parts
        self._reader = reader
        self._tasks: dict[TaskId, Task] = {}
        self._readers_of: dict[Place, list[Task]] = {}
        self._bootstrapping: dict[TaskId, list[Place]] = {}
        self._drain_ends: dict[Place, int] | None = None
        # Tasks that stand still: nothing is read for them.
        self._held: set[TaskId] = set()

    def begin(self, task: Task) -> None:
        """Read the inputs of a task, bootstrap inputs first."""
        self._tasks[task.id] = task
        first = [
            place
            for part in self._parts.sources[task.id.stage].values()
            if part.spec.bootstrap
            for place in part.places_of(task.id)
        ]
        if first:
            self._bootstrapping[task.id] = first
        for place in task.positions:
            self._readers_of.setdefault(place, []).append(task)
        self._assign(task)

    def end(self, task: Task) -> None:
        """Read no longer what only this task needed."""
        self._tasks.pop(task.id)
        self._held.discard(task.id)
        self._bootstrapping.pop(task.id, None)
        for place in task.positions:
            readers = self._readers_of[place]
            readers.remove(task)
            if not readers:
                del self._readers_of[place]
                self._reader.remove([place])

    def readers_of(self, place: Place) -> Sequence[Task]:
        """The tasks that a partition is read for."""
        tasks = self._readers_of.get(place, ())
        return [task for task in tasks if task.id not in self._held] if self._held else tasks

    def hold(self, task: Task) -> None:
        """Read nothing more for a task; what others read, too, goes on for them."""
        self._held.add(task.id)
        self._pause_held()

    def is_held(self, task: TaskId) -> bool:
        """Whether nothing is read for a task."""
        return task in self._held

    def let_go_on(self, task: Task) -> None:
        """Read on for a task from where it stands."""
        self._held.discard(task.id)
        self._assign(task)

    def _pause_held(self) -> None:
        self._reader.pause(
            place for place, tasks in self._readers_of.items() if all(task.id in self._held for task in tasks)
        )

    def has_read(self, task: Task, ends: Mapping[Place, int]) -> bool:
        """Whether a task has handled all that stands before these ends; what has none does not matter.

        The last records may be markers of transactions, which are never handed out.
        """
        return all(
            max(position, self._reader.passed(place, position)) >= ends.get(place, 0)
            for place, position in task.positions.items()
        )

    def is_bootstrapping(self, task: TaskId) -> bool:
        """Whether the task has not read its bootstrap inputs to their end yet."""
        return task in self._bootstrapping

    def _assign(self, task: Task) -> None:
        wanted = self._bootstrapping.get(task.id) or list(task.positions)
        self._reader.resume(wanted)
        new = {place: task.positions[place] for place in wanted if place not in self._reader.positions}
        # A shared partition that others have read further must be read again for this task.
        again = {
            place: task.positions[place]
            for place in wanted
            if place in self._reader.positions and task.positions[place] < self._reader.positions[place]
        }
        self._reader.remove(again)
        self._reader.add({**new, **again})

    def tend_bootstraps(self) -> None:
        """Let tasks whose bootstrap inputs are read to their end go on with the others."""
        for task_id, places in list(self._bootstrapping.items()):
            task = self._tasks[task_id]
            queued = any(task.positions[place] < self._reader.positions[place] for place in places)
            if not queued and self._reader.caught_up(places):
                del self._bootstrapping[task_id]
                self._assign(task)

    def go_back(self) -> None:
        """Read on from where the tasks stand, which is before what was read."""
        places = list(self._reader.positions)
        self._reader.remove(places)
        self._reader.add(
            {
                place: min(task.positions[place] for task in self._readers_of[place])
                for place in places
                if place in self._readers_of
            }
        )
        self._pause_held()

    def begin_drain(self, tasks: Iterable[TaskId]) -> None:
        """Note where the inputs of tasks end now; they need not be open yet."""
        sources = self._parts.sources
        places = {
            place for task in tasks for part in sources[task.stage].values() for place in part.places_of(task)
        }
        self._drain_ends = self._parts.stack.admin.all_ends(places)

    def is_drained(self, task: Task) -> bool:
        """Whether a task has handled everything up to those ends."""
        return self._drain_ends is not None and self.has_read(task, self._drain_ends)
