"""stack jobs list, show: how jobs are doing, and what they measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from ops.cli.jobs import entry_json, jobs
from ops.cli.live import watch, watch_option
from ops.cli.metric_views import cell, container_lines, task_lines
from ops.cli.output import say, say_json, table_lines
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.connection import Stack
    from stack.deploy.lag import InputLag
    from stack.deploy.metrics import MetricsFollower
    from stack.deploy.operate import JobWatch
    from stack.deploy.watch import View
    from stack.model.job import JobEntry, JobSettings
    from stack.model.metrics import ContainerMetrics
    from stack.model.plan import Plan


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

    with session.open() as stack, watch_jobs(stack) as jobs_watch:
        rows = job_rows(jobs_watch)
    if as_json:
        say_json(rows)
        return
    if not rows:
        say("no job is deployed yet; `stack jobs deploy PATH` deploys one")
        return
    for line in job_lines(rows):
        say(line)


def job_rows(jobs_watch: JobWatch) -> list[dict[str, Any]]:
    """Every job in one row, also one whose entry cannot be read."""
    entries, faults = jobs_watch.jobs.look()
    rows = [_row(jobs_watch.look(name)) for name in entries]
    return rows + [
        {"job": name, "state": "unreadable", "message": fault.message} for name, fault in faults.items()
    ]


def job_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as a table, and below it what is wrong with some."""
    columns = ["job", "version", "state", "containers", "tasks", "lag", "records/s"]
    right = ["containers", "tasks", "lag", "records/s"]
    lines = table_lines(columns, [[cell(row.get(column)) for column in columns] for row in rows], right)
    return lines + [f"{row['job']}: {row['message']}" for row in rows if row.get("message")]


def _row(view: View) -> dict[str, Any]:
    """A job in one line; `view` has an entry."""
    from stack.deploy.watch import running_tasks
    from stack.model.plan import job_tasks

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
        "tasks": f"{running_tasks(view, spec.version)}/{len(job_tasks(spec))}",
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


@dataclass(frozen=True)
class _Seen:
    """All that is seen of one job at a moment."""

    entry: JobEntry
    view: View
    plan: Plan | None
    measured: tuple[ContainerMetrics, ...]
    lags: tuple[InputLag, ...]
    changelogs: dict[str, str]


@jobs.command()
@click.argument("name")
@watch_option
@json_option
@pass_session
def show(session: Session, name: str, watch_it: bool, as_json: bool) -> None:
    """Show all about one job: version, tasks, containers, stores, metrics, the last failure.

    \b
    Example:
      stack jobs show count-views
      stack jobs show count-views --watch
    """
    from stack.deploy.metrics import MetricsFollower
    from stack.deploy.operate import watch_jobs

    with session.open() as stack, watch_jobs(stack) as jobs_watch, MetricsFollower(stack) as follower:

        def look() -> _Seen:
            return _look(stack, jobs_watch, follower, name)

        seen = look()
        if watch_it:
            watch(look, _lines_of, _about if as_json else None)
        elif as_json:
            say_json(_about(seen))
        else:
            for line in _lines_of(seen):
                say(line)


def _look(stack: Stack, jobs_watch: JobWatch, follower: MetricsFollower, name: str) -> _Seen:
    from stack.deploy.lag import input_lags

    entry = jobs_watch.jobs.get(name)
    return _Seen(
        entry,
        jobs_watch.look(name),
        jobs_watch.nodes.job(name).plan(),
        follower.look().of_job(name),
        input_lags(stack, entry.spec, stack.catalogue.feeds()),
        _changelogs(stack, entry),
    )


def _lines_of(seen: _Seen) -> list[str]:
    from stack.model.plan import job_tasks

    slots = {task: slot for slot, one in (seen.plan.slots if seen.plan else {}).items() for task in one.tasks}
    tasks, reports = job_tasks(seen.entry.spec), seen.view.reports
    lines = [*_job_lines(seen), "", *task_lines(tasks, slots, reports, seen.measured, seen.lags)]
    if reports:
        lines += ["", *container_lines(reports, seen.measured)]
    faults = _summed(report.faults for report in reports)
    if faults:
        rows = [[name, cell(count)] for name, count in faults.items()]
        lines += ["", *table_lines(["errors", "records"], rows, right=["records"])]
    counters = _summed(report.counters for report in reports)
    if counters:
        rows = [[name, cell(count)] for name, count in counters.items()]
        lines += ["", *table_lines(["counter", "sum"], rows, right=["sum"])]
    return lines


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """What containers count, summed over those that are there."""
    sums: Counter[str] = Counter()
    for one in counts:
        sums.update(one)
    return dict(sorted(sums.items()))


def _about(seen: _Seen) -> dict[str, Any]:
    from stack.model.fleet import status_to_json
    from stack.model.metrics import metrics_to_json
    from stack.model.plan import plan_to_json, report_to_json

    view = seen.view
    return {
        **entry_json(seen.entry),
        "state": _state(view),
        "status": status_to_json(view.status) if view.status else None,
        "plan": plan_to_json(seen.plan) if seen.plan else None,
        "containers": [report_to_json(report) for report in view.reports],
        "metrics": [metrics_to_json(one) for one in seen.measured],
        "lag": [{**asdict(one), "records": one.records} for one in seen.lags],
        "counters": _summed(report.counters for report in view.reports),
        "errors": _summed(report.faults for report in view.reports),
        "changelogs": seen.changelogs,
        "runners": view.runners,
    }


def _changelogs(stack: Stack, entry: JobEntry) -> dict[str, str]:
    from stack.model.job import changelog_name

    return {
        one.name: changelog_name(stack.settings.name, entry.spec.name, one.name) for one in entry.spec.stores
    }


def _job_lines(seen: _Seen) -> list[str]:
    from stack.deploy.watch import failure_text
    from stack.model.duration import format_duration
    from stack.model.startpoint import format_time

    entry, status = seen.entry, seen.view.status
    spec, settings = entry.spec, entry.spec.settings
    confirmed = "" if entry.confirmed else ", not confirmed by a commit yet"
    lines = [f"{spec.name}: {_state(seen.view)}"]
    if status is not None and status.message:
        lines.append(f"  {failure_text(status)}")
        if status.hint:
            lines.append(f"  {status.hint}")
    words = [
        ["version", f"{spec.version}, deployed {format_time(spec.deployed_at_ms)}{confirmed}"],
        ["before", entry.previous.version if entry.previous else ""],
        ["taken back", entry.rolled_back or ""],
        ["asked to be", str(entry.desired)],
        ["inputs", ", ".join(_input_text(asdict(one)) for one in spec.inputs)],
        ["outputs", ", ".join(spec.outputs) or "none"],
        ["guarantee", str(settings.guarantee)],
        ["on error", _on_error(settings)],
        ["commits", f"every {settings.commit_min_ms} to {settings.commit_max_ms} ms"],
        ["horizon", format_duration(settings.horizon_ms)],
        ["runner", status.runner if status and seen.view.runners else "none"],
    ]
    lines += [f"  {word:<11} {text}" for word, text in words if text]
    return lines + [
        f"  {'store':<11} {one.name}: {one.key} to {one.value}, changelog {seen.changelogs[one.name]}"
        for one in spec.stores
    ]


def _on_error(settings: JobSettings) -> str:
    """What is done about records that fail."""
    inputs = [f"{feed}: {word}" for feed, word in settings.inputs_on_error.items()]
    again = [f"tried again up to {settings.retries} times"] if settings.retries else []
    return ", ".join([str(settings.on_error), *inputs, *again])


def _input_text(one: dict[str, Any]) -> str:
    marks = [word for word in ("broadcast", "bootstrap") if one[word]]
    return f"{one['feed']} ({', '.join(marks)})" if marks else str(one["feed"])
