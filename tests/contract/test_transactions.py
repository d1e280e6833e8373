"""Transactions: what is visible when, who is fenced, and what an abort leaves."""

from __future__ import annotations

import pytest

from stack.errors import LostOwnership
from stack.kafka.inputs import InputReader
from stack.kafka.reader import LogReader
from stack.kafka.transactions import Aborted, TransactionWriter
from stack.kafka.writer import LogWriter
from tests.contract.conftest import KafkaWorld
from tests.contract.test_reading_writing import read_all, records


def opened(kafka: KafkaWorld, name: str = "w") -> TransactionWriter:
    writer = TransactionWriter(kafka.other_process(), f"{kafka.unique}.{name}")
    writer.init_transactions()
    return writer


def values(kafka: KafkaWorld, topic: str) -> list[bytes]:
    return [value for _, value in read_all(kafka, topic)]


def test_nothing_is_visible_before_the_commit_and_everything_after(kafka: KafkaWorld) -> None:
    topic = kafka.topic()
    writer = opened(kafka)
    writer.begin_if_needed()
    writer.write(topic, records(5))
    writer.deliver_or_abort()
    assert kafka.admin.ends(topic, [0]) == {0: 5}
    with LogReader(kafka.access, topic) as reader:
        reader.assign({0: 0})
        while not reader.caught_up:
            assert len(reader.read(timeout_s=0.3)) == 0
        with LogReader(kafka.access, topic, {"isolation.level": "read_uncommitted"}) as hasty:
            hasty.assign({0: 0}, {0: 5})
            found: list[int] = []
            while not hasty.done:
                found += hasty.read().offsets
            assert found == list(range(5))
        writer.commit_delivered()
        got: list[int] = []
        while len(got) < 5:
            got += reader.read(timeout_s=5).offsets
    writer.close()
    assert not writer.disturbed


def test_an_aborted_transaction_is_never_read(kafka: KafkaWorld) -> None:
    topic = kafka.topic()
    writer = opened(kafka)
    for number, commits in enumerate([True, False, True]):
        writer.begin_if_needed()
        writer.write(topic, records(3, 10 * number))
        writer.deliver_or_abort()
        if commits:
            writer.commit_delivered()
        else:
            writer.abort_all()
    writer.close()
    assert values(kafka, topic) == [one["value"] for one in records(3) + records(3, 20)]
    kafka.await_end(topic, 12)


def test_who_initialises_the_id_fences_the_other_and_aborts_what_it_left(kafka: KafkaWorld) -> None:
    topic = kafka.topic()
    zombie = opened(kafka)
    zombie.begin_if_needed()
    zombie.write(topic, records(2))
    zombie.deliver_or_abort()
    heir = opened(kafka)
    heir.begin_if_needed()
    heir.write(topic, records(3, 10))
    heir.deliver_or_abort()
    with pytest.raises(LostOwnership):
        zombie.commit_delivered()
    heir.commit_delivered()
    with pytest.raises(LostOwnership):
        zombie.abort_all()
    zombie.close()
    heir.close()
    assert values(kafka, topic) == [one["value"] for one in records(3, 10)]


def test_a_fenced_writer_hears_it_when_it_writes(kafka: KafkaWorld) -> None:
    topic = kafka.topic()
    zombie = opened(kafka)
    zombie.begin_if_needed()
    zombie.write(topic, records(1))
    zombie.deliver_or_abort()
    opened(kafka).close()

    def write_on() -> None:
        zombie.write(topic, records(1))
        zombie.deliver_or_abort()
        zombie.commit_delivered()

    with pytest.raises(LostOwnership):
        write_on()
    zombie.close()
    assert values(kafka, topic) == []


def test_a_transaction_past_its_limit_is_aborted_and_its_writer_fenced(kafka: KafkaWorld) -> None:
    topic = kafka.topic()
    limits = ("transaction.timeout.ms", "socket.timeout.ms", "delivery.timeout.ms", "request.timeout.ms")
    writer = TransactionWriter(kafka.access, f"{kafka.unique}.w", dict.fromkeys(limits, 1_000))
    writer.init_transactions()
    writer.begin_if_needed()
    writer.write(topic, records(1))
    writer.deliver_or_abort()
    with LogReader(kafka.access, topic) as reader:
        reader.assign({0: 0})
        for _ in range(200):
            reader.read(timeout_s=0.2)
            if reader.positions[0] >= 2:
                break
        assert reader.positions[0] == 2
    with pytest.raises((LostOwnership, Aborted)):
        writer.commit_delivered()
    writer.close()
    assert values(kafka, topic) == []


def test_a_record_that_kafka_refuses_aborts_the_transaction(kafka: KafkaWorld) -> None:
    topic, other = kafka.topic(), kafka.topic("other")
    writer = opened(kafka)
    writer.begin_if_needed()
    writer.write(other, records(1))
    writer.write(topic, [{"key": b"k", "value": b"v", "timestamp": 4_000_000_000_000}])

    def commit() -> None:
        writer.deliver_or_abort()
        writer.commit_delivered()

    with pytest.raises(Aborted):
        commit()
    assert writer.disturbed
    writer.close()
    assert values(kafka, other) == []


def test_offsets_of_a_group_become_visible_with_the_transaction(kafka: KafkaWorld) -> None:
    topic = kafka.topic()
    group = f"{kafka.unique}.g"
    reader = InputReader(kafka.access, group)
    writer = opened(kafka)
    assert reader.committed([(topic, 0)])[topic, 0] < 0
    for offset, commits in ((7, True), (9, False)):
        writer.begin_if_needed()
        writer.write(topic, records(1))
        writer.send_offsets({(topic, 0): offset}, reader.group_metadata)
        writer.deliver_or_abort()
        if commits:
            writer.commit_delivered()
        else:
            writer.abort_all()
    assert reader.committed([(topic, 0)]) == {(topic, 0): 7}
    writer.close()
    reader.close()


def test_an_empty_transaction_commits_and_leaves_no_marker(kafka: KafkaWorld) -> None:
    topic = kafka.topic()
    writer = opened(kafka)
    writer.begin_if_needed()
    writer.commit_delivered()
    writer.close()
    assert kafka.admin.ends(topic, [0]) == {0: 0}


def test_closing_aborts_what_is_open(kafka: KafkaWorld) -> None:
    topic = kafka.topic()
    writer = opened(kafka)
    writer.begin_if_needed()
    writer.write(topic, records(2))
    writer.flush()
    writer.close()
    with LogWriter(kafka.access) as plain:
        plain.write(topic, records(1, 50))
    assert values(kafka, topic) == [one["value"] for one in records(1, 50)]
