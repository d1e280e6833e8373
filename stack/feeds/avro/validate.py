"""Why a value does not fit a schema: the field and a sentence a person can act on.

fastavro writes some values that it should refuse: any object as null or boolean, ints beyond 32 bits,
naive datetimes in the zone of the machine. So every value is checked before it is written. A schema is
compiled once; a field whose Python type alone settles the matter costs one set lookup.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

from stack.feeds.avro.nodes import MISSING, Node, can_be_empty, is_recursive, node_of
from stack.feeds.avro.scan import MAX_EMPTY_ITEMS, MAX_NESTING
from stack.feeds.avro.schema import AvroSchema

MAX_FLOAT = 3.4028234663852886e38
_PLAIN: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "double": (float,),
    "string": (str,),
    "bytes": (bytes,),
}
_ACCEPTED: dict[str, tuple[type, ...]] = {
    **_PLAIN,
    "float": (float, int),
    "double": (float, int),
    "bytes": (bytes, bytearray),
    "fixed": (bytes, bytearray),
}
_INT_RANGES = {"int": (-(1 << 31), 1 << 31), "long": (-(1 << 63), 1 << 63)}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS = (date.min.toordinal() - _EPOCH.toordinal(), date.max.toordinal() - _EPOCH.toordinal())
_SECONDS = (_DAYS[0] * 86_400, (_DAYS[1] + 1) * 86_400)
_RAW_RANGES = {
    "date": (_DAYS[0], _DAYS[1] + 1),
    "time-millis": (0, 86_400_000),
    "time-micros": (0, 86_400_000_000),
    "timestamp-millis": (_SECONDS[0] * 1000, _SECONDS[1] * 1000),
    "timestamp-micros": (_SECONDS[0] * 1_000_000, _SECONDS[1] * 1_000_000),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Where a value breaks its schema (a dotted path, empty at the top) and how."""

    path: str
    sentence: str

    def under(self, name: str) -> Fault:
        """The same fault, seen from the value around it."""
        return Fault(f"{name}.{self.path}" if self.path else name, self.sentence)


Check = Callable[[Any, int], Fault | None]


@dataclass(slots=True)
class _Rule:
    """`types` are the exact Python types that need no further look."""

    types: frozenset[type]
    check: Check


def find_fault(schema: AvroSchema, value: object) -> Fault | None:
    """The first thing about `value` that the schema refuses, or None."""
    return compile_check(schema)(value, 0)


@lru_cache(maxsize=512)
def compile_check(schema: AvroSchema) -> Check:
    """find_fault for one schema; call it with the value and 0, the nesting so far."""
    return _rule(node_of(schema), {}).check


def _rule(node: Node, made: dict[Node, _Rule]) -> _Rule:
    if node in made:
        return made[node]
    if node.kind == "record":
        # Fields may refer to this record, so its rule exists before theirs and is filled in afterwards.
        made[node] = _Rule(frozenset(), lambda _value, _nesting: None)
        made[node].check = _record(node, made)
        return made[node]
    if node.kind == "union":
        return _union(node, [_rule(one, made) for one in node.branches])
    if node.kind in ("array", "map"):
        return _Rule(frozenset(), _items(node, made))
    types = frozenset() if node.logical else frozenset(_PLAIN.get(node.kind, ()))
    return _Rule(types, _leaf(node))


def _leaf(node: Node) -> Check:
    fits = _fits_logical(node) if node.logical else _fits_plain(node)
    # A plain int in range is by far the most frequent leaf that its type alone does not settle.
    least, until = (0, 0) if node.logical else _INT_RANGES.get(node.kind, (0, 0))

    def check(value: Any, nesting: int) -> Fault | None:  # noqa: ARG001
        if type(value) is int and least <= value < until:
            return None
        wrong = fits(value)
        return None if wrong is None else Fault("", f"must be {wrong}, got {_shown(value)}")

    return check


def _fits_plain(node: Node) -> Callable[[Any], str | None]:
    kind, symbols = node.kind, frozenset(node.symbols)
    bits = {"int": 31, "long": 63}.get(kind)

    def fits(value: Any) -> str | None:
        if bits is not None:
            whole = isinstance(value, int) and not isinstance(value, bool)
            return None if whole and -(1 << bits) <= value < 1 << bits else f"{kind} ({bits + 1} bits)"
        if kind == "enum":
            known = ", ".join(node.symbols[:8]) + (", ..." if len(symbols) > 8 else "")
            return None if isinstance(value, str) and value in symbols else f"one of {known}"
        accepted: tuple[Any, ...] = _ACCEPTED[kind]
        if not isinstance(value, accepted) or (kind in ("float", "double") and isinstance(value, bool)):
            return node.label
        if kind == "fixed" and len(value) != node.size_bytes:
            return f"{node.size_bytes} bytes"
        if kind in ("float", "double"):
            return _fits_float(kind, value)
        return None

    return fits


def _fits_float(kind: str, value: float) -> str | None:
    limit = MAX_FLOAT if kind == "float" else sys.float_info.max
    fits = abs(value) <= limit or (isinstance(value, float) and not math.isfinite(value))
    return None if fits else kind


def _fits_logical(node: Node) -> Callable[[Any], str | None]:
    logical = node.logical
    if logical == "decimal":
        return lambda value: _fits_decimal(node, value)
    if logical == "uuid":
        return _fits_uuid
    least, until = _RAW_RANGES[logical.removeprefix("local-")]

    def fits(value: Any) -> str | None:
        if isinstance(value, int) and not isinstance(value, bool):
            return None if least <= value < until else f"{logical} within the calendar"
        if logical == "date":
            return None if isinstance(value, date) and not isinstance(value, datetime) else "a date"
        if logical.startswith("time-"):
            return None if isinstance(value, time) else "a time of day"
        zoned = isinstance(value, datetime) and value.tzinfo is not None
        if logical.startswith("local-"):
            return None if isinstance(value, datetime) and not zoned else "a datetime without a time zone"
        return None if zoned else "a datetime with a time zone"

    return fits


def _fits_uuid(value: Any) -> str | None:
    try:
        return None if isinstance(value, UUID) or (isinstance(value, str) and UUID(value)) else "a uuid"
    except ValueError:
        return "a uuid"


def _fits_decimal(node: Node, value: Any) -> str | None:
    wanted = f"a decimal with {node.precision} digits, {node.scale} of them after the point"
    if not isinstance(value, Decimal) or not value.is_finite():
        return wanted
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 - finite decimals have a number there
    if exponent < -node.scale or len(digits) + exponent + node.scale > max(node.precision, 1):
        return wanted
    if node.kind == "fixed":
        unscaled = int(value.scaleb(node.scale))
        if not -(1 << node.size_bytes * 8 - 1) <= unscaled < 1 << node.size_bytes * 8 - 1:
            return f"a decimal that fits {node.size_bytes} bytes"
    return None


def _record(node: Node, made: dict[Node, _Rule]) -> Check:
    rules = [(one.name, _rule(one.node, made), one.default is MISSING) for one in node.fields]
    known = frozenset(one.name for one in node.fields)
    recursive = is_recursive(node)

    def check(value: Any, nesting: int) -> Fault | None:
        if not isinstance(value, dict):
            return Fault("", f"must be a record with the fields of {node.name}, got {_shown(value)}")
        if recursive and nesting >= MAX_NESTING:
            return Fault("", f"records are nested more than {MAX_NESTING} deep")
        found = 0
        for name, rule, required in rules:
            item = value.get(name, MISSING)
            if item is MISSING:
                if required:
                    return Fault(name, f"is missing and {node.name} gives it no default")
                continue
            found += 1
            if type(item) in rule.types:
                continue
            fault = rule.check(item, nesting + 1)
            if fault is not None:
                return fault.under(name)
        if found != len(value):
            return _unknown(node, next(one for one in value if one not in known), known)
        return None

    return check


def _unknown(node: Node, name: object, known: frozenset[str]) -> Fault:
    near = difflib.get_close_matches(str(name), known, 1)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    return Fault(str(name), f"is not in {node.name}{guess}")


def _union(node: Node, rules: list[_Rule]) -> _Rule:
    valued = [rule for rule, one in zip(rules, node.branches, strict=True) if one.kind != "null"]

    def check(value: Any, nesting: int) -> Fault | None:
        faults = []
        for rule in rules:
            fault = rule.check(value, nesting)
            if fault is None:
                return None
            faults.append(fault)
        if len(valued) == 1 and value is not None:
            return faults[rules.index(valued[0])]
        return Fault("", f"must be {node.label}, got {_shown(value)}")

    return _Rule(frozenset().union(*(rule.types for rule in rules)), check)


def _items(node: Node, made: dict[Node, _Rule]) -> Check:
    assert node.item is not None  # noqa: S101 - arrays and maps always have one
    rule = _rule(node.item, made)
    is_map = node.kind == "map"
    limit = MAX_EMPTY_ITEMS if not is_map and can_be_empty(node.item) else None

    def check(value: Any, nesting: int) -> Fault | None:
        if not isinstance(value, dict if is_map else (list, tuple)):
            return Fault("", f"must be {node.kind}, got {_shown(value)}")
        if limit is not None and len(value) > limit:
            return Fault("", f"has {len(value)} items that take no bytes, {limit} are allowed")
        for place, item in value.items() if isinstance(value, dict) else enumerate(value):
            if is_map and not isinstance(place, str):
                return Fault("", f"must have text as keys, got {_shown(place)}")
            if type(item) not in rule.types:
                fault = rule.check(item, nesting + 1)
                if fault is not None:
                    return fault.under(str(place))
        return None

    return check


def _shown(value: object) -> str:
    if value is None:
        return "null"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
