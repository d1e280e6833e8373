"""Proof that bytes have the structure a schema says, before fastavro reads them.

fastavro trusts what it reads: a negative length takes the rest of the buffer, a negative enum or union
index counts from the end, 2^60 nulls are read one by one, ints have no range, decimals are rounded to
their precision and a recursive type recurses in C without a limit. The scan refuses all of these, in one
pass that makes no values. What remains for fastavro to refuse is the content of a leaf: text that is not
UTF-8, a date outside the calendar.
"""

from __future__ import annotations

from collections.abc import Callable

from stack.feeds.avro.nodes import Node, can_be_empty, is_recursive

MAX_NESTING = 100
MAX_EMPTY_ITEMS = 1 << 16
_DAY_UNITS = {"time-millis": 86_400_000, "time-micros": 86_400_000_000}
_WIDTHS = {"null": 0, "float": 4, "double": 8}


class Malformed(Exception):
    """Bytes that no value of the schema has; `path` is filled from the inside out."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.path: list[str] = []


class Budget:
    """What one payload may still use of the things that its length does not bound."""

    __slots__ = ("empty_items", "nesting")

    def __init__(self) -> None:
        self.empty_items = MAX_EMPTY_ITEMS
        self.nesting = MAX_NESTING


Step = Callable[[bytes, int, Budget], int]


def compile_scan(node: Node) -> Callable[[bytes, int], None]:
    """A function that checks a payload from an offset to its end, raising Malformed."""
    step = _step(node, {})
    unbounded = _needs_budget(node)
    unused = Budget()

    def scan(payload: bytes, start: int) -> None:
        try:
            end = step(payload, start, Budget() if unbounded else unused)
        except IndexError:
            raise Malformed("the value ends too early") from None
        if end > len(payload):
            raise Malformed(f"the value ends too early, {end - len(payload)} more bytes are needed")
        if end < len(payload):
            raise Malformed(f"{len(payload) - end} bytes are left over after the value")

    return scan


def _needs_budget(node: Node) -> bool:
    if is_recursive(node):
        return True
    if node.kind == "array" and node.item and can_be_empty(node.item):
        return True
    return any(_needs_budget(one) for one in node.children)


def _step(node: Node, made: dict[Node, Step]) -> Step:
    if node in made:
        # Looked up when it runs, because the record around is still being made.
        return lambda data, at, budget: made[node](data, at, budget)  # noqa: PLW0108
    width = _WIDTHS.get(node.kind)
    if node.logical == "decimal":
        return _decimal(node)
    if node.kind == "fixed":
        width = node.size_bytes
    if width is not None:
        return lambda _data, at, _budget: at + width
    if node.kind == "record":
        # The entry must exist before the fields are walked, because they may refer to this record.
        made[node] = _skip_bytes
        made[node] = _record(node, made)
        return made[node]
    if node.kind == "union":
        return _union([_step(one, made) for one in node.branches])
    if node.kind in ("array", "map"):
        return _blocks(node, made)
    if node.kind == "enum":
        return _ranged(0, len(node.symbols), f"an index of {node.name}")
    if node.kind == "int" or node.logical in _DAY_UNITS:
        until = _DAY_UNITS.get(node.logical)
        return _ranged(-(1 << 31), 1 << 31, "int") if until is None else _ranged(0, until, node.logical)
    return {"boolean": _skip_boolean, "long": _skip_long}.get(node.kind, _skip_bytes)


def _long(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    if first < 128:
        return (first >> 1) ^ -(first & 1), at + 1
    number, shift = first & 127, 7
    while True:
        at += 1
        byte = data[at]
        number |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise Malformed("a number has more than ten bytes")
    if number >> 64:
        raise Malformed("a number has more than 64 bits")
    return (number >> 1) ^ -(number & 1), at + 1


def _skip_long(data: bytes, at: int, budget: Budget) -> int:  # noqa: ARG001
    start = at
    while data[at] > 127:
        at += 1
    # Nine bytes hold 63 bits; only longer ones can be out of range.
    return at + 1 if at - start < 9 else _long(data, start)[1]


def _skip_boolean(data: bytes, at: int, budget: Budget) -> int:  # noqa: ARG001
    if data[at] > 1:
        raise Malformed(f"boolean must be 0 or 1, found {data[at]}")
    return at + 1


def _skip_bytes(data: bytes, at: int, budget: Budget) -> int:  # noqa: ARG001
    first = data[at]
    if first < 128 and not first & 1:
        length, at = first >> 1, at + 1
    else:
        length, at = _long(data, at)
    if length < 0:
        raise Malformed(f"a length is negative ({length})")
    if at + length > len(data):
        raise Malformed(f"{length} bytes are announced, {len(data) - at} are left")
    return at + length


def _ranged(least: int, until: int, what: str) -> Step:
    def step(data: bytes, at: int, budget: Budget) -> int:  # noqa: ARG001
        number, at = _long(data, at)
        if not least <= number < until:
            raise Malformed(f"{number} is out of range for {what}")
        return at

    return step


def _decimal(node: Node) -> Step:
    limit = 10**node.precision
    size_bytes = node.size_bytes if node.kind == "fixed" else None

    def step(data: bytes, at: int, budget: Budget) -> int:
        if size_bytes is None:
            end = _skip_bytes(data, at, budget)
            at = _long(data, at)[1]
        else:
            end = at + size_bytes
        if abs(int.from_bytes(data[at:end], signed=True)) >= limit:
            raise Malformed(f"the decimal has more than {node.precision} digits")
        return end

    return step


def _union(steps: list[Step]) -> Step:
    def step(data: bytes, at: int, budget: Budget) -> int:
        branch, at = _long(data, at)
        if not 0 <= branch < len(steps):
            raise Malformed(f"branch {branch} of a union that has {len(steps)}")
        return steps[branch](data, at, budget)

    return step


def _record(node: Node, made: dict[Node, Step]) -> Step:
    steps = [(one.name, _step(one.node, made)) for one in node.fields]

    def step(data: bytes, at: int, budget: Budget) -> int:
        name = ""
        try:
            for name, inner in steps:  # noqa: B007
                at = inner(data, at, budget)
        except IndexError:
            error = Malformed("the value ends too early")
            error.path.append(name)
            raise error from None
        except Malformed as error:
            error.path.append(name)
            raise
        return at

    if not is_recursive(node):
        return step

    def nested(data: bytes, at: int, budget: Budget) -> int:
        budget.nesting -= 1
        if budget.nesting < 0:
            raise Malformed(f"records are nested more than {MAX_NESTING} deep")
        at = step(data, at, budget)
        budget.nesting += 1
        return at

    return nested


def _blocks(node: Node, made: dict[Node, Step]) -> Step:
    assert node.item is not None  # noqa: S101 - arrays and maps always have one
    item = _step(node.item, made)
    has_keys = node.kind == "map"
    empty = not has_keys and can_be_empty(node.item)

    def step(data: bytes, at: int, budget: Budget) -> int:
        while True:
            count, at = _long(data, at)
            if count == 0:
                return at
            end = None
            if count < 0:
                count = -count
                size_bytes, at = _long(data, at)
                end = at + size_bytes
            if empty:
                budget.empty_items -= count
                if budget.empty_items < 0:
                    raise Malformed(f"more than {MAX_EMPTY_ITEMS} items that take no bytes")
            elif count > len(data) - at:
                raise Malformed(f"{count} items are announced, {len(data) - at} bytes are left")
            for _ in range(count):
                if has_keys:
                    at = _skip_bytes(data, at, budget)
                at = item(data, at, budget)
            if end is not None and at != end:
                raise Malformed("a block does not have the size it announces")

    return step
