"""Reads topics of a stack as anybody could: a plain consumer, fastavro, the formats of docs/formats.md.

It shares no code with the engine (an import contract holds it): an error of the engine must not hide itself.
"""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

import fastavro
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

HEADER_BYTES = 5
_BATCH = 10_000
_ANSWER_S = 20.0
Clock = Callable[[], float]
T = TypeVar("T")


class VerifierFault(Exception):
    """The verifier cannot read what it must; nothing is proven then."""


class Reading:
    """One reading of everything, until the limit. Committed records only."""

    def __init__(self, bootstrap: str, stack: str, limit_s: float, clock: Clock = time.monotonic) -> None:
        self._bootstrap = bootstrap
        self._stack = stack
        self._deadline = clock() + limit_s
        self._clock = clock
        group = f"verifier-{uuid.uuid4()}"
        self._reading = _consumer(bootstrap, group)
        self._asking = _consumer(bootstrap, group, "read_uncommitted")

    def __enter__(self) -> Reading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reading.close()
        self._asking.close()

    def schemas(self) -> dict[int, Any]:
        """Every schema by its id, from the stack's schemas feed."""
        found: dict[int, Any] = {}

        def each(message: Message) -> None:
            if json.loads(message.key()).get("keytype") == "SCHEMA" and message.value():
                value = json.loads(message.value())
                found[value["id"]] = fastavro.parse_schema(json.loads(value["schema"]))

        self.read(f"_{self._stack}.schemas", each)
        return found

    def checkpoints(
        self, jobs: Iterable[str], take: Callable[[str, int, dict[str, Any]], T]
    ) -> dict[tuple[str, int], list[T]]:
        """What `take` makes of the checkpoints of some jobs, by job and number of the task, in order."""
        wanted, schemas = set(jobs), self.schemas()
        found: dict[tuple[str, int], list[T]] = {}

        def each(message: Message) -> None:
            job, _, task = message.key().decode().partition("/")
            # Other records of a job, such as what is said of its checkpoints, begin with a sign.
            if job in wanted and message.value() and task[:1].isalnum():
                number = int(task.rpartition("-")[2])
                taken = take(job, number, decode(message.value(), schemas))
                found.setdefault((job, number), []).append(taken)

        self.read(f"_{self._stack}.checkpoints", each)
        return found

    def named(self, job: str) -> dict[str, dict[str, Any]]:
        """The points of a job that somebody gave a name, by that."""
        schemas, found, begin = self.schemas(), dict[str, dict[str, Any]](), f"{job}/@"

        def each(message: Message) -> None:
            key = message.key().decode()
            if key.startswith(begin) and message.value():
                found[key.removeprefix(begin)] = decode(message.value(), schemas)

        self.read(f"_{self._stack}.checkpoints", each)
        return found

    def group_offsets(self, job: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Where the consumer group of a job stands."""
        consumer = _consumer(self._bootstrap, f"{self._stack}.{job}.main")
        try:
            places = consumer.committed([TopicPartition(topic, number) for number in partitions], _ANSWER_S)
            return {place.partition: place.offset for place in places}
        except KafkaException as error:
            raise VerifierFault(f"the group of {job} cannot be read: {error.args[0].str()}") from None
        finally:
            consumer.close()

    def _bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """First offset and end of each partition, whatever transactions may be open."""
        try:
            # A consumer that is given a topic which it does not know yet takes a second to look for it.
            about = self._reading.list_topics(topic, _ANSWER_S).topics[topic]
            if about.error is not None:
                raise VerifierFault(f"{topic} cannot be read: {about.error.str()}")
            return {
                number: self._asking.get_watermark_offsets(TopicPartition(topic, number), _ANSWER_S)
                for number in about.partitions
            }
        except KafkaException as error:
            raise VerifierFault(f"{topic} cannot be read: {error.args[0].str()}") from None

    def read(self, topic: str, each: Callable[[Message], None]) -> dict[int, int]:
        """Call `each` with every committed record; returns the end of each partition.

        Control records are invisible: only the event at the end of a partition tells that it is reached.
        While a transaction is open that event stands before the end, and comes again later.
        """
        bounds = self._bounds(topic)
        left = {number for number, (low, high) in bounds.items() if low < high}
        self._reading.assign([TopicPartition(topic, number, bounds[number][0]) for number in left])
        while left:
            if self._clock() > self._deadline:
                raise VerifierFault(f"{topic} could not be read to its end: partitions {sorted(left)}")
            for message in self._messages():
                error = message.error()
                if error is None:
                    each(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    if message.offset() >= bounds[message.partition()][1]:
                        left.discard(message.partition())
                elif not error.retriable():
                    raise VerifierFault(f"{topic} cannot be read: {error.str()}")
        return {number: high for number, (_, high) in bounds.items()}

    def _messages(self) -> list[Message]:
        """Whatever is there; waits only while there is nothing."""
        messages: list[Message] = self._reading.consume(_BATCH, 0)
        if not messages:
            first = self._reading.poll(0.1)
            messages = [] if first is None else [first]
        return messages


def text_of(key: bytes | None) -> str:
    """A key as people read it."""
    return (key or b"").decode("utf-8", "backslashreplace")


def decode(value: bytes, schemas: Mapping[int, Any]) -> Any:
    """The value of a record by the schema that it names."""
    schema = schemas[int.from_bytes(value[1:HEADER_BYTES], "big")]
    return fastavro.schemaless_reader(io.BytesIO(value[HEADER_BYTES:]), schema, None)


def _consumer(bootstrap: str, group: str, isolation: str = "read_committed") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 5,
            "topic.metadata.refresh.interval.ms": 1_000,
            "allow.auto.create.topics": False,
            "log_level": 0,
        }
    )
