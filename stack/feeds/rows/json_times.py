"""Moments, dates, times and UUIDs: ISO text or numbers in JSON, Python's own types as values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from stack.feeds.avro.logical import MILLISECOND, MOMENTS
from stack.feeds.rows.json_scalars import Scalar, must

_MOMENT = '"2026-03-01T12:00:00Z" or as a number since 1970'
_LOCAL = '"2026-03-01T12:00:00", without a zone'
_UUID = '"9f0c2f6e-8f0a-4d5e-9d3f-0a1b2c3d4e5f"'


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _local_moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        raise ValueError("a local time has no zone")
    return moment


def _plain_time(text: str) -> time:
    return time.fromisoformat(text).replace(tzinfo=None)


def _moments(logical: str, parse: Callable[[str], Any], example: str) -> Scalar:
    moments = MOMENTS[logical]

    def from_text(text: str) -> Any:
        found = parse(text)
        # What is finer than a millisecond is cut, as it would be when the record is encoded.
        return found.replace(microsecond=found.microsecond // 1000 * 1000) if is_millis else found

    is_millis = moments.unit == MILLISECOND

    def read(value: Any) -> Any:
        if moments.accepts(value):
            return value
        try:
            if isinstance(value, str):
                return from_text(value.strip())
            is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
            if is_number and value == int(value):
                return moments.from_raw(int(value))
        except (ValueError, OverflowError, ArithmeticError):
            pass
        raise must(logical, value, f"Write it like {example}.")

    def write(value: Any) -> Any:
        return value.isoformat().replace("+00:00", "Z") if moments.accepts(value) else value

    return Scalar(read, write, lambda _value: False)


def _uuid() -> Scalar:
    def read(value: Any) -> UUID:
        try:
            return value if isinstance(value, UUID) else UUID(value.strip())
        except (ValueError, AttributeError):
            raise must("uuid", value, f"Write it like {_UUID}.") from None

    return Scalar(read, str, lambda _value: False)


# By the logical type; decimals depend on their precision and stand with the other scalars.
LOGICAL: dict[str, Scalar] = {
    "timestamp-millis": _moments("timestamp-millis", _moment, _MOMENT),
    "timestamp-micros": _moments("timestamp-micros", _moment, _MOMENT),
    "local-timestamp-millis": _moments("local-timestamp-millis", _local_moment, _LOCAL),
    "local-timestamp-micros": _moments("local-timestamp-micros", _local_moment, _LOCAL),
    "date": _moments("date", date.fromisoformat, '"2026-03-01"'),
    "time-millis": _moments("time-millis", _plain_time, '"12:30:00.123"'),
    "time-micros": _moments("time-micros", _plain_time, '"12:30:00.123456"'),
    "uuid": _uuid(),
}
