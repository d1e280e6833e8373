"""stack up, down, status, doctor: the cluster on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ops.cli.live import watch, watch_option
from ops.cli.output import note, say, say_json, table
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from ops.cluster.doctor import Finding


@click.command()
@click.option(
    "--brokers", type=click.IntRange(1, 3), help="1 (default) or 3, with replication 3 and min.insync 2."
)
@json_option
@pass_session
def up(session: Session, brokers: int | None, as_json: bool) -> None:
    """Start the stack on this machine and wait until all of it answers.

    One supervisor owns a real Kafka broker (three with --brokers 3), a real ZooKeeper and the HTTP service
    with the schema registry. Ports are free ones, remembered in the data folder. Started again, it only
    says that it runs. Data survives `stack down` and kill -9.

    \b
    Example:
      stack up
      stack up --brokers 3
    """
    from ops.cluster import control
    from stack.settings import read_endpoints

    if brokers == 2:
        raise click.BadParameter("a quorum needs 1 or 3 brokers", param_hint="--brokers")
    begun = time.monotonic()
    control.up(session.settings, brokers, note)
    endpoints = read_endpoints(session.settings)
    if as_json:
        say_json({"name": session.settings.name, "data": str(session.settings.data), **asdict(endpoints)})
        return
    say(f"stack {session.settings.name!r} is up ({time.monotonic() - begun:.1f} s)")
    table(
        ["", ""],
        [
            ["kafka", endpoints.kafka],
            ["zookeeper", endpoints.zookeeper],
            ["http", endpoints.http],
            ["data", session.settings.data],
        ],
    )


@click.command()
@json_option
@pass_session
def down(session: Session, as_json: bool) -> None:
    """Stop the stack on this machine. All data stays for the next `stack up`.

    \b
    Example:
      stack down
    """
    from ops.cluster import control

    ran = control.down(session.settings, note)
    if as_json:
        say_json({"stopped": ran})
    else:
        say(
            f"stack {session.settings.name!r} is down"
            if ran
            else f"stack {session.settings.name!r} was not running"
        )


@click.command()
@watch_option
@json_option
@pass_session
def status(session: Session, watch_it: bool, as_json: bool) -> None:
    """Show what runs: processes with state and memory, jobs with lag and rate, how fresh feeds are.

    \b
    Example:
      stack status --json
      stack status --watch
    """
    from ops.cli.fleet_views import FleetView, fleet_lines

    with FleetView(session.settings) as view:
        if watch_it:
            watch(view.look, fleet_lines, (lambda seen: seen.as_json()) if as_json else None)
            return
        seen = view.look()
    if as_json:
        say_json(seen.as_json())
        return
    for line in fleet_lines(seen):
        say(line)


@click.command()
@json_option
@pass_session
def doctor(session: Session, as_json: bool) -> None:
    """Check Java, packages, settings, disk, ports, clock and clients; say what to do for each fault.

    Exit code 1 if there is a fault.

    \b
    Example:
      stack doctor
    """
    from ops.cluster.doctor import examine

    if not tell_findings(examine(session.config), as_json):
        raise click.exceptions.Exit(1)


def tell_findings(findings: Iterable[Finding], as_json: bool, only_wrong: bool = False) -> bool:
    """Print what was found, as it is found; whether there is no fault."""
    signs = {"ok": "=", "warning": "?", "fault": "!"}
    found = []
    for finding in findings:
        found.append(finding)
        if not as_json and not (only_wrong and finding.level == "ok"):
            say(f"{signs[finding.level]} {finding.subject:<11} {finding.text}")
            if finding.hint:
                say(f"              {finding.hint}")
    if as_json:
        say_json([asdict(finding) for finding in found])
    return all(finding.level != "fault" for finding in found)


COMMANDS = (up, down, status, doctor)
