"""Emitted values on their way out: the reference's bytes, or refused with the record that emitted them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.errors import BadConfig
from stack.feeds.avro.codec import RecordEncoder
from stack.feeds.avro.schema import parse_avro
from stack.model.feed import Events, FeedSpec, Key, Kind, Table
from stack.model.packed import Packed
from stack.runtime.outputs import Output, Outputs, Refused
from stack.tasks.declare import Feed

PLAIN = parse_avro(
    '{"type":"record","name":"T","fields":[{"name":"user","type":"string"},{"name":"n","type":"long"},'
    '{"name":"x","type":"double","default":0.5}]}'
)
NESTED = parse_avro(
    '{"type":"record","name":"T","fields":[{"name":"user","type":"string"},'
    '{"name":"tags","type":{"type":"array","items":"string"}}]}'
)


def output(schema: Any = PLAIN, table: bool = False, event_time: str | None = None) -> Output:
    storage = Table(1000) if table else Events(None)
    spec = FeedSpec("out", Kind.DERIVED, "", "", "", 1, storage, Key("user"), event_time, by="j")
    return Output(spec, "out", schema, 7)


ROWS = pa.schema({"user": pa.string(), "n": pa.int64(), "x": pa.float64()})


class Sent:
    """Takes what a writer would."""

    def __init__(self) -> None:
        self.records: list[tuple[Any, ...]] = []

    def write_pairs(self, _topic: str, keys: list[Any], values: list[Any]) -> None:
        self.records += list(zip(keys, values, strict=True))

    def write_packed(self, topic: str, keys: Packed, values: Packed) -> None:
        self.write_pairs(topic, keys.items(), values.items())

    def write(self, _topic: str, records: list[dict[str, Any]]) -> None:
        self.records += [(one["key"], one["value"], one.get("timestamp")) for one in records]


def sent(one: Output) -> list[tuple[Any, ...]]:
    one.encode()
    taken = Sent()
    one.send(taken)  # type: ignore[arg-type]
    assert len(one) == 0
    return taken.records


VALUES = st.fixed_dictionaries(
    {"user": st.text(max_size=5), "n": st.integers(-(2**63), 2**63 - 1), "x": st.floats(allow_nan=False)}
)


@given(st.lists(VALUES, max_size=60))
def test_columns_write_what_the_reference_writes(values: list[dict[str, Any]]) -> None:
    one = output()
    for place, value in enumerate(values):
        one.add(place, value, None, None)
    encode = RecordEncoder(PLAIN, 7).encode
    assert sent(one) == [(value["user"].encode(), encode(value)) for value in values]


def test_order_is_kept_between_quick_and_slow_values() -> None:
    one = output(table=True)
    for number in range(100):
        value: Any = {"user": "u", "n": number, "x": 1.0}
        if number % 10 == 3:
            del value["x"]  # has a default
        one.add(number, None if number % 10 == 7 else value, f"k{number}", None)
    records = sent(one)
    assert [key for key, _ in records] == [f"k{number}".encode() for number in range(100)]
    assert [number for number, record in enumerate(records) if record[1] is None] == list(range(7, 100, 10))


def test_a_value_that_changes_after_it_was_emitted() -> None:
    for schema, value in ((PLAIN, {"user": "a", "n": 1, "x": 0.0}), (NESTED, {"user": "a", "tags": ["t"]})):
        one = output(schema)
        before = RecordEncoder(schema, 7).encode(value)
        one.add(0, value, None, None)
        value["user"] = "b"
        if "tags" in value:
            value["tags"].append("more")  # type: ignore[attr-defined]
        assert sent(one) == [(b"a", before)]


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(
    "bad",
    [
        {"user": "u", "n": "many", "x": 0.0},
        {"user": "u", "n": 1 << 70, "x": 0.0},
        {"user": 5, "n": 1, "x": 0.0},
        {"user": "u", "n": True, "x": 0.0},
        {"user": "u", "x": 0.0},
        {"user": "u", "n": 1, "x": 0.0, "more": 1},
        "text",
        7,
    ],
)
def test_a_refused_value_names_its_record(bad: Any, few: bool) -> None:
    one = output()
    count = 5 if few else 200

    def emit_all() -> None:
        for place in range(count):
            one.add(place, bad if place == count // 2 else {"user": "u", "n": 1, "x": 0.0}, "k", None)
        one.encode()

    with pytest.raises(Refused) as refused:
        emit_all()
    assert refused.value.place == count // 2
    assert refused.value.error.message


def test_a_deletion_needs_a_table_and_a_key() -> None:
    with pytest.raises(Refused, match="event feed"):
        output().add(0, None, "k", None)
    with pytest.raises(Refused, match="needs a key"):
        output(table=True).add(0, None, None, None)


def test_times_go_with_their_records() -> None:
    one = output(event_time="n")
    one.add(0, {"user": "a", "n": 1000, "x": 0.0}, None, None)
    plain = output()
    plain.add(0, {"user": "a", "n": 1, "x": 0.0}, None, 5000)
    assert [record[2] for record in sent(one)] == [1000]
    assert [record[2] for record in sent(plain)] == [5000]


def test_batches() -> None:
    one = output()
    one.add_batch(pa.record_batch({"user": ["a", "b"], "n": [1, 2], "x": [0.0, 1.0]}), None)
    one.add_batch(pa.record_batch({"user": ["c"], "n": [3], "x": [0.0]}), "n")
    assert [record[0] for record in sent(one)] == [b"a", b"b", b"3"]
    with pytest.raises(Refused, match="no column 'who'"):
        one.add_batch(pa.record_batch({"user": ["c"], "n": [3], "x": [0.0]}), "who")
    with pytest.raises(Refused, match="column 'n' must be"):
        one.add_batch(pa.record_batch({"user": ["c"], "n": ["x"], "x": [0.0]}), None)


def test_records_batches_and_records_with_times_keep_their_order() -> None:
    one = output()

    def record(name: str, time_ms: int | None = None) -> None:
        one.add(0, {"user": name, "n": 1, "x": 0.0}, None, time_ms)

    record("a")
    one.add_batch(pa.record_batch({"user": ["b", "c"], "n": [1, 2], "x": [0.0, 1.0]}), None)
    one.add_batch(pa.record_batch({"user": [], "n": [], "x": []}, schema=ROWS), None)
    record("d", 1_700_000_000_000)
    record("e")
    one.add_batch(pa.record_batch({"user": ["f"], "n": [3], "x": [0.0]}), None)
    record("g", 1_700_000_000_001)
    assert len(one) == 7
    found = sent(one)
    assert [record[0] for record in found] == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
    assert [record[2] for record in found if len(record) > 2] == [1_700_000_000_000, 1_700_000_000_001]


def test_only_own_feeds() -> None:
    outputs = Outputs("count", {"out": output()})
    assert outputs.find(Feed("out")) is outputs.find("out")
    with pytest.raises(BadConfig, match="emits to Feed\\('other'\\), which the catalogue does not give it"):
        outputs.find(Feed("other"))


def test_what_was_emitted_since_a_mark_can_be_taken_back() -> None:
    one = output()

    def record(name: str, time_ms: int | None = None) -> None:
        one.add(0, {"user": name, "n": 1, "x": 0.0}, None, time_ms)

    record("a")
    one.encode()
    one.mark()
    record("b")
    one.add_batch(pa.record_batch({"user": ["c"], "n": [1], "x": [0.0]}), None)
    record("d", 1_700_000_000_000)
    record("e")
    one.undo()
    assert len(one) == 1
    record("f")
    one.encode()
    one.mark()
    record("g")
    one.undo()
    assert [record[0] for record in sent(one)] == [b"a", b"f"]
