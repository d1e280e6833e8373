"""Reading and writing feeds on real Kafka."""

from __future__ import annotations

import time
from typing import Any

import pytest

from stack import AtOffset, AtOffsets, AtTime, Latest, Oldest, Stack
from stack.errors import BadInput, BadRecord, LostOwnership, NotDelivered, NotFound
from stack.kafka.config import KafkaAccess
from stack.kafka.reader import LogReader
from stack.kafka.writer import LogWriter
from stack.model.partitioner import partition_of

pytestmark = pytest.mark.cluster
T0 = 1_700_000_000_000


def view(number: int, user: str = "") -> dict[str, Any]:
    return {"user": user or f"u{number}", "page": f"/p/{number}", "ms": T0 + number, "load": number / 2}


def write(stack: Stack, count: int, feed: str = "views") -> list[dict[str, Any]]:
    values = [view(number) for number in range(count)]
    with stack.writer(feed) as writer:
        writer.write_many(values)
    return values


def read(stack: Stack, feed: str = "views", start: Any = None, until: Any = None) -> list[Any]:
    with stack.reader(feed) as reader:
        reader.seek(start or Oldest(), until=until or Latest())
        return list(reader.records())


def by_ms(value: dict[str, Any]) -> int:
    return int(value["ms"])


def test_what_is_written_is_read_once_each(filled: Stack) -> None:
    values = write(filled, 2_500)
    records = read(filled)
    assert sorted((record.value for record in records), key=by_ms) == values
    assert {record.key for record in records} == {value["user"] for value in values}
    assert all(record.timestamp_ms == record.value["ms"] for record in records)


def test_records_lie_where_their_key_belongs_in_the_order_of_writing(filled: Stack) -> None:
    write(filled, 300)
    for record in read(filled):
        assert record.partition == partition_of(record.key.encode(), 3)
    for partition in range(3):
        times = [record.value["ms"] for record in read(filled) if record.partition == partition]
        assert times == sorted(times)


def test_a_bounded_read_ends_exactly_at_its_bound(filled: Stack) -> None:
    write(filled, 900)
    with filled.reader("views") as reader:
        bounds = reader.bounds()
        until = {number: bound.high - 7 for number, bound in bounds.items()}
        reader.assign(dict.fromkeys(bounds, 5), until)
        seen = [(record.partition, record.offset) for record in reader.records()]
        assert reader.done
        assert dict(reader.positions) == until
    assert sorted(seen) == [(n, offset) for n in sorted(bounds) for offset in range(5, until[n])]


def test_a_bounded_read_of_an_empty_range_ends_at_once(filled: Stack) -> None:
    assert read(filled) == []
    write(filled, 10)
    assert read(filled, start=Latest()) == []


def test_the_end_behind_a_transaction_marker_is_reached(filled: Stack) -> None:
    """Control records are invisible: a read up to the end must not wait for the record before it."""
    with filled.writer("views", transactional_id="w") as writer:
        for batch in range(3):
            with writer.transaction():
                writer.write_many([view(batch * 10 + number) for number in range(10)])
    begun = time.monotonic()
    assert len(read(filled)) == 30
    assert time.monotonic() - begun < 10


def test_records_of_an_aborted_transaction_are_never_read(filled: Stack) -> None:
    with filled.writer("views", transactional_id="w") as writer:
        with writer.transaction():
            writer.write(view(1))
        with pytest.raises(ZeroDivisionError), writer.transaction():
            writer.write(view(2 // (writer.written - 1)))
        with writer.transaction():
            writer.write(view(3))
    assert sorted(record.value["ms"] - T0 for record in read(filled)) == [1, 3]


def test_open_transactions_hold_back_what_follows_them(filled: Stack) -> None:
    with filled.writer("views", transactional_id="w") as writer:
        with writer.transaction():
            writer.write(view(1, "same"))
            writer.flush()
            with filled.writer("views") as other:
                other.write(view(2, "same"))
            reader = filled.reader("views")
            reader.seek(Oldest(), until=Latest())
            assert len(reader.read(timeout_s=1)) == 0
            assert not reader.done
        assert [record.value["ms"] - T0 for record in reader.records()] == [1, 2]
        reader.close()


def test_a_second_writer_of_a_transactional_id_fences_the_first(filled: Stack) -> None:
    first = filled.writer("views", transactional_id="w")
    second = filled.writer("views", transactional_id="w")
    with pytest.raises(LostOwnership), first.transaction():
        first.write(view(1))
    with second.transaction():
        second.write(view(2))
    first.close()
    second.close()
    assert [record.value["ms"] - T0 for record in read(filled)] == [2]


def test_seek_by_time(filled: Stack) -> None:
    write(filled, 100)
    late = read(filled, start=AtTime(T0 + 60))
    assert sorted(record.value["ms"] - T0 for record in late) == list(range(60, 100))
    early = read(filled, start=Oldest(), until=AtTime(T0 + 60))
    assert sorted(record.value["ms"] - T0 for record in early) == list(range(60))
    assert read(filled, start=AtTime(T0 + 10_000)) == []


def test_seek_by_offsets(filled: Stack) -> None:
    write(filled, 100)
    records = read(filled, start=AtOffsets({0: 3, 1: 4, 2: 5}))
    firsts = {n: min(record.offset for record in records if record.partition == n) for n in range(3)}
    assert firsts == {0: 3, 1: 4, 2: 5}


@pytest.mark.parametrize("point", [AtOffset(1_000), AtOffsets({0: 1_000}), AtOffsets({7: 0})])
def test_an_offset_that_is_not_there_is_refused(filled: Stack, point: Any) -> None:
    write(filled, 10)
    with pytest.raises(NotFound) as error:
        read(filled, start=point)
    assert "there is no" in error.value.message


def test_an_offset_that_retention_removed_is_an_error_never_a_jump(filled: Stack) -> None:
    write(filled, 30)
    topic = filled.topic_of("views")
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": filled.access.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 4)]).values():
        future.result()
    with LogReader(filled.access, topic) as reader:
        reader.assign({0: 1})
        with pytest.raises(NotFound, match="offset 1 is not there"):
            reader.read(timeout_s=10)


def test_a_reader_can_go_back_after_a_bounded_read(filled: Stack) -> None:
    write(filled, 50)
    with filled.reader("views") as reader:
        for _ in range(2):
            reader.seek(Oldest(), until=Latest())
            assert sum(1 for _ in reader.records()) == 50


def test_transactions_are_used_as_such_or_refused(filled: Stack) -> None:
    with (
        filled.writer("views") as plain,
        pytest.raises(BadInput, match="no transactions"),
        plain.transaction(),
    ):
        pass
    with filled.writer("views", transactional_id="w") as writer:
        with pytest.raises(BadInput, match="inside a transaction"):
            writer.write(view(1))
        with writer.transaction():
            writer.write(view(2))
    assert [record.value["ms"] - T0 for record in read(filled)] == [2]


def test_a_time_far_ahead_is_refused_and_spoils_no_other(filled: Stack) -> None:
    with filled.writer("views") as writer:
        writer.write(view(1))
        with pytest.raises(BadRecord, match="more than an hour ahead"):
            writer.write(view(2), timestamp_ms=int(time.time() * 1000) + 7_200_000)
        writer.write(view(3))
    assert len(read(filled)) == 2


def test_reading_before_seeking_is_refused(filled: Stack) -> None:
    with filled.reader("views") as reader, pytest.raises(BadInput, match="where to start"):
        reader.read()


def test_following_gives_new_records_and_tells_when_caught_up(filled: Stack) -> None:
    with filled.reader("views") as reader, filled.writer("views") as writer:
        reader.seek(Latest())
        assert len(reader.read(timeout_s=2)) == 0
        assert reader.caught_up
        writer.write(view(1))
        writer.flush()
        assert [record.value for record in reader.read(timeout_s=10).records()] == [view(1)]


def test_arrow_batches_hold_the_same_as_records(filled: Stack) -> None:
    values = write(filled, 500)
    seen = []
    with filled.reader("views") as reader:
        reader.seek(Oldest(), until=Latest())
        for batch in reader.batches():
            table = batch.arrow(metadata=True)
            assert table.column("_key").to_pylist() == [
                row.encode() for row in table.column("user").to_pylist()
            ]
            assert table.column("_timestamp").to_pylist() == table.column("ms").to_pylist()
            assert table.column("_offset").to_pylist() == batch.raw.offsets
            seen += table.select(["user", "page", "ms", "load"]).to_pylist()
    assert sorted(seen, key=by_ms) == values


def test_arrow_batches_can_be_written(filled: Stack) -> None:
    import pyarrow as pa

    values = [view(number) for number in range(200)]
    with filled.reader("views") as reader:
        schema = reader.read_schema()
    with filled.writer("views") as writer:
        writer.write_arrow(pa.RecordBatch.from_pylist(values, schema=schema))
    records = read(filled)
    assert sorted((record.value for record in records), key=by_ms) == values
    assert all(record.key == record.value["user"] for record in records)
    assert all(record.timestamp_ms == record.value["ms"] for record in records)


def test_a_deletion_is_a_record_without_a_value(filled: Stack) -> None:
    with filled.writer("users") as writer:
        writer.write(view(1, "ada"))
        writer.delete("ada")
    assert [record.value for record in read(filled, "users")] == [view(1, "ada"), None]
    with filled.reader("users") as reader:
        reader.seek(Oldest(), until=Latest())
        assert sum(batch.arrow().num_rows for batch in reader.batches()) == 1


def test_an_event_feed_has_no_deletions(filled: Stack) -> None:
    with filled.writer("views") as writer, pytest.raises(BadInput, match="event feed"):
        writer.delete("ada")


def test_a_value_that_the_schema_refuses_names_the_field(filled: Stack) -> None:
    with filled.writer("views") as writer:
        with pytest.raises(BadRecord) as error:
            writer.write({**view(1), "load": "fast"})
        assert error.value.field == "load"
    assert read(filled) == []


def test_a_record_larger_than_kafka_takes_is_refused_alone(filled: Stack) -> None:
    huge = {**view(2), "page": "x" * 2_000_000}
    with filled.writer("views") as writer:
        with pytest.raises(BadRecord, match="2,000,0"):
            writer.write_many([view(1), huge, view(3)])
        with pytest.raises(BadRecord, match="record 2 of the batch"):
            writer.write_payloads([b"small", b"x" * 2_000_000])
    assert [record.value for record in read(filled)] == [view(1)]


def test_undecodable_bytes_are_named_by_their_place(filled: Stack) -> None:
    with LogWriter(filled.access) as log:
        log.write(filled.topic_of("views"), [{"value": b"not avro"}], partition=1)
    with filled.reader("views") as reader:
        reader.seek(Oldest(), until=Latest())
        with pytest.raises(BadRecord, match="views, partition 1, offset 0"):
            list(reader.records())


def test_records_that_cannot_be_delivered_are_an_error() -> None:
    nowhere = KafkaAccess("127.0.0.1:9")
    writer = LogWriter(nowhere, timeout_s=1.0)
    writer.write("anything", [{"value": b"x"}])
    with pytest.raises(NotDelivered):
        writer.flush()
    writer.close()
    writer.close()


def test_writing_to_a_topic_that_is_gone_is_an_error(filled: Stack) -> None:
    writer = filled.writer("views")
    filled.admin.delete([filled.topic_of("views")])
    writer.write(view(1))
    with pytest.raises((NotFound, NotDelivered)):
        writer.flush()
    writer.close()


def test_more_than_the_queue_holds_goes_through_in_order(filled: Stack) -> None:
    """The queue is bounded by records and by bytes: writing waits, and nothing is dropped or reordered."""
    payload = b"x" * 90_000
    with LogWriter(filled.access) as log:
        for start in range(0, 3_000, 500):
            records = [{"value": b"%06d" % n + payload} for n in range(start, start + 500)]
            log.write(filled.topic_of("views"), records, partition=0)
    with LogReader(filled.access, filled.topic_of("views")) as reader:
        reader.assign({0: 0}, {0: 3_000})
        seen: list[int] = []
        while not reader.done:
            seen += [int((value or b"")[:6]) for value in reader.read(1_000).values]
    assert seen == list(range(3_000))


def test_old_event_times_that_retention_would_delete_are_refused(filled: Stack) -> None:
    catalogue = filled.settings.schemas / "catalog.toml"
    catalogue.write_text(catalogue.read_text().replace('retention = "forever"', 'retention = "7d"'))
    from tests.cluster.conftest import apply

    apply(filled, destroy=True)
    with filled.writer("views") as writer, pytest.raises(BadRecord, match="older than the 7d"):
        writer.write(view(1))


def test_null_keys_are_spread_over_the_partitions(filled: Stack) -> None:
    with LogWriter(filled.access, settings={"sticky.partitioning.linger.ms": 0}) as log:
        log.write(filled.topic_of("views"), [{"value": b"x"} for _ in range(600)])
    with filled.reader("views") as reader:
        counts = [bound.high - bound.low for bound in reader.bounds().values()]
    assert sum(counts) == 600
    assert min(counts) > 100


def test_avro_keys_go_both_ways(filled: Stack) -> None:
    catalogue = filled.settings.schemas / "catalog.toml"
    text = catalogue.read_text() + (
        '\n[feeds.clicks]\nkind = "source"\nfor = "clicks"\nowner = "web"\nschema = "view.avsc"\n'
        'key = "load"\nkey_format = "avro"\nretention = "forever"\n'
    )
    catalogue.write_text(text)
    from tests.cluster.conftest import apply

    apply(filled)
    write(filled, 3, "clicks")
    assert [record.key for record in read(filled, "clicks")] == [0.0, 0.5, 1.0]
    with filled.reader("clicks") as reader:
        reader.seek(Oldest(), until=Latest())
        first = next(iter(reader.batches())).raw.keys[0]
    assert first is not None
    assert first[:1] == b"\0"
    assert len(first) == 5 + 8
