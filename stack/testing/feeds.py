"""Feeds that a test declares beside its code, in the words of catalog.toml."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from stack.errors import BadCatalogue, BadInput
from stack.feeds.avro.schema import AvroSchema, parse_avro
from stack.feeds.declare import CATALOGUE_NAME, Declaration, declare_feeds, read_declarations

Declared = Mapping[str, Mapping[str, Any]]


def catalogue_of(place: Path | str) -> tuple[Declaration, ...]:
    """The feeds of a catalog.toml, named by itself or by its folder."""
    path = Path(place)
    if path.name == CATALOGUE_NAME:
        return read_declarations(path.parent)
    if not path.is_dir():
        raise BadCatalogue(
            f"{path} is neither a folder nor a {CATALOGUE_NAME}",
            hint='Name the catalogue by its path from where the test runs: "schemas/catalog.toml".',
        )
    return read_declarations(path)


def declared_here(feeds: Declared, known: Collection[str]) -> tuple[Declaration, ...]:
    """Feeds by name, each with the keys of catalog.toml.

    A schema is an Avro schema, or only its fields with their types. What a test does not care about need not
    be said: a feed that names no job is a source.
    """
    schemas: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    for name, given in feeds.items():
        if not isinstance(given, Mapping):
            tables[name] = given
            continue
        table = dict(given)
        table.setdefault("kind", "derived" if "by" in table else "source")
        table.setdefault("for", "a test")
        table.setdefault("owner", "test")
        if "schema" in table:
            schemas[name] = table["schema"]
            table["schema"] = name
        tables[name] = table

    def schema_of(name: str, place: str, faults: list[str]) -> AvroSchema | None:
        try:
            return parse_avro(json.dumps(_whole(name, schemas[name])), where=f"the schema of {name}")
        except BadInput as error:
            faults.append(f"{place}.schema: {error.message}")
        except (TypeError, ValueError) as error:
            faults.append(f"{place}.schema: {error}")
        return None

    return declare_feeds(tables, schema_of, "the declaration of feeds", known=known)


def only_fields(table: Any) -> bool:
    """Whether a feed is declared with the fields of its schema alone."""
    schema = table.get("schema") if isinstance(table, Mapping) else None
    return isinstance(schema, Mapping) and not ("type" in schema and "fields" in schema)


def _whole(name: str, schema: Any) -> Any:
    """An Avro schema, also where only its fields were given."""
    if not isinstance(schema, Mapping):
        raise TypeError(f'must be a schema or its fields, such as {{"user": "string"}}, got {schema!r}')
    if not only_fields({"schema": schema}):
        return schema
    fields = [{"name": field, "type": kind} for field, kind in schema.items()]
    words = "".join(word.capitalize() for word in name.replace("_", "-").replace(".", "-").split("-"))
    return {"type": "record", "name": words if words[:1].isalpha() else f"Feed{words}", "fields": fields}
