"""Hypothesis strategies for Avro schemas, values that fit them, and schemas that grew out of others."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from itertools import count
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from stack.errors import NotFound
from stack.feeds.avro.schema import AvroSchema, parse_avro

Values = SearchStrategy[Any]
Typed = tuple[Any, Values]
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
FLOATS = st.floats(width=32)
DOUBLES = st.floats()


class Shelf:
    """A SchemaSource of the given schemas, with ids from 1."""

    def __init__(self, *schemas: AvroSchema) -> None:
        self._schemas = schemas

    def schema_by_id(self, schema_id: int) -> AvroSchema:
        if 1 <= schema_id <= len(self._schemas):
            return self._schemas[schema_id - 1]
        raise NotFound(f"there is no schema with id {schema_id}")


@dataclass(frozen=True)
class Case:
    """A record schema with some records that fit it."""

    schema: AvroSchema
    records: list[dict[str, Any]]


def schema_of(tree: Any) -> AvroSchema:
    return parse_avro(json.dumps(tree))


def record(name: str, **fields: Any) -> dict[str, Any]:
    """A record type without defaults: record("Page", user="string")."""
    return {"type": "record", "name": name, "fields": [{"name": k, "type": t} for k, t in fields.items()]}


def same(left: Any, right: Any) -> bool:
    """Equality that also compares types, and in which NaN equals itself."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def _whole_millis(value: Any) -> Any:
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


def _decimals(precision: int, scale: int) -> Values:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(
        lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale))
    )


ZONED = st.datetimes(timezones=st.just(UTC))
LOCAL = st.datetimes()
PLAIN: dict[str, Values] = {
    "boolean": st.booleans(),
    "int": INTS,
    "long": LONGS,
    "float": FLOATS,
    "double": DOUBLES,
    "string": TEXT,
    "bytes": st.binary(max_size=8),
}
LOGICAL: list[tuple[str, str, Values]] = [
    ("int", "date", st.dates()),
    ("int", "time-millis", st.times().map(_whole_millis)),
    ("long", "time-micros", st.times()),
    ("long", "timestamp-millis", ZONED.map(_whole_millis)),
    ("long", "timestamp-micros", ZONED),
    ("long", "local-timestamp-millis", LOCAL.map(_whole_millis)),
    ("long", "local-timestamp-micros", LOCAL),
    ("string", "uuid", st.uuids()),
]


@st.composite
def _leaf(draw: st.DrawFn, fresh: Callable[[], str], columnar: bool) -> Typed:
    kind = draw(st.sampled_from(["plain", "plain", "logical", "enum", "fixed", "decimal"]))
    if kind == "logical":
        base, logical, values = draw(st.sampled_from(LOGICAL[:-1] if columnar else LOGICAL))
        return {"type": base, "logicalType": logical}, values
    if kind == "enum":
        symbols = draw(st.lists(st.sampled_from("ABCDEFG"), min_size=1, unique=True))
        return {"type": "enum", "name": fresh(), "symbols": symbols}, st.sampled_from(symbols)
    if kind == "fixed" and not columnar:
        size = draw(st.integers(0, 5))
        return {"type": "fixed", "name": fresh(), "size": size}, st.binary(min_size=size, max_size=size)
    if kind == "decimal" and not columnar:
        precision = draw(st.integers(1, 40))
        scale = draw(st.integers(0, precision))
        outer: list[dict[str, Any]] = [{"type": "bytes"}, {"type": "fixed", "name": fresh(), "size": 20}]
        tree = {
            **draw(st.sampled_from(outer)),
            "logicalType": "decimal",
            "precision": precision,
            "scale": scale,
        }
        return tree, _decimals(precision, scale)
    name = draw(st.sampled_from(sorted(PLAIN)))
    return name, PLAIN[name]


@st.composite
def _type(draw: st.DrawFn, fresh: Callable[[], str], depth: int, columnar: bool) -> Typed:
    kinds = ["leaf", "leaf", "nullable"]
    if depth:
        kinds += ["record", "array", "map", "union"]
    kind = draw(st.sampled_from(kinds))
    if kind == "record":
        tree, fields = draw(_record(fresh, depth - 1, columnar))
        return tree, st.fixed_dictionaries(fields)
    if kind in ("array", "map"):
        inner, values = draw(_type(fresh, depth - 1, columnar))
        if kind == "array":
            return {"type": "array", "items": inner}, st.lists(values, max_size=3)
        return {"type": "map", "values": inner}, st.dictionaries(TEXT, values, max_size=3)
    if kind == "nullable":
        inner, values = draw(_type(fresh, depth - 1, columnar) if depth else _leaf(fresh, columnar))
        if isinstance(inner, list):
            return inner, values
        pair = ["null", inner] if draw(st.booleans()) else [inner, "null"]
        return pair, st.none() | values
    if kind == "union":
        return draw(_union(fresh, depth))
    return draw(_leaf(fresh, columnar))


@st.composite
def _union(draw: st.DrawFn, fresh: Callable[[], str], depth: int) -> Typed:
    # One branch for each Python type, so that a value read back tells which branch was written.
    branches: list[Typed] = [
        ("null", st.none()),
        ("boolean", st.booleans()),
        draw(st.sampled_from([("int", INTS), ("long", LONGS)])),
        draw(st.sampled_from([("float", FLOATS), ("double", DOUBLES)])),
        ("string", TEXT),
        ({"type": "int", "logicalType": "date"}, st.dates()),
        ({"type": "array", "items": "long"}, st.lists(LONGS, max_size=3)),
        ({"type": "map", "values": "string"}, st.dictionaries(TEXT, TEXT, max_size=3)),
        ("bytes", st.binary(max_size=4)),
    ]
    if depth and draw(st.booleans()):
        tree, values = draw(_record(fresh, 0, True))
        branches[-2] = (tree, st.fixed_dictionaries(values))
    chosen = draw(st.lists(st.sampled_from(range(len(branches))), min_size=1, max_size=4, unique=True))
    if branches[2][0] == "int" and {2, 5} <= set(chosen):
        # Avro allows one branch of each base type.
        chosen.remove(5)
    return [branches[one][0] for one in chosen], st.one_of([branches[one][1] for one in chosen])


@st.composite
def _record(
    draw: st.DrawFn, fresh: Callable[[], str], depth: int, columnar: bool
) -> tuple[Any, dict[str, Values]]:
    name = fresh()
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=4, unique=True))
    typed = {one: draw(_type(fresh, depth, columnar)) for one in names}
    return record(name, **{k: t for k, (t, _) in typed.items()}), {k: v for k, (_, v) in typed.items()}


@st.composite
def recursive_cases(draw: st.DrawFn, max_records: int = 3) -> Case:
    """A schema whose records hold themselves, and records."""
    numbers = count()
    tree, values = draw(_record(lambda: f"R{next(numbers)}", 1, False))
    kind, last, wrap = draw(st.sampled_from(AGAIN))
    tree["fields"].append({"name": "again", "type": kind})
    records = st.recursive(
        st.fixed_dictionaries({**values, "again": st.just(last)}),
        lambda inner: st.fixed_dictionaries({**values, "again": wrap(inner)}),
        max_leaves=4,
    )
    return Case(schema_of(tree), draw(st.lists(records, min_size=1, max_size=max_records)))


# Ways in which the record R0 holds itself: the type, a value that ends it, values that go on.
AGAIN: list[tuple[Any, Any, Callable[[Values], Values]]] = [
    (["null", "R0"], None, lambda inner: inner),
    ({"type": "array", "items": "R0"}, [], lambda inner: st.lists(inner, max_size=2)),
    ({"type": "map", "values": "R0"}, {}, lambda inner: st.dictionaries(TEXT, inner, max_size=2)),
    (["string", {"type": "array", "items": ["null", "R0"]}], "", lambda inner: st.lists(inner, max_size=2)),
]


@st.composite
def cases(draw: st.DrawFn, columnar: bool = False, max_records: int = 4) -> Case:
    """A schema and records. `columnar` leaves out the types that send a whole schema to the reference."""
    numbers = count()
    tree, values = draw(_record(lambda: f"R{next(numbers)}", 2, columnar))
    records = draw(st.lists(st.fixed_dictionaries(values), min_size=1, max_size=max_records))
    return Case(schema_of(tree), records)


ADDED: list[tuple[Any, Any]] = [
    ("long", 7),
    ("double", 1),
    ("string", "né"),
    ("bytes", "ÿ\u0000"),
    (["null", "string"], None),
    ({"type": "long", "logicalType": "timestamp-millis"}, 1000),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0001"),
    ({"type": "array", "items": "int"}, [1, 2]),
    ({"type": "map", "values": "string"}, {"k": "v"}),
    ({"type": "record", "name": "Added", "fields": [{"name": "x", "type": "int", "default": 3}]}, {}),
    (["int", "string"], 5),
]
WIDER = {"int": ["long", "double"], "long": ["double"], "float": ["double"]}


@st.composite
def evolutions(draw: st.DrawFn, schema: AvroSchema) -> AvroSchema:
    """A schema that can read what `schema` wrote: fields added, dropped, moved, widened, made nullable."""
    tree = copy.deepcopy(schema.tree)
    fields = tree["fields"]
    for field in fields:
        change = draw(st.sampled_from(["keep", "widen", "nullable"]))
        kind = field["type"]
        if change == "widen" and isinstance(kind, str) and kind in WIDER:
            field["type"] = draw(st.sampled_from(WIDER[kind]))
        elif change == "nullable" and not isinstance(kind, list) and kind != "null":
            field["type"] = ["null", kind]
    for _ in range(draw(st.integers(0, len(fields)))):
        fields.pop(draw(st.integers(0, len(fields) - 1)))
    for place, (kind, default) in enumerate(draw(st.lists(st.sampled_from(ADDED), max_size=2))):
        named = json.loads(json.dumps(kind).replace('"Added"', f'"Added{place}"'))
        fields.append({"name": f"added{place}", "type": named, "default": default})
    tree["fields"] = draw(st.permutations(fields))
    return schema_of(tree)
