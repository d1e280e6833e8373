"""The schema pyruhvro is given instead of the real one, and the way between its arrays and ours.

The physical schema has the same bytes and only types that pyruhvro's fast path knows: logical types are
plain numbers, bytes are strings (it does not look into them), references are written out, names are
ours. Two fields in front cover the header, a boolean for the magic byte and a float for the four bytes
of the id, so that headers need no work in Python. Arrays then change type without a copy.
"""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyruhvro

from stack.feeds.avro.nodes import Node, can_be_empty

HEADER_FIELDS = 2
_SAME = frozenset({"null", "boolean", "int", "long", "float", "double", "string"})


class Unsupported(Exception):
    """A shape that the reference must handle; the message says which."""


def is_panic(error: BaseException) -> bool:
    """Whether Rust panicked inside a call; pyo3 raises that outside the Exception tree."""
    return type(error).__name__ == "PanicException"


class Physical:
    """A record schema as pyruhvro sees it: `text` for its calls, `schema` for the arrays it takes."""

    def __init__(self, node: Node) -> None:
        numbers = count()
        fields = [{"name": "m", "type": "boolean"}, {"name": "i", "type": "float"}]
        fields += [
            {"name": f"f{place}", "type": _physical(one.node, numbers)}
            for place, one in enumerate(node.fields)
        ]
        self.text = json.dumps({"type": "record", "name": "P", "fields": fields})
        try:
            self.schema: pa.Schema = pyruhvro.avro_to_arrow_schema(self.text)
        except BaseException as error:
            if isinstance(error, Exception) or is_panic(error):
                raise Unsupported(f"a type that pyruhvro refuses: {error}") from None
            raise


def read(physical: Physical, payloads: list[bytes], whole: bytes) -> list[pa.Array] | None:
    """Columns in pyruhvro's types, or None unless encoding them again gives `whole`, the payloads joined."""
    try:
        batch = pyruhvro.deserialize_array(payloads, physical.text)
        again = pyruhvro.serialize_record_batch(batch, physical.text, 1)
    except BaseException as error:
        if isinstance(error, Exception) or is_panic(error):
            return None
        raise
    # A buffer compares itself in one call; a memoryview of it would compare item by item.
    if payloads and not again[0].buffers()[2].equals(pa.py_buffer(whole)):
        return None
    if not _has_one_header(batch):
        return None
    return list(batch.columns[HEADER_FIELDS:])


def write(
    physical: Physical, header: bytes, columns: list[pa.Array], rows: int
) -> list[pa.BinaryArray] | None:
    """Payloads of columns that have pyruhvro's types, in parts, or None if it refuses them."""
    magic = pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(bytes(rows // 8 + 1))])
    ids = pa.Array.from_buffers(pa.float32(), rows, [None, pa.py_buffer(header[1:] * rows)])
    batch = pa.RecordBatch.from_arrays([magic, ids, *columns], schema=physical.schema)
    try:
        return list(pyruhvro.serialize_record_batch(batch, physical.text, 1))
    except BaseException as error:
        if isinstance(error, Exception) or is_panic(error):
            return None
        raise


def _has_one_header(batch: pa.RecordBatch) -> bool:
    if not batch.num_rows:
        return True
    ids = pc.min_max(batch.column(1).view(pa.int32())).as_py()
    return batch.column(0).true_count == 0 and ids["min"] == ids["max"]


def _physical(node: Node, numbers: count[int]) -> Any:
    if node.logical in ("decimal", "uuid"):
        raise Unsupported(node.logical)
    if node.kind in _SAME:
        return node.kind
    if node.kind == "bytes":
        return "string"
    if node.kind == "enum":
        return {"type": "enum", "name": f"N{next(numbers)}", "symbols": list(node.symbols)}
    if node.kind == "union":
        if len(node.branches) > 64:
            raise Unsupported("a union of more than 64 types")
        return [_physical(one, numbers) for one in node.branches]
    if node.kind == "array" and node.item:
        if can_be_empty(node.item):
            raise Unsupported("an array of items that take no bytes")
        return {"type": "array", "items": _physical(node.item, numbers)}
    if node.kind == "map" and node.item:
        return {"type": "map", "values": _physical(node.item, numbers)}
    if node.kind == "record" and node.fields:
        name = f"N{next(numbers)}"
        fields = [
            {"name": f"f{place}", "type": _physical(one.node, numbers)}
            for place, one in enumerate(node.fields)
        ]
        return {"type": "record", "name": name, "fields": fields}
    raise Unsupported(f"{node.kind} without fields" if node.kind == "record" else node.kind)


def retype(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same buffers as another type of the same layout."""
    if column.type.equals(kind):
        return column
    if pa.types.is_nested(kind) and column.offset:
        # Children are taken whole below; a copy is the simple way to an array that starts at 0.
        column = pa.concat_arrays([column, column.slice(0, 0)])
    buffers = column.buffers()
    if pa.types.is_struct(kind):
        return rebuild(
            column, kind, [retype(column.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        )
    if pa.types.is_list(kind):
        return rebuild(column, kind, [retype(column.values, kind.value_type)])
    if pa.types.is_map(kind):
        return rebuild(
            column, kind, [retype(column.keys, kind.key_type), retype(column.items, kind.item_type)]
        )
    if pa.types.is_union(kind):
        children = [retype(column.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(column), [None, buffers[1]], children=children)
    return column.view(kind)


def rebuild(column: pa.Array, kind: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """A struct, list or map with the outer buffers of `column`, which starts at 0, and other children."""
    own = 1 if pa.types.is_struct(kind) else 2
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        children = [pa.Array.from_buffers(entries, len(children[0]), [None], children=children)]
    return pa.Array.from_buffers(kind, len(column), column.buffers()[:own], children=children)
