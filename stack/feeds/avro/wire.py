"""The registry's wire format: byte 0, the schema id in four big-endian bytes, then the Avro body."""

from __future__ import annotations

import struct

from stack.errors import BadRecord

HEADER_BYTES = 5
MAX_SCHEMA_ID = (1 << 31) - 1
_HEADER = struct.Struct(">bi")


def pack(schema_id: int) -> bytes:
    """The five bytes before the body of every value written with this schema."""
    if not 0 <= schema_id <= MAX_SCHEMA_ID:
        raise BadRecord(f"schema id {schema_id} does not fit the header: ids run from 0 to {MAX_SCHEMA_ID}")
    return _HEADER.pack(0, schema_id)


def schema_id_of(payload: bytes) -> int:
    """The id in the header of `payload`, or BadRecord that says what was found instead."""
    if len(payload) < HEADER_BYTES:
        found = f"only {len(payload)} ({payload.hex(' ')})" if payload else "none"
        raise BadRecord(
            f"a value starts with {HEADER_BYTES} header bytes, found {found}",
            hint="It was not written with the registry's wire format; look at the producer's serializer.",
        )
    magic, schema_id = _HEADER.unpack_from(payload)
    if magic != 0:
        raise BadRecord(
            f"a value starts with byte 0, found {payload[0]} ({payload[:HEADER_BYTES].hex(' ')})",
            hint="It was not written with the registry's wire format; look at the producer's serializer.",
        )
    if schema_id < 0:
        raise BadRecord(f"the header names schema id {schema_id}, and ids are not negative")
    return int(schema_id)


def split(payload: bytes) -> tuple[int, bytes]:
    """The schema id and the Avro body of a value."""
    return schema_id_of(payload), payload[HEADER_BYTES:]
