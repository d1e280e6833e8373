"""The reference codec: what it writes and reads, and what it says about values that do not fit."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from itertools import islice
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from stack.errors import BadRecord, BadSchema, Unavailable
from stack.feeds.avro import wire
from stack.feeds.avro.arrays import arrow_schema
from stack.feeds.avro.codec import RecordDecoder, RecordEncoder
from stack.feeds.avro.nodes import node_of
from stack.feeds.avro.schema import AvroSchema
from stack.feeds.avro.writing import find_fault
from stack.feeds.synthetic.generate import Generator
from tests.avro_strategies import Case, Shelf, cases, evolutions, record, recursive_cases, same, schema_of
from tests.unit.test_compatibility import READABLE

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
@given(st.booleans().flatmap(cases) | recursive_cases())
def test_values_survive_the_round_trip_and_fastavro_reads_them_too(case: Case) -> None:
    encoder, decoder = RecordEncoder(case.schema, 1), RecordDecoder(Shelf(case.schema))
    for value in case.records:
        payload = encoder.encode(value)
        assert same(decoder.decode(payload), value)
        assert same(fastavro.schemaless_reader(BytesIO(payload[5:]), case.schema.parsed, None), value)


@QUICK
@given(st.data())
def test_every_evolution_can_be_read(data: st.DataObject) -> None:
    case = data.draw(cases() | recursive_cases())
    reader = data.draw(evolutions(case.schema))
    decoder = RecordDecoder(Shelf(case.schema), reader)
    for value in case.records:
        found = decoder.decode(RecordEncoder(case.schema, 1).encode(value))
        assert tuple(found) == reader.field_names
        assert find_fault(node_of(reader), found) is None
        if "again" not in value:
            for name in set(found) & set(value):
                assert same(found[name], value[name]) or found[name] == value[name]


_UNION = re.compile(r"\[[^\[\]]*\]")


@QUICK
@given(st.data())
def test_fastavro_is_the_judge_of_what_bytes_mean_to_another_reader(data: st.DataObject) -> None:
    case = data.draw(cases())
    reader = data.draw(evolutions(case.schema))
    # In a reader's union fastavro takes the first branch that fits; we, as the Java library, the nearest.
    assume(not any("string" in union and "bytes" in union for union in _UNION.findall(case.schema.text)))
    decoder = RecordDecoder(Shelf(case.schema), reader)
    for value in case.records:
        payload = RecordEncoder(case.schema, 1).encode(value)
        found = decoder.decode(payload)
        judged = fastavro.schemaless_reader(BytesIO(payload[5:]), case.schema.parsed, reader.parsed)
        assert found.keys() == judged.keys()
        for name in set(found) & set(value):
            # A reader's float holds 32 bits; fastavro hands out the whole number it read.
            assert same(found[name], judged[name]) or found[name] == pytest.approx(judged[name], rel=1e-6)


@pytest.mark.parametrize(("reader", "writer"), READABLE.values(), ids=READABLE)
def test_what_the_registry_calls_compatible_can_be_read(reader: Any, writer: Any) -> None:
    wanted, written = schema_of(reader), schema_of(writer)
    decoder, encoder = RecordDecoder(Shelf(written), wanted), RecordEncoder(written, 1)
    for value in [b"text"] if writer == "bytes" else islice(Generator(written, 1), 20):
        assert find_fault(node_of(wanted), decoder.decode(encoder.encode(value))) is None


NAMED = [
    record("A", x="int"),
    record("B", x="int", y="string"),
    {"type": "enum", "name": "E", "symbols": ["P", "Q"]},
    {"type": "fixed", "name": "F", "size": 2},
]


def defined_once(tree: Any, known: set[str]) -> Any:
    """The tree with each named type written out where it is met first and named after that."""
    if isinstance(tree, list):
        return [defined_once(one, known) for one in tree]
    if not isinstance(tree, dict):
        return tree
    if "name" in tree and tree["name"] in known:
        return tree["name"]
    known.add(tree.get("name", ""))
    changed = {part: defined_once(tree[part], known) for part in ("items", "values") if part in tree}
    if "fields" in tree:
        changed["fields"] = [{**one, "type": defined_once(one["type"], known)} for one in tree["fields"]]
    return {**tree, **changed}


@QUICK
@given(st.data())
def test_a_named_type_may_be_defined_elsewhere_in_the_readers_schema(data: st.DataObject) -> None:
    branches = st.lists(st.sampled_from(["null", "string", *NAMED]), min_size=1, max_size=4, unique_by=str)
    kinds = st.one_of(
        branches,
        st.sampled_from(NAMED),
        branches.map(lambda items: {"type": "array", "items": items}),
        branches.map(lambda values: {"type": "map", "values": values}),
    )
    fields = [{"name": name, "type": data.draw(kinds)} for name in "abcd"]
    trees = [
        defined_once({"type": "record", "name": "R", "fields": some}, set())
        for some in (fields, data.draw(st.permutations(fields)), fields[data.draw(st.integers(0, 3)) :])
    ]
    written, *readers = map(schema_of, trees)
    encoder = RecordEncoder(written, 1)
    for reader in readers:
        decoder = RecordDecoder(Shelf(written), reader)
        for value in islice(Generator(written, data.draw(st.integers(0, 99))), 5):
            assert decoder.decode(encoder.encode(value)) == {name: value[name] for name in reader.field_names}


def test_a_pair_of_schemas_that_fastavro_gives_up_on() -> None:
    pair, code = record("B", x="int"), {"type": "fixed", "name": "F", "size": 2}
    written = schema_of(record("R", a=[code], b=pair, c=["null", "F", "B"], d="B"))
    wanted = schema_of(record("R", d=[pair, "string"], b="B", c=["B", code, "null"], a=["F"]))
    value = {"a": b"ab", "b": {"x": 1}, "c": {"x": 2}, "d": {"x": 3}}
    payload = RecordEncoder(written, 1).encode(value)
    assert RecordDecoder(Shelf(written), wanted).decode(payload) == value
    with pytest.raises(TypeError):
        fastavro.schemaless_reader(BytesIO(payload[5:]), written.parsed, wanted.parsed)


DATE = {"type": "int", "logicalType": "date"}
UUID_TYPE = {"type": "string", "logicalType": "uuid"}


@pytest.mark.parametrize(
    ("union", "value", "body"),
    [
        ([DATE, "string"], "x", b"\x02\x02x"),
        ([DATE, "string"], "2026-03-01", b"\x02\x142026-03-01"),
        ([DATE, "string"], date(1970, 1, 2), b"\x00\x02"),
        ([DATE, "string"], 1, b"\x00\x02"),
        ([DATE, "long"], 5, b"\x02\x0a"),
        ([DATE, "double"], 1 << 40, b"\x02" + bytes(6) + b"\x70\x42"),
        ([UUID_TYPE, "bytes"], str(UUID(int=0)), b"\x00\x48" + str(UUID(int=0)).encode()),
        (["float", "double"], 0.1, b"\x02\x9a\x99\x99\x99\x99\x99\xb9\x3f"),
        (["string", {"type": "array", "items": "string"}], ("string", "x"), b"\x02\x04\x0cstring\x02x\x00"),
        (["string", {"type": "map", "values": "string"}], {"-type": "x"}, b"\x02\x02\x0a-type\x02x\x00"),
        ([record("A", x="int"), record("B", x="int", y="int")], {"x": 1, "y": 2}, b"\x02\x02\x04"),
        ([record("A", x="string"), record("B", x="int")], {"x": 1}, b"\x02\x02"),
    ],
)  # fmt: skip
def test_a_union_takes_the_branch_that_holds_the_value(union: Any, value: Any, body: bytes) -> None:
    schema = schema_of(record("R", x=union))
    payload = RecordEncoder(schema, 1).encode({"x": value})
    assert payload[5:] == body
    found = RecordDecoder(Shelf(schema)).decode(payload)["x"]
    assert RecordEncoder(schema, 1).encode({"x": found}) == payload


def test_the_nesting_of_lists_counts_records_alone_in_both_directions() -> None:
    tree = schema_of(record("T", n={"type": "array", "items": "T"}))
    value: dict[str, Any] = {"n": []}
    for _ in range(99):
        value = {"n": [value]}
    payload = RecordEncoder(tree, 1).encode(value)
    assert RecordDecoder(Shelf(tree)).decode(payload) == value
    with pytest.raises(BadRecord, match="nested more than 100 deep"):
        RecordEncoder(tree, 1).encode({"n": [value]})


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int", 1 << 31),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
        ({"type": "fixed", "name": "F", "size": 2}, "a"),
        (DATE, 1 << 30),
        ("R", {}),
    ],
)
def test_a_default_that_does_not_fit_is_a_bad_schema_at_once(kind: Any, default: Any) -> None:
    schema = schema_of(
        {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind, "default": default}]}
    )
    with pytest.raises(BadSchema, match=r"the default of R\.x"):
        RecordDecoder(Shelf(), schema)
    with pytest.raises(BadSchema, match=r"the default of R\.x"):
        RecordEncoder(schema, 1)


def test_types_used_many_times_cost_no_more_than_once() -> None:
    tree: Any = record("T0", x="int")
    for number in range(1, 40):
        tree = record(f"T{number}", a=tree, b=f"T{number - 1}")
    schema = schema_of(record("R", x=["null", tree]))
    assert RecordDecoder(Shelf(schema)).decode(RecordEncoder(schema, 1).encode({"x": None})) == {"x": None}
    with pytest.raises(BadSchema, match="columns"):
        arrow_schema(schema)


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
        ({"list": [1, "b"]}, "list[1]", "field 'list[1]' must be int"),
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


def test_values_deeper_than_pythons_stack_are_bad_records() -> None:
    kind: Any = "T"
    for _ in range(12):
        kind = {"type": "array", "items": kind}
    schema = schema_of(record("T", n=kind))
    value: Any = {"n": []}
    for _ in range(95):
        for _ in range(12):
            value = [value]
        value = {"n": value}
    with pytest.raises(BadRecord, match="nested too deeply"):
        RecordEncoder(schema, 1).encode(value)
    with pytest.raises(BadRecord, match="nested too deeply"):
        RecordDecoder(Shelf(schema)).decode(b"\0\0\0\0\x01" + b"\x02" * 1140 + b"\0" * 1141)


def test_a_schema_deeper_than_pythons_stack_is_a_bad_schema() -> None:
    kind: Any = "int"
    for _ in range(300):
        kind = {"type": "array", "items": kind}
    schema = schema_of(record("R", x=kind))
    for use in (lambda: RecordEncoder(schema, 1), lambda: RecordDecoder(Shelf(), schema)):
        with pytest.raises(BadSchema, match="nested more than 100 deep"):
            use()


def test_a_type_named_like_a_primitive_is_a_bad_schema() -> None:
    with pytest.raises(BadSchema, match="like one of Avro's own"):
        schema_of(record("R", a=record("int", x="string"), b="int"))


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
    with pytest.raises(BadRecord, match="field 'y' was not written, and R gives it no default"):
        RecordDecoder(Shelf(written), wanted).decode(RecordEncoder(written, 1).encode({"x": 1}))


def test_references_to_named_types_are_followed() -> None:
    tree = record("R", a={"type": "enum", "name": "E", "symbols": ["A"], "namespace": "n"}, b="n.E")
    schema = schema_of(json.loads(json.dumps(tree)))
    assert find_fault(node_of(schema), {"a": "A", "b": "A"}) is None
    fault = find_fault(node_of(schema), {"a": "A", "b": "Z"})
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
        ("string", b"\x02\xff", "field 'x': the text is not UTF-8 (invalid start byte at byte 0)"),
    ],
)
def test_a_payload_that_cannot_be_read_says_where_and_why(kind: Any, body: bytes, sentence: str) -> None:
    with pytest.raises(BadRecord) as caught:
        RecordDecoder(Shelf(schema_of(record("R", x=kind)))).decode(b"\0\0\0\0\x01" + body)
    assert sentence in caught.value.message
