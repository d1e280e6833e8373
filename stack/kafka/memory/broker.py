"""A Kafka in memory: topics with ids, logs, transactions, groups, and an agenda of what happens later.

    kafka = MemoryKafka()
    access = KafkaAccess("memory", memory=kafka.process("container-0"))

Every client belongs to a process, which can be killed: its clients then do nothing any more, not even abort.
Nothing here runs in a thread of its own: what is due is done when the next request comes.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from stack.kafka.memory.admin import MemoryAdmin
from stack.kafka.memory.client import MemoryClient
from stack.kafka.memory.consumer import MemoryConsumer
from stack.kafka.memory.coordinator import Coordinator
from stack.kafka.memory.hooks import Hooks, Killed
from stack.kafka.memory.log import PartitionLog, Queued
from stack.kafka.memory.producer import MemoryProducer
from stack.model.place import Place

_KINDS: Mapping[type, type[MemoryClient]] = {
    Producer: MemoryProducer,
    Consumer: MemoryConsumer,
    AdminClient: MemoryAdmin,
}
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
# What a topic has that was made without settings, as far as anybody here looks at it.
BROKER_DEFAULTS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
}
Client = TypeVar("Client")


class MemoryTopic:
    """A topic: its id is another one after it was deleted and made anew."""

    def __init__(self, name: str, topic_id: str, partitions: int, settings: Mapping[str, str]) -> None:
        self.name = name
        self.id = topic_id
        self.settings = {**BROKER_DEFAULTS, **settings}
        self.logs = [PartitionLog(name, number) for number in range(partitions)]

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.settings["cleanup.policy"]

    @property
    def by_append(self) -> bool:
        """Whether records get the time at which they came."""
        return self.settings["message.timestamp.type"] == "LogAppendTime"

    def grow(self, partitions: int) -> None:
        self.logs += [PartitionLog(self.name, number) for number in range(len(self.logs), partitions)]


class MemoryProcess:
    """A process with clients: the way to make them, and its end."""

    def __init__(self, kafka: MemoryKafka, name: str) -> None:
        self.kafka = kafka
        self.name = name
        self.alive = True

    def client(self, kind: type[Client], settings: Mapping[str, Any]) -> Client:
        """A client of one of confluent_kafka's kinds."""
        return _KINDS[kind](self, settings)  # type: ignore[return-value]

    def sleep(self, seconds: float) -> None:
        """Let time pass for a client that waits."""
        self.require_alive()
        self.kafka.hooks.wait(seconds)

    def kill(self) -> None:
        """As `kill -9`: nothing is flushed, aborted or closed."""
        self.alive = False

    def require_alive(self) -> None:
        if not self.alive:
            raise Killed(f"process {self.name} was killed")


class MemoryKafka:
    """Everything that one Kafka holds."""

    def __init__(self, hooks: Hooks | None = None) -> None:
        self.hooks = hooks or Hooks()
        self.topics: dict[str, MemoryTopic] = {}
        # Per group, the offsets it has committed.
        self.groups: dict[str, dict[Place, int]] = {}
        self.coordinator = Coordinator(self)
        self.agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count(1)

    def process(self, name: str) -> MemoryProcess:
        """A new process of that name; one that was killed stays dead."""
        return MemoryProcess(self, name)

    def later(self, after_s: float, act: Callable[[], object]) -> None:
        """Do something when the time has come; what Kafka answers to it nobody hears."""
        heapq.heappush(self.agenda, (self.hooks.now_s() + after_s, next(self._numbers), act))

    def tick(self) -> None:
        """Do what is due."""
        agenda, now_s = self.agenda, self.hooks.now_s()
        while agenda and agenda[0][0] <= now_s:
            act = heapq.heappop(agenda)[2]
            with contextlib.suppress(KafkaException):
                act()

    @property
    def next_due_s(self) -> float | None:
        """When the next thing happens by itself, by the clock of the hooks."""
        return self.agenda[0][0] if self.agenda else None

    def find(self, place: Place) -> PartitionLog | None:
        """The log of a partition, if there is one."""
        topic = self.topics.get(place[0])
        if topic is None or not 0 <= place[1] < len(topic.logs):
            return None
        return topic.logs[place[1]]

    def log(self, place: Place) -> PartitionLog:
        """The log of a partition, or Kafka's error for one that does not exist."""
        found = self.find(place)
        if found is None:
            raise missing()
        return found

    def create(self, name: str, partitions: int, settings: Mapping[str, str]) -> None:
        if not _NAME.fullmatch(name) or name in (".", ".."):
            raise fault(KafkaError.TOPIC_EXCEPTION, f"Topic name {name!r} is illegal")
        if name in self.topics:
            raise fault(KafkaError.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if partitions < 1:
            raise fault(KafkaError.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
        self.topics[name] = MemoryTopic(name, f"memory-{next(self._numbers)}", partitions, settings)

    def topic(self, name: str) -> MemoryTopic:
        """A topic, or Kafka's error for one that does not exist."""
        try:
            return self.topics[name]
        except KeyError:
            raise missing() from None

    def delete(self, name: str) -> None:
        del self.topics[self.topic(name).name]

    def append(self, place: Place, records: Sequence[Queued], producer: int | None = None) -> int:
        """Write records, within a producer's transaction if one is named; all of them or none."""
        log, topic = self.log(place), self.topics[place[0]]
        now_ms = self.hooks.now_ms()
        if topic.is_compacted and any(record[0] is None for record in records):
            raise fault(KafkaError.INVALID_RECORD, "Compacted topic cannot accept message without key")
        if not topic.by_append:
            latest_ms = now_ms + int(topic.settings["message.timestamp.after.max.ms"])
            if any(record[2] > latest_ms for record in records):
                raise fault(KafkaError.INVALID_TIMESTAMP, "Timestamp of message is out of range")
        return log.append(records, now_ms, by_append=topic.by_append, producer=producer)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """What retention does: forget the records before an offset."""
        self.log((topic, partition)).delete_before(before)

    def compact(self, topic: str, now_ms: int | None = None) -> int:
        """What Kafka's cleaner does, if it comes by now; returns how many records are gone."""
        known = self.topic(topic)
        if not known.is_compacted:
            return 0
        lag_ms = int(known.settings["min.compaction.lag.ms"])
        retention_ms = int(known.settings["delete.retention.ms"])
        now_ms = self.hooks.now_ms() if now_ms is None else now_ms
        return sum(log.compact(now_ms, lag_ms, retention_ms) for log in known.logs)


def fault(code: int, reason: str) -> KafkaException:
    return KafkaException(KafkaError(code, reason))


def missing() -> KafkaException:
    return fault(KafkaError.UNKNOWN_TOPIC_OR_PART, "Broker: Unknown topic or partition")
