"""A consumer on a Kafka in memory: partitions given by hand, committed records only if asked, ends told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, KafkaError, Message, TopicPartition

from stack.kafka.memory.client import MemoryClient
from stack.kafka.memory.log import PartitionLog
from stack.model.place import Place

if TYPE_CHECKING:
    from stack.kafka.memory.broker import MemoryProcess


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """What a transaction needs in order to store offsets for a group."""

    group_id: str


@dataclass(slots=True)
class _Reading:
    """How far one partition was read: fetched up to `next`, handed out up to `position`."""

    next: int
    position: int = OFFSET_INVALID
    # The end that was told last: each is told once.
    told_end: int = OFFSET_INVALID
    low: int = OFFSET_INVALID
    high: int = OFFSET_INVALID
    failed: bool = False


class MemoryConsumer(MemoryClient):
    """The part of confluent_kafka's Consumer that the adapters use."""

    def __init__(self, process: MemoryProcess, settings: Mapping[str, Any]) -> None:
        super().__init__(process, settings)
        self._committed_only = settings.get("isolation.level", "read_committed") == "read_committed"
        self._tells_ends = bool(settings.get("enable.partition.eof"))
        self._readings: dict[Place, _Reading] = {}
        # Kept beyond an assignment, as librdkafka does.
        self._paused: set[Place] = set()
        self._turn = 0
        self._closed = False

    # What to read

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self._require_open()
        self._readings = {}
        self.incremental_assign(places)

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        self._require_open()
        for one in places:
            self._readings[one.topic, one.partition] = _Reading(one.offset)

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        self._require_open()
        for one in places:
            self._readings.pop((one.topic, one.partition), None)

    def pause(self, places: Sequence[TopicPartition]) -> None:
        self._require_open()
        self._paused.update((one.topic, one.partition) for one in places)

    def resume(self, places: Sequence[TopicPartition]) -> None:
        self._require_open()
        self._paused.difference_update((one.topic, one.partition) for one in places)

    def position(self, places: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Where each partition continues after what was handed out."""
        self._require_open()
        return [
            TopicPartition(one.topic, one.partition, OFFSET_INVALID if reading is None else reading.position)
            for one in places
            for reading in (self._readings.get((one.topic, one.partition)),)
        ]

    # Reading

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Records and events: what is there, or what comes within the time."""
        self._require_open()
        hooks = self.kafka.hooks
        until = None
        while True:
            found = self._ask("fetch", lambda: self._fetch(num_messages)) if self._has_news() else []
            if found or timeout == 0:
                return found
            now = hooks.now_s()
            if until is None:
                until = now + timeout if timeout > 0 else float("inf")
            if now >= until:
                return []
            self.process.sleep(min(until - now, 3600.0))
            self._require_open()

    def poll(self, timeout: float = -1) -> Message | None:
        """The next record or event."""
        found = self.consume(1, timeout)
        return found[0] if found else None

    def _has_news(self) -> bool:
        """Whether a fetch would bring anything: brokers keep one that would not waiting until it does."""
        kafka = self.kafka
        if kafka.agenda:
            kafka.tick()
        for place, reading in self._readings.items():
            log = kafka.find(place)
            if log is None or place in self._paused:
                continue
            reading.low, reading.high = log.low, log.high
            end = log.stable if self._committed_only else log.high
            told = reading.told_end == end or not self._tells_ends
            if reading.next != end or not told:
                return True
        return False

    def _fetch(self, limit: int) -> list[Message]:
        """Partitions take turns at being the first."""
        found: list[Message] = []
        places = list(self._readings)
        self._turn += 1
        if len(places) > 1:
            start = self._turn % len(places)
            places = places[start:] + places[:start]
        for place in places:
            if len(found) >= limit:
                break
            if place not in self._paused:
                self._read(place, limit - len(found), found)
        return found

    def _read(self, place: Place, room: int, found: list[Message]) -> None:
        reading, log = self._readings[place], self.kafka.find(place)
        if log is None:
            # Of what does not exist nothing comes, and nobody says so.
            return
        end = log.stable if self._committed_only else log.high
        reading.low, reading.high = log.low, log.high
        if reading.next < 0:
            reading.next = _logical(reading.next, log, end)
        if not log.low <= reading.next <= log.high:
            if not reading.failed:
                reading.failed = True
                reason = f"offset {reading.next} out of range: {log.low} to {log.high}"
                error = KafkaError(KafkaError._AUTO_OFFSET_RESET, reason)
                found.append(Message(topic=place[0], partition=place[1], offset=reading.next, error=error))
            return
        records: list[Message] = []
        while reading.next < end and not records:
            records, reading.next = log.read(reading.next, room, committed=self._committed_only)
        if records:
            found += records
            reading.position = records[-1].offset() + 1
        # An end comes with an answer of its own, after the records.
        elif self._tells_ends and reading.next >= end and reading.told_end != end:
            reading.told_end = end
            error = KafkaError(KafkaError._PARTITION_EOF, "Broker: No more messages")
            found.append(Message(topic=place[0], partition=place[1], offset=end, error=error))

    # Asking

    def get_watermark_offsets(
        self,
        place: TopicPartition,
        timeout: float = -1,  # noqa: ARG002
        cached: bool = False,
    ) -> tuple[int, int]:
        """First offset and end; the cached ones are those of the last fetch."""
        self._require_open()
        key = place.topic, place.partition
        if cached:
            reading = self._readings.get(key)
            return (OFFSET_INVALID, OFFSET_INVALID) if reading is None else (reading.low, reading.high)
        return self._ask("watermarks", lambda: self._watermarks(key))

    def _watermarks(self, place: Place) -> tuple[int, int]:
        log = self.kafka.log(place)
        return log.low, log.stable if self._committed_only else log.high

    def committed(self, places: Sequence[TopicPartition], timeout: float = -1) -> list[TopicPartition]:  # noqa: ARG002
        """What the group has committed."""
        self._require_open()
        known = self._ask("committed", lambda: self.kafka.groups.get(self.name, {}))
        return [
            TopicPartition(one.topic, one.partition, known.get((one.topic, one.partition), OFFSET_INVALID))
            for one in places
        ]

    def consumer_group_metadata(self) -> GroupMetadata:
        self._require_open()
        return GroupMetadata(self.name)

    def close(self) -> None:
        self._closed = True
        self._readings = {}

    def _require_open(self) -> None:
        if not self.process.alive:
            self.process.require_alive()
        if self._closed:
            raise RuntimeError("Consumer closed")


def _logical(offset: int, log: PartitionLog, end: int) -> int:
    """What one of Kafka's names for an offset means here."""
    return {OFFSET_BEGINNING: log.low, OFFSET_END: end}.get(offset, offset)
