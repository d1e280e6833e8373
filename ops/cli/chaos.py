"""stack chaos: proves that nothing is lost and nothing doubled, whatever is killed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.cli.output import note, plural, say, say_json, table
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from ops.chaos.run import Outcome, Plan

_RECORDS, _FAULTS, _REWINDS = 300_000, 20, 5
_LONG_RECORDS, _LONG_FAULTS, _LONG_REWINDS = 3_000_000, 120, 30
_LEAST_FAULTS = 14
_JOB_RECORDS, _LONG_JOB_RECORDS = 50_000, 500_000
_JOB_RATE, _JOB_KEYS = 500, 200
_MOST_FINDINGS = 20


@click.command()
@click.option("--long", "is_long", is_flag=True, help="Ten times as much, with longer stops: about an hour.")
@click.option("--seed", type=click.IntRange(0), help="The schedule of an earlier run; by default a new one.")
@click.option(
    "--records",
    type=click.IntRange(1_000),
    help=f"Write at least so many records ({_RECORDS:,}; with --long {_LONG_RECORDS:,}; "
    f"with --job {_JOB_RECORDS:,} and {_LONG_JOB_RECORDS:,}).",
)
@click.option(
    "--faults",
    type=click.IntRange(1, 10_000),
    help=f"Faults in all, each kind at least twice ({_FAULTS}; with --long {_LONG_FAULTS}).",
)
@click.option(
    "--rewinds",
    type=click.IntRange(0, 1_000),
    help=f"How often a job goes back, not with --job ({_REWINDS}; with --long {_LONG_REWINDS}).",
)
@click.option("--job", metavar="NAME", help="Do it to this job: its folder, or its name below jobs/.")
@click.option(
    "--check",
    type=click.Path(path_type=Path),
    help="With --job: the file with check(outputs, inputs); by default invariant.py beside job.py.",
)
@click.option("--against-calm", is_flag=True, help="With --job: compare with a run without faults.")
@click.option("--rate", type=click.IntRange(1), help=f"With --job: records a second ({_JOB_RATE}).")
@click.option("--keys", type=click.IntRange(1), help=f"With --job: different keys ({_JOB_KEYS}).")
@json_option
@pass_session
def chaos(
    session: Session,
    is_long: bool,
    seed: int | None,
    records: int | None,
    faults: int | None,
    rewinds: int | None,
    job: str | None,
    check: Path | None,
    against_calm: bool,
    rate: int | None,
    keys: int | None,
    as_json: bool,
) -> None:
    """Kill and stop processes of a stack under load, and prove that nothing was lost or doubled.

    Starts a temporary stack with two counting jobs in a chain. Containers, Spark's JVM, the runner, the
    broker and ZooKeeper are killed or stopped by a schedule, while the jobs are scaled and go back. At the
    end a verifier, which shares no code with the engine, reads the feeds. Exits with 1 if anything is wrong.

    With --job a job of yours runs there instead, on synthetic records, with the jobs whose feeds it reads.
    At the end is checked what holds for every job, and your invariant. A stack that runs is left alone.
    docs/chaos.md tells more.

    \b
    Example:
      stack chaos
      stack chaos --seed 7 --faults 30
      stack chaos --long --json
      stack chaos --job count-views
      stack chaos --job jobs/count-views --faults 5 --against-calm
    """
    from ops.chaos.run import Plan, run

    usual = (_JOB_RECORDS, _LONG_JOB_RECORDS) if job else (_RECORDS, _LONG_RECORDS)
    plan = Plan(
        seed=random.randrange(1_000_000) if seed is None else seed,  # noqa: S311 - nobody guards a secret here
        records=records or usual[is_long],
        faults=faults or (_LONG_FAULTS if is_long else _FAULTS),
        long=is_long,
        rewinds=0 if job else (_REWINDS, _LONG_REWINDS)[is_long] if rewinds is None else rewinds,
    )
    if job is not None:
        if rewinds:
            raise click.UsageError("--rewinds is not for --job: what your job must hold then is not known")
        outcome = _run_job(session, plan, job, check, against_calm, rate, keys)
    else:
        if check is not None or against_calm or rate is not None or keys is not None:
            raise click.UsageError("--check, --against-calm, --rate and --keys are for --job")
        if plan.faults < _LEAST_FAULTS:
            raise click.UsageError(f"--faults: at least {_LEAST_FAULTS}, each kind twice, unless with --job")
        note(f"seed {plan.seed}")
        outcome = run(plan, note)
    if as_json:
        say_json(outcome.as_json())
    else:
        _show(outcome)
        _show_verdict(outcome, plan, job)
    if not outcome.report.is_exact:
        raise click.exceptions.Exit(1)


def _run_job(
    session: Session,
    plan: Plan,
    job: str,
    check: Path | None,
    against_calm: bool,
    rate: int | None,
    keys: int | None,
) -> Outcome:
    from ops.chaos.candidate import find_candidate, refuse_repeats
    from ops.chaos.job_run import JobPlan, open_stage, run_job

    candidate = find_candidate(session.settings, job, check)
    if against_calm:
        refuse_repeats(candidate)
    job_plan = JobPlan(keys or _JOB_KEYS, rate or _JOB_RATE, against_calm)
    others = [f"job {name!r}" for name in candidate.names[:-1]]
    note(f"seed {plan.seed}; on a temporary stack of its own, any other is left alone")
    note(" and ".join([f"job {candidate.job.name!r}", *others]) + ", fed with synthetic records")
    stages = open_stage(candidate, session.settings, note)
    return run_job(candidate, stages, plan, job_plan, note)


def _show(outcome: Outcome) -> None:
    from ops.chaos.run import fault_rows

    report = outcome.report
    headers = ["fault", "times", f"{'recovered' if report.checked else 'gap'}: median s", "worst s"]
    table(headers, fault_rows(outcome), right=headers[1:])
    say()
    for feed, records in report.records.items():
        say(f"{feed}: {plural(records, 'record')}")
    say(
        f"{plural(report.keys, 'key')}, {plural(report.commits, 'commit')}, scaled "
        f"{plural(outcome.scaled, 'time')}, {outcome.took_s:.0f} s, seed {outcome.seed}"
    )
    if any(outcome.rewinds.values()):
        done, killed, refused = (outcome.rewinds[word] for word in ("done", "killed", "refused"))
        times = f"went back {plural(done, 'time')}, killed on the way {plural(killed, 'time')}"
        say(f"{times}, {plural(refused, 'point')} refused")
    say()
    for finding in report.findings[:_MOST_FINDINGS]:
        say(str(finding))
    left = len(report.findings) - _MOST_FINDINGS
    if left > 0:
        say(f"and {plural(left, 'more finding')}")


def _show_verdict(outcome: Outcome, plan: Plan, job: str | None) -> None:
    from ops.chaos.verdict import Kind

    report = outcome.report
    if job is None:
        say(f"lost {report.count(Kind.LOST):,}, doubled {report.count(Kind.DOUBLED):,}")
    elif report.is_exact:
        for line in report.checked:
            say(line)
        say("nothing is wrong")
    else:
        count = sum(one.count for one in report.findings)
        say("1 thing is wrong" if count == 1 else f"{count:,} things are wrong")
    if outcome.logs is not None:
        say(f"logs are kept in {outcome.logs}")
    if job is not None and not report.is_exact:
        say(f"Run `{_again(plan, job)}` for the same faults.")
    elif not report.is_exact:
        say(f"This should never be: run `{_again(plan, job)}` again, and report it.")


def _again(plan: Plan, job: str | None) -> str:
    """The command that makes the same faults."""
    words = ["stack chaos", *(["--job", job] if job else []), "--seed", str(plan.seed)]
    words += ["--long"] if plan.long else []
    usual = _LONG_FAULTS if plan.long else _FAULTS
    words += ["--faults", str(plan.faults)] if plan.faults != usual else []
    usual = (_REWINDS, _LONG_REWINDS)[plan.long]
    words += ["--rewinds", str(plan.rewinds)] if job is None and plan.rewinds != usual else []
    return " ".join(words)
