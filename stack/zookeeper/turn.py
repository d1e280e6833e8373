"""One runner at a time: for Spark clusters, whose executors all go to the first application that asks.

/feedstack/<stack>/turn      ephemeral: the runner whose turn it is; the others stand by
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from stack.errors import LostOwnership, Unavailable
from stack.machine import event
from stack.model.fleet import RunnerPlace, runner_from_json, runner_to_json
from stack.zookeeper.fleet_session import FleetSession
from stack.zookeeper.lead import IsDead
from stack.zookeeper.nodes import Change, ensure, is_own, parsed, read_json, to_bytes
from stack.zookeeper.session import stack_node

log = logging.getLogger("feedstack.runner")
_LOOK_S = 0.5


class Turn:
    """A runner's claim to be the only one that works. It holds for as long as its ZooKeeper session."""

    def __init__(self, hosts: str, stack: str, place: RunnerPlace, is_dead: IsDead = lambda _: False) -> None:
        self._hosts = hosts
        self._root = stack_node(stack)
        self._path = f"{self._root}/turn"
        self._place = place
        self._is_dead = is_dead
        self._stopped = event()
        self._session: FleetSession | None = None

    def wait(self, meanwhile: Callable[[], None]) -> bool:
        """Wait for the turn, calling `meanwhile` now and then; False if `stop` came first."""
        told = ""
        while not self._stopped.is_set():
            try:
                other = self.claim()
                if other is None:
                    return True
                said = f"runner {other.id} on {other.host} works; this one stands by"
            except (Unavailable, LostOwnership) as error:
                said = error.message
            if said != told:
                log.info("%s", said)
                told = said
            meanwhile()
            self._stopped.wait(_LOOK_S)
        return False

    def claim(self) -> RunnerPlace | None:
        """Take the turn if it is free or its holder is dead, or keep it; else whose turn it is."""
        session = self._live_session()
        tree = read_json(session, self._path)
        holder = None if tree is None else parsed(runner_from_json, tree, self._path)
        if holder is not None and is_own(session, self._path):
            return None
        # An earlier session of this very runner may still be there for ZooKeeper.
        if holder is not None and holder.id != self._place.id and not self._is_dead(holder):
            return holder
        ensure(session, self._root)
        change = Change(session, "taking the turn of runners")
        if holder is not None:
            change.delete(self._path)
        change.create(self._path, to_bytes(runner_to_json(self._place)), ephemeral=True)
        if change.commit() or is_own(session, self._path):
            return None
        raise Unavailable("another runner was quicker")

    def keep(self, on_lost: Callable[[], None]) -> None:
        """Look after the turn until `stop`; `on_lost` is called once another runner has it."""
        while not self._stopped.wait(_LOOK_S):
            with contextlib.suppress(Unavailable, LostOwnership):
                other = self.claim()
                if other is not None:
                    log.warning("runner %s on %s has taken over", other.id, other.host)
                    on_lost()
                    return

    def stop(self) -> None:
        """Wait and look no longer; safe from a signal handler."""
        self._stopped.set()

    def close(self) -> None:
        """Give the turn back."""
        self.stop()
        if self._session is not None:
            self._session.close()
            self._session = None

    def _live_session(self) -> FleetSession:
        if self._session is not None and not self._session.lost.is_set():
            return self._session
        if self._session is not None:
            self._session.close()
            self._session = None
        session = FleetSession(self._hosts)
        session.start()
        self._session = session
        return session
