"""Transactions in memory: who may write under an id, what is open, and how it ends.

As in the first version of Kafka's protocol, which librdkafka speaks: an epoch lasts from one initialisation
to the next, so that a late request to end a transaction may end the next one of the same epoch.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from stack.model.place import Place

if TYPE_CHECKING:
    from stack.kafka.memory.broker import MemoryKafka


class State(Enum):
    """Where the transactions of one id stand."""

    EMPTY = "empty"
    ONGOING = "ongoing"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Transactions:
    """What the coordinator knows of one transactional id."""

    id: str
    producer: int
    timeout_s: float
    epoch: int = 0
    state: State = State.EMPTY
    # Counts transactions: a time limit must not end a later one.
    number: int = 0
    places: set[Place] = field(default_factory=set)
    offsets: dict[str, dict[Place, int]] = field(default_factory=dict)
    # Partitions whose marker is still to be written, and whether it is one of a commit.
    markers: dict[Place, bool] = field(default_factory=dict)


class Coordinator:
    """Keeps all transactional ids of a Kafka in memory."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka
        self._by_id: dict[str, Transactions] = {}
        self._producers = itertools.count(1)

    def get(self, name: str) -> Transactions | None:
        """What is known of an id, for whoever looks in from outside."""
        return self._by_id.get(name)

    def is_committed(self, place: Place) -> bool:
        """Whether a commit is decided whose marker is not in a partition yet."""
        return any(known.markers.get(place) for known in self._by_id.values())

    def next_producer(self) -> int:
        return next(self._producers)

    def initialise(self, name: str, timeout_s: float) -> tuple[int, int]:
        """Take an id over: what is open is aborted, all others are fenced. Answers producer and epoch."""
        known = self._by_id.get(name)
        if known is None:
            known = self._by_id[name] = Transactions(name, self.next_producer(), timeout_s)
            return known.producer, known.epoch
        self._write_markers(known)
        if known.state is State.ONGOING:
            self._end(known, commit=False)
            self._write_markers(known)
        known.epoch += 1
        known.timeout_s = timeout_s
        known.state = State.EMPTY
        return known.producer, known.epoch

    def add(self, name: str, epoch: int, place: Place | None) -> None:
        """Make a partition part of the id's transaction, which begins with the first."""
        known = self._current(name, epoch)
        # The real one sends the client away until they are written; it comes again by itself.
        self._write_markers(known)
        if known.state is not State.ONGOING:
            known.state = State.ONGOING
            known.number += 1
            number = known.number
            self._kafka.later(known.timeout_s, lambda: self._expire(known, number))
        if place is not None:
            known.places.add(place)

    def require_part(self, name: str, epoch: int, place: Place) -> None:
        """Whether records of the id may be written here now: not after somebody ended its transaction."""
        known = self._current(name, epoch)
        if known.state is not State.ONGOING or place not in known.places:
            raise KafkaException(
                KafkaError(
                    KafkaError.INVALID_TXN_STATE,
                    "Broker: Producer attempted a transactional operation in an invalid state",
                    txn_requires_abort=True,
                )
            )

    def add_offsets(self, name: str, epoch: int, group: str, offsets: dict[Place, int]) -> None:
        """Store offsets of a group when the transaction commits."""
        self.add(name, epoch, None)
        self._current(name, epoch).offsets.setdefault(group, {}).update(offsets)

    def end(self, name: str, epoch: int, *, commit: bool) -> None:
        """End whatever transaction is open now. A repeated request is answered like the first."""
        known = self._current(name, epoch)
        wanted = State.COMMITTED if commit else State.ABORTED
        if known.state is State.ONGOING:
            self._end(known, commit=commit)
        elif known.state is not wanted:
            raise KafkaException(
                KafkaError(
                    KafkaError.INVALID_TXN_STATE,
                    "Broker: Producer attempted a transactional operation in an invalid state",
                    fatal=True,
                )
            )

    def _current(self, name: str, epoch: int) -> Transactions:
        known = self._by_id.get(name)
        if known is None or known.epoch != epoch:
            raise KafkaException(
                KafkaError(
                    KafkaError.PRODUCER_FENCED,
                    "Broker: There is a newer producer with the same transactionalId which fences the "
                    "current one",
                    fatal=True,
                )
            )
        return known

    def _end(self, known: Transactions, *, commit: bool) -> None:
        known.state = State.COMMITTED if commit else State.ABORTED
        if commit:
            for group, offsets in known.offsets.items():
                self._kafka.groups.setdefault(group, {}).update(offsets)
        known.offsets.clear()
        # In one order in every run.
        places = sorted(known.places)
        known.places.clear()
        for place in places:
            known.markers[place] = commit
            delay_s = self._kafka.hooks.marker_delay_s(*place)
            if delay_s > 0:
                self._kafka.later(delay_s, partial(self._write_marker, known, place))
            else:
                self._write_marker(known, place)

    def _write_markers(self, known: Transactions) -> None:
        for place in list(known.markers):
            self._write_marker(known, place)

    def _write_marker(self, known: Transactions, place: Place) -> None:
        commit = known.markers.pop(place, None)
        log = self._kafka.find(place)
        if commit is not None and log is not None:
            log.end_transaction(known.producer, commit=commit)

    def _expire(self, known: Transactions, number: int) -> None:
        """The time limit of a transaction is over: it is aborted, and its producer fenced."""
        if known.state is State.ONGOING and known.number == number:
            known.epoch += 1
            self._end(known, commit=False)
