"""How a reader's type takes what a writer's type wrote: which types match, and what becomes of a value."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from stack.feeds.avro.logical import MOMENTS, decimal_from_raw
from stack.feeds.avro.nodes import Node

_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_FLOAT = struct.Struct("<f")
Convert = Callable[[Any], Any]


def match(writer: Node, reader: Node) -> Node | None:
    """The reader's type for a writer's type that is no union: itself, or its union's nearest branch."""
    if reader.kind != "union":
        return reader if _distance(writer, reader) is not None else None
    near = [(found, one) for one in reader.branches if (found := _distance(writer, one)) is not None]
    return min(near, key=lambda pair: pair[0])[1] if near else None


def _distance(writer: Node, reader: Node) -> int | None:
    """0 for the same type, more for less alike, None if values cannot be read at all."""
    if writer is reader:
        return 0
    if "union" in (writer.kind, reader.kind):
        return 2
    if writer.kind != reader.kind:
        return 3 if reader.kind in _PROMOTIONS.get(writer.kind, ()) else None
    if writer.item is not None and reader.item is not None:
        return _distance(writer.item, reader.item)
    if writer.name:
        if not same_name(writer, reader) or writer.size_bytes != reader.size_bytes:
            return None
        if writer.name != reader.name:
            return 2
    if writer.logical == reader.logical == "decimal" and writer.scale != reader.scale:
        return None
    return 1 if writer.logical == reader.logical else 2


def same_name(writer: Node, reader: Node) -> bool:
    """Whether a named type may stand for another: the same short name, or an alias of the reader's."""
    namespace, _, short = reader.name.rpartition(".")
    aliases = reader.parsed.get("aliases", ())
    full = {one if "." in one or not namespace else f"{namespace}.{one}" for one in aliases}
    return short == writer.name.rpartition(".")[2] or writer.name in full


def conversion(writer: Node, reader: Node) -> Convert | None:
    """From what stands on the wire to the reader's value; None where that is the same."""
    wrote, wants = MOMENTS.get(writer.logical), MOMENTS.get(reader.logical)
    if wrote and wants and wrote.accepts is wants.accepts:
        if wrote.unit <= wants.unit and wrote.unit != wants.unit:
            return lambda raw: wants.from_raw(wants.to_raw(wrote.from_raw(raw)))
        return wrote.from_raw
    promoted = _promotion(writer.kind, reader.kind)
    typed = from_raw(reader)
    if promoted and typed:
        return lambda raw: typed(promoted(raw))
    return promoted or typed


def _promotion(writer: str, reader: str) -> Convert | None:
    if writer in ("int", "long") and reader == "float":
        return lambda number: _FLOAT.unpack(_FLOAT.pack(number))[0]
    if writer in ("int", "long") and reader == "double":
        return float
    if (writer, reader) == ("string", "bytes"):
        return str.encode
    if (writer, reader) == ("bytes", "string"):
        return bytes.decode
    return None


def from_raw(node: Node) -> Convert | None:
    """From what stands on the wire to the value of a type; None where that is the same."""
    if node.logical == "decimal":
        return decimal_from_raw(node.precision, node.scale)
    if node.logical == "uuid":
        return UUID
    return MOMENTS[node.logical].from_raw if node.logical else None
