"""Writes in transactions that also hold input offsets: the one way by which a container commits.

What can go wrong with a commit falls into three: it will never be (`Aborted`: nothing of it is visible, go
back and do it again), another process took over (LostOwnership: stop), or nobody knows (`OutcomeUnknown`:
leave and look at what is there).

librdkafka speaks the first version of Kafka's transactions, in which a late answer to an old request can
end a newer transaction of the same epoch. Hence a writer that met any trouble on its way is `disturbed`: it
must be closed and a new one initialised, which raises the epoch, before the next transaction. Initialising
also aborts what the old one left open. So a writer in trouble does not insist on aborting by itself: its
client may have lost Kafka for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from stack.errors import FeedstackError, LostOwnership, NotDelivered
from stack.kafka.config import KafkaAccess
from stack.kafka.errors import translate, translated
from stack.kafka.writer import LogWriter
from stack.machine import monotonic
from stack.model.place import Place

TRANSACTION_LIMIT_S = 45.0
_DELIVERY_S = 40.0
# A broker that was just started may take its time to find out who leads what.
_STEP_S = 30.0
# How long a writer in trouble tries to abort.
_LAST_TRY_S = 5.0


class Aborted(NotDelivered):
    """The transaction is aborted, or will be before the next one begins: nothing of it is visible."""


class OutcomeUnknown(NotDelivered):
    """Whether the transaction was committed is not known."""


class TransactionWriter(LogWriter):
    """A transactional writer. Initialising it fences whoever had its id."""

    def __init__(
        self,
        access: KafkaAccess,
        transactional_id: str,
        settings: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.disturbed = False
        own = {
            "transaction.timeout.ms": int(TRANSACTION_LIMIT_S * 1000),
            "error_cb": self._on_error,
            **(settings or {}),
        }
        super().__init__(access, transactional_id, own, timeout_s=_DELIVERY_S, clock=clock)
        self.in_transaction = False

    def _on_error(self, _error: KafkaError) -> None:
        self.disturbed = True

    def begin_if_needed(self) -> None:
        """Begin a transaction unless one is open."""
        if not self.in_transaction:
            self.begin()
            self.in_transaction = True

    def send_offsets(self, offsets: Mapping[Place, int], group: Any) -> None:
        """Store input offsets for a consumer group within the transaction."""
        places = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        with translated("storing input offsets"):
            self._retried(lambda: self._producer.send_offsets_to_transaction(places, group, _STEP_S))

    def deliver_or_abort(self) -> None:
        """Wait until everything stands in the log; Aborted or LostOwnership if it never will."""
        self.do_or_abort(self.flush)

    def do_or_abort(self, step: Callable[[], None]) -> None:
        """Do something that the transaction needs; Aborted or LostOwnership if that fails."""
        try:
            step()
        except FeedstackError as error:
            self.disturbed = True
            self._abort_after(error)

    def commit_delivered(self) -> None:
        """Commit what was delivered.

        Aborted, LostOwnership or OutcomeUnknown tell what became of the transaction otherwise.
        """
        try:
            self._retried(lambda: self._producer.commit_transaction(_STEP_S))
        except KafkaException as error:
            self.disturbed = True
            cause = error.args[0]
            if cause.txn_requires_abort():
                self._abort_after(translate(cause, "committing"))
            fault = translate(cause, "committing")
            if isinstance(fault, LostOwnership):
                raise fault from None
            raise OutcomeUnknown(f"{fault.message}; whether it was committed is not known") from error
        self.in_transaction = False
        self._producer.poll(0)

    def _retried(self, call: Callable[[], object], limit_s: float = _DELIVERY_S) -> None:
        """Repeat what may be repeated until the time is over."""
        deadline = self._clock() + limit_s
        while True:
            try:
                call()
                return
            except KafkaException as error:
                self.disturbed = True
                if not error.args[0].retriable() or self._clock() > deadline:
                    raise

    def _abort_after(self, error: FeedstackError) -> None:
        """Abort because of `error`; raises what became of the transaction."""
        if isinstance(error, LostOwnership):
            raise error
        self.abort_all()
        raise Aborted(error.message, error.hint) from error

    def abort_all(self) -> None:
        """Drop everything since `begin`. What Kafka does not confirm is left to the next writer."""
        if not self.in_transaction:
            return
        self._failure, self._failed, self._queued_bytes = None, 0, 0
        limit_s = _LAST_TRY_S if self.disturbed else _STEP_S
        try:
            self._retried(lambda: self._producer.abort_transaction(limit_s), limit_s)
        except KafkaException as error:
            fault = translate(error.args[0], "aborting")
            if isinstance(fault, LostOwnership):
                raise fault from None
            self.disturbed = self._given_up = True
            return
        except SystemError:
            raise LostOwnership("aborting: another process took over") from None
        self.in_transaction = False
