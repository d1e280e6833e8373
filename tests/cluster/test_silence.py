"""Consumers that fall silent are made anew, and only those: on real Kafka, with the silence planted."""

from __future__ import annotations

import logging
import time
import uuid
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from stack import Stack
from stack.errors import Unavailable
from stack.kafka.admin import KafkaAdmin
from stack.kafka.inputs import InputReader
from stack.kafka.reader import LogReader
from stack.kafka.transactions import TransactionWriter
from stack.kafka.writer import LogWriter

pytestmark = pytest.mark.cluster
LOOK_S = 0.2


class Mute:
    """A consumer that hands out nothing any more; asked for ends it answers, or not."""

    def __init__(self, consumer: Any, answers: bool) -> None:
        self._consumer = consumer
        self._answers = answers

    def consume(self, *_: Any) -> list[Any]:
        return []

    def poll(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def get_watermark_offsets(self, *given: Any, **more: Any) -> Any:
        if not self._answers and not more.get("cached"):
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return self._consumer.get_watermark_offsets(*given, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


@pytest.fixture
def topic(filled: Stack) -> str:
    return filled.topic_of("views")


def write(stack: Stack, topic: str, first: int, count: int, partition: int = 0) -> None:
    with LogWriter(stack.access) as writer:
        writer.write(topic, [{"value": b"%d" % n} for n in range(first, first + count)], partition)


@pytest.mark.parametrize("answers", [True, False])
def test_a_reader_of_a_log_goes_on_where_it_fell_silent(filled: Stack, topic: str, answers: bool) -> None:
    write(filled, topic, 0, 50)
    with LogReader(filled.access, topic, look_s=LOOK_S) as reader:
        reader.assign({0: 0, 1: 0}, {0: 80})
        got = read_until(reader, 50)
        reader._consumer = Mute(reader._consumer, answers)
        write(filled, topic, 50, 50)
        got += read_until(reader, 30)
        assert got == [b"%d" % n for n in range(80)]
        assert not isinstance(reader._consumer, Mute)


def read_until(reader: LogReader, count: int) -> list[bytes | None]:
    """So many values, which may take a few reads."""
    got: list[bytes | None] = []
    deadline = time.monotonic() + 20
    while len(got) < count and time.monotonic() < deadline:
        got += reader.read(1_000, 0.5).values
    return got


@pytest.mark.parametrize("answers", [True, False])
def test_inputs_go_on_where_they_fell_silent(
    filled: Stack, topic: str, answers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for partition in range(3):
        write(filled, topic, 0, 20, partition)
    reader = InputReader(filled.access, f"g-{uuid.uuid4()}", look_s=LOOK_S)
    try:
        reader.add(dict.fromkeys([(topic, 0), (topic, 1), (topic, 2)], 0))
        got = inputs_until(reader, 60)
        reader.pause([(topic, 2)])
        reader._consumer = Mute(reader._consumer, answers)
        for partition in range(3):
            write(filled, topic, 20, 20, partition)
        for partition, values in inputs_until(reader, 40).items():
            got[partition] = got[partition] + values
        assert got == {0: list(range(40)), 1: list(range(40)), 2: list(range(20))}
        reader.resume([(topic, 2)])
        assert inputs_until(reader, 20) == {2: list(range(20, 40))}
        assert reader.group_metadata is not None
    finally:
        reader.close()
    assert "made anew" in caplog.text


def inputs_until(reader: InputReader, count: int) -> dict[int, list[int]]:
    got: dict[int, list[int]] = {}
    deadline = time.monotonic() + 20
    while sum(map(len, got.values())) < count and time.monotonic() < deadline:
        for portion in reader.read(1_000, 0.2):
            got.setdefault(portion.place[1], []).extend(int(value or 0) for value in portion.batch.values)
    return got


def test_a_consumer_that_has_nothing_to_read_stays(
    filled: Stack, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even records of a transaction that is open or was aborted count as something to read."""
    caplog.set_level(logging.WARNING)
    write(filled, topic, 0, 10)
    writer = TransactionWriter(filled.access, f"t-{uuid.uuid4()}")
    try:
        writer.init_transactions()
        with LogReader(filled.access, topic, look_s=LOOK_S) as reader:
            reader.assign({0: 0})
            assert len(read_until(reader, 10)) == 10
            consumer = reader._consumer
            writer.begin_if_needed()
            writer.write(topic, [{"value": b"open"}] * 5, 0)
            writer.flush()
            stay_quiet(reader)
            writer.abort_all()
            stay_quiet(reader)
            assert reader._consumer is consumer
    finally:
        writer.close()
    assert "made anew" not in caplog.text


def stay_quiet(reader: LogReader) -> None:
    """Long enough for several looks."""
    deadline = time.monotonic() + 6 * LOOK_S
    while time.monotonic() < deadline:
        assert not len(reader.read(1_000, 0.1))


class Lost:
    """An admin client that has lost Kafka for good."""

    def list_topics(self, *_: Any, **__: Any) -> Any:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def list_offsets(self, places: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        answers: dict[Any, Future[Any]] = {place: Future() for place in places}
        for answer in answers.values():
            answer.set_exception(KafkaException(KafkaError(KafkaError._TRANSPORT)))
        return answers

    def describe_topics(self, *_: Any, **__: Any) -> dict[Any, Future[Any]]:
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        return {"views": answer}

    def poll(self, _: float) -> None:
        pass


def test_an_admin_that_has_lost_kafka_begins_anew(filled: Stack, topic: str) -> None:
    write(filled, topic, 0, 7)
    admin = KafkaAdmin(filled.access)
    for lose in (admin.topic_names, lambda: admin.describe([topic])):
        admin._client = Lost()
        with pytest.raises(Unavailable, match="cannot be reached"):
            lose()
        assert topic in admin.topic_names()
    admin._client = Lost()
    assert admin.ends(topic, [0]) == {0: 7}
