"""What the schema registry knows, as a value built from ledger entries, and the questions one can ask it.

The entries have the layout of Confluent's `_schemas` topic, so that its tools can read them:

SCHEMA  {"keytype":"SCHEMA","subject":"s","version":1,"magic":1}
        {"subject":"s","version":1,"id":1,"schema":"...","deleted":false}
CONFIG  {"keytype":"CONFIG","subject":null or "s","magic":0}   {"compatibilityLevel":"BACKWARD"}
MODE    {"keytype":"MODE","subject":null or "s","magic":0}     {"mode":"READWRITE"}
IDS     {"keytype":"IDS","magic":0}                            {"highest":7}

IDS is ours: the highest id ever given out, so that an id is not used again after its last schema was
deleted for good. Other readers skip it as we skip key types that we do not know. An entry that cannot
be read makes its own subject fail, and an id that may have stood in it; the rest goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum
from functools import lru_cache

from stack.errors import BadInput, BadSchema, CorruptState, NotFound
from stack.feeds.avro.schema import AvroSchema, parse_avro
from stack.feeds.registry.compatibility import Level

_PARSED_SCHEMAS = 512
_REPAIR = "Write that key of the schema ledger again, or remove it, then retry."


class Mode(StrEnum):
    """What may be written; a global READONLY_OVERRIDE wins over the modes of the subjects."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"


class Which(Enum):
    """Which versions a question is about."""

    LIVE = "live"
    ALL = "all"
    DELETED = "deleted"

    def holds(self, deleted: bool) -> bool:
        return self is Which.ALL or deleted == (self is Which.DELETED)


class Code(IntEnum):
    """Why a request is refused: the error codes of the Schema Registry API, which clients test for."""

    SUBJECT_NOT_FOUND = 40401
    VERSION_NOT_FOUND = 40402
    SCHEMA_NOT_FOUND = 40403
    SUBJECT_SOFT_DELETED = 40404
    SUBJECT_NOT_SOFT_DELETED = 40405
    VERSION_SOFT_DELETED = 40406
    VERSION_NOT_SOFT_DELETED = 40407
    LEVEL_NOT_SET = 40408
    MODE_NOT_SET = 40409
    INVALID_SCHEMA = 42201
    INVALID_VERSION = 42202
    INVALID_LEVEL = 42203
    INVALID_MODE = 42204
    NOT_PERMITTED = 42205
    ID_DOES_NOT_MATCH = 42207
    INVALID_SUBJECT = 42208


class RegistryNotFound(NotFound):
    """A subject, version, schema or setting that the registry does not have; `code` says which."""

    def __init__(self, code: Code, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class RegistryRefused(BadInput):
    """A request that the registry's rules do not allow; `code` says which rule."""

    def __init__(self, code: Code, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


@dataclass(frozen=True, slots=True)
class Registered:
    """One version of a subject. `text` is the schema; the same text has the same id everywhere."""

    subject: str
    version: int
    id: int
    text: str
    deleted: bool = False

    @property
    def schema(self) -> AvroSchema:
        """The schema itself, parsed once per text."""
        try:
            return _parse_once(self.text)
        except BadSchema as error:
            key = schema_key(self.subject, self.version)
            raise CorruptState(
                f"the registry entry {key} holds no Avro schema: {error.message}", hint=_REPAIR
            ) from error


@lru_cache(_PARSED_SCHEMAS)
def _parse_once(text: str) -> AvroSchema:
    return parse_avro(text)


def schema_key(subject: str, version: int) -> str:
    """The ledger key of a version."""
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    return json.dumps(key, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Setting:
    """A level or a mode of a subject, or of all of them if `subject` is None."""

    subject: str | None
    value: Level | Mode


@dataclass(frozen=True, slots=True)
class HighestId:
    """The highest schema id ever given out."""

    value: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A ledger entry that cannot be read. `keytype` and `subject` are None where not even they can be."""

    key: str
    reason: str
    keytype: str | None = None
    subject: str | None = None


Fact = Registered | Setting | HighestId | Fault


@dataclass(frozen=True)
class RegistryState:
    """The registry at one moment. Made by `state_of`; never changed."""

    versions: Mapping[str, Mapping[int, Registered]] = field(default_factory=dict)
    levels: Mapping[str | None, Level] = field(default_factory=dict)
    modes: Mapping[str | None, Mode] = field(default_factory=dict)
    uses: Mapping[int, tuple[Registered, ...]] = field(default_factory=dict)
    ids_by_text: Mapping[str, int] = field(default_factory=dict)
    highest_id: int = 0
    faults: tuple[Fault, ...] = ()

    def subjects(self, prefix: str = "", which: Which = Which.LIVE) -> tuple[str, ...]:
        """The subjects that have such versions, sorted."""
        return tuple(
            subject
            for subject, versions in sorted(self.versions.items())
            if subject.startswith(prefix) and any(which.holds(one.deleted) for one in versions.values())
        )

    def versions_of(self, subject: str, which: Which = Which.LIVE) -> tuple[Registered, ...]:
        """The versions of a subject, oldest first; none for a subject that does not exist."""
        self.refuse_faults("SCHEMA", subject)
        versions = self.versions.get(subject, {})
        return tuple(one for _, one in sorted(versions.items()) if which.holds(one.deleted))

    def existing(self, subject: str, which: Which = Which.LIVE) -> tuple[Registered, ...]:
        """The same, but a subject without such versions is NotFound."""
        found = self.versions_of(subject, which)
        if not found:
            raise RegistryNotFound(Code.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
        return found

    def version(self, subject: str, version: int | None, which: Which = Which.LIVE) -> Registered:
        """One version of a subject; None is the latest."""
        found = self.existing(subject, which)
        if version is None:
            return found[-1]
        for one in found:
            if one.version == version:
                return one
        raise RegistryNotFound(Code.VERSION_NOT_FOUND, f"Version {version} not found.")

    def find_text(self, subject: str, text: str, which: Which = Which.LIVE) -> Registered | None:
        """The newest version of a subject that has this very schema."""
        found = [one for one in self.versions_of(subject, which) if one.text == text]
        return found[-1] if found else None

    def with_id(self, schema_id: int, which: Which = Which.ALL) -> tuple[Registered, ...]:
        """Every version that uses a schema; an id without any version at all is NotFound."""
        if schema_id not in self.uses:
            self.refuse_faults("SCHEMA")
            self.refuse_faults(None)
            raise RegistryNotFound(
                Code.SCHEMA_NOT_FOUND,
                f"Schema {schema_id} not found",
                hint="The record comes from another registry, or its schema was deleted for good.",
            )
        return tuple(one for one in self.uses[schema_id] if which.holds(one.deleted))

    def own_level(self, subject: str | None) -> Level | None:
        """The level set for this subject, or globally for None; None if nobody set one."""
        self.refuse_faults("CONFIG", subject)
        return self.levels.get(subject)

    def level(self, subject: str | None = None) -> Level:
        """The level that holds for a subject."""
        return self.own_level(subject) or self.own_level(None) or Level.BACKWARD

    def own_mode(self, subject: str | None) -> Mode | None:
        """The mode set for this subject, or globally for None; None if nobody set one."""
        self.refuse_faults("MODE", subject)
        return self.modes.get(subject)

    def mode(self, subject: str | None = None) -> Mode:
        """The mode that holds for a subject."""
        overall = self.own_mode(None) or Mode.READWRITE
        if overall is Mode.READONLY_OVERRIDE:
            return overall
        return self.own_mode(subject) or overall

    def refuse_faults(self, keytype: str | None, *subject: str | None) -> None:
        """Stop if an answer would rest on entries that cannot be read, of one subject or of all."""
        for fault in self.faults:
            if fault.keytype == keytype and (not subject or fault.subject in subject):
                raise CorruptState(
                    f"the registry entry {fault.key} cannot be read: {fault.reason}",
                    hint=_REPAIR,
                )


def state_of(facts: Iterable[tuple[str, Fact]]) -> RegistryState:
    """Put facts, each with its ledger key, together; one that contradicts an earlier one is a fault."""
    versions: dict[str, dict[int, Registered]] = {}
    levels: dict[str | None, Level] = {}
    modes: dict[str | None, Mode] = {}
    uses: dict[int, list[Registered]] = {}
    ids_by_text: dict[str, int] = {}
    faults: list[Fault] = []
    highest_id = 0
    for key, fact in facts:
        if isinstance(fact, Fault):
            faults.append(fact)
        elif isinstance(fact, HighestId):
            highest_id = max(highest_id, fact.value)
        elif isinstance(fact, Registered):
            known = uses.setdefault(fact.id, [])
            highest_id = max(highest_id, fact.id)
            if known and known[0].text != fact.text:
                reason = f"id {fact.id} already stands for another schema, of {known[0].subject}"
                faults.append(Fault(key, reason, "SCHEMA", fact.subject))
                continue
            known.append(fact)
            ids_by_text[fact.text] = min(fact.id, ids_by_text.get(fact.text, fact.id))
            versions.setdefault(fact.subject, {})[fact.version] = fact
        elif isinstance(fact.value, Level):
            levels[fact.subject] = fact.value
        else:
            modes[fact.subject] = fact.value
    return RegistryState(
        versions,
        levels,
        modes,
        {schema_id: tuple(found) for schema_id, found in uses.items()},
        ids_by_text,
        highest_id,
        tuple(faults),
    )
