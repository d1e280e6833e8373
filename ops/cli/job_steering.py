"""stack jobs pause, resume, drain, scale, remove: what a person asks of a deployed job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ops.cli.audit import audited
from ops.cli.job_waiting import timeout_option, wait_for
from ops.cli.jobs import jobs
from ops.cli.output import note, plural, say, say_json
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.model.job import Desired

_LIMIT_S = 120.0


def _answer(as_json: bool, line: str, **about: Any) -> None:
    if as_json:
        say_json(about)
    else:
        say(line)


def _stop(session: Session, name: str, desired: Desired, timeout: float | None, as_json: bool) -> None:
    """Pause or drain: write the entry, and wait until the containers are gone."""
    from stack.deploy.operate import ask, watch_jobs
    from stack.deploy.watch import judge_stopped

    with session.open() as stack, watch_jobs(stack) as watch:
        entry, news = ask(watch.jobs, name, desired)
        if news:
            audited(stack, str(desired), name, after={"desired": str(desired)})
        wait_for(watch, name, judge_stopped(entry.spec, desired), timeout or _LIMIT_S)
    line = f"{name} is {desired}" if news else f"{name} was {desired} already"
    _answer(as_json, line, job=name, desired=str(desired), changed=news)


@jobs.command()
@click.argument("name")
@timeout_option
@json_option
@pass_session
def pause(session: Session, name: str, timeout: float | None, as_json: bool) -> None:
    """Stop a job after a last commit; `stack jobs resume` lets it go on from there.

    \b
    Example:
      stack jobs pause count-views
    """
    from stack.model.job import Desired

    _stop(session, name, Desired.PAUSED, timeout, as_json)


@jobs.command()
@click.argument("name")
@timeout_option
@json_option
@pass_session
def drain(session: Session, name: str, timeout: float | None, as_json: bool) -> None:
    """Let a job read its inputs to their ends as of now, commit, and stop.

    \b
    Example:
      stack jobs drain count-views --timeout 600
    """
    from stack.model.job import Desired

    _stop(session, name, Desired.DRAINED, timeout, as_json)


@jobs.command()
@click.argument("name")
@timeout_option
@json_option
@pass_session
def resume(session: Session, name: str, timeout: float | None, as_json: bool) -> None:
    """Let a paused or drained job go on, and a failed one try again.

    \b
    Example:
      stack jobs resume count-views
    """
    from stack.deploy.operate import resume as resume_job
    from stack.deploy.operate import watch_jobs
    from stack.deploy.watch import judge_running

    with session.open() as stack, watch_jobs(stack) as watch:
        entry, news = resume_job(watch.jobs, name, watch.look(name))
        if news:
            audited(stack, "resume", name, after={"desired": str(entry.desired)})
        wait_for(watch, name, judge_running(entry.spec), timeout or _LIMIT_S)
    line = f"{name} runs" if news else f"{name} was running already"
    _answer(as_json, line, job=name, desired=str(entry.desired), changed=news)


@jobs.command()
@click.argument("name")
@click.argument("containers", type=click.IntRange(1))
@timeout_option
@json_option
@pass_session
def scale(session: Session, name: str, containers: int, timeout: float | None, as_json: bool) -> None:
    """Run a job in CONTAINERS containers; only the tasks that must move do.

    The next deploy sets what job.toml says again.

    \b
    Example:
      stack jobs scale count-views 4
    """
    from stack.deploy.operate import scale as scale_job
    from stack.deploy.operate import watch_jobs
    from stack.deploy.watch import judge_scaled
    from stack.model.job import Desired

    with session.open() as stack, watch_jobs(stack) as watch:
        before = watch.jobs.get(name).spec.settings.containers
        entry, news = scale_job(watch.jobs, name, containers)
        if news:
            audited(stack, "scale", name, {"containers": before}, {"containers": containers})
        if entry.desired is Desired.RUNNING:
            wait_for(watch, name, judge_scaled(entry.spec), timeout or _LIMIT_S)
    size = plural(containers, "container")
    line = f"{name} has {size}" if news else f"{name} had {size} already"
    if entry.desired is not Desired.RUNNING:
        line = f"{name} is {entry.desired} and will have {size}"
    _answer(as_json, line, job=name, containers=containers, changed=news)


@jobs.command()
@click.argument("name")
@click.option(
    "--state", "with_state", is_flag=True, help="Delete its changelogs, checkpoints and files, too."
)
@click.option("--yes", is_flag=True, help="Also if it is running.")
@timeout_option
@json_option
@pass_session
def remove(
    session: Session, name: str, with_state: bool, yes: bool, timeout: float | None, as_json: bool
) -> None:
    """Stop a job for good. Its state stays, and a job deployed under the same name goes on from it.

    With --state the state goes, too: a job of the same name then begins anew, at the beginning of its
    inputs. Feeds that it wrote stay.

    \b
    Example:
      stack jobs remove count-views
      stack jobs remove count-views --state
    """
    from stack.deploy.operate import refuse_running, remove_state, watch_jobs
    from stack.deploy.watch import judge_gone

    deleted: tuple[str, ...] = ()
    with session.open() as stack, watch_jobs(stack) as watch:
        is_there = name in watch.jobs.names()
        if is_there and not yes:
            refuse_running(watch.look(name), name)
        if not is_there and not (with_state and watch.jobs.left(name)):
            watch.jobs.get(name)
        watch.jobs.remove(name)
        audited(stack, "remove", name, after={"with_state": with_state})
        wait_for(watch, name, judge_gone(name), timeout or _LIMIT_S)
        if with_state:
            if not as_json:
                note("deleting its state")
            deleted = remove_state(stack, watch.jobs, name)
    kept = "" if with_state else "; its state stays (`--state` deletes it)"
    _answer(as_json, f"{name} is removed{kept}", job=name, removed=True, deleted=list(deleted))
