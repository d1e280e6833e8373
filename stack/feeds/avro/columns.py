"""Whole batches of payloads to Arrow and back, on pyruhvro, with the reference where that is not enough.

pyruhvro ignores bytes after a value, cuts ints to 32 bits and does not check UTF-8. Its answer is
therefore taken only with a proof: the columns, encoded again, must be the very bytes that came in. Every
encoding that differs (trailing bytes, ints out of range, blocks with sizes, long varints) is in doubt,
and so are text that is not UTF-8 and times outside Python's calendar. Batches in doubt are halved until
few payloads are left, and those go to the reference, which alone decides what is bad. Equality of the
joined bytes is enough: an encoding made here is never longer than the one read, payload by payload, so
equal sums mean equal parts.

Left to the reference for the whole schema, because pyruhvro 0.4 cannot or does otherwise:
- decimal, uuid, fixed and duration (it panics or gives other values), unions of both bytes and string
- records without fields, and arrays of items that take no bytes (it counts to whatever is declared)
- resolutions that stack.feeds.avro.projection does not do: aliases, enums that lost symbols, changed unions,
  null read as not null, long read as float (Arrow rounds once where Python rounds twice), bytes as string
- encoding of unions other than null and one type
Records that contain themselves have no Arrow type at all: BadSchema.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from stack.errors import BadInput, BadRecord, BadSchema
from stack.feeds.avro import wire
from stack.feeds.avro.arrays import arrow_schema, batch_of, build_batch
from stack.feeds.avro.batch_checks import BadPayload, is_sound
from stack.feeds.avro.batch_rows import rows
from stack.feeds.avro.codec import RecordDecoder, find_schema
from stack.feeds.avro.column_encoder import ColumnEncoder
from stack.feeds.avro.nodes import record_node
from stack.feeds.avro.physical import Physical, Unsupported, read, retype
from stack.feeds.avro.projection import compile_projection
from stack.feeds.avro.schema import AvroSchema, SchemaSource

__all__ = ["BadPayload", "ColumnDecoder", "ColumnEncoder", "arrow_schema", "rows"]

_LOG = logging.getLogger("feedstack.codec")
MAX_BATCH_BYTES = (1 << 31) - 1
SMALL_BATCH = 32
Bad = list[tuple[int, BadRecord]]


class ColumnDecoder:
    """Makes record batches of payloads; without a reader all must have one and the same shape."""

    def __init__(self, schemas: SchemaSource, reader: AvroSchema | None = None) -> None:
        self._schemas = schemas
        self._reader = reader
        self._reference = RecordDecoder(schemas, reader)
        self._writers: dict[int, _Writer] = {}
        if reader is not None:
            arrow_schema(reader)

    def decode(self, payloads: Sequence[bytes]) -> pa.RecordBatch:
        """All payloads as rows in their order, or BadPayload for the first that is bad."""
        batch, bad = self.decode_lenient(payloads)
        if bad:
            index, error = bad[0]
            raise BadPayload(error, index)
        return batch

    def decode_lenient(self, payloads: Sequence[bytes]) -> tuple[pa.RecordBatch, Bad]:
        """The good payloads as rows in their order, and the index and error of each bad one."""
        listed = payloads if isinstance(payloads, list) else list(payloads)
        batch = self._decode_alike(listed)
        return (batch, []) if batch is not None else self._decode_mixed(listed)

    def _decode_alike(self, payloads: list[bytes]) -> pa.RecordBatch | None:
        """The batch if every payload is good and has the first one's schema; None means: look closer."""
        try:
            writer = self._writer(wire.schema_id_of(payloads[0]))
        except (BadRecord, IndexError):
            return None
        return writer.decode(payloads)

    def _decode_mixed(self, payloads: list[bytes]) -> tuple[pa.RecordBatch, Bad]:
        groups: dict[int, list[int]] = {}
        bad: Bad = []
        for index, payload in enumerate(payloads):
            try:
                groups.setdefault(wire.schema_id_of(payload), []).append(index)
            except BadRecord as error:
                bad.append((index, error))
        batches: list[pa.RecordBatch] = []
        order: list[int] = []
        for schema_id, indexes in groups.items():
            try:
                writer = self._writer(schema_id)
            except BadRecord as error:
                bad += [(index, error) for index in indexes]
                continue
            refused: Bad = []
            batches += self._decode_doubtful(writer, payloads, indexes, refused)
            lost = {index for index, _ in refused}
            order += [index for index in indexes if index not in lost]
            bad += refused
        bad.sort(key=lambda one: one[0])
        return self._joined(batches, order), bad

    def _decode_doubtful(
        self, writer: _Writer, payloads: list[bytes], indexes: list[int], bad: Bad
    ) -> list[pa.RecordBatch]:
        batch = writer.decode([payloads[index] for index in indexes])
        if batch is not None:
            return [batch]
        if len(indexes) > SMALL_BATCH and writer.is_columnar:
            middle = len(indexes) // 2
            first = self._decode_doubtful(writer, payloads, indexes[:middle], bad)
            return first + self._decode_doubtful(writer, payloads, indexes[middle:], bad)
        return self._decode_rows(writer, payloads, indexes, bad)

    def _decode_rows(
        self, writer: _Writer, payloads: list[bytes], indexes: list[int], bad: Bad
    ) -> list[pa.RecordBatch]:
        good: list[Any] = []
        for index in indexes:
            try:
                good.append(self._reference.decode(payloads[index]))
            except BadRecord as error:
                bad.append((index, error))
        return [build_batch(writer.target, writer.schema, good)] if good else []

    def _joined(self, batches: list[pa.RecordBatch], order: list[int]) -> pa.RecordBatch:
        if not batches and self._reader is not None:
            return build_batch(record_node(self._reader), arrow_schema(self._reader), [])
        if not batches:
            return batch_of([], pa.schema([]), 0)
        if any(not one.schema.equals(batches[0].schema) for one in batches):
            raise BadInput(
                "the payloads were written with schemas of different shapes",
                hint="Give the decoder a reader schema, so that all become rows of one shape.",
            )
        joined = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
        if order == sorted(order):
            return joined
        return joined.take(_int_array(sorted(range(len(order)), key=order.__getitem__)))

    def _writer(self, schema_id: int) -> _Writer:
        writer = self._writers.get(schema_id)
        if writer is None:
            writer = _Writer(schema_id, find_schema(self._schemas, schema_id), self._reader)
            self._writers[schema_id] = writer
        return writer


class _Writer:
    """How payloads of one schema id become batches of `schema`, whose rows are of the type `target`."""

    def __init__(self, schema_id: int, schema: AvroSchema, reader: AvroSchema | None) -> None:
        self.target = record_node(reader or schema)
        self.schema = arrow_schema(reader or schema)
        self._physical: Physical | None = None
        self._project = None
        try:
            node = record_node(schema)
            self._written = arrow_schema(schema)
            if reader is not None and reader != schema:
                self._project = compile_projection(node, self.target, self.schema)
            self._physical = Physical(node)
        except (Unsupported, BadSchema) as error:
            _LOG.debug("schema id %d is decoded record by record: %s", schema_id, error)

    @property
    def is_columnar(self) -> bool:
        """Whether it is worth trying parts of a batch that is in doubt as a whole."""
        return self._physical is not None

    def decode(self, payloads: list[bytes]) -> pa.RecordBatch | None:
        """The batch, proven to be what the reference would give, or None."""
        whole = b"".join(payloads)
        if len(whole) > MAX_BATCH_BYTES:
            raise BadInput(
                f"a batch holds at most {MAX_BATCH_BYTES:,} bytes", hint="Decode in smaller batches."
            )
        columns = read(self._physical, payloads, whole) if self._physical else None
        if columns is None:
            return None
        typed = [retype(one, field.type) for one, field in zip(columns, self._written, strict=True)]
        batch = batch_of(typed, self._written, len(payloads))
        if not is_sound(batch):
            return None
        return self._project(batch) if self._project else batch


def _int_array(numbers: list[int]) -> pa.Array:
    data = pa.py_buffer(array("q", numbers).tobytes())
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, data])
