"""Fixtures: what is recorded comes back the same, is read by schema resolution, and tells what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stack import BadInput, BadRecord, Feed, Incompatible, Job, NotFound, Record
from stack.feeds.avro.schema import AvroSchema, parse_avro
from stack.feeds.fixture import fixture_lines, read_fixture
from stack.model.feed import Events, FeedSpec, Key, KeyFormat, Kind
from stack.testing import MemoryStack

T0 = 1_750_000_000_000
FIELDS: dict[str, Any] = {"user": "string", "n": "long"}


def schema(**fields: Any) -> AvroSchema:
    tree = [{"name": name, "type": kind} for name, kind in (fields or FIELDS).items()]
    return parse_avro(json.dumps({"type": "record", "name": "Click", "fields": tree}))


BY_USER = Key("user")


def spec(key: Key = BY_USER) -> FeedSpec:
    return FeedSpec("clicks", Kind.SOURCE, "test", "test", "c.avsc", 1, Events(None), key)


def record(user: str, n: int, **more: Any) -> Record:
    return Record("clicks", 0, n, T0 + n, user, {"user": user, "n": n}, **more)


def recorded(file: Path, *records: Record, payload: bytes | None = None) -> Path:
    lines = fixture_lines(spec(), schema(), 3, [(one, payload) for one in records])
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def kit(**fields: Any) -> MemoryStack:
    return MemoryStack(feeds={"clicks": {"schema": fields or FIELDS, "key": "user"}})


def test_what_was_recorded_is_played_as_it_was(tmp_path: Path) -> None:
    headers = (("trace", b"\xff\x00"), ("who", b"ada"), ("none", None))
    file = recorded(tmp_path / "f.jsonl", record("ada", 1, headers=headers), record("bob", 2))
    with kit() as stack:
        assert stack.play(file) == 2
        first, second = stack.records("clicks")
    assert (first.key, first.value, first.timestamp_ms) == ("ada", {"user": "ada", "n": 1}, T0 + 1)
    assert first.headers == headers
    assert (second.key, second.headers) == ("bob", ())


def test_the_clock_goes_to_the_last_record(tmp_path: Path) -> None:
    file = recorded(tmp_path / "f.jsonl", record("ada", 5), record("ada", 1))
    with kit() as stack:
        stack.play(file)
        assert stack.clock.now_ms == T0 + 5


def test_a_job_runs_on_a_fixture(tmp_path: Path) -> None:
    job = Job("sum")

    @job.task(Feed("clicks"), store="sums")
    def add(click: Any, ctx: Any) -> None:
        ctx.state[click["user"]] = ctx.state.get(click["user"], 0) + click["n"]

    file = recorded(tmp_path / "f.jsonl", record("ada", 1), record("bob", 2), record("ada", 3))
    with kit() as stack:
        stack.deploy(job)
        stack.play(file)
        stack.run()
        assert stack.state("sum", "sums") == {"ada": 4, "bob": 2}


def test_avro_keys_bytes_and_deletions_come_back(tmp_path: Path) -> None:
    of_number = spec(Key("n", KeyFormat.AVRO))
    gone = Record("clicks", 0, 1, T0, 7, None)
    file = tmp_path / "f.jsonl"
    lines = fixture_lines(
        of_number, schema(), 1, [(Record("clicks", 0, 0, T0, 7, {"user": "a", "n": 7}), None)]
    )
    file.write_text("\n".join([*lines, *list(fixture_lines(of_number, schema(), 1, [(gone, None)]))[1:]]))
    _, found = read_fixture(file)
    assert [(line.key, line.value) for line in found] == [(7, {"user": "a", "n": 7}), (7, None)]
    odd = Record("clicks", 0, 0, T0, b"\xfe", {"user": "a", "n": 7})
    file.write_text("\n".join(fixture_lines(spec(), schema(), 1, [(odd, None)])))
    assert read_fixture(file)[1][0].key == b"\xfe"


def test_a_record_that_could_not_be_decoded_stays_so(tmp_path: Path) -> None:
    bad = Record("clicks", 0, 0, T0, "ada", BadRecord("no Avro"))
    file = recorded(tmp_path / "f.jsonl", bad, payload=b"\xffnot avro")
    with kit() as stack:
        stack.play(file)
        with pytest.raises(BadRecord):
            stack.records("clicks")


def test_a_newer_schema_reads_the_fixture_with_its_defaults(tmp_path: Path) -> None:
    file = recorded(tmp_path / "f.jsonl", record("ada", 1))
    newer = {
        "type": "record",
        "name": "Click",
        "fields": [
            {"name": "user", "type": "string"},
            {"name": "n", "type": "double"},
            {"name": "country", "type": "string", "default": "unknown"},
        ],
    }
    with MemoryStack(feeds={"clicks": {"schema": newer, "key": "user"}}) as stack:
        stack.play(file)
        assert stack.values("clicks") == [{"user": "ada", "n": 1.0, "country": "unknown"}]


def test_a_schema_that_cannot_read_the_fixture_is_named_with_both_versions(tmp_path: Path) -> None:
    file = recorded(tmp_path / "f.jsonl", record("ada", 1))
    newer = {
        "type": "record",
        "name": "Click",
        "fields": [{"name": "user", "type": "string"}, {"name": "country", "type": "string"}],
    }
    with MemoryStack(feeds={"clicks": {"schema": newer, "key": "user"}}) as stack:
        with pytest.raises(
            Incompatible, match=r"with version 3 of its schema, and version 1.*country"
        ) as told:
            stack.play(file)
        assert "stack feeds record" in told.value.hint
        assert stack.values("clicks") == []


def test_what_is_no_fixture_is_told(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    with kit() as stack:
        with pytest.raises(BadInput, match="there is no fixture"):
            stack.play(file)
        file.write_text("user,n\n")
        with pytest.raises(BadInput, match="is no fixture"):
            stack.play(file)
        recorded(file, record("ada", 1))
        lines = file.read_text().splitlines()
        file.write_text(f"{lines[0]}\n{lines[1]}\n{{}}\n")
        with pytest.raises(BadInput, match="line 3 is no record"):
            stack.play(file)
        file.write_text(f"{lines[0]}\n{lines[1].replace('1}', 'true}')}\n")
        with pytest.raises(BadRecord, match=r"line 2.*field 'n'"):
            stack.play(file)
        file.write_text(lines[0].replace('"version": 1', '"version": 9'))
        with pytest.raises(BadInput, match="fixture of version 9"):
            stack.play(file)
        assert stack.values("clicks") == []


def test_a_fixture_of_a_feed_that_is_not_there_goes_to_another(tmp_path: Path) -> None:
    file = recorded(tmp_path / "f.jsonl", record("ada", 1))
    with MemoryStack(feeds={"views": {"schema": FIELDS}}) as stack:
        with pytest.raises(NotFound, match="no feed 'clicks'"):
            stack.play(file)
        assert stack.play(file, feed="views") == 1
        assert len(stack.values("views")) == 1
