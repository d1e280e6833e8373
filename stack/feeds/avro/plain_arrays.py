"""Arrow arrays of plain Python values, as quickly as pyarrow makes them, and without pandas.

The first time that `pa.array` is called it imports pandas, only to ask whether the values are of pandas: half
a second of a processor, in every process that writes a few columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

Build = Callable[[Sequence[Any]], pa.Array]
_MOST_BYTES = 2**31 - 1


def _texts(values: Sequence[str]) -> pa.Array:
    whole = "".join(values)
    if whole.isascii():
        return _sized(pa.string(), values, whole.encode("ascii"))
    encoded = list(map(str.encode, values))
    return _sized(pa.string(), encoded, b"".join(encoded))


def _binaries(values: Sequence[bytes]) -> pa.Array:
    return _sized(pa.binary(), values, b"".join(values))


def _sized(kind: pa.DataType, values: Sequence[str] | Sequence[bytes], data: bytes) -> pa.Array:
    """An array of what lies end to end in `data`; each takes as many bytes as it has places."""
    if len(data) > _MOST_BYTES:
        raise OverflowError(f"{len(data):,} bytes are more than a column holds")
    count = len(values)
    ends = np.zeros(count + 1, np.int32)
    np.fromiter(map(len, values), np.int32, count).cumsum(out=ends[1:])
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _flags(values: Sequence[bool]) -> pa.Array:
    bits = np.packbits(np.fromiter(values, np.bool_, len(values)), bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def _numbers(kind: pa.DataType, code: str) -> Build:
    def build(values: Sequence[Any]) -> pa.Array:
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array(code, values))])

    return build


PLAIN: dict[str, tuple[type, Build]] = {
    "string": (str, _texts),
    "long": (int, _numbers(pa.int64(), "q")),
    "int": (int, _numbers(pa.int32(), "i")),
    "double": (float, _numbers(pa.float64(), "d")),
    "boolean": (bool, _flags),
    "bytes": (bytes, _binaries),
}
"""By the name of an Avro type: what its values are in Python, and how a list of them becomes an array.

OverflowError for a number that is too large, UnicodeEncodeError for half a character.
"""
