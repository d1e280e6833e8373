"""One closure per field of a schema, each making a value of the field's type."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any

from stack.errors import BadInput
from stack.feeds.avro.fault import Fault
from stack.feeds.avro.logical import EPOCH
from stack.feeds.avro.nodes import Field, Node, node_of
from stack.feeds.avro.schema import AvroSchema
from stack.feeds.rows.json_values import converter_of_type
from stack.feeds.synthetic.names import KEY_KINDS, Maker, Names

MAX_RECURSION = 3
MAX_NESTING = 50
MAX_ITEMS = 3
NULL_SHARE = 0.1

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
            return EPOCH + timedelta(milliseconds=self.now_ms())
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
        self._root = node_of(schema)
        self._draw = chance.random
        self._names = Names(chance, clock)
        self._rank = rank
        self._wanted = {"key_field": key_field, "event_time": event_time}
        self._found: set[str] = set()
        self._paths: list[str] = []
        self._makers: dict[Node, Maker] = {}
        self._open: list[Node] = []
        self._recursive: set[Node] = set()
        self._depth = 0
        self._key_rank = 0

    def build_root(self) -> Maker:
        """The maker of whole records; BadInput for a key or time field that cannot be."""
        maker = self._build(self._root, "", {})
        for option, path in self._wanted.items():
            if path is not None and option not in self._found:
                near = get_close_matches(path, self._paths, n=1)
                guess = f"; did you mean {near[0]}?" if near else ""
                raise BadInput(f"{option}: the schema has no field {path!r}{guess}")
        return maker

    def _build(self, node: Node, path: str, options: dict[str, Any]) -> Maker:
        if node.kind == "union":
            return self._union(node, path, options)
        if node.kind == "record":
            return self._key_record(node, path) if self._is_key(path) else self._record(node, path)
        if node.item is not None:
            if self._in_key(path):
                raise _no_key(path, node.kind)
            item = self._build(node.item, path + "[]", {})
            return self._array(item) if node.kind == "array" else self._map(item)
        name = path.rpartition(".")[2]
        return (
            self._steered(node, path) or self._limited(node, path, options) or self._names.maker(node, name)
        )

    def _steered(self, node: Node, path: str) -> Maker | None:
        """The maker of the key field or the event time field, if this is one of them."""
        name = path.rpartition(".")[2]
        if self._in_key(path):
            self._found.add("key_field")
            maker = self._names.key(node, name, self._rank if self._is_key(path) else lambda: self._key_rank)
            if maker is None:
                raise _no_key(path, node.kind)
            return maker
        if path and path == self._wanted["event_time"]:
            self._found.add("event_time")
            maker = self._names.event_time(node, name)
            if maker is None:
                raise BadInput(f"event_time: {path} is {node.kind}, a time is a timestamp, long or string")
            return maker
        return None

    def _is_key(self, path: str) -> bool:
        return bool(path) and path == self._wanted["key_field"]

    def _in_key(self, path: str) -> bool:
        """Whether this is the key field, or a field of the record that is the key."""
        return self._is_key(path) or path.startswith(f"{self._wanted['key_field']}.")

    def _key_record(self, node: Node, path: str) -> Maker:
        """The maker of a key with fields: one number decides all of them, so there are no more keys than
        asked for."""
        make = self._record(node, path)

        def make_key() -> Any:
            self._key_rank = self._rank()
            return make()

        return make_key

    def _limited(self, node: Node, path: str, options: dict[str, Any]) -> Maker | None:
        """The maker of a field that carries "min" and "max" in the schema."""
        low, high = options.get("min"), options.get("max")
        if low is None and high is None:
            return None
        kind = _base(node)
        if kind not in _NUMBERS or node.logical not in ("", "decimal"):
            raise BadInput(f'field {path!r}: "min" and "max" of generate are for numbers, this is {kind}')
        if low is None or high is None or isinstance(low, bool) or isinstance(high, bool):
            raise BadInput(f'field {path!r}: generate needs both "min" and "max", as numbers')
        least, most = self._typed(node, path, low), self._typed(node, path, high)
        if least > most:
            raise BadInput(f"field {path!r}: generate has min {low} above max {high}")
        return self._names.between(node, least, most)

    def _typed(self, node: Node, path: str, value: Any) -> Any:
        try:
            return converter_of_type(node).read(value)
        except Fault as fault:
            raise BadInput(f"field {path!r}: a value of generate {fault.reason}") from None

    def _record(self, node: Node, path: str) -> Maker:
        makers = self._makers
        # The fields of a key are steered by their paths, so its record is made for the key alone.
        if node in makers and not self._in_key(path):
            return makers[node]
        if node in self._open:
            self._recursive.add(node)
            # Looked up when it runs, because the record around is still being made.
            return lambda: makers[node]()  # noqa: PLW0108
        self._open.append(node)
        if len(self._open) > MAX_NESTING:
            raise BadInput("the schema is nested too deeply")
        written = (one.get("generate", {}) for one in node.parsed["fields"])
        pairs = [
            (one.name, self._field(one, options, path))
            for one, options in zip(node.fields, written, strict=True)
        ]
        self._open.pop()

        def make() -> dict[str, Any]:
            return {key: maker() for key, maker in pairs}

        def make_counted() -> dict[str, Any]:
            self._depth += 1
            try:
                if self._depth > MAX_NESTING:
                    raise BadInput(f"a value of {node.name} would never end: it must hold itself")
                return make()
            finally:
                self._depth -= 1

        maker = make_counted if node in self._recursive else make
        if node in self._recursive or not self._in_key(path):
            makers[node] = maker
        return maker

    def _field(self, field: Field, options: Any, path: str) -> Maker:
        inner = f"{path}.{field.name}" if path else field.name
        self._paths.append(inner)
        if not isinstance(options, dict) or not options.keys() <= _OPTIONS:
            raise BadInput(f'field {inner!r}: generate takes "min" and "max", or "values"')
        if "values" not in options or inner in self._wanted.values() or self._in_key(inner):
            return self._build(field.node, inner, options)
        if not isinstance(options["values"], list) or not options["values"]:
            raise BadInput(f'field {inner!r}: "values" of generate is a list with at least one value')
        values = tuple(self._typed(field.node, inner, value) for value in options["values"])
        draw, count = self._draw, len(values)
        return lambda: values[int(draw() * count)]

    def _union(self, union: Node, path: str, options: dict[str, Any]) -> Maker:
        others = [one for one in union.branches if one.kind != "null"]
        if not others:
            return lambda: None
        steered = path in self._wanted.values() or self._in_key(path)
        makers = [
            self._build(one, path, options if _base(one) in _NUMBERS or len(others) == 1 else {})
            for one in others
        ]
        draw, count = self._draw, len(makers)
        if steered and count > 1:
            raise BadInput(f"field {path!r} has several types, so it can be neither key nor event time")
        nullable = len(others) < len(union.branches) and not steered
        share = NULL_SHARE if nullable else 0.0
        plain = [index for index, one in enumerate(others) if one.kind != "record"]
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


def _no_key(path: str, kind: str) -> BadInput:
    return BadInput(f"key_field: {path} is {kind}, a key is {', '.join(KEY_KINDS)}, or a record of these")


def _base(node: Node) -> str:
    return "decimal" if node.logical == "decimal" else node.kind
