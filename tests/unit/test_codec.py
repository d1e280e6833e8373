"""The reference codec: what it writes and reads, and what it says about values that do not fit."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stack.errors import BadRecord, Unavailable
from stack.feeds.avro import wire
from stack.feeds.avro.codec import RecordDecoder, RecordEncoder
from stack.feeds.avro.schema import AvroSchema
from stack.feeds.avro.validate import find_fault
from tests.avro_strategies import Case, Shelf, cases, evolutions, record, same, schema_of

QUICK = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
LIST = schema_of({"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]})


def test_the_header_is_packed_and_split() -> None:
    assert wire.pack(258) == b"\0\0\0\x01\x02"
    assert wire.split(b"\0\0\0\x01\x02body") == (258, b"body")


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "found none"),
        (b"\0\0\x01", r"found only 3 \(00 00 01\)"),
        (b'{"a":1}', r"found 123 \(7b 22 61 22 3a\)"),
        (b"\0\xff\0\0\0", "not negative"),
    ],
)
def test_a_bad_header_says_what_was_found(payload: bytes, words: str) -> None:
    with pytest.raises(BadRecord, match=words):
        wire.split(payload)


@pytest.mark.parametrize("schema_id", [-1, 1 << 31])
def test_ids_that_do_not_fit_are_refused(schema_id: int) -> None:
    with pytest.raises(BadRecord, match=str(schema_id)):
        wire.pack(schema_id)


@QUICK
@given(st.booleans().flatmap(cases))
def test_values_survive_the_round_trip(case: Case) -> None:
    encoder, decoder = RecordEncoder(case.schema, 1), RecordDecoder(Shelf(case.schema))
    for value in case.records:
        assert same(decoder.decode(encoder.encode(value)), value)


@QUICK
@given(st.data())
def test_every_evolution_can_be_read(data: st.DataObject) -> None:
    case = data.draw(cases())
    reader = data.draw(evolutions(case.schema))
    decoder = RecordDecoder(Shelf(case.schema), reader)
    for value in case.records:
        found = decoder.decode(RecordEncoder(case.schema, 1).encode(value))
        assert set(found) == set(reader.field_names)
        assert find_fault(reader, found) is None
        for name in set(found) & set(value):
            assert found[name] == value[name]


def test_defaults_are_values_and_not_json() -> None:
    fields = [
        ("b", "bytes", "ÿ", b"\xff"),
        (
            "t",
            {"type": "long", "logicalType": "timestamp-millis"},
            1000,
            datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        ),
        ("d", {"type": "int", "logicalType": "date"}, 0, date(1970, 1, 1)),
        (
            "m",
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            "\x01",
            Decimal("0.01"),
        ),
        ("u", {"type": "string", "logicalType": "uuid"}, str(UUID(int=5)), UUID(int=5)),
        ("f", "double", 1, 1.0),
        ("o", ["null", "int"], None, None),
        ("l", {"type": "array", "items": "int"}, [1], [1]),
    ]
    old = schema_of(record("R", x="int"))
    tree = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind, "default": raw} for name, kind, raw, _ in fields],
    }
    decoder = RecordDecoder(Shelf(old), schema_of(tree))
    payload = RecordEncoder(old, 1).encode({"x": 1})
    expected = {name: value for name, _, _, value in fields}
    first = decoder.decode(payload)
    assert same(first, expected)
    first["l"].append(2)
    assert same(decoder.decode(payload), expected)


WIDE_FIELDS: list[tuple[str, Any, dict[str, Any]]] = [
    ("load", "double", {}),
    ("small", "int", {"default": 0}),
    ("big", "long", {"default": 0}),
    ("single", "float", {"default": 0}),
    ("flag", "boolean", {"default": False}),
    ("nothing", "null", {"default": None}),
    ("text", "string", {"default": ""}),
    ("raw", "bytes", {"default": ""}),
    ("pair", {"type": "fixed", "name": "Pair", "size": 2}, {"default": "ab"}),
    ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, {"default": "A"}),
    ("list", {"type": "array", "items": "int"}, {"default": []}),
    ("map", {"type": "map", "values": "string"}, {"default": {}}),
    ("maybe", ["null", "string"], {"default": None}),
    ("either", ["int", "string"], {"default": 0}),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}, {"default": 0}),
    ("here", {"type": "long", "logicalType": "local-timestamp-micros"}, {"default": 0}),
    ("day", {"type": "int", "logicalType": "date"}, {"default": 0}),
    ("clock", {"type": "int", "logicalType": "time-millis"}, {"default": 0}),
    (
        "money",
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        {"default": "\x01"},
    ),
    ("id", {"type": "string", "logicalType": "uuid"}, {"default": str(UUID(int=1))}),
    ("inner", ["null", record("Inner", a=record("Deep", b="int"))], {"default": None}),
]
WIDE = schema_of(
    {
        "type": "record",
        "name": "Wide",
        "fields": [{"name": name, "type": kind, **extra} for name, kind, extra in WIDE_FIELDS],
    }
)


@pytest.mark.parametrize(
    ("change", "field", "sentence"),
    [
        ({"load": "fast"}, "load", "field 'load' must be double, got str 'fast'"),
        ({"load": True}, "load", "must be double, got bool True"),
        ({"load": 10**400}, "load", "must be double"),
        ({"small": 1 << 31}, "small", "must be int (32 bits), got int 2147483648"),
        ({"small": True}, "small", "must be int (32 bits), got bool True"),
        ({"small": 1.0}, "small", "must be int"),
        ({"big": -(1 << 63) - 1}, "big", "must be long (64 bits)"),
        ({"single": 1e300}, "single", "must be float, got float 1e+300"),
        ({"flag": 1}, "flag", "must be boolean, got int 1"),
        ({"nothing": 0}, "nothing", "must be null, got int 0"),
        ({"text": b"x"}, "text", "must be string, got bytes b'x'"),
        ({"text": None}, "text", "must be string, got null"),
        ({"raw": "x"}, "raw", "must be bytes"),
        ({"pair": b"abc"}, "pair", "must be 2 bytes"),
        ({"kind": "C"}, "kind", "must be one of A, B, got str 'C'"),
        ({"list": "ab"}, "list", "must be array, got str 'ab'"),
        ({"list": [1, "b"]}, "list.1", "field 'list.1' must be int"),
        ({"map": {"k": 1}}, "map.k", "must be string, got int 1"),
        ({"map": {1: "x"}}, "map", "must have text as keys"),
        ({"maybe": 1}, "maybe", "must be string, got int 1"),
        ({"either": None}, "either", "must be int or string, got null"),
        ({"at": datetime(2024, 1, 1)}, "at", "must be a datetime with a time zone"),  # noqa: DTZ001
        ({"at": 1 << 60}, "at", "within the calendar"),
        ({"here": datetime(2024, 1, 1, tzinfo=UTC)}, "here", "must be a datetime without a time zone"),
        ({"day": datetime(2024, 1, 1, tzinfo=UTC)}, "day", "must be a date"),
        ({"clock": 86_400_000}, "clock", "within the calendar"),
        ({"money": Decimal("100.00")}, "money", "must be a decimal with 4 digits, 2 of them"),
        ({"money": Decimal("0.001")}, "money", "must be a decimal with 4 digits"),
        ({"money": Decimal("NaN")}, "money", "must be a decimal"),
        ({"id": "nope"}, "id", "must be a uuid"),
        ({"inner": {"a": {"b": "x"}}}, "inner.a.b", "field 'inner.a.b' must be int"),
        ({"inner": {"a": {}}}, "inner.a.b", "is missing and Deep gives it no default"),
        ({"inner": {"a": {"b": 1, "c": 1}}}, "inner.a.c", "is not in Deep"),
        ({"laod": 1.0}, "laod", "field 'laod' is not in Wide; did you mean 'load'?"),
    ],
)
def test_a_refused_value_names_field_and_reason(change: dict[str, Any], field: str, sentence: str) -> None:
    encoder = RecordEncoder(WIDE, 1)
    encoder.encode({"load": 1.0})
    with pytest.raises(BadRecord) as caught:
        encoder.encode({"load": 1.0, **change})
    assert sentence in caught.value.message
    assert caught.value.field == field


@pytest.mark.parametrize(
    "change",
    [
        {"load": 1, "single": 2, "small": -(1 << 31), "big": (1 << 63) - 1},
        {"at": datetime(2024, 1, 1, tzinfo=UTC), "day": date(2024, 1, 1), "clock": time(1, 2, 3)},
        {"money": Decimal("-99.99"), "id": UUID(int=7), "list": [1, 2], "map": {"a": "b"}},
        {"load": float("inf"), "single": float("-inf"), "maybe": "x", "either": "y", "kind": "B"},
    ],
)
def test_accepted_values_come_back(change: dict[str, Any]) -> None:
    found = RecordDecoder(Shelf(WIDE)).decode(RecordEncoder(WIDE, 1).encode({"load": 1.0, **change}))
    assert {name: found[name] for name in change} == change


@pytest.mark.parametrize(
    ("value", "words"), [({}, "field 'load' is missing"), (5, "the value must be a record")]
)
def test_missing_fields_and_other_things_than_records(value: Any, words: str) -> None:
    with pytest.raises(BadRecord, match=words):
        RecordEncoder(WIDE, 1).encode(value)


def test_schemas_of_plain_values_work() -> None:
    text = schema_of("string")
    assert RecordDecoder(Shelf(text)).decode(RecordEncoder(text, 1).encode("x")) == "x"
    with pytest.raises(BadRecord, match="the value must be string"):
        RecordEncoder(text, 1).encode(1)


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"n": None}
    for _ in range(depth - 1):
        value = {"n": value}
    return value


def test_nesting_has_the_same_limit_in_both_directions() -> None:
    payload = RecordEncoder(LIST, 1).encode(nested(100))
    assert RecordDecoder(Shelf(LIST)).decode(payload) == nested(100)
    with pytest.raises(BadRecord, match="nested more than 100 deep"):
        RecordEncoder(LIST, 1).encode(nested(101))
    with pytest.raises(BadRecord, match="nested more than 100 deep"):
        RecordDecoder(Shelf(LIST)).decode(payload[:5] + b"\x02" + payload[5:])


class Counting:
    def __init__(self, schema: AvroSchema) -> None:
        self.schema = schema
        self.asked: list[int] = []

    def schema_by_id(self, schema_id: int) -> AvroSchema:
        self.asked.append(schema_id)
        if schema_id == 3:
            raise Unavailable("the registry does not answer")
        return self.schema


def test_a_schema_is_asked_for_once_and_an_outage_is_not_a_bad_record() -> None:
    source = Counting(schema_of("int"))
    decoder = RecordDecoder(source)
    assert [decoder.decode(b"\0\0\0\0\x01\x02") for _ in range(3)] == [1, 1, 1]
    assert source.asked == [1]
    with pytest.raises(Unavailable):
        decoder.decode(b"\0\0\0\0\x03\x02")


def test_an_unknown_id_is_named() -> None:
    with pytest.raises(BadRecord, match="schema id 7, which the registry does not have"):
        RecordDecoder(Shelf()).decode(b"\0\0\0\0\x07\x02")


def test_a_reader_that_cannot_read_it_is_a_bad_record() -> None:
    written, wanted = schema_of(record("R", x="int")), schema_of(record("R", y="int"))
    with pytest.raises(BadRecord, match="No default value for field"):
        RecordDecoder(Shelf(written), wanted).decode(RecordEncoder(written, 1).encode({"x": 1}))


def test_references_to_named_types_are_followed() -> None:
    tree = record("R", a={"type": "enum", "name": "E", "symbols": ["A"], "namespace": "n"}, b="n.E")
    schema = schema_of(json.loads(json.dumps(tree)))
    assert find_fault(schema, {"a": "A", "b": "A"}) is None
    fault = find_fault(schema, {"a": "A", "b": "Z"})
    assert fault is not None
    assert fault.path == "b"


@pytest.mark.parametrize(
    ("kind", "body", "sentence"),
    [
        ("string", b"\x05abc", "field 'x': a length is negative (-3)"),
        ("string", b"\x08abc", "field 'x': 4 bytes are announced, 3 are left"),
        ("long", b"\x80", "field 'x': the value ends too early"),
        ("double", b"\0", "the value ends too early, 7 more bytes are needed"),
        ("int", b"\0\0\0", "2 bytes are left over after the value"),
        (["null", "int"], b"\x06", "field 'x': branch 3 of a union that has 2"),
        (record("S", y="boolean"), b"\x07", "field 'x.y': boolean must be 0 or 1, found 7"),
        ("string", b"\x02\xff", "UnicodeDecodeError"),
    ],
)
def test_a_payload_that_cannot_be_read_says_where_and_why(kind: Any, body: bytes, sentence: str) -> None:
    with pytest.raises(BadRecord) as caught:
        RecordDecoder(Shelf(schema_of(record("R", x=kind)))).decode(b"\0\0\0\0\x01" + body)
    assert sentence in caught.value.message
