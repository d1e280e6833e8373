"""Random lives of several containers that write to one table: a cut is right, or it is refused.

The model knows for each record of the table which commit it belongs to. What it does not have from the engine
are transactions: those of all containers stand in one log per partition, with markers at their ends, and
answers about where the log ends come early or late.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.engine.output_ends import OutputEnds
from stack.engine.rewind import Cut, is_settled, may_be_first, output_cut
from stack.model.checkpoint import REWIND_SLOT, Checkpoint, OutputPoint
from stack.model.plan import TaskId

TABLE, TOPIC_ID = "totals", "t-id"
# More of them for whoever has changed something here.
EXAMPLES = int(os.environ.get("FEEDSTACK_HISTORIES", "400"))
Targets = dict[TaskId, Checkpoint | None]


@dataclass
class Made:
    """A record of the table: the checkpoint of the task that wrote it, once that is committed."""

    task: TaskId | None
    point: Checkpoint | None = None


@dataclass
class Slot:
    """A container: its tasks, what it has sent since its last commit, and a commit that is under way."""

    number: int
    ends: OutputEnds
    attempt: int = 1
    tasks: dict[TaskId, bool] = field(default_factory=dict)  # with whether it has committed here
    sent: list[tuple[int, Made]] = field(default_factory=list)
    touched: set[TaskId] = field(default_factory=set)
    points: list[Checkpoint] | None = None
    answer: tuple[int, ...] | None = None


class World:
    """The log, the checkpoints feed and the containers."""

    def __init__(self, partitions: int, slots: int, *, noted: bool) -> None:
        self.noted = noted
        self.logs: list[list[Made]] = [[] for _ in range(partitions)]
        # Checkpoints in the order of the feed; None where one was not committed.
        self.feed: list[Checkpoint | None] = []
        self.numbers = {TaskId("main", number): 0 for number in range(partitions)}
        self.last_slot: dict[tuple[TaskId, int], int] = {}
        self.time_ms = 1_000
        self.slots = [Slot(number, OutputEnds(self.ends)) for number in range(slots)]
        for task in self.numbers:
            self.slots[task.partition % slots].tasks[task] = False

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(map(len, self.logs))

    # What containers do

    def emit(self, slot: Slot, task: TaskId, partition: int | None) -> None:
        """A task changes, and sends a record unless there is no partition for it."""
        if slot.points is not None or task not in slot.tasks:
            return
        slot.touched.add(task)
        if partition is not None:
            made = Made(task)
            self.logs[partition].append(made)
            slot.sent.append((partition, made))

    def start(self, slot: Slot) -> None:
        """A commit begins: checkpoints are written, and seen if it ends well."""
        if slot.points is not None or not slot.touched:
            return
        wrote = slot.ends.wrote(frozenset(number for number, _ in slot.sent) if self.noted else None)
        point = OutputPoint(TABLE, TOPIC_ID, slot.ends.told(wrote), wrote)
        slot.points = []
        for task in sorted(slot.touched):
            made = Checkpoint(
                "sum",
                task,
                "v1",
                self.numbers[task] + 1,
                self.time_ms,
                {},
                outputs={TABLE: point},
                slot=slot.number,
                attempt=slot.attempt,
            )
            slot.points.append(made)
            self.feed.append(made)

    def ask(self, slot: Slot) -> None:
        """Where the table ends is asked for before the commit is over: everything of it has arrived."""
        if slot.points is not None and slot.answer is None:
            slot.answer = self.ends

    def finish(self, slot: Slot) -> None:
        if slot.points is None:
            return
        self._mark(slot)
        found = slot.answer or self.ends
        by_task = {one.task: one for one in slot.points}
        for _, made in slot.sent:
            made.point = by_task[made.task] if made.task is not None else None
        wrote = slot.points[0].outputs[TABLE].wrote
        assert slot.ends.is_good(found, wrote)
        fresh = [task for task in by_task if not slot.tasks[task]]
        before = {self.last_slot.get((task, self.numbers[task])) for task in fresh}
        has_new = bool(before - {None, slot.number})
        slot.ends.note(found, wrote, has_points=True, has_new=has_new)
        for task, point in by_task.items():
            self._count(task, point)
            slot.tasks[task] = True
        self._forget(slot)

    def abort(self, slot: Slot) -> None:
        """The transaction is aborted; its records stay in the log, and nobody sees them."""
        if slot.sent:
            self._mark(slot)
        for point in slot.points or ():
            self.feed[next(at for at, one in enumerate(self.feed) if one is point)] = None
        self._forget(slot)

    def restart(self, slot: Slot) -> None:
        """Killed, and another attempt takes its place."""
        self.abort(slot)
        slot.attempt += 1
        slot.ends = OutputEnds(self.ends)
        slot.tasks = dict.fromkeys(slot.tasks, False)

    def move(self, task: TaskId, to: Slot) -> None:
        owner = next(one for one in self.slots if task in one.tasks)
        if owner is to:
            return
        self.settle(owner)
        del owner.tasks[task]
        to.tasks[task] = False

    def settle(self, slot: Slot) -> None:
        """Commit all that is there."""
        self.finish(slot)
        self.start(slot)
        self.finish(slot)

    def _mark(self, slot: Slot) -> None:
        for partition in sorted({number for number, _ in slot.sent}):
            self.logs[partition].append(Made(None))

    def _count(self, task: TaskId, point: Checkpoint) -> None:
        self.numbers[task] = point.number
        self.last_slot[task, point.number] = point.slot

    def _forget(self, slot: Slot) -> None:
        slot.sent, slot.touched, slot.points, slot.answer = [], set(), None, None

    # What rewinds do

    def rewind(self, corrections: int, kills: bool) -> None:
        """Every container stops, with a last commit or without; intents, corrections, checkpoints."""
        for slot in self.slots:
            (self.abort if kills else self.settle)(slot)
        self._command()
        for number in range(corrections):
            partition = number % len(self.logs)
            self.logs[partition] += [Made(TaskId("rewind", 0)), Made(None)]
        landing = self._command()
        for log in self.logs:
            for made in log:
                if made.task == TaskId("rewind", 0) and made.point is None:
                    made.point = landing
        for slot in self.slots:
            self.restart(slot)

    def _command(self) -> Checkpoint:
        point = OutputPoint(TABLE, TOPIC_ID, self.ends, frozenset())
        made = None
        for task in self.numbers:
            number = self.numbers[task] + 1
            made = Checkpoint(
                "sum", task, "v1", number, self.time_ms, {}, outputs={TABLE: point}, slot=REWIND_SLOT
            )
            self.feed.append(made)
            self._count(task, made)
        assert made is not None
        return made

    # What is asked

    def checkpoints(self) -> list[Checkpoint]:
        return [one for one in self.feed if one is not None]

    def cut(self, targets: Targets) -> tuple[Cut, int]:
        """As a plan makes it: the targets, then everything from the first commit on that goes, in portions,
        until no more is needed. With how many were looked at."""
        every = self.checkpoints()
        places = [place for place, one in enumerate(every) if goes(one, targets)]
        start = min(places, default=len(every))
        later = [one for one in every[:start] if one in targets.values()]
        firsts = {
            task
            for task, one in targets.items()
            if one is not None and may_be_first(one, self.last_slot.get((task, one.number - 1)))
        }
        for one in [*every[start:], None]:
            found = output_cut(TABLE, self.ends, targets, later, (TABLE, TOPIC_ID), firsts=firsts)
            if one is None or is_settled(later, targets, [found]):
                break
            later.append(one)
        return found, len(later)

    def faults(self, cut: Cut, targets: Targets) -> Iterator[str]:
        """Records on the wrong side of a cut that was not refused."""
        for partition, log in enumerate(self.logs):
            for offset, made in enumerate(log):
                if made.point is None or partition in cut.unclear:
                    continue
                is_gone = goes(made.point, targets)
                if is_gone != (offset >= cut.offsets[partition]):
                    side = "goes, but stands before" if is_gone else "stays, but stands behind"
                    told = f"{made.point.task}#{made.point.number} of container {made.point.slot}"
                    yield f"partition {partition}, offset {offset} {side} {cut.offsets[partition]}: {told}"


def goes(one: Checkpoint, targets: Targets) -> bool:
    target = targets[one.task]
    return target is None or one.number > target.number


def at_place(world: World, place: int) -> Targets:
    """Each task as it stood at a place of the checkpoints feed; checkpoints of a command are all or none."""
    every = world.checkpoints()
    while 0 < place < len(every) and every[place].slot == REWIND_SLOT and every[place].task.partition:
        place += 1
    return dict.fromkeys(world.numbers) | {one.task: one for one in every[:place]}


# A step: what is done, by which container, with which task, to which partition.
OFTEN = {"emit": 6, "settle": 4, "quiet": 3, "move": 3, "start": 3, "finish": 3}
SELDOM = ("ask", "abort", "restart", "rewind", "tick")
STEPS = st.tuples(
    st.sampled_from([*(what for what, times in OFTEN.items() for _ in range(times)), *SELDOM]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 2),
)


def live(world: World, steps: list[tuple[str, int, int, int]], *, is_own: bool) -> None:
    """Do the steps. `is_own`: each task writes to the partition of its own number."""
    for what, who, which, where in steps:
        slot = world.slots[who % len(world.slots)]
        task = TaskId("main", which % len(world.numbers))
        match what:
            case "emit" | "quiet":
                partition = task.partition if is_own else where % len(world.logs)
                owner = next(one for one in world.slots if task in one.tasks)
                world.emit(owner, task, None if what == "quiet" else partition)
            case "move":
                world.move(task, slot)
                for _ in range(where):
                    # Its first commits there may have nothing to write.
                    world.emit(slot, task, None)
                    world.settle(slot)
            case "rewind":
                world.rewind(where, kills=bool(which % 2))
            case "tick":
                world.time_ms += where - 1
            case _:
                getattr(world, what)(slot)
    for slot in world.slots:
        world.settle(slot)


@settings(max_examples=EXAMPLES)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.booleans(), st.booleans()),
    st.lists(STEPS, min_size=20, max_size=60),
    st.data(),
)
def test_a_cut_is_right_or_refused(
    sizes: tuple[int, int],
    ways: tuple[bool, bool],
    steps: list[tuple[str, int, int, int]],
    data: Any,
) -> None:
    (partitions, slots), (is_own, noted) = sizes, ways
    world = World(partitions, slots, noted=noted)
    live(world, steps, is_own=is_own)
    for place in range(len(world.checkpoints()) + 1):
        targets = at_place(world, place)
        cut, _ = world.cut(targets)
        assert list(world.faults(cut, targets)) == []
    if any(one.slot == REWIND_SLOT for one in world.checkpoints()):
        return
    # Tasks may also go back to places of their own.
    places = [data.draw(st.integers(0, len(world.checkpoints()))) for _ in world.numbers]
    targets = {task: at_place(world, place)[task] for task, place in zip(world.numbers, places, strict=True)}
    cut, _ = world.cut(targets)
    assert list(world.faults(cut, targets)) == []


@pytest.mark.parametrize(("partitions", "slots"), [(2, 2), (4, 2), (4, 3)])
def test_moments_are_hardly_ever_refused_where_each_partition_has_one_writer(
    partitions: int, slots: int
) -> None:
    chance = random.Random(7)
    world = World(partitions, slots, noted=True)
    for _ in range(600):
        world.time_ms += 1
        slot = chance.choice(world.slots)
        if slot.points is not None:
            (world.ask if chance.random() < 0.3 else world.finish)(slot)
        elif chance.random() < 0.25:
            world.start(slot)
        else:
            task = chance.choice(list(slot.tasks))
            world.emit(slot, task, None if chance.random() < 0.2 else task.partition)
    for slot in world.slots:
        world.settle(slot)
    every = world.checkpoints()
    refused = []
    for moment in sorted({one.time_ms for one in every})[:-1]:
        targets = dict.fromkeys(world.numbers) | {one.task: one for one in every if one.time_ms <= moment}
        cut, looked_at = world.cut(targets)
        assert list(world.faults(cut, targets)) == []
        assert cut.unclear or looked_at < 40
        refused.append(bool(cut.unclear))
    assert len(refused) > 50
    assert sum(refused) <= 0.06 * len(refused)


def test_a_task_that_has_been_idle_for_long_does_not_hide_what_others_do() -> None:
    world = World(2, 2, noted=True)
    idle, busy = world.numbers
    for slot, task in zip(world.slots, (idle, busy), strict=True):
        world.emit(slot, task, task.partition)
        world.settle(slot)
    for _ in range(300):
        world.emit(world.slots[1], busy, busy.partition)
        world.settle(world.slots[1])
    targets = at_place(world, 200)
    cut, looked_at = world.cut(targets)
    assert (cut.offsets, cut.unclear) == ((2, 2 * 199), ())
    assert list(world.faults(cut, targets)) == []
    # The idle task may still come: nobody knows until the end. But what came before the point is passed over.
    assert looked_at == 302 - 200 + 2
