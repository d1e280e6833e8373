"""When a container may open a task, and what it says when it lets one go.

A plan gives a task to a slot in some generation, `since`. Who had it before releases it at exactly that
generation, and only then it is opened. Exactly: a task may be planned on to a third slot before the second
one opened it; the second one, which may not know yet, then sees a release that is not meant for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from stack.model.plan import Plan, TaskId


def is_current(plan: Plan, slot: int, attempt: int) -> bool | None:
    """Whether an attempt is the slot's valid one; None if the plan has no such slot: it is to end."""
    mine = plan.slots.get(slot)
    return None if mine is None else mine.attempt == attempt


def may_open(plan: Plan, slot: int, task: TaskId, released: Mapping[TaskId, int]) -> bool:
    """Whether the slot has the task by plan and nobody else can have it open."""
    mine = plan.slots.get(slot)
    if mine is None or task not in mine.tasks:
        return False
    return released.get(task) == plan.since[task]


def release_generation(plan: Plan, task: TaskId) -> int:
    """The generation at which a container releases a task that the plan no longer gives it."""
    return plan.since.get(task, plan.generation)
