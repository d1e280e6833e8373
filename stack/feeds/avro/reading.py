"""Bytes to values: readers compiled from the schema that wrote them and the one that is wanted.

One pass reads and proves: lengths, indexes, ranges and text are checked, and what the length of a payload
does not bound (items that take no bytes, recursion) has a budget. Resolution follows the Avro
specification: fields by name or alias, defaults for what was not written, promotions, and the reader's
logical type over the raw value. Two moments of one kind (timestamp-micros as timestamp-millis) keep the
moment instead of the number. Of a reader's union the nearest branch is taken: the same type before one
of the same kind before a promotion.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from stack.feeds.avro.defaults import default_of
from stack.feeds.avro.fault import Fault
from stack.feeds.avro.leaf_reading import (
    MAX_EMPTY_ITEMS,
    MAX_NESTING,
    PRIMITIVE_READS,
    Budget,
    Read,
    as_fault,
    fixed,
    ranged,
    read_long,
    read_text,
)
from stack.feeds.avro.nodes import MISSING, Field, Node, can_be_empty, is_recursive
from stack.feeds.avro.resolving import conversion, match

_LATE = (IndexError, UnicodeDecodeError)


def compile_reader(writer: Node, reader: Node | None = None) -> Callable[[bytes, int], Any]:
    """A function from a payload and an offset to the value that fills it to its end; Fault for any other."""
    read = _Compiler().read(writer, writer if reader is None else reader)
    unbounded = _needs_budget(writer, set())
    unused = Budget()

    def read_all(payload: bytes, start: int) -> Any:
        try:
            value, end = read(payload, start, Budget() if unbounded else unused)
        except _LATE as error:
            raise as_fault(error) from None
        if end != len(payload):
            raise Fault(f"{len(payload) - end} bytes are left over after the value")
        return value

    return read_all


def _needs_budget(node: Node, seen: set[Node]) -> bool:
    if node in seen:
        return False
    seen.add(node)
    if is_recursive(node) or (node.kind == "array" and node.item is not None and can_be_empty(node.item)):
        return True
    return any(_needs_budget(one, seen) for one in node.children)


def _refused(reason: str) -> Read:
    """What stands where no value can be read, since a writer may never write that branch of a union."""

    def read(data: bytes, at: int, budget: Budget) -> Any:  # noqa: ARG001
        raise Fault(reason)

    return read


class _Compiler:
    """Makes one reader for each pair of records, so that recursive schemas end."""

    def __init__(self) -> None:
        self._made: dict[tuple[Node, Node], Read] = {}

    def read(self, writer: Node, reader: Node) -> Read:
        if writer.kind == "union":
            return _union([self.read(branch, reader) for branch in writer.branches])
        found = match(writer, reader)
        if found is None:
            return _refused(f"{writer.label} cannot be read as {reader.label}")
        if writer.kind == "record":
            return self._once(writer, found)
        if writer.kind in ("array", "map"):
            assert writer.item is not None  # noqa: S101 - arrays and maps always have one
            assert found.item is not None  # noqa: S101
            return _blocks(writer, self.read(writer.item, found.item))
        if writer.kind == "enum":
            return _enum(writer, found)
        raw = fixed(writer.size_bytes) if writer.kind == "fixed" else PRIMITIVE_READS[writer.kind]
        return _converted(raw, conversion(writer, found), found)

    def _once(self, writer: Node, reader: Node) -> Read:
        pair, made = (writer, reader), self._made
        if pair in made:
            # Looked up when it runs, because the record around is still being made.
            return lambda data, at, budget: made[pair](data, at, budget)  # noqa: PLW0108
        made[pair] = _refused("")
        made[pair] = self._record(writer, reader)
        return made[pair]

    def _record(self, writer: Node, reader: Node) -> Read:
        wanted = _wanted_fields(writer, reader)
        steps = [
            (field.name, target.name if target else None, self.read(field.node, (target or field).node))
            for field, target in zip(writer.fields, wanted, strict=True)
        ]
        given = {target.name for target in wanted if target}
        lacking = [one for one in reader.fields if one.name not in given]
        for one in lacking:
            if one.default is MISSING:
                return _refused(f"field '{one.name}' was not written, and {reader.name} gives it no default")
        names = [one.name for one in reader.fields]
        if [name for _, name, _ in steps] == names:
            read = _plain_record(list(zip(names, (inner for _, _, inner in steps), strict=True)))
        else:
            defaults = {one.name: default_of(reader, one) for one in lacking}
            read = _resolved_record(steps, {name: defaults.get(name) for name in names})
        return _nested(read) if is_recursive(writer) else read


def _wanted_fields(writer: Node, reader: Node) -> list[Field | None]:
    """For each field of the writer, the reader's field of that name or else with that alias."""
    by_name = {one.name: one for one in reader.fields}
    written = {one.name for one in writer.fields}
    by_alias: dict[str, Field] = {}
    for one in reader.fields:
        # A field that was written under its own name needs no other, and takes one alias at most.
        alias = next((name for name in one.aliases if name in written and name not in by_name), None)
        if one.name not in written and alias is not None:
            by_alias.setdefault(alias, one)
    return [by_name.get(one.name) or by_alias.get(one.name) for one in writer.fields]


def _plain_record(steps: list[tuple[str, Read]]) -> Read:
    def read(data: bytes, at: int, budget: Budget) -> tuple[Any, int]:
        found = {}
        name = ""
        try:
            for name, inner in steps:
                found[name], at = inner(data, at, budget)
        except (Fault, *_LATE) as error:
            raise as_fault(error).under(f".{name}") from None
        return found, at

    return read


def _resolved_record(steps: list[tuple[str, str | None, Read]], template: dict[str, Any]) -> Read:
    """A record as the reader wants it: `template` has its fields in their order, with defaults."""
    mutable = [name for name, value in template.items() if isinstance(value, (list, dict))]

    def read(data: bytes, at: int, budget: Budget) -> tuple[Any, int]:
        found = template.copy()
        name = ""
        try:
            for name, target, inner in steps:  # noqa: B007
                value, at = inner(data, at, budget)
                if target is not None:
                    found[target] = value
        except (Fault, *_LATE) as error:
            raise as_fault(error).under(f".{name}") from None
        for one in mutable:
            found[one] = copy.deepcopy(template[one])
        return found, at

    return read


def _nested(inner: Read) -> Read:
    def read(data: bytes, at: int, budget: Budget) -> tuple[Any, int]:
        budget.nesting -= 1
        if budget.nesting < 0:
            raise Fault(f"records are nested more than {MAX_NESTING} deep")
        found = inner(data, at, budget)
        budget.nesting += 1
        return found

    return read


def _union(branches: list[Read]) -> Read:
    def read(data: bytes, at: int, budget: Budget) -> tuple[Any, int]:
        branch, at = read_long(data, at, budget)
        if not 0 <= branch < len(branches):
            raise Fault(f"branch {branch} of a union that has {len(branches)}")
        return branches[branch](data, at, budget)

    return read


def _enum(writer: Node, reader: Node) -> Read:
    index = ranged(0, len(writer.symbols), f"an index of {writer.name}")
    default = reader.parsed.get("default")
    other = default if default in reader.symbols else None
    symbols = [one if one in reader.symbols else other for one in writer.symbols]

    def read(data: bytes, at: int, budget: Budget) -> tuple[str, int]:
        place, at = index(data, at, budget)
        symbol = symbols[place]
        if symbol is None:
            raise Fault(f"{reader.name} does not have the symbol {writer.symbols[place]}")
        return symbol, at

    return read


def _converted(raw: Read, convert: Callable[[Any], Any] | None, reader: Node) -> Read:
    if convert is None:
        return raw

    def read(data: bytes, at: int, budget: Budget) -> tuple[Any, int]:
        number, at = raw(data, at, budget)
        try:
            return convert(number), at
        except (OverflowError, ValueError) as error:
            raise Fault(f"the value is not {reader.label}: {error}") from None

    return read


def _blocks(node: Node, item: Read) -> Read:
    has_keys = node.kind == "map"
    is_empty = not has_keys and node.item is not None and can_be_empty(node.item)

    def read(data: bytes, at: int, budget: Budget) -> tuple[Any, int]:
        found: Any = {} if has_keys else []
        while True:
            count, at = read_long(data, at, budget)
            if count == 0:
                return found, at
            end = None
            if count < 0:
                count = -count
                size_bytes, at = read_long(data, at, budget)
                end = at + size_bytes
            if is_empty:
                budget.empty_items -= count
                if budget.empty_items < 0:
                    raise Fault(f"more than {MAX_EMPTY_ITEMS} items that take no bytes")
            elif count > len(data) - at:
                raise Fault(f"{count} items are announced, {len(data) - at} bytes are left")
            if has_keys:
                for _ in range(count):
                    key, at = read_text(data, at, budget)
                    found[key], at = item(data, at, budget)
            else:
                for _ in range(count):
                    value, at = item(data, at, budget)
                    found.append(value)
            if end is not None and at != end:
                raise Fault("a block does not have the size it announces")

    return read
