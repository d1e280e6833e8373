"""Reader and writer against the bare client on the same feed, the same settings, in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from ops.bench.figures import Figure, compare
from stack.connection import Stack
from stack.feeds.declare import read_declarations
from stack.feeds.plan import Allowed
from stack.kafka.reader import READER_SETTINGS
from stack.kafka.writer import QUEUE_RECORDS, WRITER_SETTINGS
from stack.model.startpoint import Latest, Oldest
from stack.settings import Settings

FEED = "page-views"
VALUE_BYTES = 100
BATCH = 10_000
READER_BAR = WRITER_BAR = 0.8
DECODE_BAR = 8.0


def measure_feeds(settings: Settings, records: int, rounds: int, say: Callable[[str], None]) -> list[Figure]:
    """Write, read and decode the same number of records by us and by the bare client."""
    with Stack.connect(settings) as stack:
        declarations = read_declarations(settings.schemas)
        stack.applier.apply(declarations, stack.applier.plan(declarations, Allowed()), lambda _: None)
        say(f"writing {records:,} records a round, {rounds} rounds each")
        payloads = [b"%0*d" % (VALUE_BYTES, number) for number in range(BATCH)]
        writing = compare(
            "writer, 100-byte values",
            lambda: _write_ours(stack, payloads, records),
            lambda: _write_bare(stack, payloads, records),
            rounds=rounds,
            bar=WRITER_BAR,
            against="produce_batch",
        )
        say("reading them")
        reading = compare(
            "reader, 100-byte values",
            lambda: _read_ours(stack, records),
            lambda: _read_bare(stack, records),
            rounds=rounds,
            bar=READER_BAR,
            against="consume(10000)",
        )
        values = compare(
            "reader, and all values",
            lambda: _read_ours(stack, records, with_values=True),
            lambda: _read_bare(stack, records, with_values=True),
            rounds=rounds,
            bar=READER_BAR,
            against="consume(10000) and value()",
        )
        return [writing, reading, values]


def _write_ours(stack: Stack, payloads: Sequence[bytes], records: int) -> float:
    with stack.writer(FEED) as writer:
        begun = time.perf_counter()
        for _ in range(records // BATCH):
            writer.write_payloads(payloads)
        writer.flush()
        return records / (time.perf_counter() - begun)


def _write_bare(stack: Stack, payloads: Sequence[bytes], records: int) -> float:
    producer = Producer({**WRITER_SETTINGS, "bootstrap.servers": stack.access.bootstrap})
    topic = stack.topic_of(FEED)
    begun = time.perf_counter()
    for _ in range(records // BATCH):
        while len(producer) > QUEUE_RECORDS - BATCH:
            producer.poll(0.01)
        producer.produce_batch(topic, [{"value": payload} for payload in payloads])
        producer.poll(0)
    producer.flush()
    return records / (time.perf_counter() - begun)


def _read_ours(stack: Stack, records: int, with_values: bool = False) -> float:
    with stack.reader(FEED) as reader:
        reader.seek(Oldest(), until=Latest())
        begun, seen = time.perf_counter(), 0
        for batch in reader.batches(BATCH):
            seen += len(batch.raw.values if with_values else batch)
            if seen >= records:
                break
        return seen / (time.perf_counter() - begun)


def _read_bare(stack: Stack, records: int, with_values: bool = False) -> float:
    own = {**READER_SETTINGS, "enable.partition.eof": False, "group.id": "bench"}
    consumer = Consumer({**own, "bootstrap.servers": stack.access.bootstrap})
    topic = stack.topic_of(FEED)
    try:
        bounds = stack.admin.bounds(topic, range(stack.feed(FEED).partitions))
        consumer.assign([TopicPartition(topic, number, bound.low) for number, bound in bounds.items()])
        begun, seen = time.perf_counter(), 0
        while seen < records:
            messages = consumer.consume(BATCH, 1.0)
            seen += len([message.value() for message in messages] if with_values else messages)
        return seen / (time.perf_counter() - begun)
    finally:
        consumer.close()


def codec_figures(measured: Sequence[dict[str, Any]]) -> list[Figure]:
    """The codecs' times of several rounds as ratios against a plain fastavro loop."""

    def figure(name: str, ours: str, baseline: str, bar: float | None, against: str) -> Figure:
        ratios = [one[baseline] / one[ours] for one in measured]
        rate = [one["records"] / one[ours] * 1000 for one in measured]
        theirs = [one["records"] / one[baseline] * 1000 for one in measured]
        return Figure(
            name, statistics.median(rate), statistics.median(theirs), bar, against, statistics.median(ratios)
        )

    loop = "fastavro, a record at a time"
    return [
        figure("decode to Arrow", "decode_columns_ms", "decode_fastavro_ms", DECODE_BAR, loop),
        figure("decode to dicts by columns", "decode_columns_and_rows_ms", "decode_fastavro_ms", None, loop),
        figure("decode, reference codec", "decode_reference_ms", "decode_fastavro_ms", None, loop),
        figure("encode from Arrow", "encode_columns_ms", "encode_fastavro_ms", None, loop),
        figure("encode, reference codec", "encode_reference_ms", "encode_fastavro_ms", None, loop),
    ]
