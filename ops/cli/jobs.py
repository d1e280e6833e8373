"""stack jobs deploy, logs: jobs as a person puts them up, and what they say."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ops.cli.audit import audited
from ops.cli.job_waiting import timeout_option, wait_for
from ops.cli.output import note, say, say_json
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.deploy.deploy import Deployed
    from stack.deploy.logs import LogLine
    from stack.model.job import JobEntry

_LAST_LINES = 100


@click.group()
def jobs() -> None:
    """Deploy, watch and steer jobs.

    A job is a folder with job.py (code) and job.toml (settings); docs/jobs.md tells how to write one.
    """


@jobs.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--no-wait", is_flag=True, help="Return when it is deployed, not when it runs.")
@timeout_option
@json_option
@pass_session
def deploy(session: Session, path: Path, no_wait: bool, timeout: float | None, as_json: bool) -> None:
    """Deploy the job in the folder PATH and wait until all its tasks run.

    Everything is checked before anything changes. A version that runs already is drained, and the new one
    goes on from its last commit. If the new one makes no commit in time (deploy_limit in job.toml), the old
    one comes back, and this command exits with 1.

    \b
    Example:
      stack jobs deploy jobs/count-views
    """
    from stack.deploy.deploy import deploy as deploy_job
    from stack.deploy.operate import watch_jobs
    from stack.deploy.watch import judge_running

    with session.open() as stack, watch_jobs(stack) as watch:
        deployed = deploy_job(stack, path, (lambda _: None) if as_json else note)
        spec = deployed.entry.spec
        if not deployed.is_same:
            before = None if deployed.before is None else {"version": deployed.before.spec.version}
            audited(stack, "deploy", spec.name, before, {"version": spec.version})
        if not as_json:
            _say_deployed(deployed)
        if not no_wait:
            limit_s = timeout or spec.settings.deploy_limit_ms / 1000 + 60
            wait_for(watch, spec.name, judge_running(spec), limit_s)
    if as_json:
        say_json({**entry_json(deployed.entry), "changed": not deployed.is_same, "waited": not no_wait})
    elif not no_wait:
        from stack.model.plan import job_tasks

        tasks = len(job_tasks(spec))
        say(f"version {spec.version} of {spec.name} runs: {tasks} of {tasks} tasks")


def _say_deployed(deployed: Deployed) -> None:
    spec, before = deployed.entry.spec, deployed.before
    if deployed.is_same:
        say(f"{spec.name}: version {spec.version} and its settings are deployed already")
    elif before is None:
        say(f"{spec.name}: version {spec.version} is deployed")
    elif before.spec.version == spec.version:
        say(f"{spec.name}: version {spec.version} is deployed with new settings")
    else:
        say(f"{spec.name}: version {spec.version} is deployed in place of {before.spec.version}")
    if not spec.outputs:
        note(f'no feed of the catalogue says by = "{spec.name}": the job can keep state but write no feed')


def entry_json(entry: JobEntry) -> dict[str, Any]:
    from stack.model.job import entry_to_json

    return {"job": entry.spec.name, "version": entry.spec.version, "entry": entry_to_json(entry)}


@jobs.command()
@click.argument("name")
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines as they come; Ctrl-C ends it.")
@click.option(
    "--lines",
    type=click.IntRange(1, 1_000_000),
    default=_LAST_LINES,
    show_default=True,
    help="How many of the last lines.",
)
@click.option("--container", type=click.IntRange(0), metavar="K", help="Only lines of this container.")
@json_option
@pass_session
def logs(session: Session, name: str, follow: bool, lines: int, container: int | None, as_json: bool) -> None:
    """Print what a job's code has said and printed, and why its containers ended. Lines stay for a week.

    \b
    Example:
      stack jobs logs count-views --lines 20
      stack jobs logs count-views -f --json
      stack jobs logs count-views --follow --container 1
    """
    from stack.deploy.jobs import jobs_feed
    from stack.deploy.logs import JobLogs

    with session.open() as stack, contextlib.suppress(KeyboardInterrupt):
        feed = JobLogs(stack, name, container)
        found, end = feed.last(lines)
        if not found:
            # A job that was removed may have left lines; a name that was never there is a mistake.
            jobs_feed(stack).get(name)
        for line in found:
            _say_line(line, as_json)
        if follow:
            sys.stdout.flush()
            for line in feed.follow(end):
                _say_line(line, as_json)
                sys.stdout.flush()
        elif not found and not as_json:
            note(f"{name} has said nothing yet")


def _say_line(line: LogLine, as_json: bool) -> None:
    from stack.model.startpoint import format_time

    if as_json:
        say_json(asdict(line))
    else:
        say(f"{format_time(line.time_ms)}  {line.slot}  {line.level:<7}  {line.text}")
