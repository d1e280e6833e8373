"""How somebody outside steers a Kafka in memory: its clock, its waits, and what happens at every step.

The plain `Hooks` let everything go well, and never block: a wait moves the clock. A simulation overrides
them. At a point it may raise a KafkaException, which the client hears as if it came from Kafka: before a step
the request got lost, after it the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

if TYPE_CHECKING:
    from stack.kafka.memory.client import MemoryClient

BEFORE, AFTER = "before", "after"
# Where the clock in hand begins: a moment that is easy to tell from today.
START_MS = 1_700_000_000_000


class Hooks:
    """All goes well, and time passes only while somebody waits."""

    # Whether producers send when they are polled, rather than by themselves when records have lingered: what
    # they do by themselves passes no point.
    sends_at_once = False
    # Requests that only ask: nobody wants to be called after these.
    only_ask: frozenset[str] = frozenset()

    def __init__(self, start_ms: int = START_MS) -> None:
        self._start_ms = start_ms
        self._passed_s = 0.0

    def now_s(self) -> float:
        """Seconds since the beginning."""
        return self._passed_s

    def now_ms(self) -> int:
        """The time of day."""
        return self._start_ms + int(self._passed_s * 1000)

    def wait(self, seconds: float) -> None:
        """Whoever calls this has nothing to do for so long; may return early."""
        self._passed_s += seconds

    def point(self, client: MemoryClient, operation: str, phase: str) -> None:
        """A client is before or after a step that Kafka sees, such as `commit` or `fetch`."""

    def marker_delay_s(self, topic: str, partition: int) -> float:  # noqa: ARG002
        """How long after its commit was acknowledged a transaction becomes visible in a partition."""
        return 0.0


class Late(Exception):
    """Raised before a step: the request arrives that much later, and its sender hears the error now."""

    def __init__(self, after_s: float, error: KafkaError) -> None:
        super().__init__(error.str())
        self.after_s = after_s
        self.error = error


class Hangs(Exception):
    """Raised before `list-offsets`: the leader does not answer in time, which librdkafka does not tell."""


class Killed(BaseException):
    """A client of a process that was killed was asked for something. Nobody on the way is to catch it."""
