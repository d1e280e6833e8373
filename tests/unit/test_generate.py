"""Synthetic records: true to the schema, the same for a seed, skewed as asked."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.errors import BadInput
from stack.feeds.avro.codec import RecordEncoder
from stack.feeds.avro.schema import AvroSchema, parse_avro
from stack.feeds.avro.wire import HEADER_BYTES
from stack.feeds.rows.rows import row_to_value, value_to_json
from stack.feeds.synthetic.generate import MAX_KEYS, Generator


def schema_of(tree: Any) -> AvroSchema:
    return parse_avro(json.dumps(tree))


def record(*fields: Any) -> AvroSchema:
    """A record schema of (name, type) or (name, type, generate)."""
    entries = [
        {"name": one[0], "type": one[1], **({"generate": one[2]} if len(one) > 2 else {})} for one in fields
    ]
    return schema_of({"type": "record", "name": "shop.Visit", "fields": entries})


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


def take(schema: AvroSchema, count: int, seed: int = 1, **options: Any) -> list[Any]:
    return list(itertools.islice(Generator(schema, seed, **options), count))


VISIT = record(("user", "string"), ("page", "string"), ("ms", "long"), ("load", "double"))
START_MS = 1_772_366_400_000
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_seed_decides_everything() -> None:
    options: dict[str, Any] = {"keys": 50, "skew": 1.0, "key_field": "user"}
    assert take(VISIT, 100, seed=7, **options) == take(VISIT, 100, seed=7, **options)
    assert take(VISIT, 100, seed=7, **options) != take(VISIT, 100, seed=8, **options)


def test_event_time_moves_with_the_rate() -> None:
    found = take(VISIT, 5, event_time="ms", start_ms=START_MS, rate_per_s=4)
    assert [one["ms"] - START_MS for one in found] == [0, 250, 500, 750, 1000]


@pytest.mark.parametrize(
    ("kind", "name", "second"),
    [
        ("long", "when", START_MS + 500),
        ("long", "when_us", (START_MS + 500) * 1000),
        ("string", "when", "2026-03-01T12:00:00.500Z"),
        (["null", "long"], "when", START_MS + 500),
        (logical("long", "timestamp-millis"), "when", NOON.replace(microsecond=500_000)),
        (logical("long", "timestamp-micros"), "when", NOON.replace(microsecond=500_000)),
        (
            logical("long", "local-timestamp-millis"),
            "when",
            NOON.replace(microsecond=500_000, tzinfo=None),
        ),
    ],
)
def test_event_time_of_every_type(kind: Any, name: str, second: Any) -> None:
    found = take(record((name, kind)), 2, event_time=name, start_ms=START_MS, rate_per_s=2)
    assert found[1][name] == second


@pytest.mark.parametrize("name", ["ms", "event_time", "createdAt", "timestamp"])
def test_a_name_alone_makes_a_long_an_event_time(name: str) -> None:
    assert take(record((name, "long")), 1, start_ms=START_MS)[0][name] == START_MS


def test_dates_follow_the_event_time() -> None:
    assert take(record(("day", logical("int", "date"))), 1, start_ms=START_MS)[0]["day"] == date(2026, 3, 1)


@pytest.mark.parametrize(
    "kind",
    ["string", "int", "long", "double", "bytes", ["null", "string"], logical("string", "uuid")],
)
@pytest.mark.parametrize("name", ["user", "page", "email", "ip", "url", "uuid", "thing"])
def test_keys_are_distinct_and_all_are_used(kind: Any, name: str) -> None:
    found = Counter(one[name] for one in take(record((name, kind)), 2_000, keys=20, key_field=name))
    assert len(found) == 20
    assert None not in found
    assert max(found.values()) < 3 * min(found.values())


def test_many_keys_stay_distinct() -> None:
    for name in ("user", "ip", "uuid"):
        found = {one[name] for one in take(record((name, "string")), 3_000, keys=MAX_KEYS, key_field=name)}
        assert len(found) > 2_990


def test_a_nested_key_and_an_enum_key() -> None:
    inner = {"type": "record", "name": "Who", "fields": [{"name": "id", "type": "long"}]}
    found = take(record(("who", inner), ("id", "long")), 200, keys=3, key_field="who.id")
    assert {one["who"]["id"] for one in found} == {0, 1, 2}
    assert max(one["id"] for one in found) > 3
    suit = {"type": "enum", "name": "Suit", "symbols": ["A", "B", "C"]}
    assert {one["suit"] for one in take(record(("suit", suit)), 99, keys=2, key_field="suit")} == {"A", "B"}


def test_skew_follows_zipf() -> None:
    found = Counter(
        one["n"] for one in take(record(("n", "long")), 20_000, keys=1_000, skew=1.0, key_field="n")
    )
    harmonic = sum(1 / rank for rank in range(1, 1_001))
    for rank in (1, 2, 4):
        assert found[rank - 1] == pytest.approx(20_000 / harmonic / rank, rel=0.15)
    assert max(found) <= 999
    assert min(found) == 0


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"keys": 0}, "keys must be"),
        ({"keys": MAX_KEYS + 1}, "keys must be"),
        ({"skew": -0.1}, "skew must be"),
        ({"skew": float("nan")}, "skew must be"),
        ({"rate_per_s": 0}, "rate must be"),
        ({"rate_per_s": float("inf")}, "rate must be"),
        ({"key_field": "usr"}, "key_field: the schema has no field 'usr'; did you mean user?"),
        ({"event_time": "mss"}, "event_time: the schema has no field 'mss'; did you mean ms?"),
        ({"event_time": "load"}, "event_time: load is double"),
        ({"key_field": "flag"}, "key_field: flag is boolean"),
        ({"key_field": "several"}, "several types"),
    ],
)
def test_faults_in_arguments(options: dict[str, Any], part: str) -> None:
    schema = record(
        ("user", "string"),
        ("ms", "long"),
        ("load", "double"),
        ("flag", "boolean"),
        ("several", ["int", "string"]),
    )
    with pytest.raises(BadInput) as caught:
        Generator(schema, 1, **options)
    assert part in caught.value.message


DECIMAL = logical("bytes", "decimal", precision=6, scale=2)


@pytest.mark.parametrize(
    ("kind", "options", "allowed"),
    [
        ("int", {"min": 3, "max": 5}, {3, 4, 5}),
        ("long", {"min": -1, "max": -1}, {-1}),
        ("string", {"values": ["a", "b"]}, {"a", "b"}),
        (["null", "string"], {"values": ["a", None]}, {"a", None}),
        (["null", "int"], {"min": 1, "max": 2}, {None, 1, 2}),
        (DECIMAL, {"min": 1, "max": "1.01"}, {Decimal("1.00"), Decimal("1.01")}),
        (logical("int", "date"), {"values": ["2026-03-01"]}, {date(2026, 3, 1)}),
    ],
)
def test_the_schema_steers(kind: Any, options: Any, allowed: set[Any]) -> None:
    assert {one["f"] for one in take(record(("f", kind, options)), 300)} == allowed


def test_a_range_of_fractions_is_kept_and_filled() -> None:
    found = [one["f"] for one in take(record(("f", "double", {"min": -1.5, "max": 2})), 500)]
    assert -1.5 <= min(found) < -1.3
    assert 1.8 < max(found) <= 2


@pytest.mark.parametrize(
    ("kind", "options", "part"),
    [
        ("int", {"min": 3}, 'both "min" and "max"'),
        ("int", {"min": 5, "max": 3}, "min 5 above max 3"),
        ("int", {"min": 0, "max": 2**31}, "must be int"),
        ("int", {"low": 0}, "generate takes"),
        ("int", [1], "generate takes"),
        ("string", {"min": 1, "max": 2}, "are for numbers"),
        ("string", {"values": []}, "at least one"),
        ("string", {"values": [3]}, "must be string"),
    ],
)
def test_a_schema_that_steers_wrongly(kind: Any, options: Any, part: str) -> None:
    with pytest.raises(BadInput) as caught:
        Generator(record(("f", kind, options)), 1)
    assert part in caught.value.message
    assert "'f'" in caught.value.message


@pytest.mark.parametrize(
    ("name", "kind", "pattern"),
    [
        ("user", "string", r"user-\d{7}"),
        ("user_id", "string", r"user-\d{7}"),
        ("page", "string", r"/p/\d+"),
        ("pageUrl", "string", r"https://example\.com/p/\d+"),
        ("email", "string", r"user\d+@example\.com"),
        ("country", "string", r"[A-Z]{2}"),
        ("ip", "string", r"10(\.\d{1,3}){3}"),
        ("status", "string", r"ok|retry|error"),
        ("uuid", "string", r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
        ("user_name", "string", r"[A-Z][a-z]+"),
        ("order_id", "string", r"order-\d+"),
        ("whatever", "string", r"whatever-\d+"),
    ],
)
def test_names_steer_text(name: str, kind: Any, pattern: str) -> None:
    for one in take(record((name, kind)), 20):
        assert re.fullmatch(pattern, one[name]), one


def test_recursive_schemas_end() -> None:
    tree = {
        "type": "record",
        "name": "Node",
        "fields": [
            {"name": "left", "type": ["null", "Node"]},
            {"name": "many", "type": {"type": "array", "items": "Node"}},
            {"name": "named", "type": {"type": "map", "values": ["null", "Node"]}},
            {"name": "either", "type": ["Node", "string"]},
        ],
    }
    schema = schema_of(tree)

    def depth(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return 1 + max((depth(one) for one in inner), default=0)

    depths = [depth(value) for value in take(schema, 30)]
    assert 4 < max(depths) < 20
    with pytest.raises(BadInput, match="would never end"):
        Generator(
            schema_of({"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}), 1
        ).next()


def test_a_named_type_is_used_again() -> None:
    status = {"type": "enum", "name": "Status", "symbols": ["ON", "OFF"]}
    schema = record(("a", status, {"values": ["ON"]}), ("b", "shop.Status"), ("c", ["null", "shop.Status"]))
    found = take(schema, 50)
    assert {one["a"] for one in found} == {"ON"}
    assert {one["b"] for one in found} == {"ON", "OFF"}


SCALARS: list[Any] = [
    "null",
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "string",
    "bytes",
    logical("long", "timestamp-millis"),
    logical("long", "timestamp-micros"),
    logical("long", "local-timestamp-millis"),
    logical("long", "local-timestamp-micros"),
    logical("long", "timestamp-nanos"),
    logical("int", "date"),
    logical("int", "time-millis"),
    logical("long", "time-micros"),
    logical("string", "uuid"),
    logical("string", "date"),
    DECIMAL,
    logical("bytes", "decimal", precision=40, scale=30),
    logical("bytes", "decimal", precision=2),
]
FIELD_NAMES = ["user", "page", "price", "ms", "time", "count", "id", "email", "x", "_", "name", "status"]


def _base(kind: Any) -> str:
    return str(kind["type"] if isinstance(kind, dict) else kind)


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3) -> Any:
    """A schema tree; named types are numbered later."""
    shape = draw(st.sampled_from(["scalar", "array", "map", "record", "union", "enum", "fixed", "decimal"]))
    if shape == "scalar" or not depth:
        return draw(st.sampled_from(SCALARS))
    match shape:
        case "enum":
            return {"type": "enum", "symbols": ["A", "B"]}
        case "fixed":
            return {"type": "fixed", "size": draw(st.integers(1, 20))}
        case "decimal":
            return {"type": "fixed", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 3}
        case "array":
            return {"type": "array", "items": draw(schemas(depth - 1))}
        case "map":
            return {"type": "map", "values": draw(schemas(depth - 1))}
        case "union":
            members = draw(st.lists(st.sampled_from(SCALARS), min_size=1, max_size=4))
            # Avro allows one branch of each base type.
            return list({_base(one): one for one in members}.values())
        case _:
            names = draw(st.lists(st.sampled_from(FIELD_NAMES), min_size=1, max_size=4, unique=True))
            fields = [{"name": name, "type": draw(schemas(depth - 1))} for name in names]
            return {"type": "record", "fields": fields}


def numbered(tree: Any, count: Any) -> Any:
    if isinstance(tree, list):
        return [numbered(one, count) for one in tree]
    if not isinstance(tree, dict):
        return tree
    changed = {key: numbered(tree[key], count) for key in ("items", "values") if key in tree}
    if "fields" in tree:
        changed["fields"] = [one | {"type": numbered(one["type"], count)} for one in tree["fields"]]
    if tree["type"] in ("record", "enum", "fixed"):
        changed["name"] = f"N{next(count)}"
    return tree | changed


@settings(max_examples=200, deadline=None)
@given(schemas(), st.integers(0, 10**6))
def test_every_record_is_written_and_fastavro_gives_it_back(tree: Any, seed: int) -> None:
    schema = schema_of(numbered(tree, itertools.count()))
    for value in take(schema, 5, seed=seed, start_ms=START_MS, rate_per_s=0.01):
        body = io.BytesIO(RecordEncoder(schema, 1).encode(value)[HEADER_BYTES:])
        assert fastavro.schemaless_reader(body, schema.parsed, None) == value
        assert row_to_value(schema, json.loads(json.dumps(value_to_json(schema, value)))) == value
