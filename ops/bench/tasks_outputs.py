"""What a job has written, as anybody can read it: how much, when by the broker's clock, and is it right."""

from __future__ import annotations

import io
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from ops.bench.tasks_stage import COUNTS, PARTITIONS, Stage
from stack.feeds.avro.wire import HEADER_BYTES

_BATCH = 10_000
_QUIET_S = 2.0
_STUCK_S = 60.0


@dataclass(frozen=True)
class Outputs:
    """Committed outputs: append times in order, and the highest count of each user."""

    times_ms: array[int]
    highest: dict[str, int]

    @property
    def counted(self) -> int:
        return sum(self.highest.values())

    def rate_per_s(self) -> float:
        """Outputs per second from the first append to the last; those of the first moment only start it."""
        return _rate_per_s(self.times_ms, 0)

    def second_half_per_s(self) -> float:
        """The same over the second half of the outputs: without warming up."""
        return _rate_per_s(self.times_ms, len(self.times_ms) // 2)


def _rate_per_s(times_ms: array[int], start: int) -> float:
    """Outputs after the moment of output `start`, over the time from that moment to the last output."""
    from_ms = times_ms[start]
    later = next((i for i in range(start, len(times_ms)) if times_ms[i] > from_ms), len(times_ms))
    return (len(times_ms) - later) / max(times_ms[-1] - from_ms, 1) * 1000


def committed_consumer(stage: Stage, **settings: Any) -> Consumer:
    """A consumer that sees what a careful reader would see."""
    own = {
        "bootstrap.servers": stage.stack.access.bootstrap,
        "group.id": "bench-reader",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    return Consumer({**own, **settings})


def count_of(message: Message, schema: Any) -> tuple[str, int]:
    """User and count of one output."""
    stream = io.BytesIO(message.value())
    stream.seek(HEADER_BYTES)
    value: Any = fastavro.schemaless_reader(stream, schema, None)
    return value["user"], value["count"]


def output_schema(stage: Stage) -> Any:
    return stage.stack.schema(COUNTS).schema.parsed


def read_outputs(stage: Stage, topic: str) -> Outputs:
    """Read all committed outputs of a topic whose job has ended."""
    schema = output_schema(stage)
    times_ms, highest = array("q"), dict[str, int]()
    for message in _messages(stage, topic):
        user, count = count_of(message, schema)
        times_ms.append(message.timestamp()[1])
        if count > highest.get(user, 0):
            highest[user] = count
    return Outputs(array("q", sorted(times_ms)), highest)


def _messages(stage: Stage, topic: str) -> Iterator[Message]:
    consumer = committed_consumer(stage, **{"enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        open_partitions = set(range(PARTITIONS))
        while open_partitions:
            for message in consumer.consume(_BATCH, 5.0):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions.discard(message.partition())
    finally:
        consumer.close()


def ends(stage: Stage, topic: str) -> dict[int, int]:
    return stage.stack.admin.ends(topic, range(PARTITIONS))


def wait_written(
    stage: Stage,
    topic: str,
    enough: int,
    is_alive: Callable[[], bool],
    *,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when a topic holds `enough` records and does not grow any more; TimeoutError if it does not."""
    deadline = clock() + limit_s
    seen, since = -1, clock()
    while clock() < deadline:
        now = sum(ends(stage, topic).values())
        if now != seen:
            seen, since = now, clock()
        quiet_s = clock() - since
        if seen >= enough and quiet_s > _QUIET_S:
            return
        if not is_alive() or (seen > 0 and quiet_s > _STUCK_S):
            break
        sleep(0.2)
    raise TimeoutError(f"{topic} holds {seen:,} records and should hold {enough:,}")
