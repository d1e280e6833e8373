"""Values to bytes and back, one at a time: the reference that says what a payload means."""

from __future__ import annotations

import copy
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro

from stack.errors import BadRecord, NotFound
from stack.feeds.avro import wire
from stack.feeds.avro.defaults import with_typed_defaults
from stack.feeds.avro.nodes import node_of
from stack.feeds.avro.scan import Malformed, compile_scan
from stack.feeds.avro.schema import AvroSchema, SchemaSource
from stack.feeds.avro.validate import compile_check

_Writer = tuple[int, Any, Callable[[bytes, int], None]]


class RecordEncoder:
    """Makes payloads of values, all with one schema."""

    def __init__(self, schema: AvroSchema, schema_id: int) -> None:
        self._header = wire.pack(schema_id)
        self._parsed, _ = with_typed_defaults(schema)
        self._check = compile_check(schema)

    def encode(self, value: object) -> bytes:
        """The payload of `value`, or BadRecord that names the field the schema refuses."""
        fault = self._check(value, 0)
        if fault is not None:
            subject = f"field '{fault.path}'" if fault.path else "the value"
            raise BadRecord(f"{subject} {fault.sentence}", field=fault.path or None)
        stream = BytesIO()
        stream.write(self._header)
        try:
            fastavro.schemaless_writer(stream, self._parsed, value)
        except Exception as error:  # fastavro has no common root for what it refuses
            raise BadRecord(f"the value cannot be written: {_reason(error)}") from None
        return stream.getvalue()


class RecordDecoder:
    """Makes values of payloads, each read with the schema it was written with, as `reader` wants it."""

    def __init__(self, schemas: SchemaSource, reader: AvroSchema | None = None) -> None:
        self._schemas = schemas
        self._reader: Any = None
        self._has_mutable_defaults = False
        if reader is not None:
            self._reader, self._has_mutable_defaults = with_typed_defaults(reader)
        self._writers: dict[bytes, _Writer] = {}

    def decode(self, payload: bytes) -> Any:
        """The value of `payload`; BadRecord for anything that is not exactly one value."""
        header = payload[: wire.HEADER_BYTES]
        schema_id, writer, scan = self._writers.get(header) or self._find_writer(header)
        try:
            scan(payload, wire.HEADER_BYTES)
            stream = BytesIO(payload)
            stream.seek(wire.HEADER_BYTES)
            value = fastavro.schemaless_reader(stream, writer, self._reader)
        except Malformed as error:
            path = ".".join(reversed(error.path))
            where = f"field '{path}': " if path else ""
            raise BadRecord(f"{where}{error.sentence} (schema id {schema_id})", field=path or None) from None
        except Exception as error:  # whatever leaf or resolution fastavro gives up on
            raise BadRecord(
                f"the value cannot be read with schema id {schema_id}: {_reason(error)}"
            ) from None
        return copy.deepcopy(value) if self._has_mutable_defaults else value

    def _find_writer(self, header: bytes) -> _Writer:
        schema_id = wire.schema_id_of(header)
        schema = find_schema(self._schemas, schema_id)
        found = (schema_id, schema.parsed, compile_scan(node_of(schema)))
        self._writers[header] = found
        return found


def find_schema(schemas: SchemaSource, schema_id: int) -> AvroSchema:
    """The schema a payload names; an unknown id is the payload's fault, hence BadRecord."""
    try:
        return schemas.schema_by_id(schema_id)
    except NotFound as error:
        raise BadRecord(
            f"the header names schema id {schema_id}, which the registry does not have",
            hint=error.hint or "It was written against another registry, or is not Avro at all.",
        ) from None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
