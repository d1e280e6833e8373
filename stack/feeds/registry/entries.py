"""Registry facts to and from the text of ledger entries; the layout stands in `registry_state`."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from stack.feeds.registry.compatibility import Level
from stack.feeds.registry.state import (
    Fact,
    Fault,
    HighestId,
    Mode,
    Registered,
    RegistryState,
    Setting,
    state_of,
)
from stack.model.ledger import Entries

HIGHEST_ID = 2**31 - 1
"""Ids travel as four bytes, signed, in front of every record."""

_KNOWN_ENTRIES = 16_384


class _UnreadableError(ValueError):
    """What is wrong with an entry; never leaves this module."""


def state_from_entries(entries: Entries) -> RegistryState:
    """The registry's state. Entries that were seen before are not parsed again."""
    facts = ((key, read_entry(key, value)) for key, value in entries.items())
    return state_of((key, fact) for key, fact in facts if fact is not None)


@lru_cache(_KNOWN_ENTRIES)
def read_entry(key: str, value: str) -> Fact | None:
    """The fact an entry states; None for key types of others, a Fault for what cannot be read."""
    try:
        parsed_key = _object(key)
        keytype = _typed(parsed_key, "keytype", str)
    except _UnreadableError as fault:
        return Fault(key, f"its key: {fault}")
    try:
        return _read_known(keytype, parsed_key, value)
    except _UnreadableError as fault:
        subject = parsed_key.get("subject")
        return Fault(key, str(fault), keytype, subject if isinstance(subject, str) else None)


def level_key(subject: str | None) -> str:
    return _compact({"keytype": "CONFIG", "subject": subject, "magic": 0})


def mode_key(subject: str | None) -> str:
    return _compact({"keytype": "MODE", "subject": subject, "magic": 0})


def highest_id_key() -> str:
    return _compact({"keytype": "IDS", "magic": 0})


def schema_value(one: Registered) -> str:
    return _compact(
        {
            "subject": one.subject,
            "version": one.version,
            "id": one.id,
            "schema": one.text,
            "deleted": one.deleted,
        }
    )


def level_value(level: Level) -> str:
    return _compact({"compatibilityLevel": level.value})


def mode_value(mode: Mode) -> str:
    return _compact({"mode": mode.value})


def highest_id_value(highest_id: int) -> str:
    return _compact({"highest": highest_id})


def _compact(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _read_known(keytype: str, key: dict[str, Any], value: str) -> Fact | None:
    if keytype == "SCHEMA":
        return _read_schema(key, _object(value))
    if keytype == "IDS":
        return HighestId(_number(_object(value), "highest", 0))
    if keytype not in ("CONFIG", "MODE"):
        return None
    subject = key.get("subject")
    if subject is not None and not isinstance(subject, str):
        raise _UnreadableError(f"its subject is {subject!r}")
    try:
        if keytype == "CONFIG":
            return Setting(subject, Level(_typed(_object(value), "compatibilityLevel", str)))
        return Setting(subject, Mode(_typed(_object(value), "mode", str)))
    except _UnreadableError:
        raise
    except ValueError as error:
        raise _UnreadableError(str(error)) from None


def _read_schema(key: dict[str, Any], value: dict[str, Any]) -> Registered:
    found = Registered(
        _typed(key, "subject", str),
        _number(key, "version", 1),
        _number(value, "id", 1),
        _typed(value, "schema", str),
        _typed(value, "deleted", bool) if "deleted" in value else False,
    )
    if (value.get("subject"), value.get("version")) != (found.subject, found.version):
        raise _UnreadableError(f"its value is of {value.get('subject')!r}, version {value.get('version')!r}")
    if value.get("schemaType", "AVRO") != "AVRO":
        raise _UnreadableError(f"its schema type is {value['schemaType']!r}, and only AVRO is known here")
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _UnreadableError(f"not JSON ({error})") from None
    if not isinstance(parsed, dict):
        raise _UnreadableError("not a JSON object")
    return parsed


def _typed(value: dict[str, Any], name: str, kind: type[Any]) -> Any:
    if type(value.get(name)) is not kind:
        raise _UnreadableError(f"{name!r} is {value.get(name)!r}, not a {kind.__name__}")
    return value[name]


def _number(value: dict[str, Any], name: str, least: int) -> int:
    number = int(_typed(value, name, int))
    if not least <= number <= HIGHEST_ID:
        raise _UnreadableError(f"{name!r} is {number}, not between {least} and {HIGHEST_ID}")
    return number
