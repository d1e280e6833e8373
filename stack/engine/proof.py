"""Whether a new version has shown that it works, or has had its time."""

from __future__ import annotations

from stack.engine.supervision import Facts, Failure, Memory
from stack.model.plan import ContainerReport, Plan, TaskState


def is_proven(plan: Plan, reports: tuple[ContainerReport, ...]) -> bool:
    """Whether every container that has tasks runs the plan's version and has committed.

    One whose inputs are empty has nothing to commit: that it stands at their ends is enough.
    """
    here = {(report.slot, report.attempt): report for report in reports}
    with_tasks = {slot: one for slot, one in plan.slots.items() if one.tasks}
    return bool(with_tasks) and all(
        _has_worked(plan, slot, here.get((slot, one.attempt))) for slot, one in with_tasks.items()
    )


def _has_worked(plan: Plan, slot: int, report: ContainerReport | None) -> bool:
    if report is None or report.version != plan.version:
        return False
    mine = plan.slots[slot].tasks
    at_end = all(
        task in report.tasks and report.tasks[task].state is TaskState.RUNNING and report.tasks[task].lag == 0
        for task in mine
    )
    return report.commits > 0 or at_end


def proof_since(memory: Memory, facts: Facts) -> float | None:
    """Since when the version could have committed: neither waiting for slots nor restoring counts."""
    if any(one.state is TaskState.RESTORING for report in facts.reports for one in report.tasks.values()):
        return facts.now
    if memory.proof_since is not None:
        return memory.proof_since
    begun = any(one.registered_at is not None for one in memory.launches.values())
    fell = any(one.quick for one in memory.falls.values())
    return facts.now if begun or fell else None


def overdue(memory: Memory, facts: Facts) -> Failure | None:
    """The failure of a version that had its time and did not commit."""
    if facts.entry is None or memory.proof_since is None or memory.plan is None:
        return None
    limit_s = facts.entry.spec.settings.deploy_limit_ms / 1000
    if facts.now - memory.proof_since <= limit_s:
        return None
    fell = [one.message for one in memory.falls.values() if one.message]
    why = f"; a container ended: {fell[-1]}" if fell else ""
    return Failure(
        version=memory.plan.version,
        try_number=facts.entry.try_number,
        message=f"version {memory.plan.version} made no commit within {limit_s:.0f} s{why}",
        hint="Look at its logs; if it only needs longer to start, raise deploy_limit in job.toml.",
    )
