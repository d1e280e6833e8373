"""Logical types: the values that stand for the numbers and bytes on the wire, and the way between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOCAL_EPOCH = EPOCH.replace(tzinfo=None)
EPOCH_DAY = EPOCH.toordinal()
MILLISECOND, MICROSECOND = timedelta(milliseconds=1), timedelta(microseconds=1)
FIRST_DAY, END_DAY = date.min.toordinal() - EPOCH_DAY, date.max.toordinal() - EPOCH_DAY + 1
PER_DAY = {MILLISECOND: 86_400_000, MICROSECOND: 86_400_000_000}


@dataclass(frozen=True, slots=True)
class Moments:
    """A logical type of whole numbers; raw numbers run from `least` to below `until`.

    `accepts` says whether a Python value is one, `noun` what to call it in a message.
    """

    python: type
    unit: timedelta
    least: int
    until: int
    from_raw: Callable[[int], Any]
    to_raw: Callable[[Any], int]
    accepts: Callable[[Any], bool]
    noun: str


def _is_date(value: Any) -> bool:
    return isinstance(value, date) and not isinstance(value, datetime)


def _is_zoned(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _is_local(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is None


def _timestamps(epoch: datetime, unit: timedelta) -> Moments:
    zoned = epoch.tzinfo is not None
    return Moments(
        datetime,
        unit,
        FIRST_DAY * PER_DAY[unit],
        END_DAY * PER_DAY[unit],
        lambda raw: epoch + raw * unit,
        lambda value: (value - epoch) // unit,
        _is_zoned if zoned else _is_local,
        f"a datetime {'with' if zoned else 'without'} a time zone",
    )


def _times(unit: timedelta) -> Moments:
    def from_raw(raw: int) -> time:
        if not 0 <= raw < PER_DAY[unit]:
            raise OverflowError("a time of day ends at midnight")
        return (LOCAL_EPOCH + raw * unit).time()

    def to_raw(value: time) -> int:
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return timedelta(seconds=seconds, microseconds=value.microsecond) // unit

    return Moments(
        time, unit, 0, PER_DAY[unit], from_raw, to_raw, lambda value: isinstance(value, time), "a time of day"
    )


MOMENTS: dict[str, Moments] = {
    "date": Moments(
        date,
        timedelta(days=1),
        FIRST_DAY,
        END_DAY,
        lambda raw: date.fromordinal(raw + EPOCH_DAY),
        lambda value: value.toordinal() - EPOCH_DAY,
        _is_date,
        "a date",
    ),
    "time-millis": _times(MILLISECOND),
    "time-micros": _times(MICROSECOND),
    "timestamp-millis": _timestamps(EPOCH, MILLISECOND),
    "timestamp-micros": _timestamps(EPOCH, MICROSECOND),
    "local-timestamp-millis": _timestamps(LOCAL_EPOCH, MILLISECOND),
    "local-timestamp-micros": _timestamps(LOCAL_EPOCH, MICROSECOND),
}


def decimal_from_raw(precision: int, scale: int) -> Callable[[bytes], Decimal]:
    """Big-endian bytes to decimals; OverflowError for one of too many digits."""
    limit, context = 10**precision, Context(prec=max(precision, 1))

    def from_raw(raw: bytes) -> Decimal:
        number = int.from_bytes(raw, signed=True)
        if abs(number) >= limit:
            raise OverflowError(f"the decimal has more than {precision} digits")
        return Decimal(number).scaleb(-scale, context)

    return from_raw


def fits_decimal(value: Decimal, precision: int, scale: int) -> bool:
    """Whether a type of this precision and scale holds the value without rounding."""
    if not value.is_finite():
        return False
    _, digits, exponent = value.as_tuple()
    return int(exponent) >= -scale and len(digits) + int(exponent) + scale <= precision


def unscaled(value: Decimal, scale: int) -> int:
    """A decimal as a whole number of its smallest unit, exact whatever the decimal context."""
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits)) or "0") * 10 ** (int(exponent) + scale)
    return -number if sign else number
