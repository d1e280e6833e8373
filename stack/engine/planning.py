"""The next plan of a job, and who may still have a task open."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from stack.model.plan import ContainerReport, Plan, SlotPlan, TaskId

Holders = Mapping[TaskId, frozenset[int]]


def owners(plan: Plan | None) -> dict[TaskId, int]:
    """The slot of every task that has one."""
    return {task: slot for slot, one in (plan.slots if plan else {}).items() for task in one.tasks}


def next_plan(
    previous: Plan | None,
    holders: Holders,
    assigned: Mapping[int, tuple[TaskId, ...]],
    fresh: Iterable[int],
    *,
    version: str,
    drain: int = 0,
) -> Plan | None:
    """The plan that gives each slot its tasks, or None if that is what the previous one does.

    `fresh` are the slots that get a new attempt; it is numbered by the plan's generation, so that no two
    attempts of a slot ever have the same number.
    """
    generation = (previous.generation if previous else 0) + 1
    new = set(fresh)
    slots = {
        slot: SlotPlan(generation if slot in new else _attempt(previous, slot), tasks)
        for slot, tasks in assigned.items()
    }
    same = previous is not None and previous.slots == slots and previous.drain == drain
    if previous is not None and same and previous.version == version:
        return None
    before, after = owners(previous), {task: slot for slot, tasks in assigned.items() for task in tasks}
    old_since = previous.since if previous else {}
    since = {
        task: old_since[task] if before.get(task) == slot else generation for task, slot in after.items()
    }
    return Plan(generation, version, slots, since, drain, _next_holders(holders, before, after))


def _attempt(plan: Plan | None, slot: int) -> int:
    return plan.slots[slot].attempt if plan and slot in plan.slots else 0


def _next_holders(
    holders: Holders, before: Mapping[TaskId, int], after: Mapping[TaskId, int]
) -> dict[TaskId, frozenset[int]]:
    """Who had a task stays a holder until it is known not to have it; its new owner never is one."""
    found = {}
    for task in {*holders, *before, *after}:
        slots = set(holders.get(task, ()))
        if task in before and before[task] != after.get(task):
            slots.add(before[task])
        slots.discard(after.get(task, -1))
        if slots:
            found[task] = frozenset(slots)
    return found


def without(
    holders: Holders,
    slot: int,
    plan: Plan | None,
    up_to: int | None = None,
    still: Collection[TaskId] = (),
) -> Holders:
    """The holders after a slot is known to have nothing open that it had at a generation.

    Without a generation it has nothing open at all. `still` are tasks of which it says otherwise.
    """
    since = plan.since if plan else {}

    def gone(task: TaskId) -> bool:
        if task in still:
            return False
        return up_to is None or since.get(task, plan.generation if plan else 0) <= up_to

    left = {task: slots - {slot} if gone(task) else slots for task, slots in holders.items()}
    return {task: slots for task, slots in left.items() if slots}


def after_reports(holders: Holders, plan: Plan, reports: Iterable[ContainerReport]) -> Holders:
    """The holders after containers said which plan they have carried out."""
    for report in reports:
        mine = plan.slots.get(report.slot)
        if mine is None or mine.attempt == report.attempt:
            holders = without(holders, report.slot, plan, report.generation, report.tasks)
    return holders


def after_releases(holders: Holders, plan: Plan, released: Mapping[TaskId, int]) -> Holders:
    """The holders after containers released tasks themselves."""
    return {task: slots for task, slots in holders.items() if not _is_settled(plan, task, released)}


def _is_settled(plan: Plan, task: TaskId, released: Mapping[TaskId, int]) -> bool:
    return task in plan.since and released.get(task, 0) >= plan.since[task]


def releasable(holders: Holders, plan: Plan, released: Mapping[TaskId, int]) -> dict[TaskId, int]:
    """Tasks that nobody else can have open and that nobody has released yet."""
    return {
        task: generation
        for task, generation in plan.since.items()
        if not holders.get(task) and not _is_settled(plan, task, released)
    }
