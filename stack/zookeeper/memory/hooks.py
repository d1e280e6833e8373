"""How somebody outside steers a ZooKeeper in memory: its clock, its threads, what happens at each request.

The plain `Hooks` let everything go well. A simulation overrides them: at a point it may raise what kazoo
raises (ConnectionLoss before a request: it got lost; after it: the answer did), or let others go first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kazoo.exceptions import ConnectionLoss

from stack import machine

if TYPE_CHECKING:
    from stack.zookeeper.memory.client import MemoryClient

BEFORE, AFTER = "before", "after"


def answer_lost() -> Exception:
    """What a client hears if its request, or the answer to it, got lost."""
    return ConnectionLoss()


class Hooks:
    """All goes well, and every server knows everything at once."""

    # Requests that only ask: nobody wants to be called after these.
    only_ask: frozenset[str] = frozenset()

    def now_s(self) -> float:
        """Seconds of the servers' clock."""
        return machine.monotonic()

    def process(self) -> str:
        """Whose client is being made."""
        return ""

    def point(self, client: MemoryClient, operation: str, path: str, phase: str) -> None:
        """A client is before or after a request."""

    def lag(self, client: MemoryClient) -> bool:  # noqa: ARG002
        """Whether the server of a client is not to hear of the newest change yet."""
        return False

    def start(self, client: MemoryClient, work: Callable[[], object], name: str) -> None:  # noqa: ARG002
        """Do something in a thread of the client's process."""
        machine.start(work, name)
