"""Reads partitions of one topic by offset, in large batches, committed records only.

The loop never looks at records one by one: errors and partition ends are found with one C-level pass
over a batch, and positions are asked per partition. That keeps it within a few percent of a bare
`consume(10000)`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from stack.errors import NotFound
from stack.kafka.config import KafkaAccess, make_client
from stack.kafka.errors import translate, translated
from stack.kafka.silence import LOOK_S, Silence, put_aside
from stack.machine import monotonic
from stack.model.place import Place

BATCH_RECORDS = 10_000
# At its default of 1,000 ms librdkafka lets a full queue run dry before it fetches again: a single
# partition then comes at a sixth of its speed.
_FETCH_QUEUE_BACKOFF_MS = 5
_QUEUED_KBYTES = 64 << 10

READER_SETTINGS: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # An offset that retention removed is an error here, never a silent jump.
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "fetch.queue.backoff.ms": _FETCH_QUEUE_BACKOFF_MS,
    "queued.max.messages.kbytes": _QUEUED_KBYTES,
    "allow.auto.create.topics": False,
}


class RawBatch:
    """Messages as librdkafka handed them out; columns are taken when they are asked for."""

    __slots__ = ("messages",)

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def values(self) -> list[bytes | None]:
        return list(map(Message.value, self.messages))

    @property
    def keys(self) -> list[bytes | None]:
        return list(map(Message.key, self.messages))

    @property
    def offsets(self) -> list[int]:
        return list(map(Message.offset, self.messages))

    @property
    def partitions(self) -> list[int]:
        return list(map(Message.partition, self.messages))

    @property
    def timestamps_ms(self) -> list[int]:
        return [stamp for _, stamp in map(Message.timestamp, self.messages)]

    @property
    def headers(self) -> list[list[tuple[str, bytes | None]] | None]:
        return list(map(Message.headers, self.messages))


def poll_for(consumer: Consumer, left_s: float) -> Message | None:
    """The next message or event, waited for that long.

    The client counts in whole milliseconds: a wait for less would be none at all, again and again.
    """
    return consumer.poll(max(0.001, left_s) if left_s > 0 else 0)


def without_events(
    messages: list[Message],
    at_end: Callable[[Place, int], None],
    position_of: Callable[[Place], int | None],
    *,
    fatal: Container[int] = (),
) -> list[Message]:
    """Take partition ends and errors out of a batch.

    Ends are told to `at_end`. Errors that pass are left to the client, but for those in `fatal`.
    """
    records = []
    for message in messages:
        error = message.error()
        if error is None:
            records.append(message)
            continue
        place = (message.topic(), message.partition())
        if error.code() == KafkaError._PARTITION_EOF:
            at_end(place, message.offset())
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise NotFound(
                f"{place[0]}, partition {place[1]}: offset {position_of(place)} is not there ({error.str()})",
                hint="Retention may have removed it: `stack feeds show` prints the offsets there are.",
            )
        elif error.code() in fatal or not error.retriable():
            raise translate(error, f"reading {place[0] or 'from Kafka'}")
    return records


class LogReader:
    """A consumer without a group: partitions and offsets are given, nothing is committed."""

    def __init__(
        self,
        access: KafkaAccess,
        topic: str,
        settings: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = monotonic,
        look_s: float = LOOK_S,
    ) -> None:
        self._access = access
        # librdkafka wants a group name even where no group is used.
        self._settings = {**READER_SETTINGS, "group.id": f"feedstack-reader-{topic}", **(settings or {})}
        self._consumer = make_client(Consumer, access, self._settings)
        self._topic = topic
        self._clock = clock
        self._silence = Silence(look_s, clock)
        self._until: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._at_bound: set[int] = set()

    def assign(self, offsets: Mapping[int, int], until: Mapping[int, int] | None = None) -> None:
        """Read from these offsets, up to but not including `until` where it is given."""
        self._positions = dict(offsets)
        self._until = {number: (until or {})[number] for number in offsets if number in (until or {})}
        self._ends = {}
        self._at_bound = {number for number, end in self._until.items() if offsets[number] >= end}
        self._assign()

    def _assign(self) -> None:
        places = [TopicPartition(self._topic, number, self._positions[number]) for number in self._running()]
        with translated(f"reading {self._topic}"):
            self._consumer.assign(places)
            # A partition that was paused at an earlier bound would stay so.
            self._consumer.resume(places)

    @property
    def bounded(self) -> bool:
        """Whether every assigned partition has a bound."""
        return len(self._until) == len(self._positions)

    @property
    def done(self) -> bool:
        """Whether every assigned partition has reached its bound."""
        return len(self._at_bound) == len(self._positions)

    @property
    def caught_up(self) -> bool:
        """Whether every partition was at its bound or at the end of the log when last looked at."""
        return all(
            number in self._at_bound or self._ends.get(number, -1) >= position
            for number, position in self._positions.items()
        )

    @property
    def positions(self) -> Mapping[int, int]:
        """The offset that each partition continues from."""
        return self._positions

    def read(self, max_records: int = BATCH_RECORDS, timeout_s: float = 1.0) -> RawBatch:
        """What is there, at most `max_records`; waits only while there is nothing at all.

        Returns an empty batch when the time is over or when every partition has reached its bound.
        """
        deadline = self._clock() + timeout_s
        while not self.done:
            messages = self._consume(max_records, deadline)
            at_bound = len(self._at_bound)
            if any(map(Message.error, messages)):
                messages = without_events(messages, self._at_end, lambda place: self._positions.get(place[1]))
            if messages:
                self._note_positions()
                if len(self._at_bound) > at_bound:
                    messages = self._within_bounds(messages)
                if messages:
                    return RawBatch(messages)
            if self._silence.is_sick(self._consumer, self._read_up_to):
                self._begin_anew()
            if self._clock() >= deadline:
                break
        return RawBatch([])

    def _running(self) -> list[int]:
        """The partitions that have not reached their bound."""
        return [number for number in self._positions if number not in self._at_bound]

    def _read_up_to(self) -> dict[Place, int]:
        """The end of what has come of each of them."""
        return {
            (self._topic, number): max(self._positions[number], self._ends.get(number, -1))
            for number in self._running()
        }

    def _begin_anew(self) -> None:
        """Go on with another consumer where this one stands."""
        put_aside(self._consumer, self._topic)
        self._consumer = make_client(Consumer, self._access, self._settings)
        self._assign()

    def _consume(self, max_records: int, deadline: float) -> list[Message]:
        """Everything queued now; else wait for one message and take what came with it.

        `consume` with a timeout waits for the whole batch or the whole timeout, never for less.
        """
        with translated(f"reading {self._topic}"):
            messages: list[Message] = self._consumer.consume(max_records, 0)
            if not messages:
                first = poll_for(self._consumer, deadline - self._clock())
                if first is not None:
                    messages = (
                        [first, *self._consumer.consume(max_records - 1, 0)] if max_records > 1 else [first]
                    )
        return messages

    def _at_end(self, place: Place, offset: int) -> None:
        """Control records are invisible: only this event tells that the end is reached."""
        self._ends[place[1]] = offset
        self._silence.heard(place)
        self._reached(place[1], offset)

    def _reached(self, partition: int, offset: int) -> None:
        """A partition continues from here; at its bound it is paused, and its end is the bound itself."""
        end = self._until.get(partition)
        if end is None or offset < end:
            self._positions[partition] = offset
        elif partition not in self._at_bound:
            self._positions[partition] = end
            self._at_bound.add(partition)
            self._consumer.pause([TopicPartition(self._topic, partition)])

    def _note_positions(self) -> None:
        """Ask once per partition how far it came, instead of looking at every record."""
        running = [TopicPartition(self._topic, number) for number in self._running()]
        for place in self._consumer.position(running):
            if place.offset > self._positions[place.partition]:
                self._silence.heard((self._topic, place.partition))
                self._reached(place.partition, place.offset)

    def _within_bounds(self, messages: list[Message]) -> list[Message]:
        """Drop what lies behind a bound."""
        never = 1 << 62
        until = self._until
        return [one for one in messages if one.offset() < until.get(one.partition(), never)]

    def close(self) -> None:
        """Release the connection and its threads."""
        self._consumer.close()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
