"""Avro schemas as values: parsed once, compared by their compact text."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from stack.errors import BadSchema
from stack.feeds.avro.schema_faults import find_faults

MAX_SCHEMA_BYTES = 1 << 20


@dataclass(frozen=True)
class AvroSchema:
    """A valid Avro schema. Equal schemas have equal `text`; `tree` is the same as parsed JSON."""

    text: str
    tree: Any = field(compare=False, hash=False, repr=False)

    @cached_property
    def parsed(self) -> Any:
        """What fastavro wants; made once per schema."""
        return fastavro.parse_schema(self.tree)

    @property
    def field_names(self) -> tuple[str, ...]:
        """Top-level fields of a record schema, in order; empty for anything else."""
        if isinstance(self.tree, dict) and self.tree.get("type") == "record":
            return tuple(one["name"] for one in self.tree["fields"])
        return ()


class SchemaSource(Protocol):
    """Where a decoder finds the schema a record was written with."""

    def schema_by_id(self, schema_id: int) -> AvroSchema:
        """The schema with this id, or NotFound."""
        ...


def parse_avro(text: str, where: str = "the schema") -> AvroSchema:
    """Read an Avro schema from JSON text; `where` names it in errors (a file, a subject)."""
    tree = _parse_json(text, where)
    try:
        schema = AvroSchema(json.dumps(tree, separators=(",", ":"), ensure_ascii=False), tree)
        schema.text.encode()
        faults = find_faults(schema.parsed)
    except UnknownType as error:
        raise BadSchema(
            f"{where} uses the type {error.name!r}, which Avro does not have and the schema does not define",
            hint="Avro's types: null boolean int long float double bytes string record enum array map fixed, "
            "or a union as a list.",
        ) from None
    except UnicodeEncodeError:
        raise BadSchema(f"{where} holds half a character (a lone surrogate)") from None
    except (SchemaParseException, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        detail = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise BadSchema(
            f"{where} is not an Avro schema: {detail}",
            hint='Such as {"type": "record", "name": "Name", "fields": [{"name": "id", "type": "long"}]}.',
        ) from None
    if faults:
        raise BadSchema(
            f"{where} is not valid Avro: {'; '.join(faults)}",
            hint="Other Avro clients would refuse it: correct it before it is written with.",
        )
    return schema


def _parse_json(text: str, where: str) -> Any:
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise BadSchema(f"{where} holds half a character (a lone surrogate)") from None
    if size_bytes > MAX_SCHEMA_BYTES:
        raise BadSchema(
            f"{where} has more than {MAX_SCHEMA_BYTES:,} bytes",
            hint="Split it: a feed's schema describes one record.",
        )
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadSchema(
            f"{where} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            hint="An Avro schema is written in JSON; check commas and quotes there.",
        ) from None
    except (RecursionError, ValueError):
        raise BadSchema(f"{where} is nested too deeply or holds a number too long") from None
