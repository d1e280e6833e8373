"""Arrow types of Avro schemas, and Arrow arrays of decoded values.

Arrays are laid out buffer by buffer, because pyarrow imports pandas (over a second) the first time it
turns a Python object into Arrow. Where Avro allows no null the field is not nullable; inside nullable
records and inside arrays every field is, as pyruhvro has it.

UUIDs are columns of text, because Spark does not take Arrow's own type for them (pa.uuid()); a mark in the
field's metadata lets `batch_rows.rows` give UUIDs again.
"""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa

from stack.errors import BadSchema
from stack.feeds.avro.branches import branch_of
from stack.feeds.avro.logical import MOMENTS, unscaled
from stack.feeds.avro.nodes import Node, record_node
from stack.feeds.avro.schema import AvroSchema

# Arrow gives a null of a fixed size its full width, so wide ones are better off with a length each.
MAX_FIXED_BYTES = 4096
_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}
UUID_MARK = {b"logicalType": b"uuid"}
_TYPECODES = {"int": "i", "long": "q", "float": "f", "double": "d"}


def arrow_schema(schema: AvroSchema) -> pa.Schema:
    """The columns of a record schema; BadSchema if it is not a record or contains itself."""
    return pa.schema([arrow_field(one.name, one.node) for one in record_node(schema).fields])


def without_null(node: Node) -> tuple[Node, bool]:
    """The other branch of a union of null and one type, and whether `node` is one."""
    if node.kind == "union" and len(node.branches) == 2:
        first, second = node.branches
        if "null" in (first.kind, second.kind) and first.kind != second.kind:
            return (second if first.kind == "null" else first), True
    return node, False


def arrow_field(name: str, node: Node, inside_nullable: bool = False) -> pa.Field:
    """The Arrow field of one Avro field."""
    inner, optional = without_null(node)
    nullable = optional or inside_nullable or node.kind == "null"
    nullable = nullable or any(one.kind == "null" for one in node.branches)
    mark = UUID_MARK if inner.logical == "uuid" else None
    return pa.field(name, _arrow_type(inner, nullable), nullable, mark)


def _arrow_type(node: Node, nullable: bool) -> pa.DataType:
    if node.logical == "decimal":
        if node.precision > 76:
            raise BadSchema(f"columns hold decimals of at most 76 digits, not {node.precision}")
        kind = pa.decimal128 if node.precision <= 38 else pa.decimal256
        return kind(node.precision, node.scale)
    if node.logical:
        return _LOGICAL[node.logical]
    if node.kind == "record":
        return pa.struct([arrow_field(one.name, one.node, nullable) for one in node.fields])
    if node.kind == "array" and node.item:
        return pa.list_(arrow_field("item", node.item, inside_nullable=True))
    if node.kind == "map" and node.item:
        return pa.map_(pa.field("key", pa.string(), nullable=False), arrow_field("value", node.item))
    if node.kind == "union":
        return pa.sparse_union([arrow_field(one.label, one, True) for one in node.branches])
    if node.kind == "fixed":
        return pa.binary(node.size_bytes) if 0 < node.size_bytes <= MAX_FIXED_BYTES else pa.binary()
    return _PLAIN[node.kind]


def build_batch(node: Node, schema: pa.Schema, records: list[dict[str, Any]]) -> pa.RecordBatch:
    """A batch of decoded records; `schema` is the arrow_schema of `node`."""
    columns = [
        build(one.node, field.type, [record[one.name] for record in records])
        for one, field in zip(node.fields, schema, strict=True)
    ]
    return batch_of(columns, schema, len(records))


def batch_of(columns: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """A batch that keeps its number of rows even where there is no column to tell it."""
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))


def build(node: Node, kind: pa.DataType, values: list[Any]) -> pa.Array:
    """An array of decoded values; None is null wherever it stands, as below a record that is null."""
    node, _ = without_null(node)
    if node.kind == "null":
        return pa.nulls(len(values))
    if node.kind == "union":
        return _build_union(node, kind, values)
    present = _bitmap([value is not None for value in values]) if None in values else None
    if node.kind == "record":
        children = [
            build(one.node, kind.field(place).type, [value and value[one.name] for value in values])
            for place, one in enumerate(node.fields)
        ]
        return pa.Array.from_buffers(kind, len(values), [present], children=children)
    if node.kind in ("array", "map"):
        return _build_items(node, kind, values, present)
    return _build_leaf(node, kind, values, present)


def _build_union(node: Node, kind: pa.DataType, values: list[Any]) -> pa.Array:
    chosen = [_branch(node, value) for value in values]
    children = [
        build(
            branch,
            kind.field(place).type,
            [value if place == which else None for value, which in zip(values, chosen, strict=True)],
        )
        for place, branch in enumerate(node.branches)
    ]
    codes = pa.py_buffer(array("b", chosen).tobytes())
    return pa.Array.from_buffers(kind, len(values), [None, codes], children=children)


def _branch(node: Node, value: Any) -> int:
    place = branch_of(node, value)
    if place is None and value is not None:
        raise ValueError(f"{type(value).__name__} is not {node.label}")
    # A null that no branch holds stands below a record that is null itself: any branch will do.
    return place or 0


def _build_items(node: Node, kind: pa.DataType, values: list[Any], present: pa.Buffer | None) -> pa.Array:
    assert node.item is not None  # noqa: S101 - arrays and maps always have one
    ends = array("i", [0])
    for value in values:
        ends.append(ends[-1] + len(value or ()))
    buffers = [present, pa.py_buffer(ends.tobytes())]
    if node.kind == "array":
        items = [item for value in values for item in value or ()]
        inner = build(node.item, kind.value_type, items)
    else:
        keys = [key for value in values for key in value or ()]
        items = [item for value in values for item in (value or {}).values()]
        inner = pa.Array.from_buffers(
            pa.struct([kind.key_field, kind.item_field]),
            len(keys),
            [None],
            children=[
                _build_leaf(Node("string"), kind.key_type, keys, None),
                build(node.item, kind.item_type, items),
            ],
        )
    return pa.Array.from_buffers(kind, len(values), buffers, children=[inner])


def _build_leaf(node: Node, kind: pa.DataType, values: list[Any], present: pa.Buffer | None) -> pa.Array:
    if node.logical == "uuid":
        values = [value and str(value) for value in values]
    if node.logical == "decimal":
        width_bytes = kind.bit_width // 8
        data = b"".join(
            (0 if value is None else unscaled(value, node.scale)).to_bytes(width_bytes, "little", signed=True)
            for value in values
        )
    elif node.kind in _TYPECODES:
        to_raw = MOMENTS[node.logical].to_raw if node.logical else None
        plain = [0 if one is None else to_raw(one) if to_raw else one for one in values]
        data = array(_TYPECODES[node.kind], plain).tobytes()
    elif node.kind == "boolean":
        return pa.Array.from_buffers(kind, len(values), [present, _bitmap(values)])
    else:
        pieces = [one.encode() if isinstance(one, str) else one or b"" for one in values]
        if pa.types.is_fixed_size_binary(kind):
            pieces = [one or bytes(node.size_bytes) for one in pieces]
        else:
            ends = array("i", [0])
            for piece in pieces:
                ends.append(ends[-1] + len(piece))
            buffers = [present, pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(pieces))]
            return pa.Array.from_buffers(kind, len(values), buffers)
        data = b"".join(pieces)
    return pa.Array.from_buffers(kind, len(values), [present, pa.py_buffer(data)])


def _bitmap(flags: list[Any]) -> pa.Buffer:
    bits = bytearray((len(flags) + 7) // 8)
    for place, flag in enumerate(flags):
        if flag:
            bits[place >> 3] |= 1 << (place & 7)
    return pa.py_buffer(bytes(bits))
