"""What goes wrong around the stack: Kafka falls silent, files are garbled, pipes close, rows do not fit."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException

import ops.cli
from ops.cli.produce import _open_input
from ops.cli.root import root
from ops.cli.tail import _as_shown, _key_text
from ops.cluster import control, doctor, processes
from ops.cluster.files import KeptFile
from ops.cluster.layout import Cluster, Layout, recall_cluster
from stack.errors import BadInput, BadRecord, NotDelivered, Unavailable
from stack.feeds import reader as feed_reader
from stack.feeds.avro.schema import parse_avro
from stack.feeds.reader import FeedReader
from stack.feeds.synthetic.generate import Generator
from stack.feeds.writer import FeedWriter
from stack.kafka.admin import KafkaAdmin
from stack.kafka.config import KafkaAccess
from stack.kafka.errors import translate
from stack.kafka.reader import RawBatch
from stack.kafka.writer import MAX_VALUE_BYTES, LogWriter
from stack.model.feed import Events, FeedSpec, Key, Kind, Table
from stack.settings import Settings, resolve_paths

NOWHERE = KafkaAccess("127.0.0.1:1")
VISIT = parse_avro(
    '{"type": "record", "name": "V", "fields": [{"name": "user", "type": "string"}, '
    '{"name": "ms", "type": "long"}]}'
)
NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def spec(storage: Events | Table) -> FeedSpec:
    key, time = Key("user"), "ms"
    return FeedSpec("v", Kind.SOURCE, "visits", "web", "v.avsc", 1, storage, key=key, event_time=time)


@pytest.fixture
def writer() -> Iterator[FeedWriter]:
    one = FeedWriter(
        NOWHERE, spec(Events(HOUR_MS)), topic="v", schema=VISIT, schema_id=1, clock_ms=lambda: NOW_MS
    )
    yield one
    one.close()


# Records that Kafka would not keep.


def test_a_time_far_ahead_is_refused_before_it_spoils_its_batch(writer: FeedWriter) -> None:
    writer.encode({"user": "ada", "ms": NOW_MS + HOUR_MS})
    with pytest.raises(BadRecord, match="more than an hour ahead") as caught:
        writer.encode({"user": "ada", "ms": NOW_MS + HOUR_MS + 1})
    assert (caught.value.field, "event time" in caught.value.hint) == ("ms", True)
    with pytest.raises(BadRecord, match="more than an hour ahead"):
        writer.write_payloads([b"", b""], None, [NOW_MS, NOW_MS + 2 * HOUR_MS])
    with pytest.raises(BadRecord, match="older than the 1h"):
        writer.encode({"user": "ada", "ms": NOW_MS - HOUR_MS - 1})


def test_a_table_feed_takes_any_time() -> None:
    one = FeedWriter(NOWHERE, spec(Table(1)), topic="v", schema=VISIT, schema_id=1, clock_ms=lambda: NOW_MS)
    for ms in (0, NOW_MS * 2):
        assert one.encode({"user": "ada", "ms": ms})["timestamp"] == ms
    one.close()


def test_a_record_that_is_too_large_is_known_when_it_is_encoded(writer: FeedWriter) -> None:
    with pytest.raises(BadRecord, match=f"Kafka takes {MAX_VALUE_BYTES:,}"):
        writer.encode({"user": "a" * MAX_VALUE_BYTES, "ms": NOW_MS})


# Kafka falls silent.


class SilentProducer:
    """A producer whose broker hangs: nothing is ever written, and a commit that timed out stays under way."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def flush(self, _timeout_s: float) -> int:
        return 2

    def purge(self) -> None:
        self.calls.append("purge")

    def close(self, timeout_s: float) -> None:
        self.calls.append(timeout_s)

    def commit_transaction(self, _timeout_s: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def abort_transaction(self, _timeout_s: float) -> None:
        raise KafkaException(KafkaError(KafkaError._CONFLICT, "a commit is under way"))


def silent_writer() -> tuple[LogWriter, SilentProducer]:
    log, producer = LogWriter(NOWHERE), SilentProducer()
    log._producer.close(0)
    log._producer = cast(Any, producer)
    return log, producer


def test_a_writer_that_waited_in_vain_does_not_wait_again_when_it_closes() -> None:
    log, producer = silent_writer()
    log.close()
    assert producer.calls == [60.0]
    log, producer = silent_writer()
    with pytest.raises(NotDelivered, match="2 records could not be written within 60 s"):
        log.flush()
    log.close()
    log.close()
    assert producer.calls == ["purge", 2.0]


def test_a_commit_without_an_answer_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    log, producer = silent_writer()
    monkeypatch.setattr(producer, "flush", lambda _: 0)
    with pytest.raises(NotDelivered, match=r"committing a transaction.*committed is not known") as caught:
        log.commit()
    assert "a commit is under way" not in caught.value.message


def test_a_record_that_timed_out_says_what_to_do() -> None:
    error = translate(KafkaError(KafkaError._MSG_TIMED_OUT), "writing to v")
    assert isinstance(error, NotDelivered)
    assert (error.message, "stack doctor" in error.hint) == (
        "writing to v: Kafka did not take it in time",
        True,
    )


class SilentLog:
    """A log that never gives anything."""

    done = False

    def __init__(self, bounded: bool) -> None:
        self.bounded = bounded
        self.reads = 0

    def read(self, *_: Any) -> RawBatch:
        self.reads += 1
        if self.reads > 1_000:
            raise KeyboardInterrupt
        return RawBatch([])

    def close(self) -> None:
        pass


class AwayAdmin:
    def describe(self, topics: list[str]) -> Any:
        raise Unavailable(f"describing {topics[0]}: Kafka cannot be reached")

    def bounds(self, topic: str, _partitions: Any) -> Any:
        raise Unavailable(f"asking for offsets of {topic}: Kafka cannot be reached")


@pytest.mark.parametrize(("bounded", "ends"), [(True, Unavailable), (False, KeyboardInterrupt)])
def test_a_bounded_read_ends_when_kafka_is_away(bounded: bool, ends: type[BaseException]) -> None:
    seconds = itertools.count()
    one = FeedReader(
        NOWHERE,
        cast(KafkaAdmin, AwayAdmin()),
        spec(Events(1)),
        topic="v",
        schemas=cast(Any, None),
        schema=VISIT,
        clock=lambda: float(next(seconds)),
    )
    one.close()
    one._log, one._assigned = cast(Any, SilentLog(bounded)), True
    with pytest.raises(ends):
        list(one.batches())
    if bounded:
        assert next(seconds) <= feed_reader.QUIET_LIMIT_S + 3


def test_doctor_asks_each_server_and_does_not_send_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise Unavailable("it cannot be reached", hint="`stack doctor` tells more.")

    monkeypatch.setattr(KafkaAdmin, "broker_ids", away)
    monkeypatch.setattr("stack.zookeeper.session.ping", away)
    file = tmp_path / "stack.toml"
    file.write_text('[kafka]\nbootstrap = "127.0.0.1:1"\n[zookeeper]\nhosts = "127.0.0.1:1"\n')
    found = {one.subject: one for one in doctor.examine(file)}
    assert [found[name].level for name in ("kafka", "zookeeper", "http")] == ["fault", "fault", "warning"]
    assert "kafka.bootstrap" in found["kafka"].hint
    assert "zookeeper.hosts" in found["zookeeper"].hint


# Files of the data folder.


def test_a_kept_file_comes_back_when_somebody_touches_it(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    kept = KeptFile(file)
    kept.keep({"a": 1})
    first = file.stat().st_ino
    kept.keep({"a": 1})
    assert file.stat().st_ino == first
    for spoil in (file.unlink, lambda: file.write_text("{"), lambda: file.write_text("")):
        spoil()
        kept.keep({"a": 1})
        assert json.loads(file.read_text()) == {"a": 1}
    kept.keep({"a": 2})
    assert json.loads(file.read_text()) == {"a": 2}


@pytest.mark.parametrize("text", [None, "{", "[1]", '{"services": 1}'])
def test_status_bears_a_garbled_run_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    settings = resolve_paths(Settings(root=tmp_path))
    settings.data.mkdir()
    if text is not None:
        Layout(settings.data).run_file.write_text(text)
    found = {"kafka-1": psutil.Process(), processes.SUPERVISOR: psutil.Process()}
    monkeypatch.setattr(processes, "find", lambda _: found)
    assert [(one.name, one.state) for one in control.status(settings)] == [
        ("kafka-1", "starting"),
        ("supervisor", "ready"),
    ]
    del found[processes.SUPERVISOR]
    assert [(one.name, one.state) for one in control.status(settings)] == [("kafka-1", "orphan")]


def test_a_lost_cluster_file_is_made_again_from_the_brokers_folders(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert recall_cluster(layout) is None
    for number in (1, 2, 3):
        (tmp_path / f"kafka-{number}").mkdir()
    assert recall_cluster(layout) is None
    (tmp_path / "kafka-2" / "meta.properties").write_text("#\nversion=1\ncluster.id=abc\nnode.id=2\n")
    assert recall_cluster(layout) == Cluster("abc", 3)


# What a person sees and types.


def test_a_key_with_fields_is_shown_and_asked_for_as_json() -> None:
    shown = '{"shop": "zürich", "sku": 7}'
    assert _key_text({"shop": "zürich", "sku": 7}) == shown
    assert _as_shown('{ "shop":"zürich","sku":7 }') == shown
    assert [_key_text(key) for key in ("a", 7, None, True, b"\xff")] == ["a", "7", "-", "true", "b'\\xff'"]
    assert [_as_shown(text) for text in ("7", '"a"', "null", "{", "a")] == ["7", '"a"', "null", "{", "a"]


def test_the_reader_of_a_pipe_may_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave() -> None:
        raise BrokenPipeError

    monkeypatch.setitem(root.commands, "boom", click.Command("boom", callback=leave))
    monkeypatch.setattr(ops.cli, "_reader_is_gone", lambda: 0)
    with pytest.raises(SystemExit) as left:
        ops.cli.main(["boom"])
    assert left.value.code == 0


def test_standard_output_may_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as left:
        ops.cli.main(["--version"])
    assert left.value.code == 0


def test_rows_of_a_live_input_are_sent_before_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    waits: list[str] = []

    def before_wait() -> None:
        waits.append("wait")
        threading.Thread(target=go_on).start()

    def go_on() -> None:
        if len(waits) == 1:
            os.write(writing, b"b\n")
        else:
            os.close(writing)

    os.write(writing, b"a\n")
    with os.fdopen(reading) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        with _open_input("-", before_wait) as lines:
            assert list(lines) == [b"a\n", b"b\n"]
    assert waits == ["wait", "wait"]


def test_ctrl_c_ends_a_live_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    reading, writing = os.pipe()
    os.write(writing, b"a\nb\n")
    with os.fdopen(reading) as stream, os.fdopen(writing, "w"):
        monkeypatch.setattr(sys, "stdin", stream)
        with _open_input("-", interrupt) as lines:
            assert list(lines) == [b"a\n", b"b\n"]


# Synthetic keys with fields.


def item(*fields: tuple[str, Any]) -> Any:
    inner = {"type": "record", "name": "Item", "fields": [{"name": n, "type": t} for n, t in fields]}
    outer = [
        {"name": "item", "type": inner},
        {"name": "count", "type": "long"},
        {"name": "twin", "type": "Item"},
    ]
    return parse_avro(json.dumps({"type": "record", "name": "Stock", "fields": outer}))


def test_a_key_with_fields_is_generated_as_often_as_asked() -> None:
    schema = item(("shop", "string"), ("sku", ["null", "long"]))
    made = list(itertools.islice(Generator(schema, 1, keys=5, key_field="item"), 500))
    assert len({(one["item"]["shop"], one["item"]["sku"]) for one in made}) == 5
    again = list(itertools.islice(Generator(schema, 1, keys=5, key_field="twin"), 500))
    assert len({(one["twin"]["shop"], one["twin"]["sku"]) for one in again}) == 5


@pytest.mark.parametrize("kind", ["boolean", {"type": "array", "items": "long"}])
def test_a_key_field_that_cannot_be_numbered_is_named(kind: Any) -> None:
    name = kind if isinstance(kind, str) else kind["type"]
    with pytest.raises(BadInput, match=rf"key_field: item\.odd is {name}, a key is"):
        Generator(item(("odd", kind)), 1, key_field="item")
