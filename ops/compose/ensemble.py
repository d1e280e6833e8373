"""Who belongs to the ZooKeeper ensemble of the cluster.

    python -m ops.compose.ensemble show ENSEMBLE
    python -m ops.compose.ensemble join ENSEMBLE NUMBER HOST      what further servers do when they start
    python -m ops.compose.ensemble leave ENSEMBLE NUMBER …        before servers are stopped for good

Of three servers two must be there: an ensemble that is to become smaller is told so while it serves.
"""

from __future__ import annotations

import argparse
import sys
import time

from ops.cluster.probes import answers_ruok
from ops.compose.ports import ZOOKEEPER_PORT
from stack.errors import FeedstackError, Unavailable
from stack.zookeeper.ensemble import current_members, join, leave

_JOIN_S = 90.0


def main(arguments: list[str]) -> int:
    """Show or change the ensemble; a fault is one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m ops.compose.ensemble")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("show", "join", "leave"):
        commands.add_parser(name).add_argument("ensemble")
    commands.choices["join"].add_argument("number", type=int)
    commands.choices["join"].add_argument("host")
    commands.choices["leave"].add_argument("numbers", type=int, nargs="+")
    options = parser.parse_args(arguments)
    try:
        if options.command == "join":
            join_patiently(options.ensemble, options.number, options.host)
        elif options.command == "leave":
            leave(options.ensemble, options.numbers)
        for number, host in sorted(current_members(options.ensemble).items()):
            print(f"{number} {host}")  # noqa: T201
    except FeedstackError as error:
        sys.stderr.write(f"feedstack: {error.message}. {error.hint}\n")
        return 1
    return 0


def join_patiently(ensemble: str, number: int, host: str) -> None:
    """Become a member as soon as both this server and the ensemble answer."""
    deadline = time.monotonic() + _JOIN_S
    while True:
        try:
            if answers_ruok(ZOOKEEPER_PORT):
                if number not in current_members(ensemble):
                    join(ensemble, number, host)
                return
        except Unavailable:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
