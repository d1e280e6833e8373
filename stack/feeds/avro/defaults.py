"""Defaults of a reader's fields as the values a decoder gives, not as the JSON in the schema.

fastavro fills a missing field with the JSON itself: text for bytes, a number for a timestamp.
"""

from __future__ import annotations

import copy
from typing import Any

from fastavro.read import LOGICAL_READERS

from stack.errors import BadSchema
from stack.feeds.avro.nodes import MISSING, Node, node_of
from stack.feeds.avro.schema import AvroSchema

_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
}


def typed_default(node: Node, raw: Any) -> Any:
    """What a decoder gives for the JSON default `raw` of a field of this type."""
    if node.kind == "union":
        return _of_union(node, raw)
    if node.kind == "record":
        if not isinstance(raw, dict):
            raise ValueError(f"{raw!r} is not a record")
        return {one.name: typed_default(one.node, raw.get(one.name, one.default)) for one in node.fields}
    if node.kind == "array" and node.item and isinstance(raw, list):
        return [typed_default(node.item, one) for one in raw]
    if node.kind == "map" and node.item and isinstance(raw, dict):
        return {name: typed_default(node.item, one) for name, one in raw.items()}
    wanted: tuple[Any, ...] = _JSON_TYPES.get(node.kind, (str,))
    if not isinstance(raw, wanted) or (isinstance(raw, bool) and node.kind != "boolean"):
        raise ValueError(f"{raw!r} is not {node.label}")
    if node.kind in ("float", "double"):
        return float(raw)
    if node.kind in ("bytes", "fixed"):
        raw = raw.encode("latin-1")
    if node.logical:
        return LOGICAL_READERS[f"{node.kind}-{node.logical}"](raw, node.parsed)
    return raw


def _of_union(node: Node, raw: Any) -> Any:
    for branch in node.branches:
        try:
            return typed_default(branch, raw)
        except (ValueError, TypeError, OverflowError):
            continue
    raise ValueError(f"{raw!r} is not {node.label}")


def with_typed_defaults(schema: AvroSchema) -> tuple[Any, bool]:
    """The parsed schema with typed defaults, and whether any of them could be changed by who reads it."""
    parsed = copy.deepcopy(schema.parsed)
    records: dict[str, Node] = {}
    _collect(node_of(schema), records)
    mutable: list[bool] = []
    _patch(parsed, records, mutable)
    return parsed, any(mutable)


def _collect(node: Node, records: dict[str, Node]) -> None:
    if node.kind == "record":
        if node.name in records:
            return
        records[node.name] = node
    for one in node.children:
        _collect(one, records)


def _patch(parsed: Any, records: dict[str, Node], mutable: list[bool]) -> None:
    if isinstance(parsed, list):
        for one in parsed:
            _patch(one, records, mutable)
    if not isinstance(parsed, dict):
        return
    node = records.get(parsed.get("name", "")) if "fields" in parsed else None
    if node is None:
        for key in ("type", "items", "values"):
            _patch(parsed.get(key), records, mutable)
    else:
        for field, one in zip(parsed["fields"], node.fields, strict=True):
            if one.default is not MISSING:
                field["default"] = _typed(node, one.name, one.node, one.default)
                mutable.append(isinstance(field["default"], (list, dict)))
            _patch(field["type"], records, mutable)
    for one in parsed.get("__named_schemas", {}).values():
        _patch(one, records, mutable)


def _typed(record: Node, name: str, node: Node, raw: Any) -> Any:
    try:
        return typed_default(node, raw)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadSchema(f"the default of {record.name}.{name} does not fit its type: {error}") from None
