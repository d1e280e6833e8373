"""Writing, reading, bounds and ends."""

from __future__ import annotations

import pytest

from stack.errors import BadRecord, FeedstackError, NotFound
from stack.kafka.inputs import InputReader
from stack.kafka.reader import LogReader
from stack.kafka.transactions import TransactionWriter
from stack.kafka.writer import LogWriter
from stack.model.partitioner import partition_of
from tests.contract.conftest import KafkaWorld


def records(count: int, first: int = 0) -> list[dict[str, bytes]]:
    return [
        {"key": str(number).encode(), "value": f"value {number}".encode()}
        for number in range(first, first + count)
    ]


def read_all(kafka: KafkaWorld, topic: str, partitions: int = 1, **settings: str) -> list[tuple[int, bytes]]:
    """Everything there is, as partition and value, up to the ends of now."""
    found = []
    own = {key.replace("_", "."): text for key, text in settings.items()}
    with LogReader(kafka.access, topic, own) as reader:
        bounds = kafka.admin.bounds(topic, range(partitions))
        reader.assign(
            {number: one.low for number, one in bounds.items()},
            {number: one.high for number, one in bounds.items()},
        )
        while not reader.done:
            batch = reader.read()
            found += list(zip(batch.partitions, batch.values, strict=True))
    return found  # type: ignore[return-value]


def test_records_lie_where_their_keys_belong_in_their_order(kafka: KafkaWorld) -> None:
    topic = kafka.topic(partitions=3)
    with LogWriter(kafka.access) as writer:
        writer.write(topic, records(200))
    found = read_all(kafka, topic, 3)
    wanted = [(partition_of(one["key"], 3), one["value"]) for one in records(200)]
    for partition in range(3):
        assert [one for one in found if one[0] == partition] == [one for one in wanted if one[0] == partition]


def test_a_record_keeps_its_key_time_and_headers(kafka: KafkaWorld) -> None:
    topic = kafka.topic()
    with LogWriter(kafka.access) as writer:
        writer.write_one(
            topic, b"v", b"k", timestamp_ms=1_600_000_000_123, headers=[("a", b"1"), ("b", None)]
        )
        writer.write(topic, [{"key": b"k", "value": None, "timestamp": 1_600_000_000_456}])
    with LogReader(kafka.access, topic) as reader:
        reader.assign({0: 0}, {0: 2})
        batch = reader.read(timeout_s=5)
        while not reader.done:
            reader.read()
    assert batch.keys[0] == b"k"
    assert batch.timestamps_ms[:2] == [1_600_000_000_123, 1_600_000_000_456][: len(batch)]
    assert batch.headers[0] == [("a", b"1"), ("b", None)]
    assert batch.offsets[0] == 0


def test_a_topic_with_append_time_gives_its_own(kafka: KafkaWorld) -> None:
    topic = kafka.topic(message_timestamp_type="LogAppendTime")
    with LogWriter(kafka.access) as writer:
        writer.write(topic, [{"key": b"k", "value": b"v", "timestamp": 1_600_000_000_000}])
    with LogReader(kafka.access, topic) as reader:
        reader.assign({0: 0}, {0: 1})
        assert reader.read(timeout_s=5).timestamps_ms[0] > 1_600_000_000_000


def test_a_bounded_read_ends_at_its_bound(kafka: KafkaWorld) -> None:
    topic = kafka.topic()
    with LogWriter(kafka.access) as writer:
        writer.write(topic, records(50))
    with LogReader(kafka.access, topic) as reader:
        reader.assign({0: 10}, {0: 20})
        found: list[int] = []
        while not reader.done:
            found += reader.read().offsets
        assert found == list(range(10, 20))
        assert reader.positions == {0: 20}
        reader.assign({0: 45})
        found = []
        while not reader.caught_up:
            found += reader.read(timeout_s=0.5).offsets
        assert found == list(range(45, 50))


def test_an_end_behind_a_marker_is_reached(kafka: KafkaWorld) -> None:
    topic = kafka.topic()
    writer = TransactionWriter(kafka.access, f"{kafka.unique}.w")
    writer.init_transactions()
    for _ in range(3):
        writer.begin_if_needed()
        writer.write(topic, records(4))
        writer.commit_delivered()
    writer.close()
    kafka.await_end(topic, 15)
    assert len(read_all(kafka, topic)) == 12


def test_what_retention_removed_is_an_error(kafka: KafkaWorld) -> None:
    topic = kafka.topic()
    with LogWriter(kafka.access) as writer:
        writer.write(topic, records(3))
    with LogReader(kafka.access, topic) as reader:
        reader.assign({0: 40})
        with pytest.raises(NotFound, match="offset 40 is not there"):
            reader.read(timeout_s=20)


def test_a_record_that_is_too_large_or_too_young_is_refused(kafka: KafkaWorld) -> None:
    topic = kafka.topic()
    writer = LogWriter(kafka.access)
    with pytest.raises(BadRecord, match="record 2 of the batch"):
        writer.write(topic, [{"value": b"x"}, {"value": b"x" * 1_100_000}])
    writer.write(topic, [{"key": b"k", "value": b"v", "timestamp": 4_000_000_000_000}])
    with pytest.raises(BadRecord, match="ahead of the broker's clock"):
        writer.flush()
    writer.close()
    assert kafka.admin.ends(topic, [0]) == {0: 0}


def test_a_compacted_topic_refuses_records_without_key(kafka: KafkaWorld) -> None:
    topic = kafka.topic(cleanup_policy="compact")
    writer = LogWriter(kafka.access)
    writer.write(topic, [{"value": b"v"}])
    with pytest.raises(FeedstackError, match=r"key|INVALID_RECORD|record"):
        writer.flush()
    writer.close()


def test_inputs_come_by_partition_and_can_be_held_back(kafka: KafkaWorld) -> None:
    first, second = kafka.topic("a", 2), kafka.topic("b")
    with LogWriter(kafka.access) as writer:
        for partition in (0, 1):
            writer.write(first, records(20, 100 * partition), partition)
        writer.write(second, records(5))
    reader = InputReader(kafka.access, f"{kafka.unique}.g")
    places = [(first, 0), (first, 1), (second, 0)]
    reader.add(dict.fromkeys(places, 0))
    reader.pause([(first, 1)])
    got: dict[tuple[str, int], list[int]] = {place: [] for place in places}
    while not reader.caught_up():
        for portion in reader.read(7, 0.5):
            got[portion.place] += portion.batch.offsets
    assert got == {(first, 0): list(range(20)), (first, 1): [], (second, 0): list(range(5))}
    assert reader.passed((first, 0), 20) == 20
    reader.resume([(first, 1)])
    reader.remove([(second, 0)])
    while not reader.caught_up():
        for portion in reader.read(1_000, 0.5):
            got[portion.place] += portion.batch.offsets
    assert got[first, 1] == list(range(20))
    assert dict(reader.positions) == {(first, 0): 20, (first, 1): 20}
    assert reader.lag({(first, 0): 20}) == 0
    reader.close()


def test_of_an_input_that_is_not_there_nothing_comes(kafka: KafkaWorld) -> None:
    """Nor an error: whoever opens a task asks for the ends of its inputs first."""
    topic = kafka.topic()
    reader = InputReader(kafka.access, f"{kafka.unique}.g")
    reader.add({(topic, 0): 0})
    while not reader.caught_up():
        reader.read(10, 1.0)
    reader.add({(f"{kafka.unique}.nothing", 0): 0})
    kafka.admin.delete([topic])
    assert reader.read(10, 2.0) == []
    reader.close()
