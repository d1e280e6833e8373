"""Who runs which task: balanced, and nothing moves that can stay."""

from __future__ import annotations

from collections.abc import Iterable

from stack.model.plan import Plan, TaskId


def assign(
    tasks: Iterable[TaskId], slots: Iterable[int], previous: Plan | None = None
) -> dict[int, tuple[TaskId, ...]]:
    """Tasks per slot: counts differ by at most one, and as few tasks as possible leave their slot.

    A slot without any task is in the answer too. Equal input gives an equal answer.
    """
    ready = sorted(set(slots))
    wanted = sorted(set(tasks))
    if not ready:
        return {}
    if previous is not None and _is_balanced(wanted, ready, previous):
        return {slot: previous.slots[slot].tasks for slot in ready}
    kept = _kept(wanted, ready, previous)
    shares = _shares(len(wanted), {slot: len(held) for slot, held in kept.items()})
    homeless = set(wanted)
    for slot in ready:
        kept[slot] = kept[slot][: shares[slot]]
        homeless.difference_update(kept[slot])
    waiting = sorted(homeless)
    for slot in ready:
        missing = shares[slot] - len(kept[slot])
        kept[slot] = sorted([*kept[slot], *waiting[:missing]])
        waiting = waiting[missing:]
    return {slot: tuple(kept[slot]) for slot in ready}


def _is_balanced(wanted: list[TaskId], ready: list[int], plan: Plan) -> bool:
    """Whether the plan gives exactly these slots exactly these tasks, in fair shares."""
    slots = plan.slots
    if len(slots) < len(ready) or any(slot not in slots for slot in ready):
        return False
    shares = [slots[slot].tasks for slot in ready]
    counts = list(map(len, shares))
    return max(counts) - min(counts) <= 1 and [task for share in shares for task in share] == wanted


def _kept(wanted: list[TaskId], ready: list[int], previous: Plan | None) -> dict[int, list[TaskId]]:
    """What each slot that is still there had, as far as it is still wanted; no task twice."""
    left = set(wanted)
    kept: dict[int, list[TaskId]] = {}
    for slot in ready:
        before = previous.slots.get(slot) if previous else None
        kept[slot] = sorted(task for task in (before.tasks if before else ()) if task in left)
        left.difference_update(kept[slot])
    return kept


def _shares(count: int, held: dict[int, int]) -> dict[int, int]:
    """How many tasks each slot gets: the larger shares go to those that hold the most already."""
    small, larger = divmod(count, len(held))
    by_holding = sorted(held, key=lambda slot: (-held[slot], slot))
    return {slot: small + (place < larger) for place, slot in enumerate(by_holding)}
