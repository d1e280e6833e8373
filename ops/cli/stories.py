"""stack demo, stack bench: the stack shown and measured, on temporary clusters."""

from __future__ import annotations

import click

from ops.cli.output import note, say, say_json, table
from ops.cli.root import json_option

_STORIES = ("jobs", "feeds", "rewind")


@click.command()
@click.argument("name", type=click.Choice(_STORIES), default="jobs")
def demo(name: str) -> None:
    """Tell a story on a temporary cluster: every command real, everything removed at the end.

    `jobs` deploys a job and kills it while it works; `feeds` fills, reads and evolves a feed; `rewind` takes
    back what a bad release has done.

    \b
    Example:
      stack demo
      stack demo feeds
      stack demo rewind
    """
    import importlib

    importlib.import_module(f"ops.demo.{name}").run()


@click.group()
def bench() -> None:
    """Measure the stack, always as a ratio against a baseline in the same run."""


@bench.command("feeds")
@click.option(
    "--records", type=click.IntRange(10_000), default=1_000_000, show_default=True, help="Records per round."
)
@click.option(
    "--rounds", type=click.IntRange(1), default=7, show_default=True, help="Rounds; the median counts."
)
@click.option("--check", "must_pass", is_flag=True, help="Exit with 1 if a ratio is below its bar.")
@json_option
def bench_feeds(records: int, rounds: int, must_pass: bool, as_json: bool) -> None:
    """Reader and writer against the bare client, columnar codec against fastavro.

    Starts a temporary cluster. Bars: reader and writer 0.8 x the bare loop on 100-byte values, columnar
    decoding 8 x fastavro.

    \b
    Example:
      stack bench feeds
      stack bench feeds --records 500000 --rounds 3 --json
    """
    from ops.bench.codecs import measure_codecs
    from ops.bench.feeds import codec_figures, measure_feeds
    from ops.bench.figures import Figure
    from ops.cluster.temporary import temporary_stack

    figures: list[Figure] = []
    with temporary_stack("bench", note) as settings:
        figures += measure_feeds(settings, records, rounds, note)
    note("measuring codecs")
    figures += codec_figures([measure_codecs() for _ in range(min(rounds, 3))])
    if as_json:
        say_json([figure.as_json() for figure in figures])
    else:
        table(
            ["figure", "ours /s", "baseline /s", "ratio", "bar", "baseline is"],
            [figure.as_row() for figure in figures],
            right=["ours /s", "baseline /s", "ratio", "bar"],
        )
    low = [figure.name for figure in figures if not figure.passes]
    if low:
        say(f"below the bar: {', '.join(low)}")
        if must_pass:
            raise click.exceptions.Exit(1)


@bench.command("kit")
@click.option(
    "--records", type=click.IntRange(1), default=1_000, show_default=True, help="Records in the test."
)
@click.option(
    "--rounds", type=click.IntRange(1), default=20, show_default=True, help="Rounds; the median counts."
)
@click.option("--check", "must_pass", is_flag=True, help="Exit with 1 if a test takes longer than its bar.")
@json_option
def bench_kit(records: int, rounds: int, must_pass: bool, as_json: bool) -> None:
    """What a test of a job takes in the test kit, in memory.

    The bar: a test with 1,000 records, setting up and looking included, in 50 ms.

    \b
    Example:
      stack bench kit
      stack bench kit --records 10000 --json
    """
    from ops.bench.kit import BAR_MS, measure_kit

    figures = measure_kit(records, rounds)
    if as_json:
        say_json(figures.as_json())
    else:
        names = ("records", "set_up_ms", "write_ms", "run_ms", "look_ms", "whole_ms")
        table(list(names), [[getattr(figures, name) for name in names]], right=names)
    if must_pass and figures.whole_ms > BAR_MS:
        raise click.exceptions.Exit(1)


@bench.command("rewind")
@click.option(
    "--keys", type=click.IntRange(1_000), default=1_000_000, show_default=True, help="Keys of state."
)
@click.option(
    "--changed", type=click.IntRange(1), default=10_000, show_default=True, help="How many change afterwards."
)
@click.option(
    "--commits", type=click.IntRange(1_000), default=1_000_000, show_default=True, help="For the index."
)
@click.option("--check", "must_pass", is_flag=True, help="Exit with 1 if one takes longer than its bar.")
@json_option
def bench_rewind(keys: int, changed: int, commits: int, must_pass: bool, as_json: bool) -> None:
    """What going back costs: a plan, a job that runs again, a commit found among many, of a job or a group.

    Starts temporary clusters. Bars: a plan in 2 s, the job running again in 10 s, a commit found in 10 ms.

    \b
    Example:
      stack bench rewind
      stack bench rewind --keys 100000 --commits 100000
    """
    from dataclasses import asdict

    from ops.bench.groups import measure_groups
    from ops.bench.rewind import BACK_S, LOOK_UP_MS, PLAN_S, measure_index, measure_rewind

    back, index = measure_rewind(keys, changed, note), measure_index(commits, note)
    groups = measure_groups(commits, note)
    rows = [
        (f"plan, {keys:,} keys, {changed:,} changed", back.plan_s, "s", PLAN_S),
        ("undone and landed", back.undo_s, "s", None),
        ("all tasks run again", back.back_s, "s", BACK_S),
        (f"index of {commits:,} commits built", index.build_s, "s", None),
        ("one commit found", index.look_up_ms, "ms", LOOK_UP_MS),
        ("its whole record read", index.record_ms, "ms", None),
        (f"index of {commits:,} commits of a group built", groups.build_s, "s", None),
        ("one of them found, by annotation or time", groups.look_up_ms, "ms", LOOK_UP_MS),
        ("the same as a whole fetch", groups.fetch_ms, "ms", None),
    ]
    if as_json:
        say_json({"rewind": asdict(back), "index": asdict(index), "groups": asdict(groups)})
    else:
        shown = [[name, f"{value:.2f}", unit, "" if bar is None else bar] for name, value, unit, bar in rows]
        table(["figure", "took", "", "bar"], shown, right=["took", "bar"])
    if must_pass and any(bar is not None and value > bar for _, value, _, bar in rows):
        raise click.exceptions.Exit(1)


_WORKS = ("throughput", "latency", "restore", "sibling", "recovery", "memory", "metrics", "takeover")
_SYSTEMS = ("ours", "ours-batch", "kafka-streams", "quix")
_GUARANTEES = ("exactly-once", "at-least-once")


@bench.command("tasks")
@click.option("--work", "works", type=click.Choice(_WORKS), multiple=True, help="What to measure.")
@click.option("--system", "systems", type=click.Choice(_SYSTEMS), multiple=True, help="Whom to measure.")
@click.option("--guarantee", "guarantees", type=click.Choice(_GUARANTEES), multiple=True, help="Which.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="The median counts.")
@click.option(
    "--records", type=click.IntRange(10_000), default=5_000_000, show_default=True, help="For throughput."
)
@click.option(
    "--keys", type=click.IntRange(1_000), default=1_000_000, show_default=True, help="Keys to restore."
)
@click.option("--check", "must_pass", is_flag=True, help="Exit with 1 if a ratio is below its bar.")
@json_option
def bench_tasks(
    works: tuple[str, ...],
    systems: tuple[str, ...],
    guarantees: tuple[str, ...],
    rounds: int,
    records: int,
    keys: int,
    must_pass: bool,
    as_json: bool,
) -> None:
    """Jobs against Kafka Streams and Quix Streams, in the same run.

    Starts a temporary cluster; without options it takes about half an hour. docs/bench.md says how it is
    measured.

    \b
    Example:
      stack bench tasks
      stack bench tasks --work throughput --system ours --system kafka-streams --records 1000000
    """
    from ops.bench.tasks import Plan, measure_tasks

    plan = Plan(
        works=works or _WORKS,
        systems=systems or _SYSTEMS,
        guarantees=guarantees or _GUARANTEES,
        rounds=rounds,
        records=records,
        restored_keys=keys,
    )
    runs, findings = measure_tasks(plan, note, lambda run: note(f"  {run.as_json()}"))
    if as_json:
        say_json({"runs": [run.as_json() for run in runs], "findings": [one.as_json() for one in findings]})
    else:
        heads = ["figure", "ours", "other", "unit", "ratio", "bar", "other is"]
        table(heads, [one.as_row() for one in findings], right=["ours", "other", "ratio", "bar"])
    wrong = [run for run in runs if not run.right]
    low = [one.name for one in findings if not one.passes]
    if wrong:
        say(f"{len(wrong)} runs lost or doubled records: their figures mean nothing")
    if low:
        say(f"below the bar: {', '.join(low)}")
    if wrong or (low and must_pass):
        raise click.exceptions.Exit(1)
