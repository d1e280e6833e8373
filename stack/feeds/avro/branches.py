"""Which branch of a union a decoded value belongs to: decoders give the value alone."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

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
    "date": date,
    "time-millis": time,
    "time-micros": time,
    "timestamp-millis": datetime,
    "timestamp-micros": datetime,
    "local-timestamp-millis": datetime,
    "local-timestamp-micros": datetime,
}


def branch_of(union: Node, value: Any) -> int:
    """The first branch that can hold `value` without changing it; 0 for a null that no branch holds."""
    for place, branch in enumerate(union.branches):
        if _holds(branch, value):
            return place
    if value is None:
        return 0
    raise ValueError(f"{type(value).__name__} is not {union.label}")


def _holds(node: Node, value: Any) -> bool:
    if node.kind == "union":
        return any(_holds(one, value) for one in node.branches)
    if type(value) is not _TYPES[node.logical or node.kind]:
        return False
    further = _FURTHER.get(node.logical or node.kind)
    return further is None or further(node, value)


def _is_whole_millis(node: Node, value: Any) -> bool:
    zoned = node.logical.startswith("timestamp") == (value.tzinfo is not None)
    return (zoned or isinstance(value, time)) and (value.microsecond % 1000 == 0)


def _is_single(node: Node, value: float) -> bool:  # noqa: ARG001
    try:
        return math.isnan(value) or bool(struct.unpack("f", struct.pack("f", value))[0] == value)
    except OverflowError:
        return False


def _holds_fields(node: Node, value: dict[str, Any]) -> bool:
    return len(value) == len(node.fields) and all(
        one.name in value and _holds(one.node, value[one.name]) for one in node.fields
    )


def _fits_decimal(node: Node, value: Decimal) -> bool:
    _, digits, exponent = value.as_tuple()
    return (
        isinstance(exponent, int)
        and exponent >= -node.scale
        and len(digits) + exponent + node.scale <= max(node.precision, 1)
    )


_FURTHER: dict[str, Callable[[Node, Any], bool]] = {
    "int": lambda _, value: -(1 << 31) <= value < 1 << 31,
    "float": _is_single,
    "fixed": lambda node, value: len(value) == node.size_bytes,
    "enum": lambda node, value: value in node.symbols,
    "array": lambda node, value: node.item is not None and all(_holds(node.item, one) for one in value),
    "map": lambda node, value: (
        node.item is not None and all(_holds(node.item, one) for one in value.values())
    ),
    "record": _holds_fields,
    "decimal": _fits_decimal,
    "time-millis": _is_whole_millis,
    "timestamp-millis": _is_whole_millis,
    "local-timestamp-millis": _is_whole_millis,
    "timestamp-micros": lambda _, value: value.tzinfo is not None,
    "local-timestamp-micros": lambda _, value: value.tzinfo is None,
}
