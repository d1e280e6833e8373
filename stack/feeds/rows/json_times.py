"""Moments, dates, times and UUIDs: ISO text or numbers in JSON, Python's own types as values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from stack.feeds.rows.json_scalars import Scalar, must

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOCAL_EPOCH = EPOCH.replace(tzinfo=None)
EPOCH_DAY = date(1970, 1, 1)


def _logical(
    label: str, known: type, parse: Callable[[str], Any], from_number: Callable[[int], Any], example: str
) -> Scalar:
    def fits(value: Any) -> bool:
        return isinstance(value, known) and (known is not date or not isinstance(value, datetime))

    def read(value: Any) -> Any:
        if fits(value):
            return value
        try:
            if isinstance(value, str):
                return parse(value.strip())
            if (
                isinstance(value, int | float | Decimal)
                and not isinstance(value, bool)
                and value == int(value)
            ):
                return from_number(int(value))
        except (ValueError, OverflowError, ArithmeticError):
            pass
        raise must(label, value, f"Write it like {example}.")

    def write(value: Any) -> Any:
        if isinstance(value, UUID):
            return str(value)
        return value.isoformat().replace("+00:00", "Z") if fits(value) else value

    return Scalar(read, write, lambda _value: False, fits)


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _local_moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        raise ValueError("a local time has no zone")
    return moment


def _to_millis(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """What is finer than a millisecond is cut, as it would be when the record is encoded."""

    def cut(text: str) -> Any:
        found = parse(text)
        return found.replace(microsecond=found.microsecond // 1000 * 1000)

    return cut


def _plain_time(text: str) -> time:
    return time.fromisoformat(text).replace(tzinfo=None)


def _time_of(microseconds: int) -> time:
    if not 0 <= microseconds < 86_400_000_000:
        raise ValueError("outside of a day")
    return (LOCAL_EPOCH + timedelta(microseconds=microseconds)).time()


def _uuid_of(_number: int) -> Any:
    raise ValueError("a uuid is text")


_TIME_EXAMPLE = '"2026-03-01T12:00:00Z" or as a number since 1970'
# By the base type and the logical type, as fastavro pairs them; on any other base the name is ignored.
LOGICAL: dict[tuple[str, str], Scalar] = {
    ("long", "timestamp-millis"): _logical(
        "timestamp-millis",
        datetime,
        _to_millis(_moment),
        lambda number: EPOCH + timedelta(milliseconds=number),
        _TIME_EXAMPLE,
    ),
    ("long", "timestamp-micros"): _logical(
        "timestamp-micros",
        datetime,
        _moment,
        lambda number: EPOCH + timedelta(microseconds=number),
        _TIME_EXAMPLE,
    ),
    ("long", "local-timestamp-millis"): _logical(
        "local-timestamp-millis",
        datetime,
        _to_millis(_local_moment),
        lambda number: LOCAL_EPOCH + timedelta(milliseconds=number),
        '"2026-03-01T12:00:00", without a zone',
    ),
    ("long", "local-timestamp-micros"): _logical(
        "local-timestamp-micros",
        datetime,
        _local_moment,
        lambda number: LOCAL_EPOCH + timedelta(microseconds=number),
        '"2026-03-01T12:00:00", without a zone',
    ),
    ("int", "date"): _logical(
        "date",
        date,
        date.fromisoformat,
        lambda number: EPOCH_DAY + timedelta(days=number),
        '"2026-03-01"',
    ),
    ("int", "time-millis"): _logical(
        "time-millis", time, _to_millis(_plain_time), lambda number: _time_of(number * 1000), '"12:30:00.123"'
    ),
    ("long", "time-micros"): _logical("time-micros", time, _plain_time, _time_of, '"12:30:00.123456"'),
    ("string", "uuid"): _logical("uuid", UUID, UUID, _uuid_of, '"9f0c2f6e-8f0a-4d5e-9d3f-0a1b2c3d4e5f"'),
}
