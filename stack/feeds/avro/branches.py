"""Which branch of a union a value belongs to, for whoever has the value alone."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

from stack.feeds.avro.logical import MICROSECOND, MOMENTS, fits_decimal
from stack.feeds.avro.nodes import Node

_TYPES: dict[str, type] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "bytes": bytes,
    "fixed": bytes,
    "enum": str,
    "array": list,
    "map": dict,
    "record": dict,
    "decimal": Decimal,
    "uuid": UUID,
    **{name: one.python for name, one in MOMENTS.items()},
}


def branch_of(union: Node, value: Any) -> int | None:
    """The first branch that holds `value` as a decoder would give it; None if there is none."""
    for place, branch in enumerate(union.branches):
        if _holds(branch, value):
            return place
    return None


def _holds(node: Node, value: Any) -> bool:
    if node.kind == "union":
        return any(_holds(one, value) for one in node.branches)
    if type(value) is not _TYPES[node.logical or node.kind]:
        return False
    if node.logical in MOMENTS:
        return _holds_moment(node, value)
    further = _FURTHER.get(node.logical or node.kind)
    return further is None or further(node, value)


def _holds_moment(node: Node, value: Any) -> bool:
    moments = MOMENTS[node.logical]
    # Only a unit coarser than Python's own can lose something.
    return moments.accepts(value) and (
        moments.unit == MICROSECOND or moments.from_raw(moments.to_raw(value)) == value
    )


def _is_single(node: Node, value: float) -> bool:  # noqa: ARG001
    try:
        return math.isnan(value) or bool(struct.unpack("f", struct.pack("f", value))[0] == value)
    except OverflowError:
        return False


def _holds_fields(node: Node, value: dict[str, Any]) -> bool:
    return len(value) == len(node.fields) and all(
        one.name in value and _holds(one.node, value[one.name]) for one in node.fields
    )


_FURTHER: dict[str, Callable[[Node, Any], bool]] = {
    "int": lambda _, value: -(1 << 31) <= value < 1 << 31,
    "long": lambda _, value: -(1 << 63) <= value < 1 << 63,
    "float": _is_single,
    "fixed": lambda node, value: len(value) == node.size_bytes,
    "enum": lambda node, value: value in node.symbols,
    "array": lambda node, value: node.item is not None and all(_holds(node.item, one) for one in value),
    "map": lambda node, value: (
        node.item is not None and all(_holds(node.item, one) for one in value.values())
    ),
    "record": _holds_fields,
    "decimal": lambda node, value: fits_decimal(value, node.precision, node.scale),
}
