"""What the functions of an expression do with values; null for null and for kinds they do not take."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from stack.model.expression.values import compare, kind_of

MAX_ROUND_DIGITS = 15


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else None


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else None


def _length(value: Any) -> Any:
    return len(value) if isinstance(value, str | bytes | list | tuple | Mapping) else None


def _abs(value: Any) -> Any:
    return abs(value) if kind_of(value) == "number" else None


def _round(value: Any, digits: Any = 0) -> Any:
    """To the nearest, halves to the even digit (as Arrow does), so that 2.5 becomes 2."""
    if kind_of(value) != "number" or type(digits) is not int or abs(digits) > MAX_ROUND_DIGITS:
        return None
    try:
        rounded = round(value, digits)
        return rounded if digits > 0 or isinstance(rounded, Decimal) else int(rounded)
    except (ArithmeticError, ValueError):
        return None


def _starts_with(text: Any, start: Any) -> Any:
    return text.startswith(start) if isinstance(text, str) and isinstance(start, str) else None


def _ends_with(text: Any, end: Any) -> Any:
    return text.endswith(end) if isinstance(text, str) and isinstance(end, str) else None


def _contains(whole: Any, part: Any) -> Any:
    """Text inside text, or a member of a list."""
    if isinstance(whole, str):
        return part in whole if isinstance(part, str) else None
    if isinstance(whole, list | tuple):
        return any(compare(operator.eq, member, part) for member in whole)
    return None


ROUTINES: dict[str, Callable[..., Any]] = {
    "lower": _lower,
    "upper": _upper,
    "length": _length,
    "abs": _abs,
    "round": _round,
    "starts_with": _starts_with,
    "ends_with": _ends_with,
    "contains": _contains,
}
