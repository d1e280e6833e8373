"""Durations and sizes as people write them: 500ms, 10s, 5m, 24h, 7d; 64KB, 512MB, 2GB."""

from __future__ import annotations

import re
from fractions import Fraction

from stack.errors import BadInput

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNITS_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_DURATION = re.compile(r"(\d{1,19}(?:\.\d{1,9})?)(ms|s|m|h|d|w)")
_SIZE = re.compile(r"(\d{1,19}(?:\.\d{1,9})?)\s*(B|KB|MB|GB|TB)", re.IGNORECASE)
# Kafka keeps both as 64-bit numbers.
_LARGEST = (1 << 63) - 1


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `text`, such as '10s' or '1h30m'. Refuses anything else, naming it."""
    matches = list(_DURATION.finditer(text))
    if not matches or "".join(match.group(0) for match in matches) != text:
        raise BadInput(
            f"{text!r} is not a duration",
            hint="Write a number and a unit of ms, s, m, h, d or w, such as 500ms, 10s, 1h30m or 7d.",
        )
    duration_ms = round(sum(Fraction(match.group(1)) * _UNITS_MS[match.group(2)] for match in matches))
    if duration_ms > _LARGEST:
        raise BadInput(f"{text!r} is too long", hint=f"The longest duration is {format_duration(_LARGEST)}.")
    return duration_ms


def format_duration(duration_ms: int) -> str:
    """The shortest exact way to write a duration: 90_000 becomes '1m30s'."""
    if duration_ms == 0:
        return "0s"
    parts = []
    rest = duration_ms
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, _UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_size_bytes(text: str) -> int:
    """Bytes of `text`, such as '512MB'. One KB is 1,024 bytes."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise BadInput(
            f"{text!r} is not a size",
            hint="Write a number and a unit of B, KB, MB, GB or TB, such as 512MB.",
        )
    size_bytes = round(Fraction(match.group(1)) * _UNITS_BYTES[match.group(2).upper()])
    if size_bytes > _LARGEST:
        raise BadInput(f"{text!r} is too large", hint="The largest size is just below 8388608TB.")
    return size_bytes


def format_size(size_bytes: float) -> str:
    """A size for people, at most one decimal: 536_870_912 becomes '512 MB'."""
    value, unit = float(size_bytes), "B"
    for unit in _UNITS_BYTES:
        if value < 1024 or unit == "TB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
