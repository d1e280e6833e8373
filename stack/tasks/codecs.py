"""How keys and values of stores become bytes: text, whole numbers, bytes, JSON, or Avro by a schema."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

from stack.errors import BadRecord
from stack.feeds.avro.codec import RecordDecoder, RecordEncoder
from stack.feeds.avro.schema import SchemaSource, parse_avro
from stack.model.coding import Coding
from stack.model.job import KeyCodec, StoreSpec, ValueCodec
from stack.model.packed import pack, pack_longs, pack_ordered_longs, pack_texts

_LONG = struct.Struct(">q")
_KEY = struct.Struct(">Q")
_HALF = 1 << 63


def _strict(store: str, what: str, kind: type, hint: str) -> Callable[[Any], Any]:
    """Takes instances of a type, also of subclasses of it but bool, and refuses the rest."""

    def fit(value: Any) -> Any:
        if isinstance(value, kind) and not isinstance(value, bool):
            return kind(value)
        raise BadRecord(
            f"store {store!r} has {kind.__name__} {what}, got {type(value).__name__} {_shown(value)}",
            hint=hint,
        )

    return fit


def key_coding(spec: StoreSpec) -> Coding:
    """How keys of a store become bytes, in an order that is theirs."""
    store = spec.name
    hint = f"Convert it, or change `key` of [stores.{store}] in job.toml and rename the store."
    if spec.key is KeyCodec.STR:
        return Coding(str, str.encode, bytes.decode, _strict(store, "keys", str, hint), pack_texts)
    if spec.key is KeyCodec.BYTES:
        return Coding(bytes, bytes, bytes, _strict(store, "keys", bytes, hint), pack)

    # Flipping the sign bit makes the order of the bytes that of the numbers.
    def encode(value: int) -> bytes:
        return _KEY.pack(value + _HALF)

    def decode(data: bytes) -> int:
        return int(_KEY.unpack(data)[0]) - _HALF

    return Coding(int, encode, decode, _strict(store, "keys", int, hint), pack_ordered_longs)


def value_coding(spec: StoreSpec, schemas: SchemaSource | None = None, schema_id: int = 0) -> Coding:
    """How values of a store become bytes. Avro needs the registry and the id of the store's schema."""
    store = spec.name
    hint = f"Convert it, or change `value` of [stores.{store}] in job.toml and rename the store."
    match spec.value:
        case ValueCodec.STR:
            return Coding(str, str.encode, bytes.decode, _strict(store, "values", str, hint), pack_texts)
        case ValueCodec.BYTES:
            return Coding(bytes, bytes, bytes, _strict(store, "values", bytes, hint), pack)
        case ValueCodec.INT:
            return Coding(int, _LONG.pack, _unpack_long, _strict(store, "values", int, hint), pack_longs)
        case ValueCodec.JSON:
            return Coding(None, _encode_json(store), json.loads, _same)
        case ValueCodec.AVRO:
            if schemas is None or spec.schema is None:
                raise AssertionError(f"store {store!r} needs the schema of its values")
            reader = parse_avro(spec.schema, f"the schema of store {store!r}")
            encoder, decoder = RecordEncoder(reader, schema_id), RecordDecoder(schemas, reader)
            return Coding(None, _encode_avro(store, encoder), decoder.decode, _same)


def _unpack_long(data: bytes) -> int:
    return int(_LONG.unpack(data)[0])


def _encode_json(store: str) -> Callable[[Any], bytes]:
    dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode

    def encode(value: Any) -> bytes:
        try:
            return dumps(value).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRecord(
                f"store {store!r}: JSON cannot hold {_shown(value)}: {error}",
                hint="Use text, numbers, true/false, None, lists and dicts with text keys.",
            ) from None

    return encode


def _encode_avro(store: str, encoder: RecordEncoder) -> Callable[[Any], bytes]:
    def encode(value: Any) -> bytes:
        try:
            return encoder.encode(value)
        except BadRecord as error:
            raise BadRecord(f"store {store!r}: {error.message}", error.hint, error.field) from None

    return encode


def _same(value: Any) -> Any:
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
