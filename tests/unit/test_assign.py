"""Tasks on slots: balanced, sticky, the same answer every time."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from stack.engine.assign import assign
from stack.model.plan import Plan, SlotPlan, TaskId, tasks_of


def planned(assigned: Mapping[int, tuple[TaskId, ...]]) -> Plan:
    return Plan(1, "v", {slot: SlotPlan(1, tasks) for slot, tasks in assigned.items()})


def owners(assigned: Mapping[int, tuple[TaskId, ...]]) -> dict[TaskId, int]:
    return {task: slot for slot, tasks in assigned.items() for task in tasks}


def moved(before: Mapping[int, tuple[TaskId, ...]], after: Mapping[int, tuple[TaskId, ...]]) -> int:
    old, new = owners(before), owners(after)
    return sum(1 for task in new if task in old and old[task] != new[task])


def least_moves(tasks: int, before: Mapping[int, tuple[TaskId, ...]], slots: list[int]) -> int:
    """By the book: every slot keeps as much as a balanced share lets it, larger shares where it helps."""
    held = sorted((len(before.get(slot, ())) for slot in slots), reverse=True)
    small, larger = divmod(tasks, len(slots))
    kept = sum(min(have, small + (place < larger)) for place, have in enumerate(held))
    return len(owners(before)) - kept


def test_eight_tasks_on_two_slots_then_four_then_two() -> None:
    tasks = tasks_of(8)
    two = assign(tasks, [0, 1])
    assert {slot: len(held) for slot, held in two.items()} == {0: 4, 1: 4}
    four = assign(tasks, range(4), planned(two))
    assert moved(two, four) == 4
    assert all(len(held) == 2 for held in four.values())
    back = assign(tasks, [0, 1], planned(four))
    assert moved(four, back) == 4
    assert all(set(four[slot]) < set(back[slot]) for slot in (0, 1))


def test_more_slots_than_tasks_leaves_some_idle() -> None:
    assert assign(tasks_of(2), range(4)) == {0: (TaskId("main", 0),), 1: (TaskId("main", 1),), 2: (), 3: ()}


def test_without_a_slot_nothing_runs() -> None:
    assert assign(tasks_of(3), []) == {}


def test_a_plan_that_names_a_task_twice_is_healed() -> None:
    task = TaskId("main", 0)
    broken = Plan(1, "v", {0: SlotPlan(1, (task,)), 1: SlotPlan(1, (task, TaskId("main", 7)))})
    assert assign(tasks_of(1), [0, 1], broken) == {0: (task,), 1: ()}


@given(st.integers(0, 40), st.lists(st.sets(st.integers(0, 12), min_size=1), min_size=1, max_size=8))
def test_any_comings_and_goings_stay_balanced_and_move_the_least(count: int, members: list[set[int]]) -> None:
    tasks = tasks_of(count)
    before: dict[int, tuple[TaskId, ...]] = {}
    for ready in members:
        after = assign(tasks, ready, planned(before))
        assert sorted(owners(after)) == sorted(tasks)
        assert sum(map(len, after.values())) == count
        sizes = [len(held) for held in after.values()]
        assert max(sizes) - min(sizes) <= 1
        if before:
            assert moved(before, after) == least_moves(count, before, sorted(ready))
        assert assign(reversed(tasks), sorted(ready, reverse=True), planned(before)) == after
        before = after


@given(st.integers(1, 40), st.sets(st.integers(0, 12), min_size=1))
def test_the_same_members_change_nothing(count: int, ready: set[int]) -> None:
    tasks = tasks_of(count)
    first = assign(tasks, ready)
    assert assign(tasks, ready, planned(first)) == first
