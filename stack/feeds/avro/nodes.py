"""An Avro schema as linked nodes, with references followed, so that walks over it stay short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from stack.errors import BadSchema
from stack.feeds.avro.schema import AvroSchema

LOGICAL_TYPES = frozenset(
    {
        ("long", "timestamp-millis"),
        ("long", "timestamp-micros"),
        ("long", "local-timestamp-millis"),
        ("long", "local-timestamp-micros"),
        ("long", "time-micros"),
        ("int", "time-millis"),
        ("int", "date"),
        ("bytes", "decimal"),
        ("fixed", "decimal"),
        ("string", "uuid"),
    }
)
MAX_COLUMNS = 10_000
MAX_SCHEMA_NESTING = 100
MISSING: Any = object()


@dataclass(eq=False, slots=True)
class Field:
    """One field of a record; `default` is the schema's JSON value, or MISSING."""

    name: str
    node: Node
    default: Any = MISSING
    aliases: tuple[str, ...] = ()


@dataclass(eq=False, slots=True)
class Node:
    """One type of a schema. Only the attributes of its kind are filled; `item` is of arrays and maps."""

    kind: str
    logical: str = ""
    name: str = ""
    fields: list[Field] = field(default_factory=list)
    branches: list[Node] = field(default_factory=list)
    item: Node | None = None
    symbols: tuple[str, ...] = ()
    size_bytes: int = 0
    precision: int = 0
    scale: int = 0
    parsed: Any = None

    @property
    def label(self) -> str:
        """How messages name the type."""
        if self.kind == "union":
            return " or ".join(one.label for one in self.branches)
        return self.logical or self.name or self.kind

    @property
    def children(self) -> list[Node]:
        """The types directly inside this one."""
        inner = [one.node for one in self.fields] + self.branches
        return [*inner, self.item] if self.item else inner


@lru_cache(maxsize=512)
def node_of(schema: AvroSchema) -> Node:
    """The root node of a schema."""
    return _Linker().link(schema.parsed)


class _Linker:
    """Makes the nodes of one schema."""

    def __init__(self) -> None:
        self._named: dict[str, Node] = {}
        self._nesting = 0

    def link(self, parsed: Any) -> Node:
        self._nesting += 1
        # Whatever walks over nodes calls itself, and Python's stack has an end.
        if self._nesting > MAX_SCHEMA_NESTING:
            raise BadSchema(f"the schema is nested more than {MAX_SCHEMA_NESTING} deep")
        node = self._link(parsed)
        self._nesting -= 1
        return node

    def _link(self, parsed: Any) -> Node:
        if isinstance(parsed, list):
            return Node("union", branches=[self.link(one) for one in parsed], parsed=parsed)
        kind = parsed if isinstance(parsed, str) else parsed["type"]
        if not isinstance(kind, str):
            return self.link(kind)
        if kind in self._named:
            return self._named[kind]
        if isinstance(parsed, str):
            return Node(kind, parsed=parsed)
        return self._define("record" if kind == "error" else kind, parsed)

    def _define(self, kind: str, parsed: dict[str, Any]) -> Node:
        logical = parsed.get("logicalType", "")
        node = Node(kind, logical if (kind, logical) in LOGICAL_TYPES else "", parsed=parsed)
        if node.logical == "decimal":
            node.precision, node.scale = parsed["precision"], parsed.get("scale", 0)
        if kind in ("array", "map"):
            node.item = self.link(parsed["items" if kind == "array" else "values"])
        elif kind in ("record", "enum", "fixed"):
            node.name = parsed["name"]
            node.size_bytes = parsed.get("size", 0)
            node.symbols = tuple(parsed.get("symbols", ()))
            # Known before its fields are linked, because they may refer to it.
            self._named[node.name] = node
            node.fields = [self._link_field(one) for one in parsed.get("fields", ())]
        return node

    def _link_field(self, parsed: dict[str, Any]) -> Field:
        default, aliases = parsed.get("default", MISSING), tuple(parsed.get("aliases", ()))
        return Field(parsed["name"], self.link(parsed["type"]), default, aliases)


def walk(root: Node) -> Iterator[Node]:
    """Every type of a schema, each once, from the root down."""
    seen: set[Node] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            yield node
            pending.extend(reversed(node.children))


def is_recursive(root: Node) -> bool:
    """Whether some type of a schema can hold, at any depth, a value of itself."""
    done: set[Node] = set()

    def meets_itself(node: Node, above: frozenset[Node]) -> bool:
        if node in above:
            return True
        if node in done:
            return False
        within = above | {node} if node.kind == "record" else above
        found = any(meets_itself(one, within) for one in node.children)
        done.add(node)
        return found

    return meets_itself(root, frozenset())


def can_be_empty(node: Node) -> bool:
    """Whether a value of this type can take no bytes at all, so that bytes do not bound how many follow."""
    return all(one.kind in ("record", "null", "fixed") and not one.size_bytes for one in walk(node))


def record_node(schema: AvroSchema) -> Node:
    """The root of a schema whose values can be rows: a record that does not contain itself."""
    node = node_of(schema)
    if node.kind != "record":
        raise BadSchema(
            f"columns need a record schema, this one is {node.label}",
            hint="Wrap the value in a record with one field.",
        )
    if is_recursive(node):
        raise BadSchema(
            f"{node.name} contains itself, and columns cannot hold that",
            hint="Read such a feed record by record.",
        )
    if _count_columns(node, {}) > MAX_COLUMNS:
        raise BadSchema(
            f"{node.name} has more than {MAX_COLUMNS:,} columns, counted at every depth",
            hint="Read such a feed record by record.",
        )
    return node


def _count_columns(node: Node, known: dict[Node, int]) -> int:
    """Arrow has no names for types, so a type counts wherever it is used."""
    if node not in known:
        known[node] = 1 + sum(_count_columns(one, known) for one in node.children)
    return known[node]
