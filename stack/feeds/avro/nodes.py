"""An Avro schema as linked nodes, with references followed, so that walks over it stay short."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from stack.errors import BadSchema
from stack.feeds.avro.schema import AvroSchema

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
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
    return _link(schema.parsed, {})


def _link(parsed: Any, named: dict[str, Node]) -> Node:
    if isinstance(parsed, list):
        return Node("union", branches=[_link(one, named) for one in parsed], parsed=parsed)
    if isinstance(parsed, str):
        if parsed in PRIMITIVES:
            return Node(parsed, parsed=parsed)
        return named[parsed]
    kind = parsed["type"]
    if not isinstance(kind, str):
        return _link(kind, named)
    if kind in named:
        return named[kind]
    kind = "record" if kind == "error" else kind
    logical = parsed.get("logicalType", "")
    node = Node(kind, logical if (kind, logical) in LOGICAL_TYPES else "", parsed=parsed)
    if node.logical == "decimal":
        node.precision, node.scale = parsed["precision"], parsed.get("scale", 0)
    if kind in ("array", "map"):
        node.item = _link(parsed["items" if kind == "array" else "values"], named)
    elif kind in ("record", "enum", "fixed"):
        node.name = parsed["name"]
        node.size_bytes = parsed.get("size", 0)
        node.symbols = tuple(parsed.get("symbols", ()))
        # Known before its fields are linked, because they may refer to it.
        named[node.name] = node
        node.fields = [_link_field(one, named) for one in parsed.get("fields", ())]
    return node


def _link_field(parsed: Any, named: dict[str, Node]) -> Field:
    default = parsed.get("default", MISSING)
    return Field(parsed["name"], _link(parsed["type"], named), default, tuple(parsed.get("aliases", ())))


def is_recursive(node: Node, above: tuple[Node, ...] = ()) -> bool:
    """Whether a value of this type can hold a value of a type that is being walked already."""
    if node in above:
        return True
    within = (*above, node) if node.kind == "record" else above
    return any(is_recursive(one, within) for one in node.children)


def can_be_empty(node: Node, above: tuple[Node, ...] = ()) -> bool:
    """Whether a value of this type can take no bytes at all, so that bytes do not bound how many follow."""
    if node.kind == "record":
        return node in above or all(can_be_empty(one.node, (*above, node)) for one in node.fields)
    return node.kind == "null" or (node.kind == "fixed" and node.size_bytes == 0)


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
    return node
