"""An Avro schema as a graph of types: references followed, kinds told apart, the spec's rule for a match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from stack.feeds.avro.schema import AvroSchema

Found = TypeVar("Found")
Node = Any
"""A type as fastavro parses it: a primitive's or named type's full name, a dict, or a list (a union)."""

NAMED_KINDS = frozenset({"record", "enum", "fixed"})
_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_PROMOTIONS = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
_DESCRIBED_DEPTH = 4


@dataclass(frozen=True, slots=True)
class TypeGraph:
    """The types of one schema; `named` holds every record, enum and fixed by its full name."""

    root: Node
    named: Mapping[str, Node]

    def at(self, node: Node) -> Node:
        """The definition behind a reference; anything else comes back as it is."""
        while isinstance(node, str) and node not in _PRIMITIVES:
            node = self.named[node]
        return node

    def kind(self, node: Node) -> str:
        """Which of Avro's types this is: a primitive, record, enum, fixed, array, map or union."""
        found = self.at(node)
        if isinstance(found, list):
            return "union"
        kind = found if isinstance(found, str) else found["type"]
        return "record" if kind == "error" else str(kind)

    @property
    def root_path(self) -> str:
        """What dotted paths into this schema start with."""
        return short_name(self.full_name(self.root)) or self.kind(self.root)

    def full_name(self, node: Node) -> str:
        """The full name of a record, enum or fixed; empty for any other type."""
        return str(self.at(node)["name"]) if self.kind(node) in NAMED_KINDS else ""

    def describe(self, node: Node, depth: int = _DESCRIBED_DEPTH) -> str:
        """The type in words, short enough for a sentence."""
        kind, found = self.kind(node), self.at(node)
        if depth == 0:
            return kind
        if kind == "union":
            return "union of " + ", ".join(self.describe(branch, depth - 1) for branch in found)
        if kind == "array":
            return f"array of {self.describe(found['items'], depth - 1)}"
        if kind == "map":
            return f"map of {self.describe(found['values'], depth - 1)}"
        if kind == "fixed":
            return f"fixed {found['name']} of {found['size']} bytes{_logical_words(found)}"
        if kind in NAMED_KINDS:
            return f"{kind} {found['name']}"
        return kind + _logical_words(found)


@dataclass(frozen=True, slots=True)
class TypePair:
    """A type of the reader (or new) schema beside one of the writer (or old) schema, and where it stands."""

    path: str
    reader: Node
    writer: Node


def walk(
    readers: TypeGraph, writers: TypeGraph, step: Callable[[TypePair], Iterable[Found | TypePair]]
) -> Iterator[Found]:
    """Compare two schemas from their roots down: `step` answers findings and the pairs below, in order.

    A pair of named types is compared once, where it is met first, so recursive schemas end. A stack of
    our own, because a schema may be nested deeper than Python's.
    """
    pending: list[Found | TypePair] = [TypePair(readers.root_path, readers.root, writers.root)]
    seen: set[tuple[str, str]] = set()
    while pending:
        found = pending.pop()
        if not isinstance(found, TypePair):
            yield found
            continue
        names = (readers.full_name(found.reader), writers.full_name(found.writer))
        if all(names):
            if names in seen:
                continue
            seen.add(names)
        pending.extend(reversed(list(step(found))))


def _logical_words(node: Node) -> str:
    if not isinstance(node, dict) or "logicalType" not in node:
        return ""
    digits = decimal_digits(node)
    return (
        f" ({node['logicalType']})"
        if digits is None
        else f" (decimal with {digits[0]} digits, scale {digits[1]})"
    )


def decimal_digits(node: Node) -> tuple[int, int] | None:
    """Precision and scale of a decimal; None for any other type."""
    if isinstance(node, dict) and node.get("logicalType") == "decimal" and "precision" in node:
        return (node["precision"], node.get("scale") or 0)
    return None


def graph_of(schema: AvroSchema) -> TypeGraph:
    """The graph of a schema, or BadSchema. fastavro has made every name and reference a full name."""
    named: dict[str, Node] = {}
    pending = [schema.parsed]
    while pending:
        node = pending.pop()
        if isinstance(node, dict) and "name" in node:
            named[node["name"]] = node
        pending.extend(_parts(node))
    return TypeGraph(schema.parsed, named)


def _parts(node: Node) -> Iterator[Node]:
    if isinstance(node, list):
        yield from node
    elif isinstance(node, dict):
        yield from (one["type"] for one in node.get("fields", ()))
        yield from (node[part] for part in ("items", "values") if part in node)


def short_name(full_name: str) -> str:
    """The name without its namespace."""
    return full_name.rpartition(".")[2]


def same_name(reader: Node, writer: Node) -> bool:
    """Whether the reader's named type may stand for the writer's: the same short name, or an alias."""
    return short_name(reader["name"]) == short_name(writer["name"]) or writer["name"] in alias_names(reader)


def alias_names(node: Node) -> frozenset[str]:
    """The full names a named type also goes by; an alias without a namespace takes its type's."""
    namespace = node["name"].rpartition(".")[0]
    return frozenset(
        alias if "." in alias or not namespace else f"{namespace}.{alias}"
        for alias in node.get("aliases", ())
    )


def field_sources(
    reader_fields: Sequence[Node], writer_fields: Sequence[Node]
) -> dict[str, tuple[Node, ...]]:
    """For each of the reader's fields, the writer's fields that would fill it: by name, the rest by alias.

    More than one, or one under two readers, is ambiguous: decoders differ in what they then do.
    """
    written = {one["name"]: one for one in writer_fields}
    unclaimed = written.keys() - {one["name"] for one in reader_fields}
    return {
        field["name"]: tuple(
            written[name]
            for name in dict.fromkeys((field["name"], *field.get("aliases", ())))
            if name in unclaimed or (name == field["name"] and name in written)
        )
        for field in reader_fields
    }


def is_promotion(reader_kind: str, writer_kind: str) -> bool:
    """Whether Avro reads the writer's primitive as the reader's wider one."""
    return reader_kind in _PROMOTIONS.get(writer_kind, ())


def is_match(readers: TypeGraph, reader: Node, writers: TypeGraph, writer: Node) -> bool:
    """The spec's shallow match, which picks the branch of a reader's union; it does not look into records."""
    while True:
        reader_kind, writer_kind = readers.kind(reader), writers.kind(writer)
        if "union" in (reader_kind, writer_kind) or is_promotion(reader_kind, writer_kind):
            return True
        if reader_kind != writer_kind:
            return False
        if reader_kind not in ("array", "map"):
            break
        part = "items" if reader_kind == "array" else "values"
        reader, writer = readers.at(reader)[part], writers.at(writer)[part]
    if reader_kind not in NAMED_KINDS:
        return True
    one, other = readers.at(reader), writers.at(writer)
    return same_name(one, other) and (reader_kind != "fixed" or one["size"] == other["size"])
