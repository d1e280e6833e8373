"""What all clients of a Kafka in memory share: how a request reaches it, and how it looks at topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from stack.kafka.memory.hooks import AFTER, BEFORE, Late
from stack.model.place import Place

if TYPE_CHECKING:
    from stack.kafka.memory.broker import MemoryProcess

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class PartitionAbout:
    """What a listing tells of a partition."""

    id: int
    leader: int = 1
    replicas: tuple[int, ...] = (1,)
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True)
class TopicAbout:
    """What a listing tells of a topic."""

    topic: str
    partitions: dict[int, PartitionAbout]
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """What a Kafka tells of itself."""

    topics: dict[str, TopicAbout]
    brokers: dict[int, str] = field(default_factory=lambda: {1: "memory"})


class MemoryClient:
    """A client of one process. `name` tells it from others at the points of the hooks."""

    def __init__(self, process: MemoryProcess, settings: Mapping[str, Any]) -> None:
        self.process = process
        self.kafka = process.kafka
        self.settings = settings
        self.name = str(settings.get("transactional.id") or settings.get("group.id") or "")
        # The partition that a request to produce is about, and those of the transaction, for the hooks.
        self.place: Place | None = None
        self.written: set[Place] = set()

    @property
    def alive(self) -> bool:
        """Whether the process of this client still runs."""
        return self.process.alive

    def _ask(self, operation: str, act: Callable[[], Answer]) -> Answer:
        """Send a request and hear the answer; the hooks may let either get lost or come late."""
        process, kafka = self.process, self.kafka
        hooks = kafka.hooks
        if not process.alive:
            process.require_alive()
        try:
            hooks.point(self, operation, BEFORE)
        except Late as late:
            kafka.later(late.after_s, act)
            raise KafkaException(late.error) from None
        if not process.alive:
            process.require_alive()
        if kafka.agenda:
            kafka.tick()
        answer = act()
        if operation not in hooks.only_ask:
            hooks.point(self, operation, AFTER)
        if not process.alive:
            process.require_alive()
        return answer

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Listing:  # noqa: ARG002
        """All topics, or one, which has an error if it does not exist."""
        return self._ask("metadata", lambda: self._listing(topic))

    def _listing(self, topic: str | None) -> Listing:
        names = list(self.kafka.topics) if topic is None else [topic]
        return Listing({name: self._about(name) for name in names})

    def _about(self, name: str) -> TopicAbout:
        known = self.kafka.topics.get(name)
        if known is None:
            error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "Broker: Unknown topic or partition")
            return TopicAbout(name, {}, error)
        return TopicAbout(name, {number: PartitionAbout(number) for number in range(len(known.logs))})
