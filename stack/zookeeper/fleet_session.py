"""A ZooKeeper session on which somebody's membership hangs: it tells when it is lost, once and for all.

kazoo reports a lost session only after it reached a server again. Until then the servers may long have
given our nodes to somebody else. Hence: suspended for longer than the session's time counts as lost, and
so does a process that was stopped for that long.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from kazoo.client import KazooState
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from stack.errors import LostOwnership, Unavailable
from stack.machine import event, lock, monotonic, start
from stack.zookeeper.session import make_client

SESSION_S = 6.0
# How long one question may take before it counts as unanswered.
ANSWER_S = 4.0
_TICK_S = 0.25
log = logging.getLogger("feedstack.zookeeper")
# Commands tell in their own words that ZooKeeper is away.
log.addHandler(logging.NullHandler())
T = TypeVar("T")


class FleetSession:
    """A session that ends for good when it is lost. Safe to use from several threads.

    `on_lost` is called once, from a thread of the session; `lost` is set before.
    """

    def __init__(
        self,
        hosts: str,
        on_lost: Callable[[], None] = lambda: None,
        session_s: float = SESSION_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.hosts = hosts
        self.lost = event()
        self._on_lost = on_lost
        self._session_s = session_s
        self._clock = clock
        self._closing = event()
        # What became of the session, once it is over.
        self._over: str | None = None
        self._suspended_at: float | None = None
        self._lock = lock()
        quick = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0)
        self.client: Any = make_client(hosts, session_s, connection_retry=quick, logger=log)

    def start(self, limit_s: float = 10.0) -> FleetSession:
        """Connect; Unavailable if no server answers in time."""
        try:
            _make_root(self.hosts, limit_s)
            # Before the start: whoever stands still right after it must hear that the session is over, and
            # not go on with the next one, which kazoo begins by itself.
            self.client.add_listener(self._on_state)
            self.client.start(timeout=limit_s)
        except (KazooTimeoutError, KazooException) as error:
            self.close()
            raise Unavailable(
                f"ZooKeeper at {self.hosts} cannot be reached ({error})",
                hint="`stack status` and `stack doctor` tell more.",
            ) from None
        start(self._watch, "zookeeper-session")
        return self

    @property
    def connected(self) -> bool:
        """Whether a server answers right now; a suspended session may still be ours."""
        return not self.lost.is_set() and bool(self.client.connected)

    def ask(self, doing: str, question: Callable[[], Any], limit_s: float = ANSWER_S) -> Any:
        """The answer to an asynchronous question that may safely be asked twice.

        Unavailable if there is none in time, LostOwnership if the session is gone; errors about nodes
        come as kazoo raises them.
        """
        deadline = self._clock() + limit_s
        while True:
            if self._over is not None:
                raise LostOwnership(f"{doing}: the ZooKeeper session is {self._over}")
            try:
                return self._answer(question(), limit_s, deadline)
            except (SessionExpiredError, AuthFailedError):
                self._lose("it expired")
            except ConnectionClosedError:
                raise LostOwnership(f"{doing}: the ZooKeeper session is closed") from None
            except (ConnectionLoss, OperationTimeoutError, KazooTimeoutError) as error:
                if self._clock() >= deadline:
                    raise Unavailable(
                        f"{doing}: ZooKeeper at {self.hosts} did not answer within {limit_s:.0f} s "
                        f"({type(error).__name__})",
                        hint="`stack status` and `stack doctor` tell more.",
                    ) from None
                self._closing.wait(0.05)

    def _answer(self, asked: Any, left_s: float, deadline: float) -> Any:
        """Wait for an answer, but no longer than the session is open: a closed client gives none."""
        while True:
            try:
                return asked.get(timeout=_TICK_S if left_s > _TICK_S else max(0.01, left_s))
            except KazooTimeoutError:
                if self._closing.is_set():
                    raise ConnectionClosedError from None
                left_s = deadline - self._clock()
                if left_s <= 0:
                    raise

    def _on_state(self, state: Any) -> None:
        """Called by kazoo; must not wait."""
        if self._closing.is_set():
            return
        with self._lock:
            self._suspended_at = self._clock() if state == KazooState.SUSPENDED else None
        if state == KazooState.LOST:
            start(lambda: self._lose("it expired"), "zookeeper-lost")

    def _watch(self) -> None:
        """Counts the time that kazoo does not count."""
        before = self._clock()
        while not self._closing.wait(_TICK_S) and not self.lost.is_set():
            now = self._clock()
            with self._lock:
                since = self._suspended_at
            if now - before > self._session_s:
                self._lose(f"this process stood still for {now - before:.0f} s")
            elif since is not None and now - since > self._session_s:
                self._lose(f"no server answered for {now - since:.0f} s")
            before = now

    def _lose(self, why: str) -> None:
        with self._lock:
            if self.lost.is_set() or self._closing.is_set():
                return
            self._over = "lost"
            self.lost.set()
        log.warning("the ZooKeeper session is lost: %s", why)
        self._on_lost()

    def close(self) -> None:
        """End the session: its nodes go at once. Does not raise."""
        self._over = self._over or "closed"
        self._closing.set()
        with contextlib.suppress(KazooException, KazooTimeoutError, OSError):
            self.client.stop()
        with contextlib.suppress(KazooException, OSError):
            self.client.close()

    def __enter__(self) -> FleetSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _make_root(hosts: str, limit_s: float) -> None:
    """Make the node after the hosts, if there is one: kazoo can make nothing below it while it is missing."""
    servers, slash, path = hosts.partition("/")
    if not slash:
        return
    client = make_client(servers, SESSION_S, logger=log)
    try:
        client.start(timeout=limit_s)
        client.ensure_path(f"/{path}")
    finally:
        client.stop()
        client.close()
