"""What a runner does about one job: one look at the world in, orders out. No clock, no threads, no IO."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto

from stack.engine.assign import assign
from stack.engine.endings import absorb
from stack.engine.planning import after_releases, after_reports, next_plan, releasable, without
from stack.engine.proof import is_proven, overdue, proof_since
from stack.engine.status import is_late, status_of
from stack.engine.supervision import (
    CANCELLED_S,
    GONE_S,
    OTHERS_S,
    STOP_S,
    VANISHED_S,
    CancelSlot,
    ConfirmVersion,
    Facts,
    FenceSlot,
    Launched,
    LaunchSlot,
    MarkReleased,
    Memory,
    Order,
    RemoveJob,
    RollBack,
    SetStatus,
    WritePlan,
)
from stack.model.job import Desired, JobSpec
from stack.model.plan import Plan, TaskId, TaskState, job_tasks


class Goal(Enum):
    """What shall be the case with the containers of a job."""

    RUN = auto()
    DRAIN = auto()
    STOP = auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """What to remember and what to do, in this order."""

    memory: Memory
    orders: tuple[Order, ...]


def supervise(memory: Memory, facts: Facts) -> Decision:
    """Decide about a job. Orders are to be carried out one after the other; a failed one is repeated."""
    orders: list[Order] = []
    memory = _notice(memory, facts)
    memory = absorb(memory, facts)
    memory = _note_drain(_forget(memory, facts), facts)
    goal = _goal(memory, facts)
    memory = _replan(memory, facts, goal, orders)
    memory = _stop_the_rest(memory, facts, orders)
    memory = _settle(memory, facts, orders)
    memory = _prove(memory, facts, goal, orders)
    status = status_of(memory, facts)
    if memory.status is None or memory.status != status:
        memory = replace(memory, status=status)
        orders.append(SetStatus(status))
    if facts.entry is None and is_at_rest(memory):
        orders.append(RemoveJob())
    return Decision(memory, tuple(orders))


def is_at_rest(memory: Memory) -> bool:
    """Whether no container of the job runs and nothing is left to be fenced."""
    return not memory.launches and not memory.fencing and not memory.holders


def _serves(running: JobSpec, wanted: JobSpec) -> bool:
    """Whether containers that were started with one spec do what another one asks for."""
    return running is wanted or running == wanted or essence(running) == essence(wanted)


def essence(spec: JobSpec) -> JobSpec:
    """What must be equal for a running container to serve a spec: all but what only its runner looks at."""
    settings = replace(spec.settings, containers=1, deploy_limit_ms=0, align_ms=0)
    # Equal versions have equal code, wherever it stands in the code feed.
    code = replace(spec.code, first_offset=0, last_offset=0)
    return replace(spec, settings=settings, code=code, deployed_at_ms=0)


def _notice(memory: Memory, facts: Facts) -> Memory:
    """Note who registered, committed or vanished, and which slots are fenced."""
    here = {(report.slot, report.attempt): report for report in facts.reports}
    launches: dict[int, Launched] = {}
    for slot, one in memory.launches.items():
        report = here.get((slot, one.attempt))
        if report is not None:
            since = one.registered_at if one.registered_at is not None else facts.now
            committed = one.committed or report.commits > 0
            known = one.registered_at is not None and one.vanished_at is None and one.committed is committed
            # Most looks find nothing new: what has not changed is not made anew, here and below.
            launches[slot] = (
                one if known else replace(one, registered_at=since, vanished_at=None, committed=committed)
            )
        elif one.registered_at is not None and one.vanished_at is None:
            launches[slot] = replace(one, vanished_at=facts.now)
        else:
            launches[slot] = one
    holders, fencing = memory.holders, dict(memory.fencing)
    for slot in facts.fenced:
        holders = without(holders, slot, memory.plan, fencing.pop(slot, 0))
    if memory.plan is not None:
        holders = after_reports(holders, memory.plan, facts.reports)
        holders = after_releases(holders, memory.plan, facts.released)
    if (launches, holders, fencing) == (memory.launches, memory.holders, memory.fencing):
        return memory
    return replace(memory, launches=launches, holders=holders, fencing=fencing)


def _forget(memory: Memory, facts: Facts) -> Memory:
    """A failure holds for one version and one try, and so does what was asked for."""
    entry = facts.entry
    if entry is None:
        return memory
    key = (entry.spec.version, entry.try_number)
    failure = memory.failure
    if failure is not None and (failure.version, failure.try_number) != key:
        memory = replace(memory, failure=None, falls={}, proof_since=None)
    if not memory.asked:
        return memory
    asked = frozenset(one for one in memory.asked if one[1:] == key and not entry.confirmed)
    return replace(memory, asked=asked)


def _note_drain(memory: Memory, facts: Facts) -> Memory:
    """Notice that everything was read to its end, and forget it when something else is wanted."""
    entry, plan = facts.entry, memory.plan
    if entry is None or entry.desired is not Desired.DRAINED:
        if not memory.drained and memory.drained_try is None:
            return memory
        return replace(memory, drained=frozenset(), drained_try=None)
    if memory.drained_try is not None:
        same = memory.drained_try == entry.try_number
        return memory if same else replace(memory, drained=frozenset(), drained_try=None)
    with_tasks = {slot for slot, one in plan.slots.items() if one.tasks} if plan and plan.drain else set()
    if with_tasks and with_tasks <= memory.drained:
        return replace(memory, drained_try=entry.try_number)
    return memory


def _goal(memory: Memory, facts: Facts) -> Goal:
    entry = facts.entry
    if entry is None or facts.stopping or memory.failure is not None:
        return Goal.STOP
    if entry.desired is Desired.PAUSED or memory.drained_try is not None or entry.rewind is not None:
        return Goal.STOP
    if memory.launches and memory.running is not None and not _serves(memory.running, entry.spec):
        return Goal.STOP
    return Goal.DRAIN if entry.desired is Desired.DRAINED else Goal.RUN


def _replan(memory: Memory, facts: Facts, goal: Goal, orders: list[Order]) -> Memory:
    """Make the plan what the goal asks for, and start the containers that it needs."""
    entry, previous = facts.entry, memory.plan
    if goal is Goal.STOP or entry is None:
        if previous is None or not previous.slots:
            return memory
        plan = next_plan(previous, memory.holders, {}, (), version=previous.version)
        return _adopt(memory, plan, orders)
    spec = entry.spec
    tasks = job_tasks(spec)
    wanted = range(max(1, min(spec.settings.containers, len(tasks))))
    shares = assign(tasks, _eligible(memory, facts, wanted), previous)
    assigned = {slot: shares.get(slot, ()) for slot in wanted}
    drained = {slot for slot in memory.drained if slot in assigned and _had(previous, slot) == assigned[slot]}
    fresh = [slot for slot in wanted if slot not in drained and _wants_start(memory, slot, facts.now)]
    if memory.running is None or memory.running.version != spec.version:
        memory = replace(memory, proof_since=None, falls={})
    if memory.running is not spec or memory.drained != drained:
        memory = replace(memory, running=spec, drained=frozenset(drained))
    drain = _drained_stages(previous, facts, spec) if goal is Goal.DRAIN else 0
    plan = next_plan(previous, memory.holders, assigned, fresh, version=spec.version, drain=drain)
    memory = _adopt(memory, plan, orders)
    return _launch(memory, facts, fresh, orders)


def _drained_stages(plan: Plan | None, facts: Facts, spec: JobSpec) -> int:
    """How many stages are to be drained by now: one more once all tasks of those before say that they are.

    A stage reads what the one before it writes, so its inputs have their ends only then.
    """
    if plan is None or not plan.drain or plan.version != spec.version:
        return 1
    if plan.drain >= len(spec.stages):
        return plan.drain
    asked = set(list(spec.stages)[: plan.drain])
    states = {task: one.state for report in facts.reports for task, one in report.tasks.items()}
    done = all(states.get(task) is TaskState.DRAINED for task in job_tasks(spec) if task.stage in asked)
    return plan.drain + 1 if done else plan.drain


def _eligible(memory: Memory, facts: Facts, wanted: Iterable[int]) -> list[int]:
    """The slots that get tasks: all but those that wait for a core while others have one."""
    waiting = {slot for slot, one in memory.launches.items() if is_late(one, facts)}
    eligible = [slot for slot in wanted if slot not in waiting]
    launched = [memory.launches[slot] for slot in eligible if slot in memory.launches]
    since = [one.registered_at for one in launched if one.registered_at is not None]
    if since and facts.now - min(since) >= OTHERS_S:
        return eligible
    return list(wanted)


def _had(plan: Plan | None, slot: int) -> tuple[TaskId, ...] | None:
    return plan.slots[slot].tasks if plan and slot in plan.slots else None


def _wants_start(memory: Memory, slot: int, now: float) -> bool:
    one = memory.launches.get(slot)
    if one is None:
        return slot not in memory.falls or memory.falls[slot].start_at <= now
    return one.vanished_at is not None and now - one.vanished_at >= VANISHED_S


def _adopt(memory: Memory, plan: Plan | None, orders: list[Order]) -> Memory:
    if plan is None:
        return memory
    orders.append(WritePlan(plan))
    return replace(memory, plan=plan, holders=plan.holders)


def _launch(memory: Memory, facts: Facts, fresh: list[int], orders: list[Order]) -> Memory:
    if not fresh:
        return memory
    launches = dict(memory.launches)
    for slot in fresh:
        if slot in launches:
            orders.append(CancelSlot(slot, launches[slot].attempt))
        if memory.plan is not None and memory.running is not None:
            attempt = memory.plan.slots[slot].attempt
            orders.append(LaunchSlot(slot, attempt, memory.running))
            launches[slot] = Launched(attempt, facts.now)
    return replace(memory, launches=launches)


def _stop_the_rest(memory: Memory, facts: Facts, orders: list[Order]) -> Memory:
    """Containers that are not in the plan end by themselves; those that do not are killed."""
    planned = memory.plan.slots if memory.plan else {}
    if all(slot in planned and one.attempt == planned[slot].attempt for slot, one in memory.launches.items()):
        return memory
    launches: dict[int, Launched] = {}
    for slot, one in memory.launches.items():
        if slot in planned and one.attempt == planned[slot].attempt:
            launches[slot] = one
            continue
        stop_at = facts.now if one.stop_at is None else one.stop_at
        stopping = replace(one, stop_at=stop_at)
        gone_s = 0.0 if one.vanished_at is None else facts.now - one.vanished_at
        overtime = facts.now - stop_at >= STOP_S or gone_s >= GONE_S
        if one.cancelled_at is None and (one.registered_at is None or overtime):
            orders.append(CancelSlot(slot, one.attempt))
            stopping = replace(stopping, cancelled_at=facts.now)
        if one.cancelled_at is None or facts.now - one.cancelled_at < CANCELLED_S:
            launches[slot] = stopping
    return replace(memory, launches=launches)


def _settle(memory: Memory, facts: Facts, orders: list[Order]) -> Memory:
    """Fence who may have a task open and cannot be asked; release what nobody else has open."""
    plan = memory.plan
    if plan is None:
        return memory
    generations = releasable(memory.holders, plan, facts.released)
    if generations:
        orders.append(MarkReleased(generations))
    if not memory.holders:
        return memory
    fencing = dict(memory.fencing)
    for slot in sorted({slot for slots in memory.holders.values() for slot in slots}):
        one = memory.launches.get(slot)
        answers = one is not None and not is_late(one, facts)
        if not answers and slot not in fencing:
            fencing[slot] = plan.generation
            orders.append(FenceSlot(slot))
    return replace(memory, fencing=fencing)


def _prove(memory: Memory, facts: Facts, goal: Goal, orders: list[Order]) -> Memory:
    """Confirm a new version once it has committed; take it back, or give it up, if it does not."""
    entry, plan = facts.entry, memory.plan
    if entry is None or entry.confirmed or facts.stopping:
        return memory
    version = entry.spec.version
    if goal is not Goal.STOP and plan is not None and plan.version == version:
        since = proof_since(memory, facts)
        if since != memory.proof_since:
            memory = replace(memory, proof_since=since)
        if is_proven(plan, facts.reports):
            return _ask(memory, facts, "confirm", ConfirmVersion(version), orders)
        failure = overdue(memory, facts)
        if failure is not memory.failure:
            memory = replace(memory, failure=failure)
    failure = memory.failure
    if failure is not None and failure.version == version and entry.previous is not None:
        return _ask(memory, facts, "back", RollBack(version, failure.message), orders)
    return memory


def _ask(
    memory: Memory, facts: Facts, what: str, order: ConfirmVersion | RollBack, orders: list[Order]
) -> Memory:
    key = (what, order.version, facts.entry.try_number if facts.entry else 0)
    if key in memory.asked:
        return memory
    orders.append(order)
    return replace(memory, asked=memory.asked | {key})
