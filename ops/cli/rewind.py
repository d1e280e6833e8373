"""stack rewind: bring a job back to a point, with inputs, state and outputs together."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import click

from ops.cli.job_waiting import timeout_option, wait_for
from ops.cli.output import note, plural, say, say_json, table
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.deploy.operate import JobWatch
    from stack.deploy.rewind_plan import RewindPlan
    from stack.deploy.rewinding import Landed, Rewinding
    from stack.model.job import JobEntry

_LIMIT_S = 120.0


@click.command()
@click.argument("job")
@click.option(
    "--to", "startpoint", metavar="S", help="Where to: @NAME, -2h, a time, v:HASH, main-0#17, oldest."
)
@click.option("--plan", "only_plan", is_flag=True, help="Show what it would do, and change nothing.")
@click.option("--expect", metavar="ID", help="Go only if the plan is still this one (its id is in --plan).")
@click.option("--reason", default="", help="Why; kept in the audit feed.")
@click.option(
    "--state",
    type=click.Choice(["then", "keep", "empty"]),
    default="then",
    show_default=True,
    help="Stores as they were at the point, as they are now, or empty.",
)
@click.option(
    "--outputs",
    type=click.Choice(["restore", "append"]),
    default="restore",
    show_default=True,
    help="append: events that were written stay, and those of the second run are added.",
)
@click.option("--cascade", is_flag=True, help="Jobs that read its outputs go back to the matching point.")
@click.option("--best-effort", is_flag=True, help="Take what is left of a point beyond the horizon.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@timeout_option
@json_option
@pass_session
def rewind(
    session: Session,
    job: str,
    startpoint: str | None,
    only_plan: bool,
    expect: str | None,
    reason: str,
    state: str,
    outputs: str,
    cascade: bool,
    best_effort: bool,
    yes: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Bring JOB back to a point it has passed: inputs, state and tables go back together.

    Every commit inside the job's horizon can be gone back to exactly. The job then reads on from there, with
    the code that is deployed now. A rewind that was cut off is brought to its end by `stack rewind JOB`.

    \b
    Example:
      stack rewind count-views --to @before-migration --plan
      stack rewind count-views --to -2h --reason "wrong prices since noon" --cascade
    """
    from stack.deploy.operate import watch_jobs
    from stack.deploy.rewind_intent import refuse_another
    from stack.deploy.rewind_plan import Wanted, look_again, make_plan
    from stack.deploy.rewinding import Rewinding
    from stack.engine.rewind import OutputsChoice, StateChoice
    from stack.model.startpoint import parse_job_startpoint
    from stack.offsets.index import CheckpointIndex

    with session.open() as stack, watch_jobs(stack) as watch, contextlib.ExitStack() as opened:
        entry = watch.jobs.get(job)
        rewinding = Rewinding(stack, watch.jobs, lambda one: len(watch.look(one).reports), note)
        intent, look = rewinding.pending(entry.spec), None
        if intent is not None:
            refuse_another(job, intent, startpoint)
            note(
                f"a rewind to {intent.words} by {intent.by} was cut off: `stack rewind {job}` goes on with it"
            )
            if only_plan:
                return
        elif _is_over(rewinding, entry, startpoint, only_plan=only_plan):
            _await_running(watch, job, timeout)
            return
        else:
            asked = _needed(job, startpoint)
            parsed = parse_job_startpoint(asked, time.time_ns() // 1_000_000)
            wanted = Wanted(parsed, StateChoice(state), OutputsChoice(outputs), best_effort, cascade)
            index = opened.enter_context(CheckpointIndex(stack))
            index.refresh()
            plan = make_plan(stack, watch.jobs, index, job, wanted)
            if not _is_agreed(plan, expect, only_plan=only_plan, yes=yes, as_json=as_json):
                return
            intent, look = plan.intent(reason, asked), look_again(stack, watch.jobs, index, plan)
        leader = intent.leader or job
        landed = rewinding.carry_out(leader, intent, look)
        for one in intent.jobs(leader):
            _await_running(watch, one, timeout)
    _say_landed(leader, landed, as_json)


def _is_over(rewinding: Rewinding, entry: JobEntry, startpoint: str | None, *, only_plan: bool) -> bool:
    """Take away what is left of a rewind that has done nothing, or everything; whether that is all."""
    if entry.rewind is None or only_plan:
        return False
    job = entry.spec.name
    if startpoint is not None and rewinding.asked_for(entry) != startpoint:
        return False  # its mark gives way to that of this one
    landed = rewinding.clear(entry)
    if landed is None:
        say(f"a rewind of {job} was cut off before it had changed anything ({entry.rewind}); {job} goes on")
    else:
        say(f"{job} is back at {landed}; only the mark of the rewind was left")
    return True


def _needed(job: str, startpoint: str | None) -> str:
    from stack.errors import BadInput

    if startpoint is None:
        raise BadInput(
            f"say where job {job!r} shall go back to",
            hint=f"--to @NAME, --to -2h, …; `stack offsets list {job}` shows its points.",
        )
    return startpoint


def _is_agreed(plan: RewindPlan, expect: str | None, *, only_plan: bool, yes: bool, as_json: bool) -> bool:
    """Show the plan, and ask; whether it is to be carried out."""
    from stack.errors import BadInput

    if expect is not None and expect != plan.id:
        raise BadInput(
            f"the plan {expect} is stale: what would be done now is {plan.id}",
            hint="Look at it again with --plan.",
        )
    if only_plan or not as_json:
        _say_plan(plan, as_json)
    if not (only_plan or yes or as_json):
        click.confirm("go back", abort=True, err=True)
    return not only_plan


def _say_plan(plan: RewindPlan, as_json: bool) -> None:
    from stack.model.startpoint import format_time

    if as_json:
        say_json(plan.as_json())
        return
    when = "" if plan.point.time_ms is None else f", {format_time(plan.point.time_ms)}"
    say(f"{plan.job} goes back to {plan.point.words}{when}   (plan {plan.id})")
    _say_moves(plan)
    for one in plan.cascade:
        say(f"{one.job} goes with it to {one.point.words}")
        _say_moves(one)
    if plan.downstream:
        names = ", ".join(plan.downstream)
        say(f"jobs that read its outputs see corrections as updates: {names} (--cascade takes them along)")
    say(f"about {plan.seconds:.0f} s until it has caught up")


def _say_moves(plan: RewindPlan) -> None:
    """What becomes of the tasks and outputs of one job."""
    rows = [
        [
            str(one.task),
            "-" if one.now is None else f"#{one.now.number}",
            "start" if one.then is None else f"#{one.then.number}",
            "" if one.then is None else one.then.version,
            f"{one.records:,}",
            f"{one.deltas:,}",
        ]
        for one in plan.moves
    ]
    columns = ["task", "from", "to", "version then", "records again", "changes undone"]
    table(columns, rows, right=columns[4:])
    say(f"state: {_STATE_WORDS[str(plan.state)]}")
    for cut in plan.cuts:
        say(f"table {cut.feed}: keys of the last {cut.span:,} offsets get the values they had")
    for feed in plan.event_outputs:
        say(f"events {feed}: what was written stays; the second run adds its own")


_STATE_WORDS = {"then": "as it was at the point", "keep": "as it is now", "empty": "empty"}


def _await_running(watch: JobWatch, job: str, timeout: float | None) -> None:
    """If it is to run, wait until it does."""
    from stack.deploy.watch import judge_running
    from stack.model.job import Desired

    entry = watch.jobs.get(job)
    if entry.desired is Desired.RUNNING:
        wait_for(watch, job, judge_running(entry.spec), timeout or _LIMIT_S)


def _say_landed(job: str, landed: Landed, as_json: bool) -> None:
    if as_json:
        say_json(
            {
                "job": job,
                "to": landed.intent.words,
                "id": landed.intent.id,
                "cascade": sorted(landed.intent.followers),
                "state_changes": landed.state_changes,
                "output_changes": landed.output_changes,
                "took_s": round(landed.took_s, 2),
            }
        )
        return
    with_it = "".join(f", {one} with it" for one in landed.intent.followers)
    say(
        f"{job} is back at {landed.intent.words}{with_it}: {plural(landed.state_changes, 'change')} of "
        f"state and {plural(landed.output_changes, 'record')} of tables undone in {landed.took_s:.1f} s"
    )
