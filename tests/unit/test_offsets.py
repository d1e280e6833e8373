"""The offset manager in pieces: bytes of checkpoints, the index, points by meaning, the undo, the audit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.errors import BadInput, CorruptState, NotFound
from stack.feeds.avro.codec import RecordEncoder
from stack.feeds.avro.schema import parse_avro
from stack.kafka.writer import LogWriter
from stack.model.annotation import Annotated, annotation_key, annotation_name
from stack.model.checkpoint import Checkpoint, Gap, InputPoint, OutputPoint, StorePoint, checkpoint_key
from stack.model.job import CodePlace, InputSpec, JobSettings, JobSpec
from stack.model.packed import pack
from stack.model.partitioner import partition_of
from stack.model.partitions import partitions_of
from stack.model.plan import TaskId
from stack.model.startpoint import (
    AtAnnotation,
    AtCheckpoint,
    AtOffset,
    AtOffsets,
    AtTime,
    AtVersion,
    Latest,
    Oldest,
    parse_job_startpoint,
)
from stack.offsets import undo
from stack.offsets.audit import entry_of, read_audit, write_audit
from stack.offsets.checkpoints import checkpoint_partition, checkpoints_topic
from stack.offsets.codec import (
    AnnotatedDecoder,
    AnnotatedEncoder,
    CheckpointDecoder,
    CheckpointEncoder,
    CheckpointHeads,
    FixedSchemas,
)
from stack.offsets.index import CheckpointIndex
from stack.offsets.points import find_point
from stack.offsets.schemas import ANNOTATED_SCHEMA, ANNOTATED_TREE, CHECKPOINT_SCHEMA, CHECKPOINT_TREE
from stack.testing import MemoryStack
from tests.unit.test_rewind_kit import FEEDS, click, counting

NOW = 1_700_000_000_000
T0, T1 = TaskId("main", 0), TaskId("main", 1)
SCHEMAS = FixedSchemas({1: CHECKPOINT_SCHEMA, 2: ANNOTATED_SCHEMA})

# Bytes

names = st.text("abcdefgh-é", min_size=1, max_size=12)
longs = st.integers(0, (1 << 62) - 1)
gaps = st.lists(st.builds(Gap, longs, longs), min_size=1, max_size=2).map(tuple)
inputs = st.builds(
    lambda topic, offsets, gaps: InputPoint(
        topic, "id", 9, offsets, {number: one for number, one in gaps.items() if number in offsets}
    ),
    names,
    st.dictionaries(st.integers(0, 8), longs, max_size=3),
    st.dictionaries(st.integers(0, 8), gaps, max_size=2),
)
outputs = st.builds(
    OutputPoint,
    names,
    names,
    st.lists(longs, max_size=3).map(tuple),
    st.one_of(st.none(), st.frozensets(st.integers(0, 9))),
)
checkpoints = st.builds(
    Checkpoint,
    names,
    st.builds(TaskId, st.just("main"), st.integers(0, 999)),
    names,
    longs,
    st.integers(-(1 << 60), 1 << 60),
    st.dictionaries(names, inputs, max_size=2),
    st.dictionaries(names, st.builds(StorePoint, names, names, longs), max_size=2),
    st.dictionaries(names, outputs, max_size=2),
    st.dictionaries(names, st.text(max_size=20), max_size=2),
    event_time_ms=st.one_of(st.none(), st.integers(-(1 << 60), 1 << 60)),
    generation=longs,
    slot=st.integers(-1, 1000),
    attempt=st.integers(0, 1 << 30),
)


@given(checkpoints)
def test_checkpoints_come_back_as_they_were_and_their_heads_alone_too(one: Checkpoint) -> None:
    data = CheckpointEncoder(1)(one)
    assert CheckpointDecoder(SCHEMAS)(data) == one
    expected = (
        one.job,
        str(one.task),
        one.number,
        one.time_ms,
        one.event_time_ms,
        one.version,
        one.slot,
        one.attempt,
    )
    assert CheckpointHeads(SCHEMAS)(data) == expected
    # Under another schema the whole is read.
    other = {**CHECKPOINT_TREE, "doc": "another"}
    more = FixedSchemas({3: parse_avro(json.dumps(other)), 1: CHECKPOINT_SCHEMA})
    from stack.offsets.codec import checkpoint_tree

    assert (
        CheckpointHeads(more)(RecordEncoder(parse_avro(json.dumps(other)), 3).encode(checkpoint_tree(one)))
        == expected
    )


@given(names, st.dictionaries(names, names, max_size=3), st.lists(checkpoints, max_size=2))
def test_named_points_come_back(name: str, values: dict[str, str], points: list[Checkpoint]) -> None:
    one = Annotated("sum", name, NOW, "ada", {point.task: point for point in points}, values, False)
    assert AnnotatedDecoder(SCHEMAS)(AnnotatedEncoder(2)(one)) == one
    assert annotation_name(annotation_key("sum", name)) == ("sum", name)


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x00\x00\x01", b"\x00\x00\x00\x00\x01\x06ab", b"{}"])
def test_what_is_no_checkpoint_is_told(data: bytes) -> None:
    with pytest.raises(CorruptState, match="a checkpoint cannot be read"):
        CheckpointDecoder(SCHEMAS)(data)
    with pytest.raises(CorruptState, match="cannot be read"):
        CheckpointHeads(SCHEMAS)(data)


@pytest.mark.parametrize(("name", "tree"), [("checkpoint", CHECKPOINT_TREE), ("annotated", ANNOTATED_TREE)])
def test_the_schemas_for_everybody_else_are_those_of_the_code(name: str, tree: dict[str, Any]) -> None:
    file = Path(__file__).parents[2] / "schemas" / "stack" / f"{name}.avsc"
    assert json.loads(file.read_text()) == tree


# Partitions


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30), st.integers(1, 50))
def test_partitions_of_many_keys_are_those_of_each(keys: list[bytes], count: int) -> None:
    assert partitions_of(pack(keys), count) == {partition_of(key, count) for key in keys}


def test_a_record_without_key_may_go_anywhere() -> None:
    assert partitions_of(pack([b"a", None]), 3) == {0, 1, 2}


def test_many_keys_are_told_quickly() -> None:
    keys = pack([b"user-%07d" % number for number in range(10_000)])
    best = min(_timed(keys) for _ in range(7))
    assert best / 10_000 < 0.3e-6


def _timed(keys: Any) -> float:
    began = time.perf_counter()
    partitions_of(keys, 12)
    return time.perf_counter() - began


# What one types


def test_startpoints_of_jobs() -> None:
    parse = parse_job_startpoint
    assert parse(" @before ", NOW) == AtAnnotation("before")
    assert parse("v:abc123", NOW) == AtVersion("abc123")
    assert parse("main-0#17", NOW) == AtCheckpoint("main-0", 17)
    assert parse("-2h", NOW) == AtTime(NOW - 7_200_000)
    assert parse("p0=5,p1=7", NOW) == AtOffsets({0: 5, 1: 7})
    assert (parse("120", NOW), parse("oldest", NOW), parse("latest", NOW)) == (
        AtOffset(120),
        Oldest(),
        Latest(),
    )


@pytest.mark.parametrize(
    "text", ["@", "@a b", "@-a", "v:", "v:ab", "v:a/b", "main-0#", "main#3", "yesterday", ""]
)
def test_what_is_no_startpoint_of_a_job_is_told_with_what_is(text: str) -> None:
    with pytest.raises(BadInput) as told:
        parse_job_startpoint(text, NOW)
    assert told.value.hint


# The index and its points


class Log:
    """A stack in memory whose checkpoints the test writes."""

    def __init__(self) -> None:
        self.kit = MemoryStack(feeds=FEEDS, jobs=[counting()])
        self.stack = self.kit.connection
        self.topic = checkpoints_topic("test")
        from stack.offsets.codec import registered_id

        self.encode = CheckpointEncoder(registered_id(self.stack.registry, self.topic, CHECKPOINT_SCHEMA))

    def add(self, *points: Checkpoint | TaskId) -> None:
        """Checkpoints, or tasks that are removed."""
        records = [
            {"key": checkpoint_key("count", one), "value": None}
            if isinstance(one, TaskId)
            else {"key": checkpoint_key(one.job, one.task), "value": self.encode(one)}
            for one in points
        ]
        with LogWriter(self.stack.access) as writer:
            writer.write(self.topic, records, checkpoint_partition("count"))


def made(task: TaskId, number: int, **changes: Any) -> Checkpoint:
    offsets = {"clicks": InputPoint("clicks", "id", 2, {task.partition: 10 * number})}
    one = Checkpoint("count", task, "v-one", number, NOW + 1000 * number, offsets, slot=0, attempt=1)
    return replace(one, **changes)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    monkeypatch.setattr("stack.offsets.index.time_ms", lambda: NOW)
    one = Log()
    with one.kit:
        yield one


def test_the_index_keeps_up_and_forgets_what_was_removed(log: Log) -> None:
    with CheckpointIndex(log.stack, in_memory=True) as index:
        index.refresh()
        assert index.count("count") == 0
        log.add(made(T0, 1), made(T1, 1), made(T0, 2))
        index.refresh()
        index.refresh()
        assert index.count("count") == 3
        log.add(T0, made(T0, 1, version="v-two"))
        index.refresh()
        last = index.last("count", T0)
        assert last is not None
        assert (last.number, last.version, index.count("count")) == (1, "v-two", 2)
        assert index.checkpoint(last) == made(T0, 1, version="v-two")
        assert index.tasks("count") == [T0, T1]


def test_a_task_that_another_process_knows_to_live_again_stays(log: Log) -> None:
    log.add(made(T0, 1), T0, made(T0, 1), made(T0, 2))
    with CheckpointIndex(log.stack, in_memory=True) as index:
        index.refresh()
        index._forget(checkpoint_key("count", T0), 1)  # read once more by somebody who is behind
        assert index.count("count") == 2


def test_old_commits_go_but_for_the_last(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.add(made(T0, 1), made(T0, 2), made(T1, 1))
    monkeypatch.setattr("stack.offsets.index.time_ms", lambda: NOW + 10**12)
    with CheckpointIndex(log.stack, in_memory=True) as index:
        index.refresh()
        assert [(row.task, row.number) for row in index.newest("count", 9)] == [(T0, 2), (T1, 1)]


def _on_disk(log: Log, folder: Path) -> CheckpointIndex:
    log.stack.settings = replace(log.stack.settings, data=folder)
    return CheckpointIndex(log.stack)


def test_the_file_is_taken_up_and_built_again_where_it_is_broken(log: Log, tmp_path: Path) -> None:
    log.add(made(T0, 1))
    with _on_disk(log, tmp_path) as index:
        index.refresh()
    with _on_disk(log, tmp_path) as index:
        assert index.count("count") == 1
    (file,) = (tmp_path / "offsets").glob("*.sqlite")
    file.write_bytes(b"this is no database" * 100)
    with _on_disk(log, tmp_path) as index:
        index.refresh()
        assert index.count("count") == 1


def test_a_feed_that_was_made_anew_has_an_index_of_its_own(log: Log, tmp_path: Path) -> None:
    log.add(made(T0, 1))
    with _on_disk(log, tmp_path) as index:
        index.refresh()
    log.kit.kafka.delete(log.topic)
    log.kit.kafka.create(log.topic, 8, {"cleanup.policy": "compact"})
    with _on_disk(log, tmp_path) as index:
        index.refresh()
        assert index.count("count") == 0
    assert len(list((tmp_path / "offsets").glob("*.sqlite"))) == 1


def test_among_many_a_commit_is_found_in_milliseconds(log: Log) -> None:
    with CheckpointIndex(log.stack, in_memory=True) as index:
        rows = [
            ("count", str(task), number, NOW + number, None, "v-one", 0, 1, 2 * number + task.partition)
            for number in range(1, 50_001)
            for task in (T0, T1)
        ]
        index._insert(list(map(tuple, rows)), [])
        began = time.perf_counter()
        for _ in range(20):
            assert index.at_time("count", T1, NOW + 777) is not None
            assert index.numbered("count", T0, 40_000) is not None
            assert index.last("count", T0) is not None
            assert index.before("count", T0, 99_000) is not None
            assert len(index.newest("count", 20)) == 20
        assert (time.perf_counter() - began) / 20 < 0.1


def test_points_by_every_kind_of_startpoint(log: Log) -> None:
    two = {"version": "v-two"}
    log.add(made(T0, 1), made(T1, 1), made(T0, 2), made(T0, 3, **two), made(T1, 2, time_ms=NOW + 3001, **two))

    def numbers(startpoint: Any, *feeds: str) -> list[int | None]:
        inputs = tuple(InputSpec(feed) for feed in feeds or ("clicks",))
        spec = JobSpec("count", "v", inputs, (), (), JobSettings(), 2, CodePlace("", 0, 0, 0))
        point = find_point(index, spec, startpoint)
        return [None if one is None else one.number for one in point.checkpoints.values()]

    with CheckpointIndex(log.stack, in_memory=True) as index:
        index.refresh()
        assert numbers(Oldest()) == [None, None]
        assert numbers(Latest()) == [3, 2]
        assert numbers(AtTime(NOW + 2500)) == [2, 1]
        assert numbers(AtCheckpoint("main-0", 2)) == [2, 1]
        assert numbers(AtCheckpoint("main-1", 2)) == [3, 2]
        assert numbers(AtVersion("v-tw")) == [2, 1]
        assert numbers(AtVersion("v-one")) == [None, None]
        assert numbers(AtOffsets({0: 25})) == [2, 2]
        assert numbers(AtOffset(10)) == [1, 1]
        assert numbers(AtOffset(5)) == [None, None]
        for wrong, message, hint in (
            (AtTime(NOW), "had no commit at", "its first commit that is still known"),
            (AtCheckpoint("main-0", 9), "has no commit 9", "1 to 3"),
            (AtCheckpoint("main-7", 1), "has no task 'main-7'", "main-0, main-1"),
            (AtVersion("v-"), "2 versions of job 'count' begins", "v-one"),
            (AtVersion("xyz"), "no version", "v-two"),
            (AtAnnotation("x"), "is named 'x'", "No point of it has a name yet"),
            (AtOffsets({4: 1}), "has no partition 4", "It has 2"),
        ):
            with pytest.raises((NotFound, BadInput), match=message) as told:
                numbers(wrong)
            assert hint in told.value.hint
        with pytest.raises(BadInput, match="has several inputs"):
            numbers(AtOffset(1), "clicks", "views")


# Undo


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.one_of(st.none(), st.integers(0, 2))), max_size=25),
    st.integers(0, 25),
    st.integers(1, 6),
)
def test_an_undo_in_any_number_of_passes_brings_a_log_back(
    life: list[tuple[str, int | None]], cut: int, most: int
) -> None:
    cut = min(cut, len(life))
    with MemoryStack(feeds=FEEDS) as kit, pytest.MonkeyPatch.context() as patch:
        patch.setattr(undo, "_MOST_KEYS", most)
        kit.kafka.create("log", 1, {"cleanup.policy": "compact"})
        with LogWriter(kit.connection.access) as writer:
            pairs = [{"key": key.encode(), "value": None if n is None else b"%d" % n} for key, n in life]
            writer.write("log", pairs)
        log = undo.LogUndo(kit.connection, "log")
        changes: dict[bytes | None, bytes | None] = {}
        for one in log.changes(0, cut, 2):
            assert len(one.keys) <= 2
            assert not changes.keys() & set(one.keys)
            changes.update(zip(one.keys, one.values, strict=True))
        emptied = {key for one in log.changes(0, 0, 5, empty=True) for key in one.keys}
    now, then = _kept(pairs), _kept(pairs[:cut])
    undone: dict[bytes | None, bytes | None] = dict(now)
    undone.update(changes)
    assert {key: value for key, value in undone.items() if value is not None} == then
    assert emptied == now.keys()


def _kept(pairs: list[dict[str, bytes | None]]) -> dict[bytes | None, bytes]:
    last = {one["key"]: one["value"] for one in pairs}
    return {key: value for key, value in last.items() if value is not None}


# Audit


def test_the_audit_feed_tells_what_was_asked() -> None:
    with MemoryStack(feeds=FEEDS, jobs=[counting()]) as kit:
        assert list(read_audit(kit.connection)) == []
        entries = [
            entry_of("scale", "count", "more of it", {"containers": 1}, {"containers": 2}),
            entry_of("rewind", "count", "wörng", after={"to": "@then"}),
        ]
        for one in entries:
            write_audit(kit.connection, one)
        with LogWriter(kit.connection.access) as writer:
            writer.write("_test.audit", [{"key": b"x", "value": b"no json"}])
        assert list(read_audit(kit.connection)) == entries
        click(kit, "a")
