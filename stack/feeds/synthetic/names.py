"""Plausible single values: the type says what may be, the field's name what is likely."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from datetime import datetime, time
from decimal import Context, Decimal
from typing import Any, Protocol
from uuid import UUID

from stack.feeds.avro.nodes import Node

Maker = Callable[[], Any]

KEY_KINDS = ("string", "int", "long", "uuid", "enum", "bytes", "double")
_TABLE_SIZE = 4_096
_MAX_UNSCALED = 10**18
_EXACT = Context(prec=100)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_TIME_WORDS = frozenset({"ms", "ts", "time", "timestamp", "at", "us", "micros", "millis"})
_AMOUNTS = frozenset({"price", "load", "amount", "cost", "total", "value", "duration", "latency", "size"})
_COUNTS = frozenset({"count", "quantity", "number", "items", "attempt", "age"})
_IDENTIFIERS = frozenset({"id", "key", "user", "customer", "account", "device", "session", "order"})
_COUNTRIES = ("US", "IN", "CN", "BR", "DE", "FR", "GB", "JP", "CH", "NG", "MX", "ZA")
_CITIES = ("Zurich", "Berlin", "Paris", "Mumbai", "Lagos", "Tokyo", "Austin", "Lima")
_NAMES = ("Ada", "Alan", "Barbara", "Edsger", "Grace", "John", "Katherine", "Linus", "Margaret", "Tim")
_STATUSES = ("ok", "ok", "ok", "ok", "retry", "error")
_CURRENCIES = ("EUR", "USD", "CHF", "GBP")

# By a word of the field's name, the text for one of many numbered things.
_TEXTS: dict[str, Callable[[int], str]] = {
    "uuid": lambda number: str(UUID(int=_spread(number), version=4)),
    "guid": lambda number: str(UUID(int=_spread(number), version=4)),
    "email": lambda number: f"user{number}@example.com",
    "mail": lambda number: f"user{number}@example.com",
    "url": lambda number: f"https://example.com/p/{number}",
    "uri": lambda number: f"https://example.com/p/{number}",
    "page": lambda number: f"/p/{number}",
    "path": lambda number: f"/p/{number}",
    "ip": lambda number: f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
    "user": lambda number: f"user-{number:07d}",
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "country": _COUNTRIES,
    "city": _CITIES,
    "status": _STATUSES,
    "state": _STATUSES,
    "currency": _CURRENCIES,
    "name": _NAMES,
}


class Time(Protocol):
    """The event time, as the makers need it."""

    def now_us(self) -> int: ...
    def now_ms(self) -> int: ...
    def moment(self) -> datetime: ...


def _spread(number: int) -> int:
    # Multiplying by an odd number is one-to-one, so different numbers stay different below 2**62.
    return (number * 0x9E3779B97F4A7C15 & (1 << 62) - 1) | number << 64


def words_of(name: str) -> list[str]:
    """The words of a field's name in lower case: pageUrl and page_url are page, url."""
    return [word.lower() for word in _WORD.findall(name)]


class Names:
    """Makes makers for single values. All chance comes from one source, all time from one clock."""

    def __init__(self, chance: random.Random, clock: Time) -> None:
        self._draw = chance.random
        self._bytes = chance.randbytes
        self._clock = clock
        # A table is many times quicker than a draw from the distribution, and as good for test data.
        self._amounts = tuple(math.exp(chance.gauss(2.5, 1.0)) for _ in range(_TABLE_SIZE))

    def maker(self, node: Node, name: str) -> Maker:
        """The maker of a type by its logical type, its name and its base, in this order."""
        if node.logical == "decimal":
            return self._decimal(node)
        known = self._logical(node.logical)
        if known is not None:
            return known
        words = words_of(name)
        draw = self._draw
        match node.kind:
            case "null":
                return lambda: None
            case "boolean":
                return lambda: draw() < 0.5
            case "int" | "long":
                return self._whole(node, words, name)
            case "float" | "double":
                return self._fraction(node.kind, words)
            case "string":
                return self._text(node, words, name)
            case "enum":
                symbols, count = node.symbols, len(node.symbols)
                return lambda: symbols[int(draw() * count)]
            case _:
                size_bytes, make = node.size_bytes if node.kind == "fixed" else 8, self._bytes
                return lambda: make(size_bytes)

    def _logical(self, logical: str) -> Maker | None:
        clock, draw = self._clock, self._draw
        match logical:
            case "timestamp-millis" | "timestamp-micros":
                return clock.moment
            case "local-timestamp-millis" | "local-timestamp-micros":
                return lambda: clock.moment().replace(tzinfo=None)
            case "date":
                return lambda: clock.moment().date()
            case "time-millis" | "time-micros":
                return lambda: time(
                    int(draw() * 24), int(draw() * 60), int(draw() * 60), int(draw() * 1000) * 1000
                )
            case "uuid":
                return lambda: UUID(int=int(draw() * 2**53) << 64 | int(draw() * 2**53), version=4)
            case _:
                return None

    def event_time(self, node: Node, name: str) -> Maker | None:
        """The maker of the event time in a field of this type, or None if the type holds no time."""
        clock = self._clock
        if "timestamp" in node.logical:
            return self._logical(node.logical)
        match (node.kind, _written_logical(node)):
            case ("long", "timestamp-nanos" | "local-timestamp-nanos"):
                return lambda: clock.now_us() * 1000
            case ("long", ""):
                return clock.now_us if {"us", "micros"} & set(words_of(name)) else clock.now_ms
            case ("string", ""):
                return lambda: clock.moment().isoformat(timespec="milliseconds").replace("+00:00", "Z")
            case _:
                return None

    def key(self, node: Node, name: str, rank: Callable[[], int]) -> Maker | None:
        """The maker of a key: one value for each number that `rank` gives; None for other types."""
        match (node.kind, _written_logical(node)):
            case ("int" | "long", ""):
                return rank
            case ("double", ""):
                return lambda: float(rank())
            case ("string", "uuid"):
                return lambda: UUID(int=_spread(rank()), version=4)
            case ("string", _):
                text = _numbered(words_of(name), name)
                return lambda: text(rank())
            case ("bytes", ""):
                return lambda: rank().to_bytes(4, "big")
            case ("enum", _):
                symbols, count = node.symbols, len(node.symbols)
                return lambda: symbols[rank() % count]
            case _:
                return None

    def between(self, node: Node, low: Any, high: Any) -> Maker:
        """The maker of numbers from low to high, both included for whole numbers."""
        draw = self._draw
        if isinstance(low, Decimal):
            scale = node.scale
            first, last = (int(one.scaleb(scale, _EXACT)) for one in (low, high))
            return lambda: Decimal(first + int(draw() * (last - first + 1))).scaleb(-scale, _EXACT)
        if isinstance(low, int):
            span = high - low + 1
            return lambda: min(low + int(draw() * span), high)
        return lambda: min(max(low + draw() * (high - low), low), high)

    def _whole(self, node: Node, words: list[str], name: str) -> Maker:
        draw, amounts = self._draw, self._amounts
        if node.kind == "long" and words and words[-1] in _TIME_WORDS:
            return self.event_time(node, name) or self._clock.now_ms
        if _AMOUNTS.intersection(words):
            return lambda: int(amounts[int(draw() * _TABLE_SIZE)])
        if _COUNTS.intersection(words):
            return lambda: int(draw() * 100)
        return lambda: int(draw() * 1_000_000)

    def _fraction(self, base: str, words: list[str]) -> Maker:
        draw, amounts = self._draw, self._amounts
        if base == "float":
            # Parts of 64 are exact in 32 bits, so that a record read back equals the one made.
            return lambda: int(amounts[int(draw() * _TABLE_SIZE)] * 64) / 64
        if _AMOUNTS.intersection(words):
            return lambda: amounts[int(draw() * _TABLE_SIZE)] * (0.99 + 0.02 * draw())
        return lambda: draw() * 100

    def _text(self, node: Node, words: list[str], name: str) -> Maker:
        draw = self._draw
        for word in reversed(words):
            if word in _CHOICES and not _TEXTS.keys() & {word}:
                choices = _CHOICES[word]
                count = len(choices)
                return lambda: choices[int(draw() * count)]
            if word in _TEXTS:
                break
        if words and words[-1] in _TIME_WORDS:
            return self.event_time(node, name) or (lambda: "")
        text, count = _numbered(words, name), 100_000 if _IDENTIFIERS.intersection(words) else 1_000
        return lambda: text(int(draw() * count))

    def _decimal(self, node: Node) -> Maker:
        draw, amounts, scale = self._draw, self._amounts, node.scale
        limit = min(10**node.precision, _MAX_UNSCALED)
        factor = 10 ** min(scale, 15)
        return lambda: Decimal(int(amounts[int(draw() * _TABLE_SIZE)] * factor) % limit).scaleb(
            -scale, _EXACT
        )


def _written_logical(node: Node) -> str:
    """The logical type as the schema has it, also one that the codec reads as its base type."""
    return str(node.parsed.get("logicalType", "")) if isinstance(node.parsed, dict) else ""


def _numbered(words: list[str], name: str) -> Callable[[int], str]:
    for word in reversed(words):
        if word in _TEXTS:
            return _TEXTS[word]
    prefix = name.lower().removesuffix("_id") or "text"
    return lambda number: f"{prefix}-{number}"
