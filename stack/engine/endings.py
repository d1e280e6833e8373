"""What the end of a container means for its job: start again now, later, or not at all."""

from __future__ import annotations

from dataclasses import replace

from stack.engine.planning import without
from stack.engine.supervision import (
    ANY_FAULTS,
    FIRST_DELAY_S,
    HEALTHY_S,
    LONGEST_DELAY_S,
    SAME_FAULTS,
    Ended,
    Facts,
    Failure,
    Falls,
    Launched,
    Memory,
)
from stack.model.plan import Ending, Reason

_CLEAN = (Reason.STOPPED, Reason.DRAINED)


def absorb(memory: Memory, facts: Facts) -> Memory:
    """The memory after these endings. What an attempt that was replaced says in the end is not heard."""
    for ended in facts.endings:
        launched = memory.launches.get(ended.slot)
        if launched is not None and launched.attempt == ended.attempt:
            memory = _absorb(memory, facts, ended, launched)
    return memory


def _absorb(memory: Memory, facts: Facts, ended: Ended, launched: Launched) -> Memory:
    slot, ending = ended.slot, ended.ending
    launches = {number: one for number, one in memory.launches.items() if number != slot}
    memory = replace(memory, launches=launches)
    if ending.reason in _CLEAN:
        # It has released what it had, and its start had fenced all before it.
        memory = replace(memory, holders=without(memory.holders, slot, memory.plan))
    if ending.reason is Reason.DRAINED:
        return replace(memory, drained=memory.drained | {slot})
    if memory.plan is None or slot not in memory.plan.slots:
        return memory
    falls = fallen(memory.falls.get(slot, Falls()), ending, facts.now, _was_healthy(launched, facts.now))
    memory = replace(memory, falls={**memory.falls, slot: falls})
    if ending.reason is Reason.FAILED and memory.failure is None and is_hopeless(falls, ending):
        memory = replace(memory, failure=_failure(memory, facts, ending, falls))
    return memory


def _was_healthy(launched: Launched, now: float) -> bool:
    if launched.committed:
        return True
    if launched.registered_at is None:
        return False
    return (launched.vanished_at or now) - launched.registered_at >= HEALTHY_S


def fallen(falls: Falls, ending: Ending, now: float, healthy: bool) -> Falls:
    """The story of a slot after one more end: the first start again is at once, then it waits longer."""
    quick = 1 if healthy else falls.quick + 1
    same = faults = 0
    fault = ""
    if ending.reason is Reason.FAILED:
        fault = ending.place or ending.message
        same = falls.same_faults + 1 if fault == falls.fault else 1
        faults = falls.faults + 1
    delay_s = 0.0
    times = max(quick, same)
    if times > 1:
        delay_s = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (times - 2))
    return Falls(quick, now + delay_s, fault, same, faults, ending.message or str(ending.reason))


def is_hopeless(falls: Falls, ending: Ending) -> bool:
    """Whether the next start would only fail again."""
    return not ending.retry or falls.same_faults >= SAME_FAULTS or falls.faults >= ANY_FAULTS


def _failure(memory: Memory, facts: Facts, ending: Ending, falls: Falls) -> Failure:
    version = memory.plan.version if memory.plan else ""
    times = f" ({falls.same_faults} times in a row)" if falls.same_faults > 1 else ""
    return Failure(
        version=version,
        try_number=facts.entry.try_number if facts.entry else 0,
        message=f"{ending.message}{times}",
        hint=ending.hint,
        place=ending.place,
        detail=ending.detail,
    )
