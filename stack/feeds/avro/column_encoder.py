"""Record batches to payloads, on pyruhvro, or value by value where it cannot."""

from __future__ import annotations

import logging

import pyarrow as pa

from stack.errors import BadRecord
from stack.feeds.avro import wire
from stack.feeds.avro.arrays import arrow_schema, batch_of, build, without_null
from stack.feeds.avro.batch_checks import BadPayload, has_stray_null, is_sound
from stack.feeds.avro.batch_rows import packed_of, rows
from stack.feeds.avro.codec import RecordEncoder
from stack.feeds.avro.defaults import default_of
from stack.feeds.avro.nodes import MISSING, Node, record_node
from stack.feeds.avro.physical import HEADER_FIELDS, Physical, Unsupported, retype, write
from stack.feeds.avro.schema import AvroSchema
from stack.model.packed import Packed, pack

_LOG = logging.getLogger("feedstack.codec")


class ColumnEncoder:
    """Makes payloads of record batches; columns are matched by name."""

    def __init__(self, schema: AvroSchema, schema_id: int) -> None:
        self._node = record_node(schema)
        self._schema = arrow_schema(schema)
        self._header = wire.pack(schema_id)
        self._reference = RecordEncoder(schema, schema_id)
        self._physical: Physical | None = None
        try:
            if _has_wide_union(self._node):
                raise Unsupported("a union of more than null and one type")
            self._physical = Physical(self._node)
        except Unsupported as error:
            _LOG.debug("schema id %d is encoded record by record: %s", schema_id, error)

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """One payload for each row; BadPayload names the first row that the schema refuses."""
        fitted = self._fitted(batch)
        written = self._written(fitted)
        if written is None:
            return self._encode_rows(fitted)
        return _listed(written)

    def encode_packed(self, batch: pa.RecordBatch) -> Packed:
        """The same, with no object for each payload where that is possible."""
        fitted = self._fitted(batch)
        written = self._written(fitted)
        if written is None:
            return pack(self._encode_rows(fitted))
        return packed_of(written[0]) if len(written) == 1 else pack(_listed(written))

    def _written(self, fitted: pa.RecordBatch) -> list[pa.BinaryArray] | None:
        """Payloads by columns, or None where that cannot be."""
        if self._physical is None or self._is_doubtful(fitted):
            return None
        kinds = list(self._physical.schema)[HEADER_FIELDS:]
        columns = [retype(one, field.type) for one, field in zip(fitted.columns, kinds, strict=True)]
        return write(self._physical, self._header, columns, fitted.num_rows)

    def _is_doubtful(self, batch: pa.RecordBatch) -> bool:
        strays = zip(self._node.fields, batch.columns, strict=True)
        return any(has_stray_null(one.node, column) for one, column in strays) or not is_sound(batch)

    def _encode_rows(self, batch: pa.RecordBatch) -> list[bytes]:
        payloads = []
        try:
            values = rows(batch)
        except (ValueError, OverflowError) as error:
            raise BadRecord(f"a column holds what no value can be: {error}") from None
        for index, value in enumerate(values):
            try:
                payloads.append(self._reference.encode(value))
            except BadRecord as error:
                raise BadPayload(error, index) from None
        return payloads

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with exactly the schema's columns and types."""
        names = batch.schema.names
        unknown = [name for name in names if name not in self._schema.names]
        if unknown:
            raise BadRecord(f"column '{unknown[0]}' is not in {self._node.name}", field=unknown[0])
        columns = []
        for one, field in zip(self._node.fields, self._schema, strict=True):
            if one.name in names:
                columns.append(_cast(batch.column(names.index(one.name)), field))
            elif one.default is not MISSING:
                value = default_of(self._node, one)
                columns.append(build(one.node, field.type, [value] * batch.num_rows))
            else:
                raise BadRecord(
                    f"column '{one.name}' is missing and {self._node.name} gives it no default",
                    field=one.name,
                )
        return batch_of(columns, self._schema, batch.num_rows)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type.equals(pa.uuid()):
        texts = [value and str(value) for value in column.to_pylist()]
        column = build(Node("string"), pa.string(), texts)
    if column.type.equals(field.type):
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise BadRecord(
            f"column '{field.name}' must be {field.type}, got {column.type}: {error}", field=field.name
        ) from None


def _listed(parts: list[pa.BinaryArray]) -> list[bytes]:
    return [payload for part in parts for payload in part.to_pylist()]


def _has_wide_union(node: Node) -> bool:
    inner, _ = without_null(node)
    return inner.kind == "union" or any(_has_wide_union(one) for one in inner.children)
