"""CSV rows to values: cells are text, the schema says what they mean."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from stack.errors import BadInput, BadRecord
from stack.feeds.avro.fault import Fault
from stack.feeds.avro.nodes import MISSING, Field
from stack.feeds.avro.schema import AvroSchema
from stack.feeds.rows.converters import Converter
from stack.feeds.rows.json_scalars import shown
from stack.feeds.rows.json_values import converter_of, fill_in, unknown_field

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MAX_NUMBER_LENGTH = 1_000
# Any text is a string, and nearly any text stands for bytes, so these branches are asked last.
_LAST = {"string": 1, "bytes": 2, "fixed": 2}
_HINT = "A header names fields of the schema; fields of nested records are written with dots: place.city."


@dataclass(slots=True)
class _Column:
    """A cell that holds one field."""

    index: int


@dataclass(slots=True)
class _Group:
    """The cells of a nested record; for the whole row, `nullable` is false."""

    record: Converter
    nullable: bool
    members: dict[str, _Column | _Group] = field(default_factory=dict)

    def indexes(self) -> list[int]:
        found: list[int] = []
        for member in self.members.values():
            found += [member.index] if isinstance(member, _Column) else member.indexes()
        return found


def csv_row_to_value(schema: AvroSchema, header: Sequence[str], cells: Sequence[str]) -> Any:
    """The value of a record schema from the cells of one row.

    An empty cell is null where the field may be null, else the field's default, else a fault. Arrays, maps
    and whole records are JSON text. BadInput for a header that does not fit, BadRecord for the cells.
    """
    plan = header_plan(schema, tuple(header))
    if len(cells) != len(header):
        raise BadRecord(
            f"the header has {len(header)} columns, this row has {len(cells)} cells",
            hint="A cell with a comma in it stands in double quotes.",
        )
    try:
        return _read_group(plan, cells)
    except Fault as fault:
        raise fault.final() from None
    except RecursionError:
        raise BadRecord("a cell is nested too deeply") from None


@lru_cache(maxsize=64)
def header_plan(schema: AvroSchema, header: tuple[str, ...]) -> _Group:
    """Which cell becomes which field; BadInput if a column is unknown or a required field has none."""
    record = converter_of(schema)
    if record.kind != "record":
        raise BadInput("CSV needs a schema that is a record", hint="Use JSON lines for other schemas.")
    plan = _Group(record, nullable=False)
    for index, name in enumerate(header):
        try:
            _place(plan, name.strip().split("."), index)
        except Fault as fault:
            raise BadInput(f"the column {name!r} {fault.reason}", hint=_HINT) from None
    lacking = _lacking(plan, "")
    if lacking:
        raise BadInput(f"the header lacks {', '.join(lacking)}: no default in the schema", hint=_HINT)
    return plan


def _place(group: _Group, path: list[str], index: int) -> None:
    name = path[0]
    if name not in group.record.fields:
        raise unknown_field(group.record.node, name)
    if len(path) == 1:
        if name in group.members:
            raise Fault("stands twice in the header, or beside columns of its fields")
        group.members[name] = _Column(index)
        return
    converter = group.record.fields[name]
    records = [one for one in _alternatives(converter) if one.kind == "record"]
    if len(records) != 1:
        raise Fault(f"goes into {name}, which is not one record")
    inner = group.members.setdefault(name, _Group(records[0], converter.nullable))
    if isinstance(inner, _Column):
        raise Fault(f"stands beside a column {name} that holds the whole record")
    _place(inner, path[1:], index)


def _lacking(group: _Group, prefix: str) -> list[str]:
    lacking = []
    for one in group.record.node.fields:
        member = group.members.get(one.name)
        if member is None and one.default is MISSING:
            lacking.append(prefix + one.name)
        elif isinstance(member, _Group):
            lacking += _lacking(member, f"{prefix}{one.name}.")
    return lacking


def _read_group(group: _Group, cells: Sequence[str]) -> dict[str, Any] | None:
    if group.nullable and not any(cells[index] for index in group.indexes()):
        return None
    found: dict[str, Any] = {}
    record = group.record
    for one in record.node.fields:
        member = group.members.get(one.name)
        try:
            if member is None:
                found[one.name] = fill_in(record.node, one, "is missing")
            elif isinstance(member, _Group):
                found[one.name] = _read_group(member, cells)
            else:
                found[one.name] = _read_cell(record, one, cells[member.index])
        except Fault as fault:
            raise fault.under(f".{one.name}") from None
    return found


def _read_cell(record: Converter, field: Field, text: str) -> Any:
    converter = record.fields[field.name]
    if text == "":
        if converter.nullable:
            return None
        return fill_in(record.node, field, "is empty, cannot be null")
    branches = _alternatives(converter)
    branches.sort(key=lambda branch: 0 if branch.node.logical else _LAST.get(branch.kind, 0))
    faults = []
    for branch in branches:
        try:
            return branch.read(_parsed(branch, text))
        except Fault as fault:
            faults.append(fault)
    if len(faults) == 1:
        raise faults[0]
    raise Fault(f"must be one of {', '.join(branch.tag for branch in branches)}; got {shown(text)}")


def _alternatives(converter: Converter) -> list[Converter]:
    """The branches of a union that are not null, or the one type itself."""
    return [one for one in converter.branches if one.kind != "null"] or [converter]


def _parsed(branch: Converter, text: str) -> Any:
    """The JSON that a cell stands for, as far as the type needs it; else the text itself."""
    word = text.strip()
    match branch.kind:
        case "array" | "map" | "record":
            try:
                return json.loads(text)
            except (ValueError, RecursionError):
                raise Fault(f"must be {branch.kind} as JSON text, got {shown(text)}") from None
        case "boolean":
            return {"true": True, "false": False}.get(word.lower(), text)
        case "int" | "long" if _WHOLE.fullmatch(word) and len(word) < _MAX_NUMBER_LENGTH:
            return int(word)
        case "int" | "long" | "float" | "double" if _NUMBER.fullmatch(word):
            return float(word)
        case _:
            return text
