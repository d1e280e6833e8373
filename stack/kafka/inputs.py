"""Reads partitions of many topics with one consumer, which come and go while others are read on."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from stack.kafka.config import KafkaAccess, make_client
from stack.kafka.errors import MISSING, translated
from stack.kafka.reader import READER_SETTINGS, RawBatch, poll_for, without_events
from stack.kafka.silence import LOOK_S, Silence, put_aside
from stack.machine import monotonic
from stack.model.place import Place

_ASK_S = 2.0
# More changes of partition than these in one portion, and each record is looked at.
_MOST_RUNS = 200
# So few messages are looked at one by one in less time than it takes to make an array.
_FEW = 16


@dataclass(slots=True)
class Portion:
    """Records of one partition that came together; reading continues at `next_offset` after them."""

    place: Place
    batch: RawBatch
    next_offset: int


class InputReader:
    """A consumer whose partitions are given by hand. The group serves only to name committed offsets."""

    def __init__(
        self,
        access: KafkaAccess,
        group: str,
        settings: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = monotonic,
        look_s: float = LOOK_S,
    ) -> None:
        self._access = access
        self._settings = {
            **READER_SETTINGS,
            "group.id": group,
            # Nobody asks a coordinator here; without a bound the consumer would look for it all the time.
            "fetch.wait.max.ms": 100,
            **(settings or {}),
        }
        self._clock = clock
        self._silence = Silence(look_s, clock)
        self._begin()
        self._positions: dict[Place, int] = {}
        self._ends: dict[Place, int] = {}
        self._paused: set[Place] = set()
        self._known: set[str] = set()

    def _begin(self) -> None:
        self._consumer = make_client(Consumer, self._access, self._settings)
        # What a transaction needs in order to store offsets for the group. Asked for now, since the same
        # question takes seconds once another thread waits for records; without members it never changes.
        self.group_metadata: Any = self._consumer.consumer_group_metadata()

    def _begin_anew(self) -> None:
        """Go on with another consumer where this one stands."""
        silent, held = self._consumer, list(self._paused)
        put_aside(silent, "inputs")
        self._begin()
        self._known.clear()
        self._paused.clear()
        self.add(dict(self._positions))
        self.pause(held)

    @property
    def positions(self) -> Mapping[Place, int]:
        """Where each partition continues after what was handed out."""
        return self._positions

    def add(self, offsets: Mapping[Place, int]) -> None:
        """Read these partitions, too, from these offsets."""
        if not offsets:
            return
        places = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        self._get_to_know({place.topic for place in places})
        with translated("reading inputs"):
            self._consumer.incremental_assign(places)
        self._positions.update(offsets)
        for place in offsets:
            self._ends.pop(place, None)

    def _get_to_know(self, topics: set[str]) -> None:
        """Ask for topics beforehand: the client takes a second to look for one that it does not know."""
        for topic in sorted(topics - self._known):
            with contextlib.suppress(KafkaException):  # then it does so by itself
                self._consumer.list_topics(topic, _ASK_S)
                self._known.add(topic)

    def remove(self, places: Iterable[Place]) -> None:
        """Read these partitions no longer."""
        gone = [place for place in places if place in self._positions]
        if not gone:
            return
        self.resume(gone)
        with translated("reading inputs"):
            self._consumer.incremental_unassign([TopicPartition(*place) for place in gone])
        for place in gone:
            del self._positions[place]
            self._ends.pop(place, None)

    def pause(self, places: Iterable[Place]) -> None:
        """Hold partitions back; what was prefetched of them stays where it is."""
        new = [place for place in places if place in self._positions and place not in self._paused]
        if new:
            self._consumer.pause([TopicPartition(*place) for place in new])
            self._paused.update(new)

    def resume(self, places: Iterable[Place]) -> None:
        """Go on with partitions that were held back."""
        held = [place for place in places if place in self._paused]
        if held:
            self._consumer.resume([TopicPartition(*place) for place in held])
            self._paused.difference_update(held)

    def caught_up(self, places: Iterable[Place] | None = None) -> bool:
        """Whether partitions were at the end of their log when last looked at."""
        return all(
            self._ends.get(place, -1) >= self._positions[place]
            for place in (self._positions if places is None else places)
            if place not in self._paused
        )

    def is_behind(self, records: int) -> bool:
        """Whether more than so many records were still to be handed out when the broker last answered.

        The end of a log that grows all the time is never reached: `caught_up` is no measure for that.
        """
        return (self.lag(self._positions) or 0) > records

    def passed(self, place: Place, position: int) -> int:
        """The offset that a task at `position` is done with: the end of the log if nothing is left there."""
        end = self._ends.get(place, -1)
        return end if end > position == self._positions.get(place) else position

    def lag(self, positions: Mapping[Place, int]) -> int | None:
        """How many records partitions are behind, as far as the client knows without asking.

        Only for the thread that reads: while it does, the client keeps every other waiting.
        """
        total = 0
        for place, position in positions.items():
            if self._ends.get(place, -1) >= position >= self._positions.get(place, position):
                continue
            try:
                _, high = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
            except (KafkaException, RuntimeError):
                return None
            total += max(0, high - position) if high >= 0 else 0
        return total

    def read(self, max_records: int, timeout_s: float) -> list[Portion]:
        """What is there, at most `max_records`; waits only while there is nothing at all."""
        deadline = self._clock() + timeout_s
        while True:
            with translated("reading inputs"):
                messages = self._consumer.consume(max_records, 0)
                if not messages:
                    first = poll_for(self._consumer, deadline - self._clock())
                    messages = [] if first is None else [first]
            if any(map(Message.error, messages)):
                messages = without_events(messages, self._at_end, self._positions.get, fatal=MISSING)
            if messages:
                return self._portions(messages)
            if self._silence.is_sick(self._consumer, self._read_up_to):
                self._begin_anew()
            if self._clock() >= deadline:
                return []

    def _read_up_to(self) -> dict[Place, int]:
        """Per partition that is not held back, the end of what has come of it."""
        return {
            place: max(position, self._ends.get(place, -1))
            for place, position in self._positions.items()
            if place not in self._paused
        }

    def _portions(self, messages: list[Message]) -> list[Portion]:
        """The messages by partition; of partitions that are no longer read they are dropped."""
        portions = []
        for place, own in self._parted(messages):
            if place not in self._positions:
                continue
            self._positions[place] = own[-1].offset() + 1
            self._silence.heard(place)
            portions.append(Portion(place, RawBatch(own), self._positions[place]))
        return portions

    def _parted(self, messages: list[Message]) -> Iterable[tuple[Place, list[Message]]]:
        """The messages of each partition, in order. They come in runs: an answer of the broker at a time."""
        if len(messages) <= _FEW:
            return self._parted_one_by_one(messages)
        topics = {topic for topic, _ in self._positions}
        if len(topics) > 1:
            # Of several topics mostly one is busy.
            topics = set(map(Message.topic, messages))
        if len(topics) == 1:
            topic = topics.pop()
            numbers = np.fromiter(map(Message.partition, messages), np.int32, len(messages))
            cuts = (np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()
            # The consumer may still hold records of another topic that is no longer read.
            runs = list(itertools.pairwise((0, *cuts, len(messages))))
            told = {messages[at].topic() for start, end in runs[:_MOST_RUNS] for at in (start, end - 1)}
            if len(runs) <= _MOST_RUNS and told == {topic}:
                by_place: dict[Place, list[Message]] = {}
                for start, end in runs:
                    place = topic, int(numbers[start])
                    run = messages[start:end]
                    before = by_place.get(place)
                    by_place[place] = run if before is None else before + run
                return by_place.items()
        return self._parted_one_by_one(messages)

    @staticmethod
    def _parted_one_by_one(messages: list[Message]) -> Iterable[tuple[Place, list[Message]]]:
        """The same for few messages, and for those of many topics or in no order."""
        whence = list(zip(map(Message.topic, messages), map(Message.partition, messages), strict=True))
        return [
            (place, list(compress(messages, map(place.__eq__, whence)))) for place in dict.fromkeys(whence)
        ]

    def _at_end(self, place: Place, offset: int) -> None:
        self._ends[place] = offset
        self._silence.heard(place)

    def committed(self, places: Iterable[Place]) -> dict[Place, int]:
        """What the group has committed, for people who ask; nothing here starts from it."""
        with translated("asking for committed offsets"):
            found = self._consumer.committed([TopicPartition(*place) for place in places], timeout=20)
        return {(one.topic, one.partition): one.offset for one in found}

    def close(self) -> None:
        """Release the connection and its threads."""
        self._consumer.close()
