"""A dead letter: a record that a task could not get past, as it came, with the cause in its headers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from stack.errors import CorruptState

PREFIX = "feedstack."
# On a record that was redriven to its source feed or to its job: which dead letter it was.
LETTER = f"{PREFIX}letter"
ATTEMPT = f"{PREFIX}attempt"
_MOST_CAUSE, _MOST_LINE = 2_000, 400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Headers = tuple[tuple[str, bytes | None], ...]


class Kind(StrEnum):
    """What went wrong with a record."""

    UNDECODABLE = "undecodable"  # its bytes are no record of the feed
    CODE = "code"  # the code raised
    REFUSED = "refused"  # a feed did not take what the code emitted
    TIME = "time"  # the code kept it for longer than record_limit


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The record, its place in the feed that it was read from, and what became of it there.

    `attempt` counts how often the record has died. Of a record that was too large to be copied with its
    headers, `value` is only the beginning, and `full_bytes` the size of the whole.
    """

    feed: str
    partition: int
    offset: int
    timestamp_ms: int
    kind: Kind
    cause: str
    line: str
    task: str
    version: str
    time_ms: int
    attempt: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    full_bytes: int | None = None

    @property
    def place(self) -> str:
        """Where the record stands, for people."""
        return f"{self.feed}, partition {self.partition}, offset {self.offset}"


_NUMBERS = ("partition", "offset", "timestamp_ms", "time_ms", "attempt", "full_bytes")
_NAMES = {
    name: f"{PREFIX}{name.removesuffix('_ms').replace('_', '-')}"
    for name in DeadLetter.__slots__
    if name not in ("key", "value", "headers")
}
"""The header of each field; `timestamp` and `time` are in milliseconds."""


def letter_headers(letter: DeadLetter) -> Headers:
    """The headers of a dead letter's record: those of the original, then ours."""
    told = {name: getattr(letter, name) for name in _NAMES}
    told["cause"], told["line"] = letter.cause[:_MOST_CAUSE], letter.line[:_MOST_LINE]
    own = tuple((_NAMES[name], _bytes(value)) for name, value in told.items() if value is not None)
    return (*without_own(letter.headers), *own)


def letter_of(
    key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]
) -> DeadLetter:
    """The dead letter that a record holds; CorruptState if it holds none."""
    headers = tuple(headers)
    found = {name: text or b"" for name, text in headers if name.startswith(PREFIX)}
    fields: dict[str, Any] = {}
    try:
        for name, header in _NAMES.items():
            text = found.get(header) if name == "full_bytes" else found[header]
            if text is not None:
                fields[name] = int(text) if name in _NUMBERS else text.decode("utf-8", "replace")
        fields["kind"] = Kind(fields["kind"])
    except (KeyError, ValueError) as error:
        raise CorruptState(
            f"a dead letter cannot be read: {error}", hint="Something else has written to the topic."
        ) from None
    return DeadLetter(key=key, value=value, headers=without_own(headers), **fields)


def without_own(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    """Headers without those that the stack has added."""
    return tuple(one for one in headers if not one[0].startswith(PREFIX))


def attempt_of(headers: Iterable[tuple[str, bytes | None]]) -> int:
    """How often a record has died before, as a redrive has noted it; 0 for one that was never redriven."""
    texts = [text for name, text in headers if name == ATTEMPT]
    return int(texts[-1]) if texts and texts[-1] is not None and texts[-1].isdigit() else 0


def _bytes(value: object) -> bytes:
    return str(value).encode("utf-8", "replace")


# What --where can ask of a dead letter, as the schema of a record.
_MOMENT = {"type": "long", "logicalType": "timestamp-millis"}
_SHAPES: Mapping[str, Any] = {
    "feed": "string",
    "partition": "long",
    "offset": "long",
    "timestamp": _MOMENT,
    "kind": "string",
    "cause": "string",
    "line": "string",
    "task": "string",
    "version": "string",
    "time": _MOMENT,
    "attempt": "long",
    "redriven": "boolean",
    "cut": "boolean",
}
LETTER_SCHEMA: Mapping[str, Any] = {
    "type": "record",
    "name": "DeadLetter",
    "fields": [{"name": name, "type": kind} for name, kind in _SHAPES.items()],
}


def letter_fields(letter: DeadLetter, redriven: bool) -> dict[str, Any]:
    """What an expression sees of a dead letter."""
    seen: dict[str, Callable[[], Any]] = {
        "timestamp": lambda: _EPOCH + timedelta(milliseconds=letter.timestamp_ms),
        "time": lambda: _EPOCH + timedelta(milliseconds=letter.time_ms),
        "kind": lambda: str(letter.kind),
        "redriven": lambda: redriven,
        "cut": lambda: letter.full_bytes is not None,
    }
    return {name: seen[name]() if name in seen else getattr(letter, name) for name in _SHAPES}
