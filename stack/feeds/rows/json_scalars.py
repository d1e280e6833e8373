"""How single values of each Avro type are read from JSON and written to it."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

from stack.feeds.avro.fault import Fault

MAX_FLOAT = 3.4028234663852886e38
MAX_DECIMAL_CHARACTERS = 1_000
_EXACT = Context(prec=2 * MAX_DECIMAL_CHARACTERS)
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MAX_SHOWN = 40


@dataclass(slots=True)
class Scalar:
    """One type: `read` takes JSON, `write` gives it, `exact` says whether JSON is of this very type."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    exact: Callable[[Any], bool]


def shown(value: Any) -> str:
    """A value in words for a message: text 'fast', number 5, a list."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"text {value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN] + '…'!r}"
        case int() | float() | Decimal():
            number = format(value) if not isinstance(value, int) or abs(value) < 10**30 else "of many digits"
            return f"number {number[:_MAX_SHOWN]}"
        case list() | tuple():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"


def must(label: str, value: Any, hint: str = "") -> Fault:
    """The fault of a value that is not what the schema says."""
    return Fault(f"must be {label}, got {shown(value)}", hint)


def _same(value: Any) -> Any:
    return value


def _whole(label: str, low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int:
            if not isinstance(value, float | Decimal) or not math.isfinite(value) or value != int(value):
                raise must(label, value)
            value = int(value)
        if not low <= value <= high:
            raise Fault(f"must be {label} ({low:,} to {high:,}), got {shown(value)}")
        return value

    return read


def _integer(label: str, bits: int) -> Scalar:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    return Scalar(_whole(label, low, high), _same, lambda value: type(value) is int and low <= value <= high)


def _floating(label: str, largest: float) -> Scalar:
    def read(value: Any) -> float:
        if type(value) is float:
            number = value
        elif isinstance(value, int | Decimal) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isinf(number):
                raise Fault(f"must be {label}, got {shown(value)}, which is too large")
        elif isinstance(value, str) and value in _NOT_FINITE:
            number = _NOT_FINITE[value]
        else:
            raise must(label, value)
        if abs(number) > largest and math.isfinite(number):
            raise Fault(f"must be {label}, got {shown(value)}, which is too large")
        return number

    def write(value: Any) -> Any:
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"

    return Scalar(read, write, lambda value: isinstance(value, float | Decimal))


def _text() -> Scalar:
    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise must("string", value)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Fault("must be string, got text with half of a surrogate pair") from None
        return value

    return Scalar(read, _same, lambda value: isinstance(value, str))


def _null() -> Scalar:
    def read(value: Any) -> None:
        if value is not None:
            raise must("null", value)

    return Scalar(read, _same, lambda value: value is None)


def _boolean() -> Scalar:
    def read(value: Any) -> bool:
        if value is True or value is False:
            return bool(value)
        raise must("boolean", value, "Write true or false.")

    return Scalar(read, _same, lambda value: isinstance(value, bool))


PRIMITIVES: dict[str, Scalar] = {
    "null": _null(),
    "boolean": _boolean(),
    "int": _integer("int", 32),
    "long": _integer("long", 64),
    "float": _floating("float", MAX_FLOAT),
    "double": _floating("double", math.inf),
    "string": _text(),
}


def binary(label: str, size_bytes: int | None) -> Scalar:
    """Bytes: each character of a text stands for one byte (Avro's JSON form), or {"base64": "..."}."""

    def read(value: Any) -> bytes:
        try:
            if isinstance(value, str):
                found = value.encode("latin-1")
            elif isinstance(value, dict) and set(value) == {"base64"}:
                found = base64.b64decode(value["base64"], validate=True)
            elif isinstance(value, bytes):
                found = value
            else:
                raise must(label, value, _BYTES_HINT)
        except (ValueError, TypeError):
            raise must(label, value, _BYTES_HINT) from None
        if size_bytes is not None and len(found) != size_bytes:
            raise Fault(f"must be {label} of {size_bytes} bytes, got {len(found)} bytes")
        return found

    def exact(value: Any) -> bool:
        return isinstance(value, dict) and set(value) == {"base64"}

    return Scalar(read, lambda value: value.decode("latin-1"), exact)


_BYTES_HINT = 'Write each byte as one character from \\u0000 to \\u00ff, or {"base64": "..."}.'


def enumeration(symbols: tuple[str, ...]) -> Scalar:
    """One of the symbols."""
    known = frozenset(symbols)

    def exact(value: Any) -> bool:
        return isinstance(value, str) and value in known

    def read(value: Any) -> str:
        if not exact(value):
            raise Fault(f"must be one of {', '.join(symbols)}; got {shown(value)}")
        return str(value)

    return Scalar(read, _same, exact)


def decimal(precision: int, scale: int) -> Scalar:
    """Text or a number."""

    def read(value: Any) -> Decimal:
        number = _to_decimal(value)
        if number and number.adjusted() >= precision - scale:
            digits = precision - scale
            raise Fault(f"must be decimal with at most {digits} digits before the point, got {shown(value)}")
        whole = number.scaleb(scale, _EXACT)
        if whole != whole.to_integral_value() or (number and number.adjusted() < -scale):
            raise Fault(f"must be decimal with at most {scale} digits behind the point, got {shown(value)}")
        return Decimal(int(whole)).scaleb(-scale, _EXACT)

    return Scalar(
        read,
        lambda value: format(value, "f"),
        lambda value: isinstance(value, Decimal),
    )


def _to_decimal(value: Any) -> Decimal:
    number = None
    if isinstance(value, str) and len(value) <= MAX_DECIMAL_CHARACTERS and "_" not in value:
        try:
            number = Decimal(value.strip())
        except ArithmeticError:
            number = None
    elif isinstance(value, Decimal):
        number = value
    elif isinstance(value, float):
        number = Decimal(repr(value))
    elif isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 3_000:
        number = Decimal(value)
    if number is None or not number.is_finite():
        raise must("decimal", value, 'Write it as text, such as "12.50", or as a number.')
    return number
