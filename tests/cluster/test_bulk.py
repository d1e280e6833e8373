"""Records that go into librdkafka in bulk arrive as they would by the client's own way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import Producer

from stack import Stack
from stack.errors import BadRecord, LostOwnership, NotDelivered, NotFound
from stack.kafka import writer as writer_module
from stack.kafka.admin import TopicPlan
from stack.kafka.bulk import bulk_of
from stack.kafka.reader import LogReader
from stack.kafka.transactions import TransactionWriter
from stack.kafka.writer import LogWriter
from stack.model.packed import pack
from stack.model.partitioner import partition_of

pytestmark = pytest.mark.cluster
PARTITIONS = 3

Pairs = tuple[Sequence[bytes | None], Sequence[bytes | None]]


@pytest.fixture
def topic(stack: Stack) -> str:
    name = stack.topic_of("bulk")
    stack.admin.create([TopicPlan(name, PARTITIONS)])
    return name


def in_log(stack: Stack, topic: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """Keys and values per partition, in their order."""
    found: dict[int, list[tuple[bytes | None, bytes | None]]] = {n: [] for n in range(PARTITIONS)}
    bounds = stack.admin.bounds(topic, range(PARTITIONS))
    with LogReader(stack.access, topic) as reader:
        reader.assign({n: b.low for n, b in bounds.items()}, {n: b.high for n, b in bounds.items()})
        while not reader.done:
            batch = reader.read()
            for number, key, value in zip(batch.partitions, batch.keys, batch.values, strict=True):
                found[number].append((key, value))
    return found


def transactional(stack: Stack, topic: str) -> LogWriter:
    writer = LogWriter(stack.access, transactional_id=f"{topic}-writer")
    writer.init_transactions()
    return writer


def committed(stack: Stack, topic: str, pairs: Pairs, partition: int = -1) -> None:
    with transactional(stack, topic) as writer:
        writer.begin()
        writer.write_pairs(topic, *pairs, partition)
        writer.commit()


def mixed(count: int) -> Pairs:
    """Every kind of key and value, the small ones many times."""
    keys: list[bytes | None] = [b"key %d" % (n % 997) for n in range(count)]
    values: list[bytes | None] = [b"value %d" % n * (n % 5) for n in range(count)]
    keys[3], keys[5], values[7], values[8], values[9] = b"\0", b"\xff" * 300, None, b"", b"\0" * 100_000
    return keys, values


def test_the_client_has_a_way_for_bulk(stack: Stack) -> None:
    with LogWriter(stack.access, transactional_id="any") as writer:
        assert writer._bulk is not None
    with LogWriter(stack.access) as writer:
        assert writer._bulk is None


@pytest.mark.parametrize("has_bulk", [True, False])
def test_everything_arrives_in_order_where_its_key_belongs(
    stack: Stack, topic: str, has_bulk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_bulk:
        monkeypatch.setattr(writer_module, "bulk_of", lambda _producer: None)
    keys, values = mixed(25_000)
    committed(stack, topic, (keys, values))
    wanted: dict[int, list[tuple[bytes | None, bytes | None]]] = {n: [] for n in range(PARTITIONS)}
    for key, value in zip(keys, values, strict=True):
        wanted[partition_of(key or b"", PARTITIONS)].append((key, value))
    assert in_log(stack, topic) == wanted


def test_one_partition_takes_all_if_it_is_given(stack: Stack, topic: str) -> None:
    keys, values = mixed(5_000)
    committed(stack, topic, (keys, values), partition=2)
    assert in_log(stack, topic) == {0: [], 1: [], 2: list(zip(keys, values, strict=True))}


def test_records_without_keys_and_values(stack: Stack, topic: str) -> None:
    committed(stack, topic, ([None, None, b"k"], [b"v", None, None]), partition=0)
    assert in_log(stack, topic)[0] == [(None, b"v"), (None, None), (b"k", None)]


def test_a_record_that_is_too_large_is_named_and_nothing_is_visible(stack: Stack, topic: str) -> None:
    with transactional(stack, topic) as writer:
        writer.begin()
        with pytest.raises(BadRecord, match="record 3001"):
            writer.write_pairs(topic, [b"k"] * 4_000, [b"v"] * 3_000 + [b"v" * 1_000_000] + [b"v"] * 999)
        writer.abort()
    assert in_log(stack, topic) == {0: [], 1: [], 2: []}


def test_a_topic_that_is_not_there_fails_the_commit(stack: Stack, topic: str) -> None:
    with transactional(stack, topic) as writer:
        writer.begin()
        writer.write_pairs(topic, [b"k"], [b"v"])
        writer.write_pairs(f"{topic}-none", [b"k"] * 10, [b"v"] * 10, 0)
        with pytest.raises(NotDelivered):
            writer.commit()
    assert in_log(stack, topic) == {0: [], 1: [], 2: []}


def test_a_partition_that_is_not_there_fails_the_commit(stack: Stack, topic: str) -> None:
    """A client that knows the topic by then refuses at once, any other when it is to deliver."""
    with transactional(stack, topic) as writer:
        writer.begin()
        try:
            writer.write_pairs(topic, [b"k"] * 10, [b"v"] * 10, 99)
        except NotFound as error:
            assert "no such topic or partition" in error.message  # noqa: PT017 - either way will do
            writer.abort()
        else:
            with pytest.raises(NotDelivered, match="failed delivery"):
                writer.commit()
    assert in_log(stack, topic) == {0: [], 1: [], 2: []}


def test_a_fenced_writer_hears_of_it(stack: Stack, topic: str) -> None:
    first = TransactionWriter(stack.access, f"{topic}-id")
    first.init_transactions()
    first.begin_if_needed()
    first.write_pairs(topic, [b"k"] * 10, [b"old"] * 10, 0)
    with TransactionWriter(stack.access, f"{topic}-id") as second:
        second.init_transactions()
        with pytest.raises(LostOwnership):
            first.commit_delivered()
        first.close()
    assert in_log(stack, topic) == {0: [], 1: [], 2: []}


def test_a_closed_producer_takes_nothing(stack: Stack) -> None:
    producer = Producer({"bootstrap.servers": stack.access.bootstrap})
    bulk = bulk_of(producer)
    assert bulk is not None
    producer.close()
    packed = pack([b"x"])
    with pytest.raises(RuntimeError, match="closed"):
        bulk.put("anything", packed, packed, 0)
    assert bulk_of(producer) is None
