"""Rows from people and files: JSON and CSV to values, and values to JSON."""

from __future__ import annotations

import io
import itertools
import json
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.errors import BadInput, BadRecord
from stack.feeds.avro.schema import AvroSchema, parse_avro
from stack.feeds.rows import rows as rows_module
from stack.feeds.rows.rows import csv_row_to_value, read_rows, row_to_value, value_to_json


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


def schema_of(tree: Any) -> AvroSchema:
    return parse_avro(json.dumps(tree))


def record(*fields: tuple[Any, ...]) -> AvroSchema:
    """A record schema of (name, type) or (name, type, default)."""
    entries = [
        {"name": one[0], "type": one[1], **({"default": one[2]} if len(one) > 2 else {})} for one in fields
    ]
    return schema_of({"type": "record", "name": "shop.Visit", "fields": entries})


DECIMAL = logical("bytes", "decimal", precision=6, scale=2)
ENUM = {"type": "enum", "name": "Status", "symbols": ["ON", "OFF"]}
FIXED = {"type": "fixed", "name": "Two", "size": 2}
PLACE = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_MS = 1_772_366_400_000

ACCEPTED: list[tuple[Any, Any, Any]] = [
    ("null", None, None),
    ("boolean", True, True),
    ("int", 5, 5),
    ("int", 5.0, 5),
    ("long", -(2**63), -(2**63)),
    ("double", 5, 5.0),
    ("double", Decimal("1.5"), 1.5),
    ("double", "-Infinity", -math.inf),
    ("string", "é", "é"),
    ("bytes", "\u00ff", b"\xff"),
    ("bytes", {"base64": "/w=="}, b"\xff"),
    (FIXED, "ab", b"ab"),
    (ENUM, "ON", "ON"),
    (logical("long", "timestamp-millis"), "2026-03-01T12:00Z", NOON),
    (logical("long", "timestamp-millis"), "2026-03-01T13:00:00.000999+01:00", NOON),
    (logical("long", "timestamp-millis"), "2026-03-01T12:00", NOON),
    (logical("long", "timestamp-millis"), NOON_MS, NOON),
    (logical("long", "timestamp-micros"), NOON_MS * 1000, NOON),
    (logical("long", "timestamp-micros"), NOON, NOON),
    (logical("long", "local-timestamp-millis"), "2026-03-01T12:00", NOON.replace(tzinfo=None)),
    (logical("int", "date"), "2026-03-01", date(2026, 3, 1)),
    (logical("int", "date"), 1, date(1970, 1, 2)),
    (logical("int", "time-millis"), "12:30", time(12, 30)),
    (logical("int", "time-millis"), 1, time(0, 0, 0, 1000)),
    (logical("long", "time-micros"), 1, time(0, 0, 0, 1)),
    (logical("string", "uuid"), "00000000-0000-0000-0000-000000000007", UUID(int=7)),
    (logical("long", "timestamp-nanos"), 7, 7),
    (DECIMAL, "12.5", Decimal("12.50")),
    (DECIMAL, 12.1, Decimal("12.10")),
    (DECIMAL, -9999, Decimal("-9999.00")),
    (DECIMAL, "1.500", Decimal("1.50")),
    ({"type": "array", "items": "int"}, [1, 2.0], [1, 2]),
    ({"type": "map", "values": "double"}, {"a": 1}, {"a": 1.0}),
    (["null", "string"], "x", "x"),
    (["null", "string"], {"string": "x"}, "x"),
    (["null", "long"], None, None),
    (["double", "long"], 3, 3),
    (["long", "double"], 3.0, 3.0),
    (["long", "string"], "3", "3"),
    (["null", logical("long", "timestamp-millis")], {"long": NOON_MS}, NOON),
    (["bytes", "string"], "x", "x"),
    (["bytes", "string"], {"bytes": "x"}, b"x"),
    (["null", PLACE], {"Place": {"city": "Zug"}}, {"city": "Zug"}),
    (["null", PLACE], {"city": "Zug"}, {"city": "Zug"}),
    (["null", {"type": "map", "values": "string"}], {"map": "x"}, {"map": "x"}),
]


@pytest.mark.parametrize(("kind", "given_", "value"), ACCEPTED)
def test_a_value_is_read(kind: Any, given_: Any, value: Any) -> None:
    found = row_to_value(record(("f", kind)), {"f": given_})["f"]
    assert found == value
    assert type(found) is type(value)


REFUSED: list[tuple[Any, Any, str]] = [
    ("double", "fast", "field 'f' must be double, got text 'fast'"),
    ("double", True, "field 'f' must be double, got true"),
    ("double", 10**400, "too large"),
    ("float", 1e300, "too large"),
    ("int", 2**31, "field 'f' must be int (-2,147,483,648 to 2,147,483,647), got number 2147483648"),
    ("long", 2**63, "must be long"),
    ("int", 1.5, "field 'f' must be int, got number 1.5"),
    ("int", math.inf, "must be int"),
    ("int", True, "must be int, got true"),
    ("string", 5, "field 'f' must be string, got number 5"),
    ("string", "\ud800", "surrogate"),
    ("string", None, "must be string, got null"),
    ("boolean", 1, "must be boolean"),
    ("null", 1, "must be null"),
    ("bytes", "\u0100", "must be bytes"),
    ("bytes", {"base64": "*"}, "must be bytes"),
    ("bytes", {"base64": 3}, "must be bytes"),
    (FIXED, "abc", "must be fixed of 2 bytes, got 3 bytes"),
    (ENUM, "on", "field 'f' must be one of ON, OFF; got text 'on'"),
    (ENUM, ["ON"], "must be one of ON, OFF; got a list"),
    (logical("long", "timestamp-millis"), "yesterday", "must be timestamp-millis, got text 'yesterday'"),
    (logical("long", "timestamp-millis"), 10**18, "must be timestamp-millis"),
    (logical("long", "timestamp-millis"), math.nan, "must be timestamp-millis"),
    (logical("long", "local-timestamp-millis"), "2026-03-01T12:00Z", "must be local-timestamp-millis"),
    (logical("int", "time-millis"), 86_400_000, "must be time-millis"),
    (logical("int", "date"), "2026-02-30", "must be date"),
    (logical("string", "uuid"), 7, "must be uuid"),
    (DECIMAL, "1.005", "at most 2 digits behind the point"),
    (DECIMAL, "10000", "at most 4 digits before the point"),
    (DECIMAL, "1e999999999", "at most 4 digits before the point"),
    (DECIMAL, "1e-999999999", "at most 2 digits behind"),
    (DECIMAL, "NaN", "must be decimal"),
    (DECIMAL, "9" * 5000, "must be decimal"),
    ({"type": "array", "items": "int"}, [1, "x"], "field 'f[1]' must be int"),
    ({"type": "array", "items": "int"}, "x", "must be array"),
    ({"type": "map", "values": "int"}, {"a": "x"}, "field 'f.a' must be int"),
    (["null", "long"], "x", "field 'f' must be long, got text 'x'"),
    (["long", "boolean"], "x", "field 'f' must be one of long, boolean; got text 'x'"),
    (PLACE, {"city": 3}, "field 'f.city' must be string"),
    (PLACE, "Zug", "must be an object"),
]


@pytest.mark.parametrize(("kind", "given_", "part"), REFUSED)
def test_a_value_is_refused(kind: Any, given_: Any, part: str) -> None:
    with pytest.raises(BadRecord) as caught:
        row_to_value(record(("f", kind)), {"f": given_})
    assert part in caught.value.message
    assert (caught.value.field or "").startswith("f")


def test_defaults_are_filled_in_and_are_fresh() -> None:
    schema = record(
        ("id", "long"),
        ("tags", {"type": "array", "items": "string"}, []),
        ("price", DECIMAL, "\u0004\u00d2"),
        ("raw", ["bytes", "string"], "\u00ff"),
        ("seen", logical("long", "timestamp-millis"), 0),
        ("note", ["null", "string"], None),
    )
    first, second = row_to_value(schema, {"id": 1}), row_to_value(schema, {"id": 1})
    assert first == {
        "id": 1,
        "tags": [],
        "price": Decimal("12.34"),
        "raw": b"\xff",
        "seen": datetime(1970, 1, 1, tzinfo=UTC),
        "note": None,
    }
    first["tags"].append("x")
    assert second["tags"] == []
    assert row_to_value(schema, {"id": 1})["tags"] == []


@pytest.mark.parametrize(
    ("row", "field", "part"),
    [
        ({}, "load", "field 'load' is missing and has no default"),
        ({"load": 1, "laod": 2}, "laod", "field 'laod' is not in the schema; did you mean load?"),
        ({"load": 1, "zz": 2}, "zz", "The fields are: load, user"),
        ([], None, "the value must be an object of shop.Visit, got a list"),
        (None, None, "got null"),
    ],
)
def test_fields_must_be_those_of_the_schema(row: Any, field: str | None, part: str) -> None:
    with pytest.raises(BadRecord) as caught:
        row_to_value(record(("load", "double"), ("user", "string", "x")), row)
    assert part in caught.value.message
    assert caught.value.field == field


def test_a_recursive_value_too_deep_is_a_bad_record() -> None:
    schema = record(("next", ["null", "shop.Visit"], None))
    assert row_to_value(schema, {"next": {"next": None}}) == {"next": {"next": None}}
    row: dict[str, Any] = {}
    for _ in range(5_000):
        row = {"next": row}
    with pytest.raises(BadRecord, match="nested too deeply"):
        row_to_value(schema, row)
    with pytest.raises(BadRecord, match="nested too deeply"):
        value_to_json(schema, row)


CSV_SCHEMA = record(
    ("id", "long"),
    ("load", ["null", "double"]),
    ("on", "boolean", True),
    ("place", ["null", PLACE], None),
    ("tags", {"type": "array", "items": "string"}, []),
    ("seen", ["null", logical("long", "timestamp-millis")], None),
    ("mixed", ["string", "long", "null"], "x"),
)


@pytest.mark.parametrize(
    ("cells", "changes"),
    [
        ({"id": " 7 ", "load": "1.5"}, {"id": 7, "load": 1.5}),
        ({"id": "7", "load": ""}, {"load": None}),
        ({"id": "7.0", "load": "-1e3"}, {"load": -1000.0}),
        ({"id": "7", "load": "", "on": "FALSE"}, {"on": False}),
        ({"id": "7", "load": "", "on": ""}, {"on": True}),
        ({"id": "7", "load": "", "place.city": "Zug"}, {"place": {"city": "Zug"}}),
        ({"id": "7", "load": "", "place.city": ""}, {"place": None}),
        ({"id": "7", "load": "", "place": '{"city": "Zug"}'}, {"place": {"city": "Zug"}}),
        ({"id": "7", "load": "", "tags": '["a"]'}, {"tags": ["a"]}),
        ({"id": "7", "load": "", "seen": "2026-03-01T12:00Z"}, {"seen": NOON}),
        ({"id": "7", "load": "", "mixed": "5"}, {"mixed": 5}),
        ({"id": "7", "load": "", "mixed": "5a"}, {"mixed": "5a"}),
        ({"id": "7", "load": "", "mixed": ""}, {"mixed": None}),
    ],
)
def test_cells_are_read(cells: dict[str, str], changes: dict[str, Any]) -> None:
    plain: dict[str, Any] = {
        "id": 7,
        "load": None,
        "on": True,
        "place": None,
        "tags": [],
        "seen": None,
        "mixed": "x",
    }
    assert csv_row_to_value(CSV_SCHEMA, list(cells), list(cells.values())) == plain | changes


@pytest.mark.parametrize(
    ("cells", "part"),
    [
        ({"id": "", "load": ""}, "field 'id' is empty, cannot be null and has no default"),
        ({"id": "1_000", "load": ""}, "field 'id' must be long, got text '1_000'"),
        ({"id": "7.5", "load": ""}, "field 'id' must be long"),
        ({"id": "9" * 30, "load": ""}, "field 'id' must be long"),
        ({"id": "7", "load": "fast"}, "field 'load' must be double, got text 'fast'"),
        ({"id": "7", "load": "", "on": "yes"}, "field 'on' must be boolean"),
        ({"id": "7", "load": "", "tags": "a"}, "field 'tags' must be array as JSON text"),
        ({"id": "7", "load": "", "tags": "[1]"}, "field 'tags[0]' must be string"),
        ({"id": "7", "load": "", "tags": "[" * 100_000}, "field 'tags' must be array as JSON text"),
        ({"id": "7", "load": "", "seen": "soon"}, "field 'seen' must be timestamp-millis"),
    ],
)
def test_cells_are_refused(cells: dict[str, str], part: str) -> None:
    with pytest.raises(BadRecord) as caught:
        csv_row_to_value(CSV_SCHEMA, list(cells), list(cells.values()))
    assert part in caught.value.message


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("id,load,laod", "the column 'laod' is not in the schema; did you mean load?"),
        ("id", "the header lacks load"),
        ("id,load,id", "twice"),
        ("id,load,place,place.city", "stands beside a column place"),
        ("id,load,place.city,place", "beside columns of its fields"),
        ("id,load,tags.x", "which is not one record"),
        ("id,load,place.town", "did you mean"),
        ('id,"load', "the header cannot be read"),
        ("", "no header"),
    ],
)
def test_a_header_that_does_not_fit_stops_before_any_row(header: str, part: str) -> None:
    with pytest.raises(BadInput) as caught:
        next(read_rows([header + "\n", "1,2,3\n"] if header else [], "csv", CSV_SCHEMA))
    assert not isinstance(caught.value, BadRecord)
    assert part in caught.value.message or part == "did you mean"


def outcome(found: Iterator[tuple[int, Any]]) -> list[tuple[int, Any]]:
    return [(number, one.message if isinstance(one, BadRecord) else one) for number, one in found]


SMALL = record(("a", "long"), ("b", "string", "-"))


def test_json_lines_go_on_behind_a_bad_one() -> None:
    content = (
        b'\xef\xbb\xbf{"a": 1}\n\n   \n{"a": 2,}\n{"a": "x"}\n{"a": \xff}\n{"a": 3, "b": "\xc3\xa9"}\r\n'
        + b'{"a": '
        + b"9" * 5000
        + b"}\n"
        + b"[" * 100_000
        + b'\n{"a": 4}'
    )
    found = outcome(read_rows(io.BytesIO(content), "jsonl", SMALL))
    numbers = [number for number, _ in found]
    assert numbers == [1, 4, 5, 6, 7, 8, 9, 10]
    by_line = dict(found)
    assert by_line[1] == {"a": 1, "b": "-"}
    assert "not JSON" in by_line[4]
    assert "column 9" in by_line[4] or "column 8" in by_line[4]
    assert by_line[5] == "field 'a' must be long, got text 'x'"
    assert by_line[6] == "the line is not UTF-8: byte 7 is 0xff"
    assert by_line[7] == {"a": 3, "b": "é"}
    assert "not JSON" in by_line[8]
    assert "nested too deeply" in by_line[9]
    assert by_line[10] == {"a": 4, "b": "-"}


def test_a_line_over_the_limit_is_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MAX_LINE_BYTES", 100)
    asked: list[int] = []

    class Stream(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            asked.append(size or 0)
            return super().readline(size)

    long_line = b'{"a": 1, "b": "' + b"x" * 200_000 + b'"}\n'
    for lines in (Stream(long_line + b'{"a": 2}\n'), [long_line, b'{"a": 2}\n']):
        found = outcome(read_rows(lines, "jsonl", SMALL))
        assert found == [(1, "the line has more than 100 bytes"), (2, {"a": 2, "b": "-"})]
    assert 0 < max(asked) <= 1 << 16
    assert min(asked) > 0


def test_text_lines_and_decimals_keep_their_digits() -> None:
    schema = record(("d", logical("bytes", "decimal", precision=30, scale=2)), ("x", "double"))
    line = '\ufeff{"d": 12345678901234567890.12, "x": 1.5}'
    assert outcome(read_rows([line], "jsonl", schema)) == [
        (1, {"d": Decimal("12345678901234567890.12"), "x": 1.5})
    ]


def test_csv_lines() -> None:
    content = b'\xef\xbb\xbfa, b\n1,x\n\n2,"two\nlines, ""quoted"""\n3\n4,x,y\nz,q\n5,\xff\n6,"a"b\n7,end'
    found = outcome(read_rows(io.BytesIO(content), "csv", SMALL))
    assert found[0] == (2, {"a": 1, "b": "x"})
    assert found[1] == (4, {"a": 2, "b": 'two\nlines, "quoted"'})
    assert found[2] == (6, "the header has 2 columns, this row has 1 cells")
    assert found[3] == (7, "the header has 2 columns, this row has 3 cells")
    assert found[4] == (8, "field 'a' must be long, got text 'z'")
    assert found[5][0] == 9
    assert "not UTF-8" in found[5][1]
    assert found[6][0] == 10
    assert "not CSV" in found[6][1]
    assert found[7] == (11, {"a": 7, "b": "end"})
    assert len(found) == 8


def test_an_open_quote_costs_one_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["a,b\n", '1,"open\n', "2,x\n", "3,y\n"]
    expected = [
        (2, "a quoted cell is never closed"),
        (3, {"a": 2, "b": "x"}),
        (4, {"a": 3, "b": "y"}),
    ]
    assert outcome(read_rows(lines, "csv", SMALL)) == expected
    monkeypatch.setattr(rows_module, "MAX_LINE_BYTES", 10)
    assert outcome(read_rows(lines, "csv", SMALL)) == expected


def test_formats_and_encodings_that_are_not_known() -> None:
    with pytest.raises(BadInput, match="no format 'xml'"):
        read_rows([], "xml", SMALL)
    with pytest.raises(BadInput, match="UTF-16"):
        next(read_rows(io.BytesIO('{"a": 1}'.encode("utf-16")), "jsonl", SMALL))
    with pytest.raises(BadInput, match="a schema that is a record"):
        csv_row_to_value(schema_of("long"), ["a"], ["1"])


MILLIS = st.integers(-(10**12), 10**13)
SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("string", st.text(max_size=6)),
    ("bytes", st.binary(max_size=6)),
    (logical("long", "timestamp-millis"), MILLIS.map(lambda ms: datetime.fromtimestamp(ms // 1000, UTC))),
    (logical("long", "timestamp-micros"), st.datetimes(timezones=st.just(UTC))),
    (logical("long", "local-timestamp-micros"), st.datetimes()),
    (logical("int", "date"), st.dates()),
    (logical("long", "time-micros"), st.times()),
    (logical("string", "uuid"), st.uuids()),
    (DECIMAL, st.integers(-999_999, 999_999).map(lambda cents: Decimal(cents).scaleb(-2))),
]


def _label(kind: Any) -> str:
    return str(kind["type"] if isinstance(kind, dict) else kind)


SHAPES = ["scalar", "array", "map", "record", "union", "enum"]


def numbered(tree: Any, count: Iterator[int]) -> Any:
    """The same schema with a name of its own for each named type."""
    if isinstance(tree, list):
        return [numbered(one, count) for one in tree]
    if not isinstance(tree, dict):
        return tree
    changed = tree | {key: numbered(tree[key], count) for key in ("items", "values") if key in tree}
    if tree["type"] in ("record", "enum"):
        changed["name"] = f"N{next(count)}"
    if "fields" in tree:
        changed["fields"] = [one | {"type": numbered(one["type"], count)} for one in tree["fields"]]
    return changed


def schema_and_value() -> st.SearchStrategy[tuple[Any, Any]]:
    return _drawn(3).map(lambda pair: (numbered(pair[0], itertools.count()), pair[1]))


@st.composite
def _drawn(draw: st.DrawFn, depth: int) -> tuple[Any, Any]:
    """A schema tree and a value of it; named types get their final names later."""
    shape = draw(st.sampled_from(SHAPES if depth else ["scalar"]))
    name = f"N{draw(st.integers(0, 9))}"
    if shape == "scalar":
        kind, values = draw(st.sampled_from(SCALARS))
        return kind, draw(values)
    if shape == "enum":
        return {"type": "enum", "name": name, "symbols": ["map", "B"]}, draw(st.sampled_from(["map", "B"]))
    if shape == "union":
        members = draw(
            st.lists(_drawn(depth - 1), min_size=1, max_size=4).map(
                lambda found: {
                    one[0]["name"] if isinstance(one[0], dict) and "name" in one[0] else _label(one[0]): one
                    for one in found
                    if not isinstance(one[0], list)
                }
            )
        )
        members["null"] = ("null", None)
        return [kind for kind, _ in members.values()], draw(
            st.sampled_from([value for _, value in members.values()])
        )
    inner, value = draw(_drawn(depth - 1))
    if shape == "array":
        return {"type": "array", "items": inner}, draw(st.sampled_from([[], [value], [value, value]]))
    if shape == "map":
        key = draw(st.sampled_from(["map", "string", "long", "base64", "k"]))
        return {"type": "map", "values": inner}, {key: value}
    field = draw(st.sampled_from(["map", "string", "long", "base64", "k"]))
    return {"type": "record", "name": name, "fields": [{"name": field, "type": inner}]}, {field: value}


@settings(max_examples=250, deadline=None)
@given(schema_and_value())
def test_values_written_as_json_read_back_the_same(pair: tuple[Any, Any]) -> None:
    tree, value = pair
    schema = schema_of(tree)
    text = json.dumps(value_to_json(schema, value), allow_nan=False)
    found = row_to_value(schema, json.loads(text))
    assert found == value
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema.parsed, found)


def test_a_map_with_a_key_like_a_branch_is_written_in_avros_form() -> None:
    schema = schema_of(["null", {"type": "map", "values": {"type": "map", "values": "string"}}])
    written = value_to_json(schema, {"map": {}})
    assert written == {"map": {"map": {}}}
    assert row_to_value(schema, written) == {"map": {}}
    assert value_to_json(schema, {"other": {}}) == {"other": {}}


def test_not_a_number_survives() -> None:
    schema = record(("x", ["string", "double"]))
    written = value_to_json(schema, {"x": math.nan})
    assert written == {"x": {"double": "NaN"}}
    assert math.isnan(row_to_value(schema, written)["x"])
    assert value_to_json(schema, {"x": "NaN"}) == {"x": "NaN"}


def test_json_stays_plain_where_it_can() -> None:
    schema = record(("u", ["null", "string", "long"]), ("t", logical("long", "timestamp-millis")))
    assert value_to_json(schema, {"u": "x", "t": NOON}) == {"u": "x", "t": "2026-03-01T12:00:00Z"}
    assert value_to_json(schema, {"u": 5, "t": NOON})["u"] == 5


def test_a_value_that_does_not_fit_is_a_bad_record() -> None:
    with pytest.raises(BadRecord):
        value_to_json(record(("u", ["string", "long"])), {"u": 1.5})
    with pytest.raises(BadRecord, match="does not fit"):
        value_to_json(record(("u", {"type": "array", "items": "int"})), {"u": 5})


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "long"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(schema_and_value(), _JSON)
def test_any_json_is_a_value_or_a_bad_record(pair: tuple[Any, Any], row: Any) -> None:
    schema = schema_of(pair[0])
    try:
        found = row_to_value(schema, row)
    except BadRecord:
        return
    fastavro.schemaless_writer(io.BytesIO(), schema.parsed, found)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80), st.sampled_from(["jsonl", "csv"]))
def test_any_bytes_give_rows_or_faults(content: bytes, format_: str) -> None:
    try:
        found = list(read_rows(io.BytesIO(b"a,b\n" * (format_ == "csv") + content), format_, SMALL))
    except BadInput:
        return
    numbers = [number for number, _ in found]
    assert numbers == sorted(set(numbers))
