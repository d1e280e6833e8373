"""Keys of a feed: from a field of the value to bytes, and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from stack.errors import BadRecord
from stack.feeds.avro.codec import RecordDecoder, RecordEncoder
from stack.feeds.avro.schema import AvroSchema, SchemaSource, parse_avro
from stack.model.feed import Key, KeyFormat


def key_schema(key: Key, schema: AvroSchema) -> AvroSchema:
    """The schema of an Avro key: the type of the value's field."""
    for field in schema.tree["fields"]:
        if field["name"] == key.field:
            return parse_avro(json.dumps(field["type"]), where=f"the key field {key.field!r}")
    raise BadRecord(f"the schema has no field {key.field!r} to make keys of", field=key.field)


def key_encoder(key: Key | None, avro: RecordEncoder | None) -> Callable[[Any], bytes | None]:
    """Turns a key into bytes. A feed without a declared key takes text and bytes as they come."""
    if key is not None and key.format is KeyFormat.AVRO and avro is not None:
        return avro.encode
    return text_key


def text_key(value: Any) -> bytes | None:
    """Text as UTF-8, whole numbers as their digits."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value).encode()
    raise BadRecord(f"a key must be text, bytes or a whole number, got {type(value).__name__} {value!r}")


def key_decoder(key: Key | None, schemas: SchemaSource) -> Callable[[bytes | None], Any]:
    """Turns bytes into a key as people read it; bytes that are not what was declared stay bytes."""
    if key is not None and key.format is KeyFormat.AVRO:
        decode = RecordDecoder(schemas).decode

        def avro(data: bytes | None) -> Any:
            if data is None:
                return None
            try:
                return decode(data)
            except BadRecord:
                return data

        return avro
    return _text


def _text(data: bytes | None) -> str | bytes | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
