"""One closure per field of a schema, each making a value of the field's type."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

from stack.errors import BadInput
from stack.feeds.avro.schema import AvroSchema
from stack.feeds.rows.json_scalars import Fault
from stack.feeds.rows.json_values import converter_of_type
from stack.feeds.synthetic.names import KEY_KINDS, Maker, Names

MAX_RECURSION = 3
MAX_NESTING = 50
MAX_ITEMS = 3
NULL_SHARE = 0.1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OPTIONS = frozenset({"min", "max", "values"})
_NUMBERS = frozenset({"int", "long", "float", "double", "decimal"})


class Clock:
    """The event time of the record that is being made."""

    __slots__ = ("_start_us", "_step_us", "count")

    def __init__(self, start_ms: int, rate_per_s: float) -> None:
        self._start_us = start_ms * 1000
        self._step_us = 1_000_000 / rate_per_s
        self.count = 0

    def now_us(self) -> int:
        return self._start_us + int(self.count * self._step_us)

    def now_ms(self) -> int:
        return self.now_us() // 1000

    def moment(self) -> datetime:
        """Now, to the millisecond, which every timestamp type can hold."""
        try:
            return _EPOCH + timedelta(milliseconds=self.now_ms())
        except OverflowError:
            raise BadInput("the event time has left the years 1 to 9999") from None


class MakerBuilder:
    """Compiles a schema. Recursive types count how deep they are while they run, and end with null or
    nothing behind MAX_RECURSION."""

    def __init__(
        self,
        schema: AvroSchema,
        chance: random.Random,
        clock: Clock,
        rank: Callable[[], int],
        *,
        key_field: str | None,
        event_time: str | None,
    ) -> None:
        self._schema = schema
        self._draw = chance.random
        self._names = Names(chance, clock)
        self._rank = rank
        self._wanted = {"key_field": key_field, "event_time": event_time}
        self._found: set[str] = set()
        self._paths: list[str] = []
        self._definitions: dict[str, Any] = {}
        self._makers: dict[str, Maker] = {}
        self._open: list[str] = []
        self._recursive: set[str] = set()
        self._depth = 0

    def build_root(self) -> Maker:
        """The maker of whole records; BadInput for a key or time field that cannot be."""
        maker = self._build(self._schema.parsed, "", {})
        for option, path in self._wanted.items():
            if path is not None and option not in self._found:
                near = get_close_matches(path, self._paths, n=1)
                guess = f"; did you mean {near[0]}?" if near else ""
                raise BadInput(f"{option}: the schema has no field {path!r}{guess}")
        return maker

    def _build(self, kind: Any, path: str, options: dict[str, Any]) -> Maker:
        if isinstance(kind, list):
            return self._union(kind, path, options)
        if isinstance(kind, str) and kind in self._definitions:
            return self._reference(kind)
        tree = kind if isinstance(kind, dict) else {"type": kind}
        base = tree["type"]
        if isinstance(base, dict | list):
            return self._build(base, path, options)
        if base in ("record", "error"):
            return self._record(tree, path)
        if "name" in tree:
            self._definitions[tree["name"]] = tree
        name = path.rpartition(".")[2]
        if base == "array":
            return self._array(self._build(tree["items"], path + "[]", {}))
        if base == "map":
            return self._map(self._build(tree["values"], path + "[]", {}))
        maker = (
            self._steered(tree, path) or self._limited(tree, path, options) or self._names.maker(tree, name)
        )
        if "name" in tree:
            self._makers[tree["name"]] = maker
        return maker

    def _steered(self, tree: dict[str, Any], path: str) -> Maker | None:
        """The maker of the key field or the event time field, if this is one of them."""
        name = path.rpartition(".")[2]
        if path and path == self._wanted["key_field"]:
            self._found.add("key_field")
            maker = self._names.key(tree, name, self._rank)
            if maker is None:
                raise BadInput(f"key_field: {path} is {tree['type']}, a key is {', '.join(KEY_KINDS)}")
            return maker
        if path and path == self._wanted["event_time"]:
            self._found.add("event_time")
            maker = self._names.event_time(tree, name)
            if maker is None:
                raise BadInput(f"event_time: {path} is {tree['type']}, a time is a timestamp, long or string")
            return maker
        return None

    def _limited(self, tree: dict[str, Any], path: str, options: dict[str, Any]) -> Maker | None:
        """The maker of a field that carries "min" and "max" in the schema."""
        low, high = options.get("min"), options.get("max")
        if low is None and high is None:
            return None
        kind = "decimal" if tree.get("logicalType") == "decimal" else tree["type"]
        if kind not in _NUMBERS or (tree.get("logicalType") and kind != "decimal"):
            raise BadInput(f'field {path!r}: "min" and "max" of generate are for numbers, this is {kind}')
        if low is None or high is None or isinstance(low, bool) or isinstance(high, bool):
            raise BadInput(f'field {path!r}: generate needs both "min" and "max", as numbers')
        least, most = self._typed(tree, path, low), self._typed(tree, path, high)
        if least > most:
            raise BadInput(f"field {path!r}: generate has min {low} above max {high}")
        return self._names.between(tree, least, most)

    def _typed(self, kind: Any, path: str, value: Any) -> Any:
        try:
            return converter_of_type(self._schema, kind).read(value)
        except Fault as fault:
            raise BadInput(f"field {path!r}: a value of generate {fault.reason}") from None

    def _record(self, tree: dict[str, Any], path: str) -> Maker:
        name = tree["name"]
        self._definitions[name] = tree
        self._open.append(name)
        if len(self._open) > MAX_NESTING:
            raise BadInput("the schema is nested too deeply")
        pairs = [(one["name"], self._field(one, path)) for one in tree["fields"]]
        self._open.pop()

        def make() -> dict[str, Any]:
            return {key: maker() for key, maker in pairs}

        def make_counted() -> dict[str, Any]:
            self._depth += 1
            try:
                if self._depth > MAX_NESTING:
                    raise BadInput(f"a value of {name} would never end: it must hold itself")
                return make()
            finally:
                self._depth -= 1

        self._makers[name] = make_counted if name in self._recursive else make
        return self._makers[name]

    def _field(self, one: dict[str, Any], path: str) -> Maker:
        inner = f"{path}.{one['name']}" if path else str(one["name"])
        self._paths.append(inner)
        options = one.get("generate", {})
        if not isinstance(options, dict) or not options.keys() <= _OPTIONS:
            raise BadInput(f'field {inner!r}: generate takes "min" and "max", or "values"')
        if "values" not in options or inner in self._wanted.values():
            return self._build(one["type"], inner, options)
        # The type is built all the same: its names may be used further down in the schema.
        self._build(one["type"], inner, {})
        if not isinstance(options["values"], list) or not options["values"]:
            raise BadInput(f'field {inner!r}: "values" of generate is a list with at least one value')
        values = tuple(self._typed(one["type"], inner, value) for value in options["values"])
        draw, count = self._draw, len(values)
        return lambda: values[int(draw() * count)]

    def _reference(self, name: str) -> Maker:
        if name in self._open:
            self._recursive.add(name)
        makers = self._makers

        def make() -> Any:
            # Looked up late: the type may still be under construction.
            return makers[name]()

        return make

    def _union(self, kinds: list[Any], path: str, options: dict[str, Any]) -> Maker:
        others = [kind for kind in kinds if kind != "null"]
        if not others:
            return lambda: None
        steered = path in self._wanted.values()
        numeric = [kind for kind in others if options and _base(kind) in _NUMBERS]
        makers = [
            self._build(kind, path, options if kind in numeric or len(others) == 1 else {}) for kind in others
        ]
        draw, count = self._draw, len(makers)
        if steered and count > 1:
            raise BadInput(f"field {path!r} has several types, so it can be neither key nor event time")
        nullable = len(others) < len(kinds) and not steered
        share = NULL_SHARE if nullable else 0.0
        plain = [index for index, kind in enumerate(others) if _is_plain(kind)]
        ending = makers[plain[0] if plain else 0]

        def make() -> Any:
            if self._depth >= MAX_RECURSION:
                return None if nullable else ending()
            chance = draw()
            if chance < share:
                return None
            return makers[0]() if count == 1 else makers[int(draw() * count)]()

        return make

    def _array(self, item: Maker) -> Maker:
        draw = self._draw
        return lambda: (
            [] if self._depth >= MAX_RECURSION else [item() for _ in range(int(draw() * (MAX_ITEMS + 1)))]
        )

    def _map(self, item: Maker) -> Maker:
        draw = self._draw
        return lambda: (
            {}
            if self._depth >= MAX_RECURSION
            else {f"k{index}": item() for index in range(int(draw() * (MAX_ITEMS + 1)))}
        )


def _base(kind: Any) -> Any:
    if isinstance(kind, dict):
        return "decimal" if kind.get("logicalType") == "decimal" else kind["type"]
    return kind


def _is_plain(kind: Any) -> bool:
    return _base(kind) in (*_NUMBERS, "boolean", "bytes", "string", "enum", "fixed", "array", "map")
