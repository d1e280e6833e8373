"""Whether records written with one Avro schema can be read with another, and if not, why, field by field.

Follows the chapter "Schema Resolution" of the Avro specification.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from stack.feeds.avro.schema import AvroSchema
from stack.feeds.registry.resolution import (
    NAMED_KINDS,
    Node,
    TypeGraph,
    TypePair,
    decimal_digits,
    field_sources,
    graph_of,
    is_match,
    is_promotion,
    same_name,
    walk,
)


class Level(StrEnum):
    """What a subject promises: who can read whose records, against the last version or all of them."""

    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"
    NONE = "NONE"

    @property
    def is_transitive(self) -> bool:
        return self.name.endswith("_TRANSITIVE")

    @property
    def new_reads_old(self) -> bool:
        return self.name.startswith(("BACKWARD", "FULL"))

    @property
    def old_reads_new(self) -> bool:
        return self.name.startswith(("FORWARD", "FULL"))


@dataclass(frozen=True, slots=True)
class Break:
    """One reason why a reader cannot read a writer's records; `rule` is a stable id."""

    path: str
    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class _Sides:
    """The two schemas under comparison and what the messages call them."""

    readers: TypeGraph
    writers: TypeGraph
    reader_name: str
    writer_name: str


def find_breaks(
    reader: AvroSchema,
    writer: AvroSchema,
    reader_name: str = "the reader's schema",
    writer_name: str = "the writer's schema",
) -> tuple[Break, ...]:
    """Every reason why `reader` cannot read what `writer` wrote, in the order of the reader's fields."""
    sides = _Sides(graph_of(reader), graph_of(writer), reader_name, writer_name)
    return tuple(walk(sides.readers, sides.writers, partial(_compare, sides)))


def check_compatibility(
    new: AvroSchema, older: Sequence[AvroSchema], level: Level, versions: Sequence[int] | None = None
) -> tuple[Break, ...]:
    """What `new` breaks of a subject's promise. `older` comes oldest first, `versions` are its numbers."""
    numbers = range(1, len(older) + 1) if versions is None else versions
    numbered = list(zip(numbers, older, strict=True))
    if not level.is_transitive:
        numbered = numbered[-1:]
    breaks: list[Break] = []
    for version, old in reversed(numbered):
        if level.new_reads_old:
            breaks.extend(_directed(new, old, "the new schema", f"version {version}"))
        if level.old_reads_new:
            breaks.extend(_directed(old, new, f"version {version}", "the new schema"))
    return tuple(breaks)


def _directed(reader: AvroSchema, writer: AvroSchema, reader_name: str, writer_name: str) -> Iterator[Break]:
    prefix = f"{reader_name.removeprefix('the ')} cannot read records of {writer_name}: "
    for found in find_breaks(reader, writer, reader_name, writer_name):
        yield replace(found, message=prefix + found.message)


def _label(path: str) -> str:
    """What a message calls a place: the field's path below the root, or the schema itself."""
    below = path.partition(".")[2]
    return f"field '{below}'" if below else f"'{path}'"


def _compare(sides: _Sides, pair: TypePair) -> Iterator[Break | TypePair]:
    """One step: the breaks found at this pair, and the pairs below it that are still to compare."""
    reader, writer = sides.readers.at(pair.reader), sides.writers.at(pair.writer)
    reader_kind, writer_kind = sides.readers.kind(reader), sides.writers.kind(writer)
    if writer_kind == "union":
        yield from (TypePair(pair.path, reader, branch) for branch in writer)
    elif reader_kind == "union":
        yield _branch_for(sides, pair)
    elif reader_kind != writer_kind:
        if not is_promotion(reader_kind, writer_kind):
            yield _type_mismatch(sides, pair)
    elif reader_kind in NAMED_KINDS and not same_name(reader, writer):
        yield Break(
            pair.path,
            "name-mismatch",
            f"{_label(pair.path)} is {reader_kind} {reader['name']} in {sides.reader_name} but "
            f"{writer['name']} in {sides.writer_name}, and {reader['name']} does not name "
            f"{writer['name']} as an alias",
        )
    elif reader_kind == "record":
        yield from _compare_fields(sides, pair, reader, writer)
    elif reader_kind == "enum":
        yield from _compare_symbols(sides, pair, reader, writer)
    elif reader_kind == "array":
        yield TypePair(f"{pair.path}[]", reader["items"], writer["items"])
    elif reader_kind == "map":
        yield TypePair(f"{pair.path}{{}}", reader["values"], writer["values"])
    else:
        yield from _compare_sizes(sides, pair, reader, writer)


def _branch_for(sides: _Sides, pair: TypePair) -> Break | TypePair:
    for branch in sides.readers.at(pair.reader):
        if is_match(sides.readers, branch, sides.writers, pair.writer):
            return TypePair(pair.path, branch, pair.writer)
    return Break(
        pair.path,
        "missing-union-branch",
        f"{_label(pair.path)} may be {sides.writers.describe(pair.writer)} in {sides.writer_name}, and the "
        f"{sides.readers.describe(pair.reader)} of {sides.reader_name} has no branch for it",
    )


def _type_mismatch(sides: _Sides, pair: TypePair) -> Break:
    reader, writer = sides.readers.describe(pair.reader), sides.writers.describe(pair.writer)
    return Break(
        pair.path,
        "type-mismatch",
        f"{_label(pair.path)} is {reader} in {sides.reader_name} but {writer} in {sides.writer_name}, "
        f"and {writer} cannot be read as {reader}",
    )


def _compare_fields(sides: _Sides, pair: TypePair, reader: Node, writer: Node) -> Iterator[Break | TypePair]:
    sources = field_sources(reader["fields"], writer["fields"])
    takers = Counter(one["name"] for found in sources.values() for one in found)
    for field in reader["fields"]:
        below = TypePair(f"{pair.path}.{field['name']}", field["type"], None)
        found = sources[field["name"]]
        if len(found) > 1 or any(takers[one["name"]] > 1 for one in found):
            yield Break(
                below.path,
                "ambiguous-alias",
                f"{_label(below.path)} and its aliases do not say clearly which of the fields "
                f"{', '.join(sorted(takers))} of {sides.writer_name} to read",
            )
        elif found:
            yield replace(below, writer=found[0]["type"])
        elif "default" not in field:
            yield Break(
                below.path,
                "reader-field-missing-default",
                f"{_label(below.path)} has no default and {sides.writer_name} does not have it",
            )


def _compare_symbols(sides: _Sides, pair: TypePair, reader: Node, writer: Node) -> Iterator[Break]:
    missing = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
    if missing and "default" not in reader:
        yield Break(
            pair.path,
            "missing-enum-symbols",
            f"{_label(pair.path)} may be {', '.join(missing)} in {sides.writer_name}, which enum "
            f"{reader['name']} of {sides.reader_name} does not have, and it has no default symbol",
        )


def _compare_sizes(sides: _Sides, pair: TypePair, reader: Node, writer: Node) -> Iterator[Break]:
    """Two primitives or two fixed of the same kind: what is left to differ is size and digits."""
    if isinstance(reader, dict) and isinstance(writer, dict) and reader.get("size") != writer.get("size"):
        yield Break(
            pair.path,
            "fixed-size-mismatch",
            f"{_label(pair.path)} has {reader['size']} bytes in {sides.reader_name} but {writer['size']} in "
            f"{sides.writer_name}",
        )
    digits, written = decimal_digits(reader), decimal_digits(writer)
    if digits and written and digits != written:
        yield Break(
            pair.path,
            "decimal-mismatch",
            f"{_label(pair.path)} is a decimal of {digits[0]} digits with scale {digits[1]} in "
            f"{sides.reader_name} but {written[0]} digits with scale {written[1]} in {sides.writer_name}",
        )
