"""Rows of a batch as Python dicts, equal to what the reference decoder gives."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa

from stack.feeds.avro.arrays import UUID_MARK
from stack.feeds.avro.logical import EPOCH, LOCAL_EPOCH, MICROSECOND, MILLISECOND
from stack.model.packed import Packed, pack, pack_slices

Code = Literal["i", "q", "f", "d"]
_CODES: dict[pa.DataType, Code] = {pa.int32(): "i", pa.int64(): "q", pa.float32(): "f", pa.float64(): "d"}
_UNITS = {"ms": MILLISECOND, "us": MICROSECOND}


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """One dict for each row."""
    if not batch.num_columns:
        return [{} for _ in range(batch.num_rows)]
    columns = [values_of(column, field) for column, field in zip(batch.columns, batch.schema, strict=True)]
    return _dicts(batch.schema.names, columns)


def values_of(column: pa.Array, field: pa.Field) -> list[Any]:
    """The values of an array, null as None; `field` says what the type does not."""
    kind = column.type
    if kind in _CODES:
        return _numbers(column, _CODES[kind])
    if pa.types.is_string(kind):
        texts = _texts(column)
        is_uuid = (field.metadata or {}).items() >= UUID_MARK.items()
        return [text and UUID(text) for text in texts] if is_uuid else texts
    if pa.types.is_timestamp(kind):
        return _timestamps(column)
    if pa.types.is_struct(kind):
        return _structs(column)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _items(column)
    if pa.types.is_union(kind):
        codes = memoryview(column.buffers()[1]).cast("b")[column.offset : column.offset + len(column)]
        branches = [values_of(column.field(place), kind.field(place)) for place in range(kind.num_fields)]
        return [branches[code][place] for place, code in enumerate(codes.tolist())]
    values: list[Any] = column.to_pylist()
    return values


def _dicts(names: list[str], columns: list[list[Any]]) -> list[Any]:
    made: list[Any] = _dict_maker(tuple(names))(columns)
    return made


@lru_cache(maxsize=256)
def _dict_maker(names: tuple[str, ...]) -> Callable[[list[list[Any]]], list[Any]]:
    """Most of the time goes into making the dicts: a literal with the names in it takes a third of it."""
    places = [f"value_{place}" for place in range(len(names))]
    items = ", ".join(f"{name!r}: {place}" for name, place in zip(names, places, strict=True))
    code = f"lambda columns: [{{{items}}} for {', '.join(places)}, in zip(*columns, strict=True)]"
    maker: Callable[[list[list[Any]]], list[Any]] = eval(code)  # noqa: S307 - names stand in it as literals
    return maker


def _numbers(column: pa.Array, code: Code) -> list[Any]:
    if not len(column):
        return []
    view = memoryview(column.buffers()[1])
    width_bytes = column.type.bit_width // 8
    end = (column.offset + len(column)) * width_bytes
    values: list[Any] = view[column.offset * width_bytes : end].cast(code).tolist()
    return _with_nulls(column, values)


def _with_nulls(column: pa.Array, values: list[Any]) -> list[Any]:
    if not column.null_count:
        return values
    valid = column.is_valid().to_pylist()
    return [value if there else None for value, there in zip(values, valid, strict=True)]


def _texts(column: pa.Array) -> list[Any]:
    _, ends, data = column.buffers()
    text = b"" if data is None else bytes(data)
    if column.null_count or not len(column) or not text.isascii():
        values: list[Any] = column.to_pylist()
        return values
    # One decode and many slices: in ASCII a byte offset is a character offset.
    whole = text.decode("ascii")
    places = memoryview(ends)[column.offset * 4 : (column.offset + len(column) + 1) * 4].cast("i").tolist()
    return [whole[start:end] for start, end in pairwise(places)]


def packed_of(column: pa.Array) -> Packed:
    """The bytes of a text or binary column without nulls, where they lie."""
    _, ends, data = column.buffers()
    if not len(column):
        return pack([])
    places = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
    return pack_slices(data or b"", places)


def _timestamps(column: pa.Array) -> list[Any]:
    epoch, unit = (EPOCH if column.type.tz else LOCAL_EPOCH), _UNITS[column.type.unit]
    numbers = _numbers(column.view(pa.int64()), "q")
    return [None if number is None else epoch + number * unit for number in numbers]


def _structs(column: pa.Array) -> list[Any]:
    names = [field.name for field in column.type]
    parts = [values_of(column.field(place), field) for place, field in enumerate(column.type)]
    return _with_nulls(column, _dicts(names, parts) if names else [{} for _ in range(len(column))])


def _items(column: pa.Array) -> list[Any]:
    places = column.offsets.to_pylist()
    values: list[Any]
    if pa.types.is_map(column.type):
        pairs = list(zip(_texts(column.keys), values_of(column.items, column.type.item_field), strict=True))
        values = [dict(pairs[start:end]) for start, end in pairwise(places)]
    else:
        items = values_of(column.values, column.type.value_field)
        values = [items[start:end] for start, end in pairwise(places)]
    return _with_nulls(column, values)
