"""Where a read or a rewind begins or ends: oldest, latest, an offset, a moment, one offset per partition; for
jobs also a commit, an annotation, or the beginning of a version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from stack.errors import BadInput
from stack.model.duration import parse_duration_ms

_VECTOR_PART = re.compile(r"p(\d{1,9})=(\d{1,40})")
_LARGEST_OFFSET = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Oldest:
    """The first record that the feed still holds."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of the feed at the moment of asking. Reading up to it waits for transactions open then."""


@dataclass(frozen=True, slots=True)
class AtOffset:
    """The same offset in every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """One offset per partition; partitions that are not named start at the oldest record."""

    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record of each partition whose timestamp is at or after this moment."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtCheckpoint:
    """One commit of one task; the other tasks as they were then."""

    task: str
    number: int


@dataclass(frozen=True, slots=True)
class AtAnnotation:
    """The point that somebody has given a name."""

    name: str


@dataclass(frozen=True, slots=True)
class AtVersion:
    """Where a software version of the job took over; the beginning of its hash is enough."""

    prefix: str


Startpoint = Oldest | Latest | AtOffset | AtOffsets | AtTime
"""What any feed knows."""

JobStartpoint = Startpoint | AtCheckpoint | AtAnnotation | AtVersion
"""What a job knows, since its commits are remembered."""

_SYNTAX = (
    "Write oldest, latest, an offset (120), offsets per partition (p0=120,p1=98), "
    "a time (2026-03-01T12:00Z) or an age (-10m)."
)
_JOB_SYNTAX = (
    "Write @NAME (an annotation), a time (2026-03-01T12:00Z), an age (-10m), v:HASH (where a version took "
    "over), a commit (main-0#17), offsets per partition (p0=120,p1=98), or oldest."
)
_CHECKPOINT = re.compile(r"([a-z0-9][a-z0-9-]*-\d{1,9})#(\d{1,18})")
_ANNOTATION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")


def parse_startpoint(text: str, now_ms: int) -> Startpoint:
    """Read what a person typed after --from, --until or --to. `now_ms` anchors ages such as -10m."""
    word = text.strip()
    if word == "oldest":
        return Oldest()
    if word == "latest":
        return Latest()
    if word.isdecimal():
        return AtOffset(_parse_offset(word))
    if word.startswith("p") and "=" in word:
        return AtOffsets(_parse_offsets(word))
    if word.startswith("-"):
        return AtTime(now_ms - _parse_age_ms(word))
    return AtTime(parse_time_ms(word))


def parse_job_startpoint(text: str, now_ms: int) -> JobStartpoint:
    """The same for a job: all that a feed knows, and commits, annotations and versions."""
    word = text.strip()
    if word.startswith("@"):
        refuse_bad_annotation(word[1:])
        return AtAnnotation(word[1:])
    if word.startswith("v:"):
        if len(word) < 5 or not word[2:].replace("-", "").isalnum():
            raise BadInput(f"{word!r}: give at least three characters of the version", hint=_JOB_SYNTAX)
        return AtVersion(word[2:])
    match = _CHECKPOINT.fullmatch(word)
    if match:
        return AtCheckpoint(match.group(1), int(match.group(2)))
    try:
        return parse_startpoint(word, now_ms)
    except BadInput as error:
        raise BadInput(error.message, hint=_JOB_SYNTAX) from None


def refuse_bad_annotation(name: str) -> None:
    """BadInput if a point cannot be named so."""
    if not _ANNOTATION.fullmatch(name):
        raise BadInput(
            f"{name!r} cannot name a point",
            hint="Use letters, digits, dots, dashes and underscores, a letter or digit at both ends, "
            "up to 100.",
        )


def _parse_offset(word: str) -> int:
    offset = int(word) if len(word) <= 40 else _LARGEST_OFFSET + 1
    if offset > _LARGEST_OFFSET:
        raise BadInput(f"{word[:40]!r} is larger than any offset", hint=_SYNTAX)
    return offset


def _parse_age_ms(word: str) -> int:
    try:
        return parse_duration_ms(word[1:])
    except BadInput:
        raise BadInput(f"{word!r} is not an age", hint=_SYNTAX) from None


def _parse_offsets(word: str) -> dict[int, int]:
    offsets: dict[int, int] = {}
    for part in word.split(","):
        match = _VECTOR_PART.fullmatch(part.strip())
        if not match:
            raise BadInput(f"{part!r} in {word!r} is not partition=offset", hint=_SYNTAX)
        partition = int(match.group(1))
        if partition in offsets:
            raise BadInput(f"partition {partition} stands twice in {word!r}", hint=_SYNTAX)
        offsets[partition] = _parse_offset(match.group(2))
    return offsets


def parse_time_ms(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time. Without a zone it is taken as UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{text!r} is not a startpoint", hint=_SYNTAX) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round((moment - _EPOCH) / timedelta(milliseconds=1))


def format_time(timestamp_ms: int) -> str:
    """A moment as ISO 8601 in UTC with milliseconds, as every command prints it."""
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
