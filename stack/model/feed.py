"""What a feed is declared to be: the values behind schemas/catalog.toml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
_VERSION_SUFFIX = re.compile(r".*\.v\d+")
MAX_NAME_LENGTH = 170
FRESHNESS_WINDOW_MS = 300_000
RESERVED_SUFFIXES = (".dead", ".changelog", ".redrive", ".redriven")


class Kind(StrEnum):
    """Who writes a feed: something outside (source) or a job (derived)."""

    SOURCE = "source"
    DERIVED = "derived"


class KeyFormat(StrEnum):
    """How the bytes of a key are made: text, or Avro behind the registry's five-byte header."""

    UTF8 = "utf8"
    AVRO = "avro"


class FreshnessOf(StrEnum):
    """What a freshness objective is about. Of a source feed there is no job: only its records can tell."""

    JOB = "job"  # how long the oldest input record has waited for the job that makes the feed
    RECORDS = "records"  # how long ago the feed got its last record


@dataclass(frozen=True, slots=True)
class Key:
    """The field of the value that becomes the record's key, and how its bytes are made."""

    field: str
    format: KeyFormat = KeyFormat.UTF8


@dataclass(frozen=True, slots=True)
class Events:
    """An event feed: every record is kept until it is `retention_ms` old; None keeps it for ever."""

    retention_ms: int | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table feed: the last record of each key stays; all of the last `horizon_ms` stay too."""

    horizon_ms: int


@dataclass(frozen=True, slots=True)
class FeedSpec:
    """One declared feed. `by` and `inputs` name the job that writes a derived feed and what it reads."""

    name: str
    kind: Kind
    purpose: str
    owner: str
    schema: str
    partitions: int
    storage: Events | Table
    key: Key | None = None
    event_time: str | None = None
    freshness_ms: int | None = None
    by: str | None = None
    inputs: tuple[str, ...] = ()
    compatibility: str | None = None
    version: int = 1
    freshness_window_ms: int = FRESHNESS_WINDOW_MS
    freshness_of: FreshnessOf = FreshnessOf.JOB

    @property
    def is_table(self) -> bool:
        return isinstance(self.storage, Table)

    @property
    def is_judged(self) -> bool:
        """Whether somebody watches how fresh it is."""
        has_job = self.kind is Kind.DERIVED
        return self.freshness_ms is not None and (has_job or self.freshness_of is FreshnessOf.RECORDS)


def name_fault(name: str) -> str | None:
    """Why `name` cannot name a feed, or None if it can."""
    if not _NAME.fullmatch(name):
        return "use lower-case letters, digits, dots, dashes and underscores, a letter or digit at both ends"
    if len(name) > MAX_NAME_LENGTH:
        return f"it has {len(name)} characters, {MAX_NAME_LENGTH} are allowed"
    for suffix in RESERVED_SUFFIXES:
        if name.endswith(suffix):
            return f"names that end in {suffix} are made by the stack itself"
    if _VERSION_SUFFIX.fullmatch(name):
        return "names that end in .v and a number are versions of a feed, made by the stack itself"
    return None


def value_subject(feed: str) -> str:
    """The registry subject of a feed's values, the same for all versions of the feed."""
    return f"{feed}-value"


def key_subject(feed: str) -> str:
    """The registry subject of a feed's Avro keys."""
    return f"{feed}-key"
