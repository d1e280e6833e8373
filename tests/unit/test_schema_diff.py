"""What a diff says: one row for each sort of change, then the order and the nesting."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stack.feeds.avro.schema import AvroSchema, parse_avro
from stack.feeds.registry.diff import Change, ChangeKind, diff_schemas


def schema(tree: Any) -> AvroSchema:
    return parse_avro(json.dumps(tree))


def view(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "View", "fields": list(fields), **more}


def field(name: str, kind: Any = "int", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "Color", "symbols": list(symbols), **more}


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "Md5", "size": size}


ADDRESS = {"type": "record", "name": "Address", "fields": [field("zip")]}
ADDRESS_OF_TEXT = {"type": "record", "name": "Address", "fields": [field("zip", "string")]}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}

CASES: list[tuple[Any, Any, list[tuple[str, str, str]]]] = [
    (view(), view(), []),
    (
        view(),
        view(field("zip")),
        [("field-added", "View.zip", "View.zip was added, without a default.")],
    ),
    (
        view(),
        view(field("zip", "string", default="é")),
        [("field-added", "View.zip", 'View.zip was added, with the default "é".')],
    ),
    (view(field("zip")), view(), [("field-removed", "View.zip", "View.zip was removed.")]),
    (
        view(field("zip")),
        view(field("code", aliases=["zip"])),
        [("field-renamed", "View.code", "View.code was called zip; its alias says so.")],
    ),
    (
        view(field("zip")),
        view(field("code")),
        [
            ("field-added", "View.code", "View.code was added, without a default."),
            ("field-removed", "View.zip", "View.zip was removed."),
        ],
    ),
    (
        view(field("zip")),
        view(field("zip", "string")),
        [("type-changed", "View.zip", "View.zip was int and is now string.")],
    ),
    (
        view(field("at", MILLIS)),
        view(field("at", MICROS)),
        [
            (
                "type-changed",
                "View.at",
                "View.at was long (timestamp-millis) and is now long (timestamp-micros).",
            )
        ],
    ),
    (
        view(field("zip")),
        view(field("zip", ["null", "int"])),
        [("type-changed", "View.zip", "View.zip was int and is now union of null, int.")],
    ),
    (
        view(field("zip", fixed(8))),
        view(field("zip", fixed(16))),
        [("type-changed", "View.zip", "View.zip was fixed Md5 of 8 bytes and is now fixed Md5 of 16 bytes.")],
    ),
    (
        view(field("zip")),
        view(field("zip", default=0)),
        [("default-changed", "View.zip", "View.zip has a default now: 0.")],
    ),
    (
        view(field("zip", default=0)),
        view(field("zip")),
        [("default-changed", "View.zip", "View.zip has no default any more; it was 0.")],
    ),
    (
        view(field("zip", ["int", "boolean"], default=0)),
        view(field("zip", ["int", "boolean"], default=False)),
        [("default-changed", "View.zip", "View.zip has another default: false, it was 0.")],
    ),
    (
        view(field("zip", doc="a")),
        view(field("zip", doc="b")),
        [("doc-changed", "View.zip", 'View.zip is now described as "b".')],
    ),
    (
        view(doc="a"),
        view(),
        [("doc-changed", "View", "record View has no description any more.")],
    ),
    (
        view(field("a"), field("b"), field("gone")),
        view(field("b"), field("new"), field("a")),
        [
            ("field-added", "View.new", "View.new was added, without a default."),
            ("field-removed", "View.gone", "View.gone was removed."),
            ("order-changed", "View", "View lists its fields in another order: b, new, a."),
        ],
    ),
    (
        view(namespace="web"),
        view(namespace="shop"),
        [("type-renamed", "View", "View: record web.View is now called shop.View.")],
    ),
    (
        view(field("a", {"type": "record", "name": "Old", "fields": []})),
        view(field("a", {"type": "record", "name": "New", "fields": []})),
        [
            (
                "type-renamed",
                "View.a",
                "View.a: record Old is now called New, without an alias for the old name.",
            )
        ],
    ),
    (
        view(field("color", enum("RED", "BLUE"))),
        view(field("color", enum("RED", "GREEN"))),
        [
            ("symbol-added", "View.color", "View.color may now be GREEN."),
            ("symbol-removed", "View.color", "View.color may no longer be BLUE."),
        ],
    ),
    (
        enum("RED", "BLUE"),
        enum("BLUE", "RED", default="RED"),
        [
            ("order-changed", "Color", "Color lists its symbols in another order: BLUE, RED."),
            ("default-changed", "Color", 'Color has a default now: "RED".'),
        ],
    ),
    (
        view(field("a", ["null", "int"])),
        view(field("a", ["null", "string"])),
        [
            ("branch-added", "View.a", "View.a may now be string."),
            ("branch-removed", "View.a", "View.a may no longer be int."),
        ],
    ),
    (
        ["null", "int"],
        ["int", "null"],
        [("order-changed", "union", "union lists its branches in another order: union of int, null.")],
    ),
    (
        view(field("a", {"type": "array", "items": ADDRESS})),
        view(field("a", {"type": "array", "items": ADDRESS_OF_TEXT})),
        [("type-changed", "View.a[].zip", "View.a[].zip was int and is now string.")],
    ),
    (
        view(field("a", {"type": "map", "values": ["null", ADDRESS]})),
        view(field("a", {"type": "map", "values": ["null", ADDRESS_OF_TEXT]})),
        [("type-changed", "View.a{}.zip", "View.a{}.zip was int and is now string.")],
    ),
    (
        view(field("a", ADDRESS)),
        view(field("a", ["null", ADDRESS_OF_TEXT])),
        [
            ("type-changed", "View.a", "View.a was record Address and is now union of null, record Address."),
            ("type-changed", "View.a.zip", "View.a.zip was int and is now string."),
        ],
    ),
    ({"type": "string"}, "string", []),
]


@pytest.mark.parametrize(("old", "new", "expected"), CASES)
def test_changes(old: Any, new: Any, expected: list[tuple[str, str, str]]) -> None:
    changes = diff_schemas(schema(old), schema(new))
    assert [(one.kind.value, one.path, one.sentence) for one in changes] == expected


@pytest.mark.parametrize(("old", "new", "expected"), CASES)
def test_a_schema_does_not_differ_from_itself(old: Any, new: Any, expected: list[Any]) -> None:
    assert diff_schemas(schema(old), schema(old)) == ()
    assert diff_schemas(schema(new), schema(new)) == ()


def test_changes_come_in_the_order_of_the_fields() -> None:
    inner_old = {"type": "record", "name": "Inner", "fields": [field("x")]}
    inner_new = {"type": "record", "name": "Inner", "fields": [field("x", "long"), field("y")]}
    old = schema(view(field("a"), field("inner", inner_old), field("z")))
    new = schema(view(field("a", "long"), field("inner", inner_new), field("z", "long")))
    assert [one.path for one in diff_schemas(old, new)] == [
        "View.a",
        "View.inner.x",
        "View.inner.y",
        "View.z",
    ]


def test_a_recursive_change_is_told_once() -> None:
    def tree(kind: str) -> AvroSchema:
        children = {"type": "array", "items": "Tree"}
        return schema(
            {"type": "record", "name": "Tree", "fields": [field("value", kind), field("children", children)]}
        )

    assert diff_schemas(tree("int"), tree("long")) == (
        Change(ChangeKind.TYPE_CHANGED, "Tree.value", "Tree.value was int and is now long."),
    )
