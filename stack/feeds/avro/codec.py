"""Values to bytes and back, one at a time: the reference that says what a payload means."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from stack.errors import BadRecord, NotFound
from stack.feeds.avro import wire
from stack.feeds.avro.defaults import check_defaults
from stack.feeds.avro.fault import Fault
from stack.feeds.avro.leaf_writing import Write
from stack.feeds.avro.nodes import node_of
from stack.feeds.avro.reading import compile_reader
from stack.feeds.avro.schema import AvroSchema, SchemaSource
from stack.feeds.avro.writing import compile_writer

_ReadAll = Callable[[bytes, int], Any]
_COMPILED = 256


class RecordEncoder:
    """Makes payloads of values, all with one schema."""

    def __init__(self, schema: AvroSchema, schema_id: int) -> None:
        self._header = wire.pack(schema_id)
        self._write = _writer_of(schema)

    def encode(self, value: object) -> bytes:
        """The payload of `value`, or BadRecord that names the field the schema refuses."""
        out = bytearray(self._header)
        try:
            self._write(value, out, 0)
        except Fault as fault:
            raise fault.final() from None
        except RecursionError:
            raise BadRecord("the value is nested too deeply") from None
        return bytes(out)


class RecordDecoder:
    """Makes values of payloads, each read with the schema it was written with, as `reader` wants it."""

    def __init__(self, schemas: SchemaSource, reader: AvroSchema | None = None) -> None:
        self._schemas = schemas
        self._reader = reader
        self._reads: dict[bytes, _ReadAll] = {}
        if reader is not None:
            check_defaults(node_of(reader))

    def decode(self, payload: bytes) -> Any:
        """The value of `payload`; BadRecord for anything that is not exactly one value."""
        header = payload[: wire.HEADER_BYTES]
        read = self._reads.get(header) or self._find_read(header)
        try:
            return read(payload, wire.HEADER_BYTES)
        except Fault as fault:
            where = f"field '{fault.path}': " if fault.path else ""
            schema_id = wire.schema_id_of(header)
            raise BadRecord(
                f"{where}{fault.reason} (schema id {schema_id})", field=fault.path or None
            ) from None
        except RecursionError:
            raise BadRecord("the value is nested too deeply") from None

    def _find_read(self, header: bytes) -> _ReadAll:
        writer = find_schema(self._schemas, wire.schema_id_of(header))
        reader = None if self._reader == writer else self._reader
        found = self._reads[header] = _reader_of(writer, reader)
        return found


# Compiled once for all of a process: whoever makes a codec anew for an old schema need not wait for that.


@lru_cache(_COMPILED)
def _writer_of(schema: AvroSchema) -> Write:
    return compile_writer(node_of(schema))


@lru_cache(_COMPILED)
def _reader_of(writer: AvroSchema, reader: AvroSchema | None) -> _ReadAll:
    return compile_reader(node_of(writer), None if reader is None else node_of(reader))


def find_schema(schemas: SchemaSource, schema_id: int) -> AvroSchema:
    """The schema a payload names; an unknown id is the payload's fault, hence BadRecord."""
    try:
        return schemas.schema_by_id(schema_id)
    except NotFound as error:
        raise BadRecord(
            f"the header names schema id {schema_id}, which the registry does not have",
            hint=error.hint or "It was written against another registry, or is not Avro at all.",
        ) from None
