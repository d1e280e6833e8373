"""How a job is doing, in words for people."""

from __future__ import annotations

from stack.engine.supervision import COLD_S, REGISTER_S, Facts, Launched, Memory
from stack.model.fleet import JobState, JobStatus
from stack.model.job import Desired, JobEntry
from stack.model.plan import Plan, TaskState

_SLOTS_HINT = "Spark has no core free for them: raise N in spark.master = local[N], or add workers."


def is_late(launched: Launched, facts: Facts) -> bool:
    """Whether a container should have registered by now."""
    if launched.registered_at is not None:
        return False
    if facts.warm_at is None:
        return facts.now - launched.at >= COLD_S
    return facts.now - max(launched.at, facts.warm_at) >= REGISTER_S


def status_of(memory: Memory, facts: Facts) -> JobStatus:
    """The status of a job as of now."""
    state, message, hint = _words(memory, facts)
    plan, failure = memory.plan, memory.failure
    return JobStatus(
        state=state,
        message=message,
        hint=hint,
        generation=plan.generation if plan else 0,
        slots_wanted=len(plan.slots) if plan else 0,
        slots_ready=len(_ready(plan, facts)) if plan else 0,
        version=facts.entry.spec.version if facts.entry else plan.version if plan else "",
        runner=facts.runner,
        time_ms=facts.time_ms,
        place=failure.place if failure else "",
        detail=failure.detail if failure else "",
        try_number=facts.entry.try_number if facts.entry else 0,
    )


def _words(memory: Memory, facts: Facts) -> tuple[JobState, str, str]:
    entry, plan = facts.entry, memory.plan
    left = f"{len(memory.launches)} containers are still running" if memory.launches else ""
    if entry is None:
        return JobState.STOPPING, "it is being removed", ""
    if memory.failure is not None:
        return _failure_words(memory, entry)
    if entry.rewind is not None:
        return (JobState.STOPPING, left, "") if left else (JobState.REWINDING, *_rewind_words(entry))
    if entry.desired is Desired.PAUSED:
        return (JobState.STOPPING if left else JobState.PAUSED), left, ""
    if memory.drained_try is not None:
        return (JobState.STOPPING if left else JobState.DRAINED), left, ""
    if facts.stopping:
        return JobState.STOPPING, "its runner stops; the next one goes on with it", ""
    if plan is None or not plan.slots:
        version = plan.version if plan else entry.spec.version
        if memory.launches and version != entry.spec.version:
            return JobState.STOPPING, f"version {version} stops, then {entry.spec.version} starts", ""
        return (JobState.STOPPING, f"it starts again; {left}", "") if left else (JobState.STARTING, "", "")
    return _running_words(memory, plan, facts)


def _rewind_words(entry: JobEntry) -> tuple[str, str]:
    name = entry.spec.name
    return (
        f"it goes back ({entry.rewind})",
        f"If nobody is at it any more, `stack rewind {name}` brings it to its end.",
    )


def _failure_words(memory: Memory, entry: JobEntry) -> tuple[JobState, str, str]:
    if memory.failure is None:
        return JobState.FAILED, "", ""
    if not entry.confirmed and entry.previous is not None:
        message = f"version {entry.spec.version} failed, {entry.previous.version} comes back: "
        return JobState.STOPPING, message + memory.failure.message, memory.failure.hint
    return JobState.FAILED, memory.failure.message, memory.failure.hint


def _ready(plan: Plan, facts: Facts) -> set[int]:
    here = {(report.slot, report.attempt) for report in facts.reports}
    return {slot for slot, one in plan.slots.items() if (slot, one.attempt) in here}


def _running_words(memory: Memory, plan: Plan, facts: Facts) -> tuple[JobState, str, str]:
    ready = _ready(plan, facts)
    late = [
        slot
        for slot, one in memory.launches.items()
        if slot in plan.slots and slot not in ready and is_late(one, facts)
    ]
    if late:
        what = "1 slot" if len(late) == 1 else f"{len(late)} slots"
        return JobState.WAITING, f"waiting for {what}", _SLOTS_HINT
    planned = [task for one in plan.slots.values() for task in one.tasks]
    at_work = {
        task
        for report in facts.reports
        if report.slot in ready
        for task, one in report.tasks.items()
        if one.state is TaskState.RUNNING
    }
    at_work &= set(planned)
    undrained = [slot for slot in plan.slots if slot not in memory.drained]
    if plan.drain:
        return JobState.RUNNING, f"draining; {len(undrained)} of {len(plan.slots)} containers read on", ""
    if len(ready) == len(plan.slots) and len(at_work) == len(planned):
        return JobState.RUNNING, "", ""
    fell = [
        f"container {slot} ended ({memory.falls[slot].message}) and is started again"
        for slot in sorted(plan.slots)
        if slot not in ready and slot in memory.falls and memory.falls[slot].message
    ]
    return JobState.STARTING, "; ".join(fell) or f"{len(at_work)} of {len(planned)} tasks run", ""
