"""Writes rows of a file to a feed, with a policy for the bad ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from stack.errors import BadRecord
from stack.feeds.writer import FeedWriter
from stack.kafka.writer import LogWriter

_REPORT_EVERY = 1_000


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
    return f"{feed}.dead"


class DeadRows:
    """Keeps bad rows as they came, with the cause in the headers."""

    def __init__(self, log: LogWriter, topic: str, source: str) -> None:
        self._log = log
        self._topic = topic
        self._source = source

    def write(self, line: int, text: bytes, fault: BadRecord) -> None:
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
            raise at_line(line, fault)
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
    so_far = "" if written is None else f" ({written:,} records before it were written)"
    hint = fault.hint
    if written is not None:
        hint = f"{hint} Mend it and go on with --from-line {line}, or choose --on-bad skip or dead.".strip()
    return BadRecord(f"line {line}: {fault.message}{so_far}", hint=hint, field=fault.field)


class LineMemory:
    """Hands lines through and remembers the latest ones, so that a bad row can be kept as it came."""

    _KEPT_LINES = 256

    def __init__(self, lines: Iterable[bytes], from_line: int = 1) -> None:
        self._lines = lines
        self._from_line = from_line
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=self._KEPT_LINES)

    def __iter__(self) -> Iterator[bytes]:
        """The lines; those before `from_line` come as blank ones, which every format passes over."""
        for number, line in enumerate(self._lines, start=1):
            if number > 1 and number < self._from_line:
                yield b"\n"
                continue
            self._kept.append((number, line))
            yield line

    def since(self, line: int) -> bytes:
        """The text of a row that began on this line."""
        return b"".join(text for number, text in self._kept if number >= line).rstrip(b"\r\n")
