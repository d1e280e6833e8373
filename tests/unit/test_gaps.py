"""Records of an input that were undone by a rewind of whoever wrote them: a task passes over them."""

from __future__ import annotations

from typing import Any

import pytest

from stack.model.checkpoint import Checkpoint, Gap, InputPoint, gaps_of
from stack.model.job import ErrorPolicy, OnError
from stack.model.plan import TaskId
from tests.unit.work_world import PLACE, WorkWorld, click


def count(value: Any, ctx: Any) -> None:
    number = ctx.state.get(value["user"], 0) + 1
    ctx.state[value["user"]] = number
    ctx.emit("tallies", {"user": value["user"], "count": value["n"]})


def count_batch(batch: Any, ctx: Any) -> None:
    for value in batch.to_pylist():
        count(value, ctx)


def bad(value: Any, ctx: Any) -> None:
    if value["n"] in (4, 7):
        raise ValueError("bad")
    count(value, ctx)


def world(
    function: Any = count, *gaps: Gap, on_error: OnError = OnError.STOP, batch: bool = False
) -> WorkWorld:
    made = WorkWorld(function, ErrorPolicy(on_error), batch=batch)
    made.task.gaps = {PLACE: gaps}
    return made


def handled(made: WorkWorld) -> list[int]:
    return [number for _, number in made.tallies()]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("on_error", list(OnError))
def test_records_in_gaps_are_passed_over(batch: bool, on_error: OnError) -> None:
    made = world(count_batch if batch else count, Gap(2, 4), Gap(6, 9), on_error=on_error, batch=batch)
    made.give(click(number) for number in range(5))
    made.give(click(number) for number in range(5, 10))
    made.run()
    assert handled(made) == [0, 1, 4, 5, 9]
    assert made.task.positions[PLACE] == 10


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("on_error", list(OnError))
def test_a_portion_that_lies_in_a_gap_still_moves_the_task(batch: bool, on_error: OnError) -> None:
    made = world(count_batch if batch else count, Gap(0, 100), on_error=on_error, batch=batch)
    made.give(click(number) for number in range(40))
    made.run()
    assert handled(made) == []
    assert made.task.positions[PLACE] == 40
    assert made.task.has_changes
    assert made.counts() == {}
    assert made.task.event_time_ms is None


@pytest.mark.parametrize("on_error", [OnError.DEAD_LETTER, OnError.SKIP])
def test_errors_beside_gaps_name_the_right_record(on_error: OnError) -> None:
    made = world(bad, Gap(2, 5), on_error=on_error)
    made.give(click(number) for number in range(10))
    made.run()
    sent = made.sent()
    letters = [one for one in sent.records if one[0] == "t.count.dead"]
    assert len(letters) == (1 if on_error is OnError.DEAD_LETTER else 0)
    assert made.task.positions[PLACE] == 10
    assert sum(made.counts().values()) == 6


def test_the_letter_of_a_record_behind_a_gap_tells_its_offset() -> None:
    made = world(bad, Gap(2, 5), on_error=OnError.DEAD_LETTER)
    made.give(click(number) for number in range(10))
    made.run()
    assert [letter.offset for letter in made.letters()] == [7]


def test_a_task_that_stands_inside_a_portion_begins_where_it_stands() -> None:
    made = world(count, Gap(4, 6))
    made.task.positions[PLACE] = 3
    made.give(click(number) for number in range(8))
    made.run()
    assert handled(made) == [3, 6, 7]


def test_gaps_are_told_by_place() -> None:
    point = InputPoint("clicks", "id", 2, {0: 5, 1: 7}, {1: (Gap(8, 9),)})
    one = Checkpoint("count", TaskId("main", 0), "v1", 1, 0, {"clicks": point})
    assert gaps_of(one) == {("clicks", 1): (Gap(8, 9),)}
