"""What may be compared with what, and how two values are brought to one type.

Numbers compare with numbers (a float becomes the decimal that it is written as, so 0.1 equals a stored
0.10), text with text, and so on. A moment also compares with a date (its midnight, UTC), with a number
(milliseconds since 1970) and with ISO text; dates, times and UUIDs compare with their text. A moment
without a zone is taken as UTC.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_KINDS: dict[type, str] = {
    bool: "boolean",
    int: "number",
    float: "number",
    Decimal: "number",
    str: "text",
    bytes: "bytes",
    datetime: "timestamp",
    date: "date",
    time: "time",
    UUID: "uuid",
    list: "list",
    tuple: "list",
    dict: "map",
}
SCALARS = frozenset({"boolean", "number", "text", "bytes", "timestamp", "date", "time", "uuid"})
_MIXED = frozenset(
    frozenset(pair)
    for pair in (
        ("timestamp", "number"),
        ("timestamp", "date"),
        ("timestamp", "text"),
        ("date", "text"),
        ("time", "text"),
        ("uuid", "text"),
    )
)


def kind_of(value: Any) -> str | None:
    """The kind of a value, or None for one that expressions do not know (and for null)."""
    kind = _KINDS.get(type(value))
    if kind is None and value is not None:
        kind = next((name for known, name in _KINDS.items() if isinstance(value, known)), None)
        if kind is None and isinstance(value, Mapping):
            return "map"
    return kind


def may_compare(left: str, right: str, *, ordered: bool) -> bool:
    """Whether two kinds have a comparison; `ordered` asks for < and the like, not only for equality."""
    if left == right:
        return left in SCALARS and not (ordered and left == "boolean")
    return frozenset((left, right)) in _MIXED


def align(left: Any, right: Any) -> tuple[Any, Any] | None:
    """Both values in one type that Python can compare, or None when they have no comparison."""
    left_kind, right_kind = kind_of(left), kind_of(right)
    if left_kind is None or right_kind is None:
        return None
    if left_kind == right_kind:
        if left_kind == "number":
            return _same_number(left, right)
        if left_kind == "timestamp":
            return _moment(left), _moment(right)
        return (left, right) if left_kind in SCALARS else None
    if not may_compare(left_kind, right_kind, ordered=True):
        return None
    target = next(kind for kind in ("timestamp", "date", "time", "uuid") if kind in (left_kind, right_kind))
    first, second = convert(left, target), convert(right, target)
    return None if first is None or second is None else (first, second)


def convert(value: Any, kind: str) -> Any | None:
    """A value as a timestamp, date, time or UUID, or None where it is none."""
    try:
        match kind:
            case "timestamp":
                return _moment(value)
            case "date":
                return date.fromisoformat(value) if isinstance(value, str) else value
            case "time":
                return time.fromisoformat(value) if isinstance(value, str) else value
            case "uuid":
                return UUID(value) if isinstance(value, str) else value
            case _:
                return None
    except (ValueError, OverflowError):
        return None


def _moment(value: Any) -> datetime:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return EPOCH + timedelta(milliseconds=float(value) if isinstance(value, Decimal) else value)


def _same_number(left: Any, right: Any) -> tuple[Any, Any]:
    if isinstance(left, Decimal) and isinstance(right, float):
        return left, Decimal(repr(right))
    if isinstance(left, float) and isinstance(right, Decimal):
        return Decimal(repr(left)), right
    return left, right


def compare(test: Callable[[Any, Any], bool], left: Any, right: Any) -> bool:
    """One comparison by the rules above; false where either is null or the two do not compare."""
    try:
        pair = align(left, right)
        if pair is None or (test not in _EQUALITIES and isinstance(pair[0], bool)):
            return False
        return bool(test(pair[0], pair[1]))
    except (TypeError, ArithmeticError, ValueError):
        return False


_EQUALITIES = (operator.eq, operator.ne)


def calculate(sign: str, left: Any, right: Any) -> Any:
    """Two numbers and + - * / %; null where one is no number, on division by zero and on overflow.

    `/` divides exactly (7 / 2 is 3.5); `%` has the sign of its left side, as in SQL.
    """
    if kind_of(left) != "number" or kind_of(right) != "number":
        return None
    try:
        left, right = _same_number(left, right)
        match sign:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "/":
                return left / right
            case _:
                rest = abs(left) % abs(right)
                return -rest if left < 0 else rest
    except (ArithmeticError, ValueError):
        return None
