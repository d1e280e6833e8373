"""A slice of a feed in a file, for tests: a line about the feed, then a line of JSON for each record.

The format is documented in docs/formats.md. Values are written as people read them, by the schema in the
first line; a reader with another schema gets them by schema resolution, as it would from the feed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stack.errors import BadInput, BadRecord, Incompatible
from stack.feeds.avro.codec import RecordDecoder, RecordEncoder
from stack.feeds.avro.schema import AvroSchema, parse_avro
from stack.feeds.keys import key_schema
from stack.feeds.registry.compatibility import find_breaks
from stack.feeds.rows.rows import row_to_value, value_to_json
from stack.model.feed import FeedSpec, Key, KeyFormat
from stack.model.record import Record

FORMAT, VERSION = "feedstack-fixture", 1
_SCHEMA_ID = 1


@dataclass(frozen=True)
class Fixture:
    """The first line: whose records these are, and how they are written."""

    feed: str
    schema: AvroSchema
    schema_version: int
    key: Key | None


@dataclass(frozen=True)
class Line:
    """One record of a fixture. `payload` holds the bytes of a value that no schema explains."""

    key: Any
    value: Any
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
    payload: bytes | None = None


def fixture_lines(
    spec: FeedSpec, schema: AvroSchema, schema_version: int, records: Iterable[tuple[Record, bytes | None]]
) -> Iterator[str]:
    """The lines of a fixture, of records each with its bytes."""
    key = None if spec.key is None else {"field": spec.key.field, "format": str(spec.key.format)}
    about = {"format": FORMAT, "version": VERSION, "feed": spec.name, "schema_version": schema_version}
    yield json.dumps({**about, "key": key, "schema": schema.tree}, ensure_ascii=False)
    of_key = _schema_of_key(spec.key, schema)
    for record, payload in records:
        tree: dict[str, Any] = {"time": record.timestamp_ms, "key": _key_to_json(record.key, of_key)}
        if isinstance(record.value, BadRecord):
            tree["bytes"] = _to_json(payload)
        else:
            tree["value"] = None if record.value is None else value_to_json(schema, record.value)
        if record.headers:
            tree["headers"] = [[name, _to_json(text)] for name, text in record.headers]
        yield json.dumps(tree, ensure_ascii=False)


def read_fixture(file: Path) -> tuple[Fixture, list[Line]]:
    """A whole fixture; BadInput tells which line is none."""
    try:
        texts = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise BadInput(
            f"there is no fixture {file}", hint="`stack feeds record FEED --out FILE` records one."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} cannot be read: {error}") from None
    fixture = _first_line(file, texts[0] if texts else "")
    of_key = _schema_of_key(fixture.key, fixture.schema)
    lines = []
    for number, text in enumerate(texts[1:], 2):
        try:
            lines.append(_line(json.loads(text), fixture.schema, of_key))
        except BadRecord as error:
            raise BadRecord(f"{file}, line {number}: {error.message}", error.hint, error.field) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{file}, line {number} is no record of a fixture: {error!r}") from None
    return fixture, lines


def renamed(fixture: Fixture, schema: AvroSchema) -> Fixture:
    """The same fixture with the name that the record has in another schema."""
    tree = {**fixture.schema.tree, "name": schema.tree["name"], "namespace": schema.tree.get("namespace", "")}
    return replace(fixture, schema=parse_avro(json.dumps(tree)))


def values_as(fixture: Fixture, lines: Iterable[Line], schema: AvroSchema, version: int) -> list[Any]:
    """The values as another version of the schema reads them.

    Incompatible names both versions and what stands between them.
    """
    if fixture.schema == schema:
        return [line.value for line in lines]
    named, current = f"version {fixture.schema_version}", f"version {version}"
    breaks = find_breaks(schema, fixture.schema, current, named)
    if breaks:
        told = "; ".join(f"{one.path}: {one.message}" for one in breaks)
        raise Incompatible(
            f"the fixture was recorded from {fixture.feed!r} with {named} of its schema, and {current} "
            f"cannot read it: {told}",
            hint="Record it anew with `stack feeds record`, give new fields a default, or test with the "
            "schema of then.",
            breaks=tuple(one.rule for one in breaks),
        )
    encode = RecordEncoder(fixture.schema, _SCHEMA_ID).encode
    decode = RecordDecoder(_Only(fixture.schema), schema).decode
    return [None if line.value is None else decode(encode(line.value)) for line in lines]


class _Only:
    """A registry that knows one schema."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema

    def schema_by_id(self, schema_id: int) -> AvroSchema:  # noqa: ARG002
        return self._schema


def _first_line(file: Path, text: str) -> Fixture:
    try:
        tree = json.loads(text)
        if tree["format"] != FORMAT:
            raise ValueError(f"its format is {tree['format']!r}")
        if tree["version"] != VERSION:
            raise BadInput(
                f"{file} is a fixture of version {tree['version']!r}; this Feedstack reads version {VERSION}",
                hint="Record it anew with `stack feeds record`.",
            )
        key = tree["key"]
        return Fixture(
            str(tree["feed"]),
            parse_avro(json.dumps(tree["schema"]), where=f"the schema in {file}"),
            int(tree["schema_version"]),
            None if key is None else Key(key["field"], KeyFormat(key["format"])),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{file} is no fixture: {error!r}", hint="`stack feeds record FEED --out FILE` records one."
        ) from None


def _line(tree: dict[str, Any], schema: AvroSchema, of_key: AvroSchema | None) -> Line:
    headers = tuple((str(name), _from_json(text)) for name, text in tree.get("headers", ()))
    key, time_ms = tree["key"], int(tree["time"])
    if of_key is not None and key is not None:
        key = row_to_value(of_key, key)
    elif isinstance(key, dict):
        key = _from_json(key)
    if "bytes" in tree:
        return Line(key, None, time_ms, headers, _from_json(tree["bytes"]))
    value = tree["value"]
    return Line(key, None if value is None else row_to_value(schema, value), time_ms, headers)


def _schema_of_key(key: Key | None, schema: AvroSchema) -> AvroSchema | None:
    return key_schema(key, schema) if key is not None and key.format is KeyFormat.AVRO else None


def _key_to_json(key: Any, of_key: AvroSchema | None) -> Any:
    if isinstance(key, bytes):
        return {"base64": base64.b64encode(key).decode()}
    return key if of_key is None or key is None else value_to_json(of_key, key)


def _to_json(data: bytes | None) -> Any:
    """Bytes as text where they are text."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _from_json(tree: Any) -> bytes | None:
    if tree is None:
        return None
    return base64.b64decode(tree["base64"]) if isinstance(tree, dict) else str(tree).encode()
