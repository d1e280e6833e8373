"""What requests to the registry carry: paths, bodies and parameters, turned into values or refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import HTTPException, Query, Request
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from stack.feeds.avro.schema import AvroSchema, parse_avro
from stack.feeds.registry.compatibility import Level
from stack.feeds.registry.entries import HIGHEST_ID
from stack.feeds.registry.state import Code, Mode, RegistryNotFound, RegistryRefused, Which

MAX_BODY_BYTES = 2 << 20


class EncodedPathRoute(APIRoute):
    """A route that splits the path before it is decoded, so that `a%2Fb` is one subject."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        raw_path = scope.get("raw_path")
        if raw_path:
            path = raw_path.decode("utf-8", "replace").partition("?")[0]
            scope = {**scope, "path": path}
        match, child_scope = super().matches(scope)
        if "path_params" in child_scope:
            decoded = {name: unquote(str(value)) for name, value in child_scope["path_params"].items()}
            child_scope = {**child_scope, "path_params": decoded}
        return match, child_scope


async def read_body(request: Request) -> dict[str, Any]:
    """The JSON object of a request, whatever its content type; too long a body is not read to its end."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"The body has more than {MAX_BODY_BYTES:,} bytes")
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "The body is not JSON") from None
    if not isinstance(parsed, dict):
        raise HTTPException(400, "The body is not a JSON object")
    return parsed


@dataclass(frozen=True, slots=True)
class Page:
    """The part of a list that a client asks for; a negative limit means all of it."""

    offset: Annotated[int, Query(ge=0)] = 0
    limit: int = -1

    def cut(self, found: Sequence[Any]) -> list[Any]:
        end = len(found) if self.limit < 0 else self.offset + self.limit
        return list(found[self.offset : end])


def which_versions(
    deleted: bool = False,
    deleted_only: bool = False,
    deletedOnly: bool = False,  # noqa: N803 - the name on the wire; the Python client sends the other one
) -> Which:
    """The query parameters that choose between live and deleted versions."""
    if deleted_only or deletedOnly:
        return Which.DELETED
    return Which.ALL if deleted else Which.LIVE


def parse_version(text: str) -> int | None:
    """A version in a URL: a number, or None for the latest."""
    if text in ("latest", "-1"):
        return None
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= HIGHEST_ID:
        return int(text)
    raise RegistryRefused(
        Code.INVALID_VERSION,
        f"The specified version '{text}' is not a valid version id. Allowed values are between "
        f'[1, {HIGHEST_ID}] and the string "latest"',
    )


def parse_schema_id(text: str) -> int:
    """A schema id in a URL; what is no number is as unknown as a number nobody was given."""
    if text.isascii() and text.isdecimal() and len(text) <= len(str(HIGHEST_ID)):
        return int(text)
    raise RegistryNotFound(Code.SCHEMA_NOT_FOUND, f"Schema {text} not found")


def parse_schema(body: dict[str, Any]) -> AvroSchema:
    """The schema of a request; only Avro, and only schemas that stand for themselves."""
    if body.get("schemaType") not in (None, "AVRO"):
        raise RegistryRefused(
            Code.INVALID_SCHEMA,
            f"Schema type {body['schemaType']!r} is not supported: this registry keeps AVRO schemas only",
        )
    if body.get("references"):
        raise RegistryRefused(
            Code.INVALID_SCHEMA, "Schema references are not supported: define every type inside the schema"
        )
    if not isinstance(body.get("schema"), str) or not body["schema"]:
        raise RegistryRefused(
            Code.INVALID_SCHEMA, "The request has no schema: 'schema' must be the schema as text"
        )
    return parse_avro(body["schema"])


def parse_number(body: dict[str, Any], name: str) -> int | None:
    """An id or version that an import gives; clients send null, 0 or -1 for none."""
    value = body.get(name)
    if value is None or (type(value) is int and value <= 0):
        return None
    if type(value) is not int or value > HIGHEST_ID:
        raise RegistryRefused(Code.INVALID_VERSION, f"'{name}' is {value!r}, not a number up to {HIGHEST_ID}")
    return int(value)


def parse_level(body: dict[str, Any]) -> Level:
    """The compatibility level of a request."""
    given = body.get("compatibility")
    try:
        # Not str(given): the name of a missing level would be that of NONE.
        return Level(given.upper() if isinstance(given, str) else "")
    except ValueError:
        raise RegistryRefused(
            Code.INVALID_LEVEL,
            f"Invalid compatibility level {given!r}. Valid values are {', '.join(Level)}",
        ) from None


def parse_mode(body: dict[str, Any]) -> Mode:
    """The mode of a request."""
    try:
        return Mode(str(body.get("mode")).upper())
    except ValueError:
        raise RegistryRefused(
            Code.INVALID_MODE, f"Invalid mode. Valid values are {', '.join(Mode)}"
        ) from None
