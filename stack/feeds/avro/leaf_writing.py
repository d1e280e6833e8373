"""Numbers, text and bytes to bytes: the writing of Avro's simple types, with everything checked.

Each writer appends a value to a bytearray or raises a Fault. Besides what decoders give, whole numbers
are taken for floats and for moments, text for uuids, and bytearrays.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

from stack.feeds.avro.fault import Fault
from stack.feeds.avro.logical import MOMENTS, fits_decimal, unscaled
from stack.feeds.avro.nodes import Node

_MAX_SYMBOLS_SHOWN = 8
_FLOATS = {"float": struct.Struct("<f").pack, "double": struct.Struct("<d").pack}
Write = Callable[[Any, bytearray, int], None]


def must(what: str, value: Any) -> Fault:
    """The fault of a value that is not what the schema says."""
    if value is None:
        return Fault(f"must be {what}, got null")
    text = repr(value)
    return Fault(
        f"must be {what}, got {type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
    )


def append_long(number: int, out: bytearray) -> None:
    """Append a number of 64 bits."""
    number = (number << 1) ^ (number >> 63)
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _write_null(value: Any, out: bytearray, nesting: int) -> None:  # noqa: ARG001
    if value is not None:
        raise must("null", value)


def _write_boolean(value: Any, out: bytearray, nesting: int) -> None:  # noqa: ARG001
    if not isinstance(value, bool):
        raise must("boolean", value)
    out.append(value)


def write_text(value: Any, out: bytearray, nesting: int) -> None:  # noqa: ARG001
    """Append a string, or the key of a map."""
    if not isinstance(value, str):
        raise must("string", value)
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise Fault("must be string, got text with half a character (a lone surrogate)") from None
    size_bytes = len(data)
    if size_bytes < 64:
        out.append(size_bytes << 1)
    else:
        append_long(size_bytes, out)
    out += data


def _write_bytes(value: Any, out: bytearray, nesting: int) -> None:  # noqa: ARG001
    if not isinstance(value, (bytes, bytearray)):
        raise must("bytes", value)
    append_long(len(value), out)
    out += value


def _whole(kind: str, bits: int) -> Write:
    least, until, what = -(1 << bits - 1), 1 << bits - 1, f"{kind} ({bits} bits)"

    def write(value: Any, out: bytearray, nesting: int) -> None:  # noqa: ARG001
        if not (type(value) is int or _is_whole(value)) or not least <= value < until:
            raise must(what, value)
        append_long(value, out)

    return write


def _floating(kind: str) -> Write:
    pack = _FLOATS[kind]

    def write(value: Any, out: bytearray, nesting: int) -> None:  # noqa: ARG001
        if type(value) is not float and not (isinstance(value, float) or _is_whole(value)):
            raise must(kind, value)
        try:
            out += pack(float(value))
        except OverflowError:
            raise must(kind, value) from None

    return write


def _moments(node: Node) -> Write:
    moments = MOMENTS[node.logical]

    def write(value: Any, out: bytearray, nesting: int) -> None:  # noqa: ARG001
        if not moments.accepts(value) and not _is_whole(value):
            raise must(moments.noun, value)
        raw = value if isinstance(value, int) else moments.to_raw(value)
        if not moments.least <= raw < moments.until:
            raise must(f"{node.logical} within the calendar", value)
        append_long(raw, out)

    return write


def _write_uuid(value: Any, out: bytearray, nesting: int) -> None:
    try:
        if not isinstance(value, UUID):
            UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise must("a uuid", value) from None
    write_text(str(value), out, nesting)


def _decimal(node: Node) -> Write:
    what = f"a decimal with {node.precision} digits, {node.scale} of them after the point"

    def write(value: Any, out: bytearray, nesting: int) -> None:
        if not isinstance(value, Decimal) or not fits_decimal(value, node.precision, node.scale):
            raise must(what, value)
        number = unscaled(value, node.scale)
        if node.kind == "bytes":
            _write_bytes(number.to_bytes((number.bit_length() + 8) // 8, signed=True), out, nesting)
            return
        try:
            out += number.to_bytes(node.size_bytes, signed=True)
        except OverflowError:
            raise must(f"a decimal that fits {node.size_bytes} bytes", value) from None

    return write


def _fixed(node: Node) -> Write:
    def write(value: Any, out: bytearray, nesting: int) -> None:  # noqa: ARG001
        if not isinstance(value, (bytes, bytearray)):
            raise must(node.label, value)
        if len(value) != node.size_bytes:
            raise must(f"{node.size_bytes} bytes", value)
        out += value

    return write


def _enum(node: Node) -> Write:
    places = {symbol: place for place, symbol in enumerate(node.symbols)}
    shown = list(node.symbols[:_MAX_SYMBOLS_SHOWN]) + ["..."] * (len(places) > _MAX_SYMBOLS_SHOWN)
    known = ", ".join(shown)

    def write(value: Any, out: bytearray, nesting: int) -> None:  # noqa: ARG001
        if not isinstance(value, str) or value not in places:
            raise must(f"one of {known}", value)
        append_long(places[value], out)

    return write


_PRIMITIVE_WRITES: dict[str, Write] = {
    "null": _write_null,
    "boolean": _write_boolean,
    "int": _whole("int", 32),
    "long": _whole("long", 64),
    "float": _floating("float"),
    "double": _floating("double"),
    "bytes": _write_bytes,
    "string": write_text,
}


def leaf_writer(node: Node) -> Write:
    """The writer of a type that holds no other type."""
    if node.logical in MOMENTS:
        return _moments(node)
    if node.logical == "decimal":
        return _decimal(node)
    if node.logical == "uuid":
        return _write_uuid
    if node.kind in ("fixed", "enum"):
        return _fixed(node) if node.kind == "fixed" else _enum(node)
    return _PRIMITIVE_WRITES[node.kind]
