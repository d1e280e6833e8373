"""Reads schemas/catalog.toml and the Avro files beside it: what the feeds should be."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stack.errors import BadCatalogue, BadInput
from stack.feeds.avro.schema import AvroSchema, parse_avro
from stack.model.duration import parse_duration_ms
from stack.model.feed import (
    FRESHNESS_WINDOW_MS,
    Events,
    FeedSpec,
    FreshnessOf,
    Key,
    KeyFormat,
    Kind,
    Table,
    name_fault,
)
from stack.model.tables import flag

CATALOGUE_NAME = "catalog.toml"
DEFAULT_RETENTION_MS = 7 * 86_400_000
DEFAULT_HORIZON_MS = 86_400_000
MAX_PARTITIONS = 10_000
LEVELS = (
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
    "NONE",
)
# Types whose text form is one to one, so that text keys of equal values are equal bytes.
_TEXT_KEY_TYPES = ("string", "int", "long", "enum")


@dataclass(frozen=True)
class Declaration:
    """A feed as the files declare it, with its schema."""

    spec: FeedSpec
    schema: AvroSchema


SchemaOf = Callable[[str, str, list[str]], AvroSchema | None]
"""Finds a schema by what the table says, for the table of that place; None after a fault that it adds."""


def read_declarations(folder: Path) -> tuple[Declaration, ...]:
    """All declared feeds, in the order of the file; every fault of all files is reported at once."""
    file = folder / CATALOGUE_NAME
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadCatalogue(
            f"there is no {file}",
            hint='Declare feeds there, or name another folder in stack.toml: schemas = "..."',
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadCatalogue(f"{file} cannot be read: {error}") from None
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadCatalogue(f"{file} is not TOML: {error}", hint="Check that line.") from None
    faults = [f"{key}: unknown key; feeds stand under [feeds.NAME]" for key in tree if key != "feeds"]
    tables = tree.get("feeds", {})
    if not isinstance(tables, dict):
        faults.append("feeds: must be tables, written [feeds.NAME]")
        tables = {}
    return declare_feeds(tables, partial(_schema, folder), str(file), faults)


def declare_feeds(
    tables: Mapping[str, Any],
    schema_of: SchemaOf,
    where: str,
    faults: Iterable[str] = (),
    known: Collection[str] = (),
) -> tuple[Declaration, ...]:
    """The feeds of tables as they stand in a catalogue; `known` are feeds declared elsewhere.

    BadCatalogue tells all faults, and those that were found before.
    """
    faults = list(faults)
    declarations = []
    for name, table in tables.items():
        if not isinstance(table, dict):
            faults.append(f"feeds.{name}: must be a table, written [feeds.{name}]")
            continue
        declaration = _declaration(name, table, schema_of, faults)
        if declaration is not None:
            declarations.append(declaration)
    faults += _colliding_names([*known, *tables])
    faults += _unknown_inputs(declarations, {*known, *tables})
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        lines = "\n".join(f"  - {fault}" for fault in faults)
        raise BadCatalogue(
            f"{where} has {count}:\n{lines}",
            hint="Correct them and run the command again; docs/feeds.md lists every key.",
            faults=tuple(faults),
        )
    return tuple(declarations)


def _colliding_names(names: Iterable[str]) -> list[str]:
    """Kafka's metrics do not tell a dot from an underscore: it refuses names that differ in nothing else."""
    seen: dict[str, str] = {}
    faults = []
    for name in names:
        twin = seen.setdefault(name.replace(".", "_"), name)
        if twin != name:
            faults.append(f"feeds.{name}: Kafka takes it for the same name as {twin}; rename one of them")
    return faults


def _unknown_inputs(declarations: list[Declaration], names: Collection[str]) -> list[str]:
    return [
        f"feeds.{one.spec.name}.inputs: there is no feed {name!r}"
        for one in declarations
        for name in one.spec.inputs
        if name not in names
    ]


def _declaration(
    name: str, table: Mapping[str, Any], schema_of: SchemaOf, faults: list[str]
) -> Declaration | None:
    before = len(faults)
    place = f"feeds.{name}"
    fault = name_fault(name)
    if fault:
        faults.append(f"{place}: the name does not do: {fault}")
    taken: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.5)
            what = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(_KEYS))}"
            faults.append(f"{place}.{key}: unknown key; {what}")
            continue
        try:
            taken[key] = _KEYS[key](value)
        except BadInput as error:
            faults.append(f"{place}.{key}: {error.message}")
        except ValueError:  # Python does not print a number of more than 4,300 digits
            faults.append(f"{place}.{key}: holds a number that is too long")
    faults += [f"{place}.{key}: must be given" for key in _REQUIRED if key not in table]
    schema = schema_of(taken["schema"], place, faults) if "schema" in taken else None
    if len(faults) > before or schema is None:
        return None
    faults += [f"{place}{fault}" for fault in _contradictions(taken, schema)]
    if len(faults) > before:
        return None
    return Declaration(_spec(name, taken), schema)


def _schema(folder: Path, name: str, place: str, faults: list[str]) -> AvroSchema | None:
    file = folder / name
    if not file.resolve().is_relative_to(folder.resolve()):
        faults.append(f"{place}.schema: {name} lies outside {folder}")
        return None
    try:
        schema = parse_avro(file.read_text(encoding="utf-8"), where=str(file))
    except FileNotFoundError:
        faults.append(f"{place}.schema: there is no file {file}")
    except (OSError, UnicodeDecodeError) as error:
        faults.append(f"{place}.schema: {file} cannot be read: {error}")
    except BadInput as error:
        faults.append(f"{place}.schema: {error.message}")
    else:
        if schema.field_names or (isinstance(schema.tree, dict) and schema.tree.get("type") == "record"):
            return schema
        faults.append(f"{place}.schema: {file} must be a record: a feed's value has named fields")
    return None


def _contradictions(taken: Mapping[str, Any], schema: AvroSchema) -> list[str]:
    """What is well-formed key by key but does not fit together."""
    fields = {one["name"]: one["type"] for one in schema.tree["fields"]}
    faults = _key_faults(taken, fields)
    event_time = taken.get("event_time")
    if event_time is not None and event_time not in fields:
        faults.append(f".event_time: {taken['schema']} has no field {event_time!r}")
    elif event_time is not None and _type_name(fields[event_time]) != "long":
        faults.append(f".event_time: field {event_time!r} must be a long (milliseconds, or a timestamp)")
    if taken.get("table"):
        if "key" not in taken:
            faults.append(".table: a table feed needs key, the field whose last record stays")
        if "retention" in taken:
            faults.append(
                ".retention: a table feed keeps the last record of each key; it has a horizon instead"
            )
    elif "horizon" in taken:
        faults.append(".horizon: only a table feed has one; write table = true, or retention")
    if taken["kind"] is Kind.SOURCE:
        faults += [f".{word}: only a derived feed has it" for word in ("by", "inputs") if word in taken]
    return faults + _freshness_faults(taken)


def _freshness_faults(taken: Mapping[str, Any]) -> list[str]:
    words = ("freshness_window", "freshness_of")
    if "freshness" not in taken:
        return [f".{word}: given without freshness, the objective" for word in words if word in taken]
    if taken["kind"] is Kind.SOURCE and taken.get("freshness_of") is FreshnessOf.JOB:
        return ['.freshness_of: no job makes a source feed; write "records": how long ago it got one']
    return []


def _key_faults(taken: Mapping[str, Any], fields: Mapping[str, Any]) -> list[str]:
    faults = []
    key = taken.get("key")
    if key is not None and key not in fields:
        near = difflib.get_close_matches(key, fields, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"its fields: {', '.join(fields)}"
        faults.append(f".key: {taken['schema']} has no field {key!r}; {hint}")
    elif key is not None and taken.get("key_format", KeyFormat.UTF8) is KeyFormat.UTF8:
        kind = _type_name(fields[key])
        if kind not in _TEXT_KEY_TYPES:
            faults.append(
                f".key: field {key!r} is {kind}; a text key is made of {', '.join(_TEXT_KEY_TYPES)}; "
                'write key_format = "avro" for other types'
            )
    elif key is not None:
        faults += _avro_key_faults(key, fields[key])
    if key is None and "key_format" in taken:
        faults.append(".key_format: given without key, the field that becomes the key")
    return faults


def _avro_key_faults(key: str, declared: Any) -> list[str]:
    """An Avro key has a schema of its own: the field's type must stand alone."""
    try:
        parse_avro(json.dumps(declared), where=f"the type of field {key!r}")
    except BadInput as error:
        return [f".key: it cannot be the schema of an Avro key: {error.message}"]
    return []


def _type_name(declared: Any) -> str:
    if isinstance(declared, dict):
        return str(declared["type"])
    return "a union" if isinstance(declared, list) else str(declared)


def _spec(name: str, taken: Mapping[str, Any]) -> FeedSpec:
    if taken.get("table"):
        storage: Events | Table = Table(taken.get("horizon", DEFAULT_HORIZON_MS))
    else:
        storage = Events(taken.get("retention", DEFAULT_RETENTION_MS))
    key = Key(taken["key"], taken.get("key_format", KeyFormat.UTF8)) if "key" in taken else None
    return FeedSpec(
        name=name,
        kind=taken["kind"],
        purpose=taken["for"],
        owner=taken["owner"],
        schema=taken["schema"],
        partitions=taken.get("partitions", 1),
        storage=storage,
        key=key,
        event_time=taken.get("event_time"),
        freshness_ms=taken.get("freshness"),
        by=taken.get("by"),
        inputs=taken.get("inputs", ()),
        compatibility=taken.get("compatibility"),
        freshness_window_ms=taken.get("freshness_window", FRESHNESS_WINDOW_MS),
        freshness_of=taken.get("freshness_of", FreshnessOf.JOB),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise BadInput(f"must be text, got {value!r}")
    return value


def _kind(value: Any) -> Kind:
    try:
        return Kind(value)
    except ValueError:
        raise BadInput(
            f'must be "source" (written from outside) or "derived" (written by a job), got {value!r}'
        )


def _freshness_of(value: Any) -> FreshnessOf:
    try:
        return FreshnessOf(value)
    except ValueError:
        raise BadInput(f'must be "job" or "records", got {value!r}')


def _key_format(value: Any) -> KeyFormat:
    try:
        return KeyFormat(value)
    except ValueError:
        raise BadInput(f'must be "utf8" or "avro", got {value!r}')


def _partitions(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_PARTITIONS:
        raise BadInput(f"must be a whole number from 1 to {MAX_PARTITIONS:,}, got {value!r}")
    return value


def _duration(value: Any) -> int:
    duration_ms = parse_duration_ms(_text(value))
    if duration_ms <= 0:
        raise BadInput(f"must be longer than nothing, got {value!r}")
    return duration_ms


def _retention(value: Any) -> int | None:
    return None if value == "forever" else _duration(value)


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise BadInput(f"must be a list of names, got {value!r}")
    return tuple(value)


def _level(value: Any) -> str:
    if value not in LEVELS:
        raise BadInput(f"must be one of {', '.join(LEVELS)}, got {value!r}")
    return str(value)


_KEYS: dict[str, Callable[[Any], Any]] = {
    "kind": _kind,
    "for": _text,
    "owner": _text,
    "schema": _text,
    "key": _text,
    "key_format": _key_format,
    "partitions": _partitions,
    "retention": _retention,
    "table": flag,
    "horizon": _duration,
    "event_time": _text,
    "freshness": _duration,
    "freshness_window": _duration,
    "freshness_of": _freshness_of,
    "by": _text,
    "inputs": _names,
    "compatibility": _level,
}
_REQUIRED = ("kind", "for", "owner", "schema")
