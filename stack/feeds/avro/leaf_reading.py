"""Bytes to numbers, text and bytes: the reading of Avro's primitive types, with everything checked.

Each reader takes the payload, an offset and the payload's budget, and gives the value and the offset
behind it. What a schema refuses is a Fault, except that a byte behind the end is an IndexError and text
that is not UTF-8 a UnicodeDecodeError: whoever calls makes a Fault of these with `as_fault`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from stack.feeds.avro.fault import Fault

MAX_NESTING = 100
MAX_EMPTY_ITEMS = 1 << 16
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")


class Budget:
    """What one payload may still use of the things that its length does not bound."""

    __slots__ = ("empty_items", "nesting")

    def __init__(self) -> None:
        self.empty_items = MAX_EMPTY_ITEMS
        self.nesting = MAX_NESTING


Read = Callable[[bytes, int, Budget], tuple[Any, int]]


def too_early(data: bytes, end: int) -> Fault:
    """The fault of a payload that should go on until `end`."""
    return Fault(f"the value ends too early, {end - len(data)} more bytes are needed")


def as_fault(error: Exception) -> Fault:
    """What a reader raised, as a Fault."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, UnicodeDecodeError):
        return Fault(f"the text is not UTF-8 ({error.reason} at byte {error.start})")
    return Fault("the value ends too early")


def read_null(data: bytes, at: int, budget: Budget) -> tuple[None, int]:  # noqa: ARG001
    return None, at


def read_boolean(data: bytes, at: int, budget: Budget) -> tuple[bool, int]:  # noqa: ARG001
    if data[at] > 1:
        raise Fault(f"boolean must be 0 or 1, found {data[at]}")
    return data[at] == 1, at + 1


def read_long(data: bytes, at: int, budget: Budget) -> tuple[int, int]:  # noqa: ARG001
    byte = data[at]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, shift = byte & 127, 7
    while True:
        at += 1
        byte = data[at]
        if byte < 128:
            break
        number |= (byte & 127) << shift
        shift += 7
        if shift > 63:
            raise Fault("a number has more than ten bytes")
    number |= byte << shift
    if number >> 64:
        raise Fault("a number has more than 64 bits")
    return (number >> 1) ^ -(number & 1), at + 1


def read_float(data: bytes, at: int, budget: Budget) -> tuple[float, int]:  # noqa: ARG001
    try:
        return _FLOAT.unpack_from(data, at)[0], at + 4
    except struct.error:
        raise too_early(data, at + 4) from None


def read_double(data: bytes, at: int, budget: Budget) -> tuple[float, int]:  # noqa: ARG001
    try:
        return _DOUBLE.unpack_from(data, at)[0], at + 8
    except struct.error:
        raise too_early(data, at + 8) from None


def read_bytes(data: bytes, at: int, budget: Budget) -> tuple[bytes, int]:
    length = data[at]
    # An odd first byte is a negative number, one above 127 goes on.
    if length & 129:
        length, at = read_long(data, at, budget)
        if length < 0:
            raise Fault(f"a length is negative ({length})")
    else:
        length >>= 1
        at += 1
    end = at + length
    if end > len(data):
        raise Fault(f"{length} bytes are announced, {len(data) - at} are left")
    return data[at:end], end


def read_text(data: bytes, at: int, budget: Budget) -> tuple[str, int]:
    # As read_bytes for short text, which saves a call on the most frequent type.
    length = data[at]
    end = at + 1 + (length >> 1)
    if length & 129 or end > len(data):
        raw, end = read_bytes(data, at, budget)
        return raw.decode(), end
    return data[at + 1 : end].decode(), end


def ranged(least: int, until: int, what: str) -> Read:
    """A reader of numbers from `least` to below `until`."""

    def read(data: bytes, at: int, budget: Budget) -> tuple[int, int]:
        number, at = read_long(data, at, budget)
        if not least <= number < until:
            raise Fault(f"{number} is out of range for {what}")
        return number, at

    return read


def fixed(size_bytes: int) -> Read:
    """A reader of so many bytes."""

    def read(data: bytes, at: int, budget: Budget) -> tuple[bytes, int]:  # noqa: ARG001
        end = at + size_bytes
        if end > len(data):
            raise too_early(data, end)
        return data[at:end], end

    return read


PRIMITIVE_READS: dict[str, Read] = {
    "null": read_null,
    "boolean": read_boolean,
    "int": ranged(-(1 << 31), 1 << 31, "int"),
    "long": read_long,
    "float": read_float,
    "double": read_double,
    "bytes": read_bytes,
    "string": read_text,
}
