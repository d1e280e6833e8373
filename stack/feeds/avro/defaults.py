"""Defaults of a schema's fields as the values a decoder gives, not as the JSON in the schema."""

from __future__ import annotations

from typing import Any

from stack.errors import BadSchema
from stack.feeds.avro.nodes import MISSING, Field, Node, walk
from stack.feeds.avro.resolving import from_raw

_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
}


def default_of(record: Node, field: Field) -> Any:
    """A fresh default of a field that has one; BadSchema if it does not fit the field's type."""
    try:
        return _typed(field.node, field.default)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadSchema(f"the default of {record.name}.{field.name} does not fit its type: {error}") from None
    except RecursionError:
        raise BadSchema(f"the default of {record.name}.{field.name} holds itself without end") from None


def check_defaults(root: Node) -> None:
    """BadSchema for the first default anywhere in a schema that does not fit its type."""
    for node in walk(root):
        for field in node.fields:
            if field.default is not MISSING:
                default_of(node, field)


def _typed(node: Node, raw: Any) -> Any:
    if node.kind == "union":
        return _of_union(node, raw)
    if node.kind == "record" and isinstance(raw, dict):
        return {one.name: _typed(one.node, raw.get(one.name, one.default)) for one in node.fields}
    if node.kind == "array" and node.item and isinstance(raw, list):
        return [_typed(node.item, one) for one in raw]
    if node.kind == "map" and node.item and isinstance(raw, dict):
        return {name: _typed(node.item, one) for name, one in raw.items()}
    if not _is_json_of(node, raw):
        raise ValueError(f"{'nothing' if raw is MISSING else repr(raw)} is not {node.label}")
    if node.kind in ("float", "double"):
        return float(raw)
    if node.kind in ("bytes", "fixed"):
        raw = raw.encode("latin-1")
    convert = from_raw(node)
    return convert(raw) if convert else raw


def _is_json_of(node: Node, raw: Any) -> bool:
    wanted: tuple[Any, ...] = _JSON_TYPES.get(node.kind, (str,))
    if not isinstance(raw, wanted) or (isinstance(raw, bool) and node.kind != "boolean"):
        return False
    if node.kind in ("int", "long"):
        bits = 31 if node.kind == "int" else 63
        return -(1 << bits) <= raw < 1 << bits
    if node.kind == "enum":
        return raw in node.symbols
    return node.kind in _JSON_TYPES or (
        node.kind in ("string", "bytes") or (node.kind == "fixed" and len(raw) == node.size_bytes)
    )


def _of_union(node: Node, raw: Any) -> Any:
    for branch in node.branches:
        try:
            return _typed(branch, raw)
        except (ValueError, TypeError, OverflowError):
            continue
    raise ValueError(f"{raw!r} is not {node.label}")
