"""stack chaos: proves that nothing is lost and nothing doubled, whatever is killed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import click

from ops.cli.output import note, plural, say, say_json, table
from ops.cli.root import json_option

if TYPE_CHECKING:
    from ops.chaos.run import Outcome

_RECORDS, _FAULTS = 300_000, 20
_LONG_RECORDS, _LONG_FAULTS = 3_000_000, 120
_MOST_FINDINGS = 20


@click.command()
@click.option("--long", "is_long", is_flag=True, help="Ten times as much, with longer stops: about an hour.")
@click.option("--seed", type=click.IntRange(0), help="The schedule of an earlier run; by default a new one.")
@click.option(
    "--records",
    type=click.IntRange(1_000),
    help=f"Write at least so many records ({_RECORDS:,}; with --long {_LONG_RECORDS:,}).",
)
@click.option(
    "--faults",
    type=click.IntRange(14, 10_000),
    help=f"Faults in all, each kind at least twice ({_FAULTS}; with --long {_LONG_FAULTS}).",
)
@json_option
def chaos(is_long: bool, seed: int | None, records: int | None, faults: int | None, as_json: bool) -> None:
    """Kill and stop processes of a stack under load, and prove that nothing was lost or doubled.

    Starts a temporary stack with two counting jobs in a chain. Containers, Spark's JVM, the runner, the
    broker and ZooKeeper are killed or stopped by a schedule, while the jobs are scaled. At the end a
    verifier, which shares no code with the engine, reads the feeds. Exits with 1 if anything is wrong.
    docs/chaos.md tells more.

    \b
    Example:
      stack chaos
      stack chaos --seed 7 --faults 30
      stack chaos --long --json
    """
    from ops.chaos.run import Plan, run

    plan = Plan(
        seed=random.randrange(1_000_000) if seed is None else seed,  # noqa: S311 - nobody guards a secret here
        records=records or (_LONG_RECORDS if is_long else _RECORDS),
        faults=faults or (_LONG_FAULTS if is_long else _FAULTS),
        long=is_long,
    )
    note(f"seed {plan.seed}")
    outcome = run(plan, note)
    if as_json:
        say_json(outcome.as_json())
    else:
        _show(outcome)
    if not outcome.report.is_exact:
        raise click.exceptions.Exit(1)


def _show(outcome: Outcome) -> None:
    from ops.chaos.run import fault_rows
    from ops.chaos.verdict import Kind

    report = outcome.report
    headers = ["fault", "times", "gap: median s", "worst s"]
    table(headers, fault_rows(outcome), right=headers[1:])
    say()
    for feed, records in report.records.items():
        say(f"{feed}: {plural(records, 'record')}")
    say(
        f"{plural(report.keys, 'key')}, {plural(report.commits, 'commit')}, scaled "
        f"{plural(outcome.scaled, 'time')}, {outcome.took_s:.0f} s, seed {outcome.seed}"
    )
    say()
    for finding in report.findings[:_MOST_FINDINGS]:
        say(str(finding))
    left = len(report.findings) - _MOST_FINDINGS
    if left > 0:
        say(f"and {plural(left, 'more finding')}")
    say(f"lost {report.count(Kind.LOST):,}, doubled {report.count(Kind.DOUBLED):,}")
    if not report.is_exact:
        say(f"This should never be: run `stack chaos --seed {outcome.seed}` again, and report it.")
