"""The servers of a ZooKeeper ensemble: who belongs to it, who joins, who leaves, while it serves."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kazoo.exceptions import KazooException

from stack.errors import Unavailable
from stack.zookeeper.session import session

_MEMBER = re.compile(r"^server\.(\d+)=([^:\s]+):.*$", re.MULTILINE)


def members(text: str) -> dict[int, str]:
    """The host of each server in a configuration, as ZooKeeper writes it."""
    return {int(number): host for number, host in _MEMBER.findall(text)}


def member_line(number: int, host: str, role: str = "participant") -> str:
    """A server in a configuration: its ports for followers, for elections and for clients."""
    return f"server.{number}={host}:2888:3888:{role};2181"


def current_members(hosts: str) -> dict[int, str]:
    """Who belongs to the ensemble now."""
    with session(hosts) as client:
        data, _ = client.get("/zookeeper/config")
        return members(data.decode())


def join(hosts: str, number: int, host: str) -> None:
    """Make a server, which runs already, a full member."""
    _change(hosts, f"server {number} joins", joining=member_line(number, host))


def leave(hosts: str, numbers: Iterable[int]) -> None:
    """Let servers go; to be done before they are stopped for good."""
    wanted = sorted(numbers)
    _change(hosts, f"servers {wanted} leave", leaving=",".join(map(str, wanted)))


def _change(hosts: str, doing: str, joining: str | None = None, leaving: str | None = None) -> None:
    with session(hosts) as client:
        try:
            client.reconfig(joining=joining, leaving=leaving, new_members=None)
        except KazooException as error:
            raise Unavailable(f"{doing}: ZooKeeper at {hosts} says {type(error).__name__} {error}") from None
