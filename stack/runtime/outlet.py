"""Which way outputs take to Kafka: at once, or within the transaction of the next commit.

Under exactly-once all of them go within a transaction. Under at-least-once they go at once, by a writer of
their own, so that nobody waits for a commit; but while the job is behind nobody waits for a single record
either, and they take the way of exactly-once, which needs no report on each record and hence is quicker.
Outputs of one key must not overtake each other: the way is changed only between two commits, when everything
that took the other one stands in the log.

Dead letters always go within the transaction: a record that was given up is told of exactly once.
"""

from __future__ import annotations

from stack.kafka.config import KafkaAccess
from stack.kafka.writer import LogWriter
from stack.model.job import Guarantee
from stack.runtime.commit import Committer
from stack.runtime.dead import DeadLetters
from stack.runtime.outputs import Outputs

_QUICK = {"linger.ms": 1}
# What a job that has caught up lets come together before its commit.
_FEW_HELD = 1_000
# Outputs that wait for a commit under way; more of them, and the container waits, too.
_MOST_HELD = 100_000


class Outlet:
    """The outputs of a container on their way out."""

    def __init__(
        self, outputs: Outputs, dead: DeadLetters, guarantee: Guarantee, access: KafkaAccess
    ) -> None:
        self._outputs = outputs
        self._dead = dead
        self.plain = None if guarantee is Guarantee.EXACTLY_ONCE else LogWriter(access, settings=_QUICK)
        # A job that begins is mostly behind; if it is not, its first commit comes soon.
        self._at_once = False

    @property
    def is_full(self) -> bool:
        """Whether so much waits that nothing should be added."""
        return len(self._outputs) + len(self._dead) > _MOST_HELD

    def send(self, committer: Committer, behind: bool) -> None:
        """Hand over what is encoded, unless a commit under way must not get more.

        A few outputs of a transaction gain nothing by an early start, and each of them would cost the
        coordinator an entry in its log for one more partition; with the commit they come as one.
        """
        if self._at_once:
            if not committer.holds_outputs:
                self.send_all(committer)
        elif not committer.in_flight and (behind or len(self._outputs) > _FEW_HELD):
            self.send_all(committer)
        if len(self._dead) > _FEW_HELD:
            self._send_dead(committer)

    def send_all(self, committer: Committer) -> None:
        """The same for all outputs, at the beginning of their commit."""
        if self._at_once and self.plain is not None:
            self._outputs.send(self.plain)
        elif len(self._outputs):
            committer.writer.begin_if_needed()
            self._outputs.send(committer.writer)
        self._send_dead(committer)

    def _send_dead(self, committer: Committer) -> None:
        """Dead letters are part of the commit under any guarantee: each is there once."""
        if len(self._dead) and not committer.in_flight:
            committer.writer.begin_if_needed()
            self._dead.send(committer.writer)

    def choose(self, behind: bool) -> None:
        """After a commit: which way the next outputs take."""
        if self.plain is not None and self._at_once is behind:
            self.flush()
            self._at_once = not behind

    def flush(self) -> None:
        """Wait until everything that was sent at once stands in the log."""
        if self.plain is not None:
            self.plain.flush()

    def close(self) -> None:
        """Let go of the writer."""
        if self.plain is not None:
            self.plain.close()
