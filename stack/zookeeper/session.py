"""A session with ZooKeeper, rooted at the stack's own node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler

from stack.errors import Unavailable
from stack.zookeeper.memory.client import MemoryClient
from stack.zookeeper.memory.ensemble import ensemble_at

# A machine that is gone does not even refuse: kazoo would wait for it as long as for a whole session, which
# then is lost although other servers are there.
_CONNECT_S = 1.5


class QuickHandler(SequentialThreadingHandler):
    """Tries one server after the other without waiting long for any of them."""

    def create_connection(self, *words: Any, timeout: float = _CONNECT_S, **more: Any) -> Any:
        return super().create_connection(*words, timeout=min(timeout, _CONNECT_S), **more)


def make_client(hosts: str, timeout_s: float, **more: Any) -> Any:
    """A client that is not connected yet: kazoo's, or a twin of it where the address names one in memory."""
    ensemble = ensemble_at(hosts)
    if ensemble is not None:
        return MemoryClient(ensemble, timeout_s)
    return KazooClient(hosts=hosts, timeout=timeout_s, handler=QuickHandler(), **more)


def stack_node(stack: str) -> str:
    """The node under which everything of one stack lives, so that stacks share an ensemble."""
    return f"/feedstack/{stack}"


@contextlib.contextmanager
def session(hosts: str, timeout_s: float = 10.0) -> Iterator[Any]:
    """A connected client for the block; Unavailable if no server answers in time."""
    client = make_client(hosts, timeout_s)
    try:
        client.start(timeout=timeout_s)
    except (KazooTimeoutError, KazooException) as error:
        _close(client)
        raise Unavailable(
            f"ZooKeeper at {hosts} cannot be reached ({error})",
            hint="`stack status` and `stack doctor` tell more.",
        ) from None
    try:
        yield client
    finally:
        _close(client)


def ping(hosts: str, timeout_s: float = 5.0) -> None:
    """Open a session and ask something; Unavailable if nobody answers."""
    with session(hosts, timeout_s) as client:
        client.exists("/")


def _close(client: Any) -> None:
    with contextlib.suppress(KazooException):
        client.stop()
    client.close()
