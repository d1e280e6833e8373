"""stack demo, stack bench: the stack shown and measured, on temporary clusters."""

from __future__ import annotations

import click

from ops.cli.output import note, say, say_json, table
from ops.cli.root import json_option

_STORIES = ("jobs", "feeds")


@click.command()
@click.argument("name", type=click.Choice(_STORIES), default="jobs")
def demo(name: str) -> None:
    """Tell a story on a temporary cluster: every command real, everything removed at the end.

    `jobs` deploys a job and kills it while it works; `feeds` fills, reads and evolves a feed.

    \b
    Example:
      stack demo
      stack demo feeds
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
