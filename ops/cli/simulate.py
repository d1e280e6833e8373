"""stack simulate: the whole stack in memory, with faults at every step, driven by seeds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from ops.cli.output import note, plural, say, say_json, table
from ops.cli.root import json_option

if TYPE_CHECKING:
    from ops.simulation.series import Found, Series

_SEEDS = 5_000
_PROGRESS_S = 5.0


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=_SEEDS, show_default=True, help="How many runs.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--seed", type=click.IntRange(0), help="Only this one, with the story of what happened.")
@click.option("--planted", is_flag=True, help="Take guards away, one at a time: some seed must notice.")
@json_option
def simulate(seeds: int, first: int, seed: int | None, planted: bool, as_json: bool) -> None:
    """Run the engine on a Kafka, a ZooKeeper and disks in memory, with a fault at any step.

    Each seed is one run: containers and runners are killed, stopped and cut off, requests and answers get
    lost or come late, while jobs are deployed, scaled and paused. After every commit all promises are
    checked, at the end exact results. Exits with 1 if a run is wrong, and tells its seed, which runs the same
    way again. docs/simulation.md tells more.

    \b
    Example:
      stack simulate
      stack simulate --seed 4711
      stack simulate --planted
    """
    if seed is not None:
        _tell_one(seed, as_json)
    elif planted:
        _look_for_bugs(as_json)
    else:
        _run_many(first, seeds, as_json)


def _tell_one(seed: int, as_json: bool) -> None:
    from ops.simulation.run import run_seed

    verdict = run_seed(seed, told=True)
    if as_json:
        say_json(
            {"seed": seed, "fault": verdict.fault, "seconds": verdict.seconds, "story": list(verdict.story)}
        )
    else:
        for line in verdict.story:
            say(line)
        say()
        say(verdict.fault or f"all is well after {verdict.seconds:.1f} simulated seconds")
    if verdict.fault is not None:
        raise click.exceptions.Exit(1)


def _run_many(first: int, seeds: int, as_json: bool) -> None:
    from ops.simulation.series import run_series

    told_at = [time.monotonic()]

    def progress(done: int) -> None:
        if time.monotonic() - told_at[0] > _PROGRESS_S:
            told_at[0] = time.monotonic()
            note(f"{done:,} of {plural(seeds, 'run')}")

    series = run_series(range(first, first + seeds), progress)
    if as_json:
        say_json(series.as_json())
    else:
        _show(series)
    if series.wrong:
        raise click.exceptions.Exit(1)


def _show(series: Series) -> None:
    for verdict in series.wrong:
        say(f"seed {verdict.seed}: {verdict.fault}")
        say(f"  run `stack simulate --seed {verdict.seed}` for what happened")
    say(
        f"{plural(series.runs, 'run')}, {plural(series.faults, 'fault')}, "
        f"{series.simulated_s / 3600:,.1f} simulated hours in {series.took_s:.1f} s: "
        f"{plural(len(series.wrong), 'wrong run')}"
    )


def _look_for_bugs(as_json: bool) -> None:
    from ops.simulation.series import find_bugs

    found = list(find_bugs(lambda one: None if as_json else note(_noticed(one))))
    if as_json:
        say_json([{"bug": one.bug.name, "guard": one.bug.guard, "seed": one.seed} for one in found])
    else:
        headers = ["guard that was taken away", "seed", "noticed as"]
        rows = [[one.bug.guard, one.seed, (one.fault or "not noticed")[:70]] for one in found]
        table(headers, rows, right=headers[1:2])
    if any(one.seed is None for one in found):
        raise click.exceptions.Exit(1)


def _noticed(one: Found) -> str:
    return f"{one.bug.name}: {'not noticed' if one.seed is None else f'seed {one.seed}'}"
