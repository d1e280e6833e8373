"""stack compose: the cluster of docker-compose.yml on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from ops.cli.output import note, say, say_json, table
from ops.cli.root import json_option
from ops.compose import PROFILES

if TYPE_CHECKING:
    from ops.compose.trial import Outcome

_RECORDS = 60_000
profile_option = click.option(
    "--profile",
    "profiles",
    type=click.Choice(PROFILES),
    multiple=True,
    help="More of it: three ZooKeeper servers, a second runner, Prometheus and Grafana.",
)


@click.group()
def compose() -> None:
    """The cluster of docker-compose.yml: three brokers, ZooKeeper, Spark, our services.

    Plain `docker compose` does as well; these commands look at the machine first, and tell why something
    does not start. docs/operations.md tells what runs there.

    \b
    Example:
      stack compose up
      export STACK_CONFIG=ops/compose/stack.toml
      stack jobs deploy jobs/count-views
    """


@compose.command()
@json_option
def check(as_json: bool) -> None:
    """Look whether this machine can run the cluster. Exits with 1 if not, and says what to do.

    \b
    Example:
      stack compose check
    """
    if not _is_fit(as_json):
        raise click.exceptions.Exit(1)


@compose.command()
@profile_option
@click.option("--build", is_flag=True, help="Build the image first, also if there is one.")
def up(profiles: tuple[str, ...], build: bool) -> None:
    """Start the cluster, from nothing or from where it was stopped, and wait until all of it is well.

    \b
    Example:
      stack compose up
      stack compose up --profile standby
    """
    from ops.compose.engine import Compose
    from stack.errors import ClusterFault

    if not _is_fit(only_wrong=True):
        raise click.exceptions.Exit(1)
    begun = time.monotonic()
    cluster = Compose(profiles=profiles)
    if cluster.show("up", "-d", "--wait", *(["--build"] if build else [])):
        complaints = "".join(f"\n  {line}" for line in cluster.complaints())
        raise ClusterFault(
            f"the cluster did not start{':' if complaints else ''}{complaints}",
            hint="The logs of a service: `docker compose logs NAME`. What runs, runs on; "
            "`stack compose down` stops it.",
        )
    say(f"the cluster is up ({time.monotonic() - begun:.0f} s)")
    say("this machine's commands for it: export STACK_CONFIG=ops/compose/stack.toml")


@compose.command()
@click.option("-v", "--volumes", is_flag=True, help="Remove all data, too.")
def down(volumes: bool) -> None:
    """Stop the cluster. All data stays, unless it is to be removed.

    \b
    Example:
      stack compose down
    """
    from ops.compose.engine import ALL_PROFILES, Compose

    words = ["down", "--remove-orphans", *(["-v"] if volumes else [])]
    if Compose(profiles=ALL_PROFILES).show(*words):
        raise click.exceptions.Exit(1)


@compose.command()
@click.option(
    "--records",
    type=click.IntRange(1_000),
    default=_RECORDS,
    show_default=True,
    help="Write at least so many records.",
)
@json_option
def trial(records: int, as_json: bool) -> None:
    """Start a cluster of its own, kill its services under load, and prove that nothing is lost or doubled.

    It has its own project and ports, and leaves nothing behind but the image. Takes about ten minutes.

    \b
    Example:
      stack compose trial
    """
    from ops.compose.trial import run_trial

    outcome = run_trial(note, records)
    if as_json:
        say_json(outcome.as_json())
    else:
        _show(outcome)
    if not outcome.is_exact:
        raise click.exceptions.Exit(1)


def _show(outcome: Outcome) -> None:
    from ops.chaos.verdict import Kind

    headers = ["killed", "s without outputs"]
    table(headers, [(name, round(gap, 1)) for name, gap in outcome.gaps_s.items()], right=headers[1:])
    say()
    for feed, records in outcome.report.records.items():
        say(f"{feed}: {records:,} records")
    first = f"first derived record {outcome.first_record_s:.0f} s"
    say(f"image {outcome.build_s:.0f} s, up {outcome.up_s:.0f} s, {first}")
    for line in (
        *map(str, outcome.report.findings[:20]),
        *(f"left behind: {one}" for one in outcome.left_behind),
    ):
        say(line)
    report = outcome.report
    say(f"lost {report.count(Kind.LOST):,}, doubled {report.count(Kind.DOUBLED):,}")


def _is_fit(as_json: bool = False, only_wrong: bool = False) -> bool:
    """Look at the machine and tell what is found; whether all is well."""
    from ops.cli.cluster import tell_findings
    from ops.compose.engine import Compose, examine

    return tell_findings(examine(Compose()), as_json, only_wrong)
