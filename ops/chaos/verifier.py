"""Reads what a chain of counting jobs has left in Kafka, and says whether it is exact.

It shares no code with the engine: a plain consumer, fastavro for values, its own reading of changelogs,
checkpoints and group offsets, by the formats that docs/formats.md makes public.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from ops.chaos.verdict import (
    Finding,
    Partition,
    Point,
    Report,
    judge_deltas,
    judge_mirror,
    judge_outputs,
    judge_points,
    judge_source,
    judge_spread,
)

_HEADER_BYTES = 5
_BATCH = 10_000
_ANSWER_S = 20.0
Clock = Callable[[], float]


class VerifierFault(Exception):
    """The verifier cannot read what it must; nothing is proven then."""


@dataclass(frozen=True, slots=True)
class Step:
    """One counting job: for each record of `source` it writes the running number of its key to `output`."""

    job: str
    source: str
    output: str
    store: str = "counts"


@dataclass(frozen=True, slots=True)
class Chain:
    """The jobs to look at, each reading what the one before wrote, and where they are."""

    bootstrap: str
    stack: str
    steps: tuple[Step, ...]
    topic_prefix: str = ""
    number_field: str = "count"

    def topic_of(self, feed: str) -> str:
        return f"{self.topic_prefix}{feed}"

    def changelog_of(self, step: Step) -> str:
        return f"{self.stack}.{step.job}.{step.store}.changelog"


@dataclass
class _Contents:
    """What one topic holds: per key its numbers in order and where they stand, per partition its bounds."""

    numbers: dict[str, array[int]] = field(default_factory=dict)
    spread: dict[str, set[int]] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def add(self, message: Message, number: int) -> None:
        key, partition = message.key().decode(), message.partition()
        held = self.numbers.get(key)
        if held is None:
            held = self.numbers[key] = array("q")
            self.spread[key] = set()
        held.append(number)
        self.spread[key].add(partition)
        self.last[partition] = message.offset()

    def count(self, key: str) -> int:
        return len(self.numbers.get(key, ()))

    @property
    def records(self) -> int:
        return sum(map(len, self.numbers.values()))

    def partition(self, number: int) -> Partition:
        return Partition(self.last.get(number, -1), self.ends.get(number, 0))


def verify(
    chain: Chain,
    acknowledged: Mapping[str, int] | None = None,
    limit_s: float = 120.0,
    clock: Clock = time.monotonic,
) -> Report:
    """Read everything and judge it. The jobs must have come to rest.

    `acknowledged` is how many records of each key the writer of the first feed knows to be written.
    VerifierFault if something cannot be read within the limit.
    """
    with contextlib.closing(_Reading(chain, clock() + limit_s, clock)) as reading:
        return _verify(chain, reading, acknowledged)


def _verify(chain: Chain, reading: _Reading, acknowledged: Mapping[str, int] | None) -> Report:
    schemas = reading.schemas()
    source = reading.source(chain.steps[0].source)
    records = {chain.steps[0].source: source.records}
    findings: list[Finding] = []
    if acknowledged is not None:
        found = {key: len(numbers) for key, numbers in source.numbers.items()}
        findings += judge_source(chain.steps[0].source, found, acknowledged)
    commits, keys = 0, len(source.numbers)
    points = reading.points()
    for step in chain.steps:
        output = reading.output(step.output, schemas)
        changelog = reading.changelog(step)
        records[step.output] = output.records
        findings += _judge_records(chain, step, source, output, changelog)
        own = {task: found for (job, task), found in points.items() if job == step.job}
        findings += _judge_points(step, source, changelog, own, reading.group_offsets(step, source))
        commits += sum(map(len, own.values()))
        source = output
    return Report(records, keys, commits, tuple(findings))


def _judge_records(
    chain: Chain, step: Step, source: _Contents, output: _Contents, changelog: _Contents
) -> Iterator[Finding]:
    for key in sorted({*source.numbers, *output.numbers, *changelog.numbers}):
        inputs = source.count(key)
        yield from judge_outputs(step.output, key, output.numbers.get(key, ()), inputs)
        yield from judge_deltas(chain.changelog_of(step), key, changelog.numbers.get(key, ()), inputs)
    for name, contents in ((step.output, output), (chain.changelog_of(step), changelog)):
        for key, partitions in contents.spread.items():
            yield from judge_spread(name, key, partitions)


def _judge_points(
    step: Step,
    source: _Contents,
    changelog: _Contents,
    points: Mapping[int, list[Point]],
    group: Mapping[int, int],
) -> Iterator[Finding]:
    for number in sorted(source.ends):
        task, own = f"job {step.job}, task {number}", points.get(number, [])
        yield from judge_points(step.source, task, own, source.partition(number), changelog.partition(number))
        yield from judge_mirror(step.source, task, group.get(number, -1), own)


class _Reading:
    """One reading of everything, until the deadline."""

    def __init__(self, chain: Chain, deadline: float, clock: Clock) -> None:
        self._chain = chain
        self._deadline = deadline
        self._clock = clock
        group = f"verifier-{uuid.uuid4()}"
        self._reading = _consumer(chain.bootstrap, group)
        self._asking = _consumer(chain.bootstrap, group, "read_uncommitted")

    def close(self) -> None:
        """Release the connections."""
        self._reading.close()
        self._asking.close()

    def schemas(self) -> dict[int, Any]:
        """Every schema by its id, from the stack's schemas feed."""
        found: dict[int, Any] = {}

        def each(message: Message) -> None:
            if json.loads(message.key()).get("keytype") == "SCHEMA" and message.value():
                value = json.loads(message.value())
                found[value["id"]] = fastavro.parse_schema(json.loads(value["schema"]))

        self._read(f"_{self._chain.stack}.schemas", each)
        return found

    def source(self, feed: str) -> _Contents:
        """The first feed: which keys, where."""
        contents = _Contents()
        contents.ends = self._read(self._chain.topic_of(feed), lambda message: contents.add(message, 0))
        return contents

    def output(self, feed: str, schemas: Mapping[int, Any]) -> _Contents:
        """A feed that a job wrote: the running number in each record."""
        contents, name = _Contents(), self._chain.number_field

        def each(message: Message) -> None:
            value = message.value()
            schema = schemas[int.from_bytes(value[1:_HEADER_BYTES], "big")]
            decoded = fastavro.schemaless_reader(io.BytesIO(value[_HEADER_BYTES:]), schema, None)
            contents.add(message, decoded[name])

        contents.ends = self._read(self._chain.topic_of(feed), each)
        return contents

    def changelog(self, step: Step) -> _Contents:
        """The deltas of a job's store: eight bytes, big end first, with a sign."""
        contents = _Contents()

        def each(message: Message) -> None:
            contents.add(message, int.from_bytes(message.value() or b"", "big", signed=True))

        contents.ends = self._read(self._chain.changelog_of(step), each)
        return contents

    def points(self) -> dict[tuple[str, int], list[Point]]:
        """All checkpoints by job and number of the task, in order."""
        stores = {step.job: step.store for step in self._chain.steps}
        sources = {step.job: step.source for step in self._chain.steps}
        found: dict[tuple[str, int], list[Point]] = {}

        def each(message: Message) -> None:
            job, _, task = message.key().decode().partition("/")
            if job not in stores or not message.value():
                return
            number = int(task.rpartition("-")[2])
            value = json.loads(message.value())
            offset = value["inputs"][sources[job]]["offsets"][str(number)]
            point = Point(value["number"], offset, value["stores"][stores[job]]["end"])
            found.setdefault((job, number), []).append(point)

        self._read(f"_{self._chain.stack}.checkpoints", each)
        return found

    def group_offsets(self, step: Step, source: _Contents) -> dict[int, int]:
        """Where the consumer group of a job stands."""
        topic = self._chain.topic_of(step.source)
        consumer = _consumer(self._chain.bootstrap, f"{self._chain.stack}.{step.job}.main")
        try:
            places = consumer.committed([TopicPartition(topic, number) for number in source.ends], _ANSWER_S)
            return {place.partition: place.offset for place in places}
        except KafkaException as error:
            raise VerifierFault(f"the group of {step.job} cannot be read: {error.args[0].str()}") from None
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

    def _read(self, topic: str, each: Callable[[Message], None]) -> dict[int, int]:
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
