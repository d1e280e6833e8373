"""Writes rows of a file to a feed, with a policy for the bad ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any

from stack.errors import BadRecord
from stack.feeds.avro.schema import AvroSchema
from stack.feeds.rows.rows import MAX_LINE_BYTES, read_rows
from stack.feeds.writer import FeedWriter
from stack.kafka.writer import LogWriter
from stack.model.feed import Events, FeedSpec, Kind

DEAD_SUFFIX = ".dead"
DEAD_RETENTION_MS = 30 * 86_400_000
_REPORT_EVERY = 1_000
# What a record can hold, less the room for its headers.
_MAX_DEAD_BYTES = 900_000


class OnBad(StrEnum):
    """What to do with a row that is not a record of the feed."""

    STOP = "stop"
    SKIP = "skip"
    DEAD = "dead"


@dataclass
class Produced:
    """What became of the rows so far."""

    rows: int = 0
    written: int = 0
    bad: int = 0
    first_fault: str = ""


def dead_feed(feed: str) -> str:
    """The name under which the bad rows of a feed are kept."""
    return f"{feed}{DEAD_SUFFIX}"


def dead_spec(name: str) -> FeedSpec:
    """What a dead feed is, although nobody declares it."""
    purpose = f"rows that {name.removesuffix(DEAD_SUFFIX)} did not take"
    return FeedSpec(name, Kind.SOURCE, purpose, "", "", 1, Events(DEAD_RETENTION_MS))


class DeadRows:
    """Keeps bad rows as they came, with the cause in the headers."""

    def __init__(self, log: LogWriter, topic: str, source: str) -> None:
        self._log = log
        self._topic = topic
        self._source = source

    def write(self, line: int, text: bytes, fault: BadRecord) -> None:
        if len(text) > _MAX_DEAD_BYTES:
            text = text[:_MAX_DEAD_BYTES]
            fault = BadRecord(
                f"{fault.message} (the row is kept in part: it is too large)", field=fault.field
            )
        headers = [
            ("cause", fault.message.encode()),
            ("field", (fault.field or "").encode()),
            ("source", self._source.encode()),
            ("line", str(line).encode()),
        ]
        self._log.write_one(self._topic, text, headers=headers)


def check_rows(
    rows: Iterable[tuple[int, Any]], writer: FeedWriter, progress: Callable[[Produced], None]
) -> Produced:
    """Encode every row without writing; raises BadRecord with line and field at the first bad one."""
    seen = Produced()
    for line, value in rows:
        seen.rows += 1
        fault = _encode_or_fault(writer, value)
        if isinstance(fault, BadRecord):
            told = at_line(line, fault)
            raise BadRecord(
                f"{told.message} (nothing was written)",
                hint=f"{told.hint} Mend it, or choose --on-bad skip or dead.".strip(),
                field=told.field,
            )
        if seen.rows % _REPORT_EVERY == 0:
            progress(seen)
    return seen


def write_rows(
    rows: Iterable[tuple[int, Any]],
    writer: FeedWriter,
    on_bad: OnBad,
    dead: Callable[[int, BadRecord], None],
    progress: Callable[[Produced], None],
) -> Produced:
    """Write rows in order. With STOP the first bad one raises; those before it are written and counted."""
    seen = Produced()
    for line, value in rows:
        seen.rows += 1
        encoded = _encode_or_fault(writer, value)
        if isinstance(encoded, BadRecord):
            seen.bad += 1
            seen.first_fault = seen.first_fault or at_line(line, encoded).message
            if on_bad is OnBad.STOP:
                writer.flush()
                raise at_line(line, encoded, seen.written)
            if on_bad is OnBad.DEAD:
                dead(line, encoded)
        else:
            writer.write_encoded([encoded])
            seen.written += 1
        if seen.rows % _REPORT_EVERY == 0:
            progress(seen)
    writer.flush()
    progress(seen)
    return seen


def _encode_or_fault(writer: FeedWriter, value: Any) -> dict[str, Any] | BadRecord:
    if isinstance(value, BadRecord):
        return value
    try:
        return writer.encode(value)
    except BadRecord as fault:
        return fault


def at_line(line: int, fault: BadRecord, written: int | None = None) -> BadRecord:
    """The same fault with its line, and with how far the writing came."""
    so_far = "" if written is None else f" (records written before it: {written:,})"
    hint = fault.hint
    if written is not None:
        hint = f"{hint} Mend it and go on with --from-line {line}, or choose --on-bad skip or dead.".strip()
    return BadRecord(f"line {line}: {fault.message}{so_far}", hint=hint, field=fault.field)


class LineMemory:
    """Reads rows and remembers the lines of the row at hand, so that a bad one can be kept as it came."""

    def __init__(self, stream: IO[bytes], from_line: int = 1) -> None:
        self._stream = stream
        self._from_line = from_line
        self._kept: deque[tuple[int, bytes]] = deque()

    def rows(self, format: str, schema: AvroSchema) -> Iterator[tuple[int, Any]]:  # noqa: A002
        """The rows from `from_line` on; a header is read wherever the rows begin."""
        for line, value in read_rows(self._lines(has_header=format == "csv"), format, schema):
            while self._kept and self._kept[0][0] < line:
                self._kept.popleft()
            yield line, value

    def _lines(self, has_header: bool) -> Iterator[bytes]:
        """The lines; those before `from_line` come as blank ones, which every format passes over."""
        for number, line in enumerate(self._bounded_lines(), start=1):
            if number < self._from_line and not (number == 1 and has_header):
                yield b"\n"
                continue
            self._kept.append((number, line))
            yield line

    def _bounded_lines(self) -> Iterator[bytes]:
        """Lines of the stream; one that is too long is cut just beyond the bound and never held whole."""
        while line := self._stream.readline(MAX_LINE_BYTES + 1):
            rest = line
            while len(line) > MAX_LINE_BYTES and rest and not rest.endswith(b"\n"):
                rest = self._stream.readline(1 << 16)
            yield line

    def since(self, line: int) -> bytes:
        """The text of the row that began on this line: further lines only where they close its open quote.

        The reader of CSV looks ahead for a closing quote, so more lines than the row's may be here.
        """
        lines = [text for number, text in self._kept if number >= line]
        end = 1
        if lines and lines[0].count(b'"') % 2:
            closing = (place for place, text in enumerate(lines[1:], 2) if text.count(b'"') % 2)
            end = next(closing, 1)
        return b"".join(lines[:end]).rstrip(b"\r\n")
