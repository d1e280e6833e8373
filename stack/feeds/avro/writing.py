"""Values to bytes: writers compiled from a schema, which refuse whatever the schema does not allow.

One pass checks and writes. In a union the branch that holds the value as a decoder would give it comes
before one that merely takes it, so text beside a date stays text, and a long beside a date a number.
"""

from __future__ import annotations

import difflib
from typing import Any

from stack.feeds.avro.branches import branch_of
from stack.feeds.avro.defaults import default_of
from stack.feeds.avro.fault import Fault
from stack.feeds.avro.leaf_reading import MAX_EMPTY_ITEMS, MAX_NESTING
from stack.feeds.avro.leaf_writing import Write, append_long, leaf_writer, must, write_text
from stack.feeds.avro.nodes import MISSING, Node, can_be_empty, is_recursive


def compile_writer(root: Node) -> Write:
    """A function that appends a value to a bytearray or raises a Fault; its third argument is 0, the nesting.

    BadSchema if a default does not fit its type.
    """
    compiler = _Compiler()
    write = compiler.write(root)
    compiler.fill_in_defaults()
    return write


def find_fault(root: Node, value: object) -> Fault | None:
    """The first thing about `value` that the schema refuses, or None."""
    try:
        compile_writer(root)(value, bytearray(), 0)
    except Fault as fault:
        return fault
    return None


class _Step:
    """One field of a record; `default` is its bytes, None if it has none."""

    __slots__ = ("default", "name", "write")

    def __init__(self, name: str, write: Write) -> None:
        self.name = name
        self.write = write
        self.default: bytes | None = None


class _Compiler:
    """Makes one writer for each record, so that recursive schemas end."""

    def __init__(self) -> None:
        self._made: dict[Node, Write] = {}
        self._defaults: list[tuple[_Step, Any]] = []

    def write(self, node: Node) -> Write:
        if node.kind == "record":
            return self._record(node)
        if node.kind == "union":
            return self._union(node)
        return _items(node, self.write(node.item)) if node.item is not None else leaf_writer(node)

    def fill_in_defaults(self) -> None:
        """Only when every writer is made, because a default may be of a type that is still being made."""
        for step, value in self._defaults:
            out = bytearray()
            step.write(value, out, 0)
            step.default = bytes(out)

    def _record(self, node: Node) -> Write:
        made = self._made
        if node in made:
            # Looked up when it runs, because the record around is still being made.
            return lambda value, out, nesting: made[node](value, out, nesting)  # noqa: PLW0108
        made[node] = leaf_writer(Node("null"))
        steps = []
        for field in node.fields:
            step = _Step(field.name, self.write(field.node))
            if field.default is not MISSING:
                self._defaults.append((step, default_of(node, field)))
            steps.append(step)
        made[node] = _record(node, steps)
        return made[node]

    def _union(self, node: Node) -> Write:
        branches = []
        for place, branch in enumerate(node.branches):
            prefix = bytearray()
            append_long(place, prefix)
            branches.append((bytes(prefix), self.write(branch)))
        kinds = [one.kind for one in node.branches]
        if len(kinds) == 2 and "null" in kinds:
            return _nullable(branches[kinds.index("null")][0], branches[1 - kinds.index("null")])
        return _union(node, branches)


def _record(node: Node, steps: list[_Step]) -> Write:
    recursive = is_recursive(node)

    def write(value: Any, out: bytearray, nesting: int) -> None:
        if not isinstance(value, dict):
            raise must(f"a record with the fields of {node.name}", value)
        if recursive:
            nesting += 1
            if nesting > MAX_NESTING:
                raise Fault(f"records are nested more than {MAX_NESTING} deep")
        found = 0
        for step in steps:
            item = value.get(step.name, MISSING)
            if item is not MISSING:
                found += 1
                try:
                    step.write(item, out, nesting)
                except Fault as fault:
                    raise fault.under(f".{step.name}") from None
            elif step.default is not None:
                out += step.default
            else:
                raise Fault(f"is missing and {node.name} gives it no default").under(f".{step.name}")
        if found != len(value):
            raise _unknown(node, value)

    return write


def _unknown(node: Node, value: dict[Any, Any]) -> Fault:
    known = [one.name for one in node.fields]
    name = str(next(one for one in value if one not in known))
    near = difflib.get_close_matches(name, known, 1)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    return Fault(f"is not in {node.name}{guess}").under(f".{name}")


def _nullable(null: bytes, other: tuple[bytes, Write]) -> Write:
    prefix, inner = other

    def write(value: Any, out: bytearray, nesting: int) -> None:
        if value is None:
            out += null
        else:
            out += prefix
            inner(value, out, nesting)

    return write


def _union(node: Node, branches: list[tuple[bytes, Write]]) -> Write:
    valued = sum(one.kind != "null" for one in node.branches)

    def write(value: Any, out: bytearray, nesting: int) -> None:
        place = branch_of(node, value)
        faults = []
        for prefix, inner in branches if place is None else branches[place : place + 1]:
            start = len(out)
            out += prefix
            try:
                return inner(value, out, nesting)
            except Fault as fault:
                del out[start:]
                faults.append(fault)
        if place is not None or (valued == 1 and len(branches) == 1):
            raise faults[0]
        raise must(node.label, value)

    return write


def _items(node: Node, inner: Write) -> Write:
    is_map = node.kind == "map"
    accepted = dict if is_map else (list, tuple)
    limit = MAX_EMPTY_ITEMS if not is_map and node.item is not None and can_be_empty(node.item) else None

    def write(value: Any, out: bytearray, nesting: int) -> None:
        if not isinstance(value, accepted):
            raise must(node.kind, value)
        if limit is not None and len(value) > limit:
            raise Fault(f"has {len(value)} items that take no bytes, {limit} are allowed")
        if value:
            append_long(len(value), out)
        if not isinstance(value, dict):
            for place, item in enumerate(value):
                try:
                    inner(item, out, nesting)
                except Fault as fault:
                    raise fault.under(f"[{place}]") from None
        else:
            for key, item in value.items():
                if not isinstance(key, str):
                    raise Fault(f"must have text as keys, got {key!r:.60}")
                try:
                    write_text(key, out, nesting)
                    inner(item, out, nesting)
                except Fault as fault:
                    raise fault.under(f".{key}") from None
        out.append(0)

    return write
