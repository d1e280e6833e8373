"""The servers of a ZooKeeper in memory: who has a session, until when, and who has heard of what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stack.zookeeper.memory.hooks import Hooks
from stack.zookeeper.memory.tree import Step, Tree

if TYPE_CHECKING:
    from stack.zookeeper.memory.client import MemoryClient

PREFIX = "memory:"
_ensembles: dict[str, Ensemble] = {}


@dataclass
class Session:
    """One session as the servers see it; `quiet_since` is when a client that is away was last heard of."""

    id: int
    timeout_s: float
    quiet_since: float | None = None
    expired: bool = False


class Ensemble:
    """A whole ZooKeeper. `hosts` is the address by which clients of this process find it."""

    def __init__(self, name: str, hooks: Hooks | None = None) -> None:
        self.hosts = f"{PREFIX}{name}"
        self.hooks = hooks or Hooks()
        self.tree = Tree()
        self.clients: list[MemoryClient] = []
        # Sessions of which nothing is heard for the moment.
        self.quiet: dict[int, Session] = {}
        self._number = 0
        _ensembles[self.hosts] = self

    def close(self) -> None:
        """Be found by nobody any more."""
        _ensembles.pop(self.hosts, None)

    def open_session(self, timeout_s: float) -> Session:
        """A new session."""
        self._number += 1
        return Session(self._number, timeout_s)

    def end_session(self, session: Session) -> None:
        """Its nodes go."""
        if not session.expired:
            session.expired = True
            self.quiet.pop(session.id, None)
            for path in self.tree.ephemerals(session.id):
                self.tree.change([Step("delete", path)], session.id)
            self.spread()

    def tick(self) -> None:
        """Let sessions expire of which nothing was heard for too long."""
        now = self.hooks.now_s() if self.quiet else 0.0
        for session in list(self.quiet.values()):
            if session.quiet_since is not None and now - session.quiet_since >= session.timeout_s:
                self.end_session(session)

    def spread(self) -> None:
        """Let every client's server hear of the newest change, but for those that lag."""
        for client in list(self.clients):
            if client.seen < self.tree.zxid and not self.hooks.lag(client):
                client.catch_up()

    def cut(self, client: MemoryClient, tell: bool = True) -> None:
        """The connection of a client is gone; a client that stands still is not told."""
        if client.session.quiet_since is None:
            client.session.quiet_since = self.hooks.now_s()
            if not client.session.expired:
                self.quiet[client.session.id] = client.session
        if tell:
            client.suspend()

    def mend(self, client: MemoryClient) -> None:
        """A client reaches a server again: it finds its session there, or learns that it is lost."""
        self.tick()
        if client.session.expired:
            client.lose()
        else:
            client.session.quiet_since = None
            self.quiet.pop(client.session.id, None)
            client.resume()


def ensemble_at(hosts: str) -> Ensemble | None:
    """The ensemble in memory that an address names, if it names one."""
    return _ensembles.get(hosts) if hosts.startswith(PREFIX) else None
