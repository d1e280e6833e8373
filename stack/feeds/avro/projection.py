"""Columns as written, turned into columns as a reader wants them, where that is exact.

Fields may be added with a default, dropped and reordered, numbers widened, moments read as numbers and
nulls allowed, at any depth of records, arrays and maps. Aliases of fields, changes within unions and
everything else are Unsupported: the reference resolves those.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from stack.feeds.avro.arrays import arrow_field, batch_of, build, without_null
from stack.feeds.avro.defaults import default_of
from stack.feeds.avro.logical import MOMENTS
from stack.feeds.avro.nodes import MISSING, Field, Node
from stack.feeds.avro.physical import Unsupported, rebuild, retype
from stack.feeds.avro.resolving import same_name

_WIDER = {("int", "long"), ("int", "float"), ("int", "double"), ("long", "double"), ("float", "double")}
Turn = Callable[[pa.Array], pa.Array]


def compile_projection(
    writer: Node, reader: Node, schema: pa.Schema
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function from batches of the writer's schema to `schema`, the arrow_schema of `reader`."""
    turns = _turns(writer, reader, list(schema))

    def project(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            turn(batch.column(source)) if source is not None else _repeated(turn, batch.num_rows)
            for source, turn in turns
        ]
        return batch_of(columns, schema, batch.num_rows)

    return project


def _turns(writer: Node, reader: Node, fields: list[pa.Field]) -> list[tuple[int | None, Turn]]:
    """For each field of the reader: the writer's field it comes from and how, or None and its default."""
    if not same_name(writer, reader):
        raise Unsupported(f"{writer.name} read as {reader.name}")
    if any(one.aliases for one in reader.fields):
        raise Unsupported("aliases")
    places = {one.name: place for place, one in enumerate(writer.fields)}
    found: list[tuple[int | None, Turn]] = []
    for one, field in zip(reader.fields, fields, strict=True):
        place = places.get(one.name)
        if place is None:
            found.append((None, _constant(reader, one, field.type)))
        else:
            found.append((place, _turn(writer.fields[place].node, one.node, field.type)))
    return found


def _constant(record: Node, field: Field, kind: pa.DataType) -> Turn:
    if field.default is MISSING:
        raise Unsupported(f"{field.name}, which has no default")
    one = build(field.node, kind, [default_of(record, field)])
    return one.take


def _repeated(take: Turn, rows: int) -> pa.Array:
    return take(pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(bytes(4 * rows))]))


def _turn(writer: Node, reader: Node, kind: pa.DataType) -> Turn:
    written, was_optional = without_null(writer)
    wanted, is_optional = without_null(reader)
    if was_optional and not is_optional:
        raise Unsupported(f"a null where {wanted.label} is wanted")
    if written.kind == wanted.kind == "record":
        return _record_turn(written, wanted, kind)
    if written.kind == wanted.kind and written.kind in ("array", "map"):
        return _items_turn(written, wanted, kind)
    if (written.kind, wanted.kind) in _WIDER and not written.logical and not wanted.logical:
        return lambda column: column.cast(kind, safe=False)
    is_raw = written.kind == wanted.kind and not wanted.logical and written.logical in MOMENTS
    if not is_raw and not _same(written, wanted):
        raise Unsupported(f"{written.label} read as {wanted.label}")
    return lambda column: retype(column, kind)


def _record_turn(writer: Node, reader: Node, kind: pa.DataType) -> Turn:
    turns = _turns(writer, reader, [kind.field(place) for place in range(kind.num_fields)])

    def turn(column: pa.Array) -> pa.Array:
        children = [
            inner(column.field(source)) if source is not None else _repeated(inner, len(column))
            for source, inner in turns
        ]
        return rebuild(column, kind, children)

    return turn


def _items_turn(writer: Node, reader: Node, kind: pa.DataType) -> Turn:
    assert writer.item is not None  # noqa: S101 - arrays and maps always have one
    assert reader.item is not None  # noqa: S101
    if writer.kind == "map":
        values = _turn(writer.item, reader.item, kind.item_type)
        return lambda column: rebuild(
            column, kind, [retype(column.keys, kind.key_type), values(column.items)]
        )
    items = _turn(writer.item, reader.item, kind.value_type)
    return lambda column: rebuild(column, kind, [items(column.values)])


def _same(writer: Node, reader: Node) -> bool:
    """Whether both types have the same columns and the reader refuses nothing that was written."""
    if (writer.kind, writer.logical) != (reader.kind, reader.logical):
        return False
    if writer.kind == "enum":
        return same_name(writer, reader) and set(writer.symbols) <= set(reader.symbols)
    if writer.kind != "union":
        return writer.kind != "record" and not writer.children
    if len(writer.branches) != len(reader.branches):
        return False
    pairs = zip(writer.branches, reader.branches, strict=True)
    return all(_same(one, other) for one, other in pairs) and arrow_field("", writer) == arrow_field(
        "", reader
    )
