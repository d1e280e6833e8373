"""stack jobs list, show: how jobs are doing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ops.cli.jobs import entry_json, jobs
from ops.cli.output import say, say_json, table
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.connection import Stack
    from stack.deploy.watch import View
    from stack.model.job import JobEntry
    from stack.model.plan import ContainerReport, Plan


@jobs.command("list")
@json_option
@pass_session
def list_jobs(session: Session, as_json: bool) -> None:
    """List all jobs: version, state, containers, tasks, lag and rate.

    \b
    Example:
      stack jobs list
    """
    from stack.deploy.operate import watch_jobs

    with session.open() as stack, watch_jobs(stack) as watch:
        entries, faults = watch.jobs.look()
        rows = [_row(watch.look(name)) for name in entries]
    rows += [{"job": name, "state": "unreadable", "message": fault.message} for name, fault in faults.items()]
    if as_json:
        say_json(rows)
        return
    if not rows:
        say("no job is deployed yet; `stack jobs deploy PATH` deploys one")
        return
    columns = ["job", "version", "state", "containers", "tasks", "lag", "records/s"]
    right = ["containers", "tasks", "lag", "records/s"]
    table(columns, [[_cell(row.get(column)) for column in columns] for row in rows], right=right)
    for row in rows:
        if row.get("message"):
            say(f"{row['job']}: {row['message']}")


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _row(view: View) -> dict[str, Any]:
    """A job in one line; `view` has an entry."""
    from stack.deploy.watch import running_tasks

    entry = view.entry
    if entry is None:
        return {}
    spec = entry.spec
    lags = [one.lag for report in view.reports for one in report.tasks.values() if one.lag is not None]
    return {
        "job": spec.name,
        "version": spec.version,
        "state": _state(view),
        "containers": f"{len(view.reports)}/{spec.settings.containers}",
        "tasks": f"{running_tasks(view, spec.version)}/{spec.partitions}",
        "lag": sum(lags) if lags else None,
        "records/s": round(sum(report.records_per_s for report in view.reports)),
        "message": (view.status.message if view.status else "") or entry.rolled_back or "",
    }


def _state(view: View) -> str:
    """What the runner says; where none is there, what it said last may be long ago."""
    if view.status is None or not view.runners:
        wanted = view.entry.desired if view.entry else "nothing"
        return "no runner" if not view.runners else f"to be {wanted}"
    return str(view.status.state)


@jobs.command()
@click.argument("name")
@json_option
@pass_session
def show(session: Session, name: str, as_json: bool) -> None:
    """Show all about one job: version, tasks, containers, stores, the last failure.

    \b
    Example:
      stack jobs show count-views
    """
    from stack.deploy.operate import watch_jobs

    with session.open() as stack, watch_jobs(stack) as watch:
        entry = watch.jobs.get(name)
        view = watch.look(name)
        plan = watch.nodes.job(name).plan()
        if as_json:
            say_json(_about(stack, entry, view, plan))
            return
        _show_job(stack, entry, view)
    say()
    _show_tasks(entry, view, plan)
    if view.reports:
        say()
        _show_containers(view.reports)
    counters = _counters(view)
    if counters:
        say()
        table(["counter", "sum"], [[name, _cell(count)] for name, count in counters.items()], right=["sum"])


def _counters(view: View) -> dict[str, int]:
    """What the code counts, summed over the containers that are there."""
    sums: dict[str, int] = {}
    for report in view.reports:
        for name, count in report.counters.items():
            sums[name] = sums.get(name, 0) + count
    return dict(sorted(sums.items()))


def _about(stack: Stack, entry: JobEntry, view: View, plan: Plan | None) -> dict[str, Any]:
    from stack.model.fleet import status_to_json
    from stack.model.plan import plan_to_json, report_to_json

    return {
        **entry_json(entry),
        "state": _state(view),
        "status": status_to_json(view.status) if view.status else None,
        "plan": plan_to_json(plan) if plan else None,
        "containers": [report_to_json(report) for report in view.reports],
        "counters": _counters(view),
        "changelogs": _changelogs(stack, entry),
        "runners": view.runners,
    }


def _changelogs(stack: Stack, entry: JobEntry) -> dict[str, str]:
    from stack.model.job import changelog_name

    return {
        one.name: changelog_name(stack.settings.name, entry.spec.name, one.name) for one in entry.spec.stores
    }


def _show_job(stack: Stack, entry: JobEntry, view: View) -> None:
    from stack.deploy.watch import failure_text
    from stack.model.duration import format_duration
    from stack.model.startpoint import format_time

    spec, settings = entry.spec, entry.spec.settings
    confirmed = "" if entry.confirmed else ", not confirmed by a commit yet"
    say(f"{spec.name}: {_state(view)}")
    status = view.status
    if status is not None and status.message:
        say(f"  {failure_text(status)}")
        if status.hint:
            say(f"  {status.hint}")
    lines = [
        ["version", f"{spec.version}, deployed {format_time(spec.deployed_at_ms)}{confirmed}"],
        ["before", entry.previous.version if entry.previous else ""],
        ["taken back", entry.rolled_back or ""],
        ["asked to be", str(entry.desired)],
        ["inputs", ", ".join(_input_text(asdict(one)) for one in spec.inputs)],
        ["outputs", ", ".join(spec.outputs) or "none"],
        ["guarantee", str(settings.guarantee)],
        ["commits", f"every {settings.commit_min_ms} to {settings.commit_max_ms} ms"],
        ["horizon", format_duration(settings.horizon_ms)],
        ["runner", status.runner if status and view.runners else "none"],
    ]
    for word, text in lines:
        if text:
            say(f"  {word:<11} {text}")
    changelogs = _changelogs(stack, entry)
    for one in spec.stores:
        say(f"  {'store':<11} {one.name}: {one.key} to {one.value}, changelog {changelogs[one.name]}")


def _input_text(one: dict[str, Any]) -> str:
    marks = [word for word in ("broadcast", "bootstrap") if one[word]]
    return f"{one['feed']} ({', '.join(marks)})" if marks else str(one["feed"])


def _show_tasks(entry: JobEntry, view: View, plan: Plan | None) -> None:
    from stack.model.plan import tasks_of

    slots = {task: slot for slot, one in (plan.slots if plan else {}).items() for task in one.tasks}
    reports = {task: one for report in view.reports for task, one in report.tasks.items()}
    rows = []
    for task in tasks_of(entry.spec.partitions):
        one = reports.get(task)
        state = str(one.state) if one else "not running"
        rows.append(
            [str(task), slots.get(task), state, _cell(one.lag if one else None), one.note if one else ""]
        )
    table(["task", "container", "state", "lag", "note"], rows, right=["container", "lag"])


def _show_containers(reports: tuple[ContainerReport, ...]) -> None:
    from stack.model.duration import format_size

    rows = [
        [
            one.slot,
            one.attempt,
            one.pid,
            one.host,
            format_size(one.memory_bytes),
            f"{one.records_per_s:,.0f}",
            f"{one.records:,}",
            f"{one.commits:,}",
        ]
        for one in reports
    ]
    right = ["container", "attempt", "pid", "memory", "records/s", "records", "commits"]
    table(
        ["container", "attempt", "pid", "host", "memory", "records/s", "records", "commits"],
        rows,
        right=right,
    )
