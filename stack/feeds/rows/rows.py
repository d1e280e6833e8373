"""Rows that a person or a file gives, turned into values of a schema, one line at a time."""

from __future__ import annotations

import csv
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import IO, Any, cast

from stack.errors import BadInput, BadRecord
from stack.feeds.avro.schema import AvroSchema
from stack.feeds.rows.csv_rows import csv_row_to_value, header_plan
from stack.feeds.rows.json_values import row_to_value, value_to_json

__all__ = ["FORMATS", "MAX_LINE_BYTES", "csv_row_to_value", "read_rows", "row_to_value", "value_to_json"]

MAX_LINE_BYTES = 10_000_000
FORMATS = ("jsonl", "csv")
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

# The csv module's own bound is 128 KiB per cell, for the whole process; ours is the one per line.
csv.field_size_limit(MAX_LINE_BYTES)

Lines = Iterable[str] | Iterable[bytes] | IO[bytes] | IO[str]
NumberedLine = tuple[int, str | BadRecord]
Row = tuple[int, Any | BadRecord]


def read_rows(lines: Lines, format: str, schema: AvroSchema) -> Iterator[Row]:  # noqa: A002
    """Each row as its line number (from 1) and its value, or the BadRecord that it is instead.

    Never holds more than a row. Blank lines are skipped. The first line of CSV is the header; one that does
    not fit the schema is a BadInput before any row.
    """
    if format not in FORMATS:
        raise BadInput(f"there is no format {format!r}", hint=f"The formats are {' and '.join(FORMATS)}.")
    numbered = _decoded(lines)
    return _json_rows(numbered, schema) if format == "jsonl" else _csv_rows(numbered, schema)


def _decoded(lines: Lines) -> Iterator[NumberedLine]:
    """Lines with their numbers; a line that is too long or not UTF-8 becomes a BadRecord."""
    for number, line in enumerate(_bounded(lines), start=1):
        if line is None:
            yield number, BadRecord(f"the line has more than {MAX_LINE_BYTES:,} bytes")
            continue
        if isinstance(line, str):
            yield number, line.removeprefix("\ufeff") if number == 1 else line
            continue
        if number == 1 and line.startswith(_UTF16_MARKS):
            raise BadInput("the file is UTF-16", hint="Save it as UTF-8.")
        yield number, _text(line.removeprefix(_UTF8_MARK) if number == 1 else line)


def _text(line: bytes) -> str | BadRecord:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        fault = f"the line is not UTF-8: byte {error.start + 1} is 0x{line[error.start]:02x}"
        return BadRecord(fault, hint="Save the file as UTF-8.")


def _bounded(lines: Lines) -> Iterator[str | bytes | None]:
    """Lines of at most MAX_LINE_BYTES, None for each longer one; a stream's long line is never held."""
    readline = cast("Callable[[int], str | bytes] | None", getattr(lines, "readline", None))
    if readline is None:
        for line in cast("Iterable[str | bytes]", lines):
            yield line if len(line) <= MAX_LINE_BYTES else None
        return
    while line := readline(MAX_LINE_BYTES + 1):
        if len(line) <= MAX_LINE_BYTES:
            yield line
            continue
        while line and not _ends(line):
            line = readline(1 << 16)
        yield None


def _ends(line: str | bytes) -> bool:
    return line.endswith("\n") if isinstance(line, str) else line.endswith(b"\n")


def _json_rows(lines: Iterator[NumberedLine], schema: AvroSchema) -> Iterator[Row]:
    # A float cannot hold every decimal, so numbers keep their digits where the schema has decimals.
    parse_float: Any = Decimal if '"decimal"' in schema.text else float
    for number, line in lines:
        if isinstance(line, BadRecord):
            yield number, line
        elif line.strip():
            yield number, _json_row(line, schema, parse_float)


def _json_row(line: str, schema: AvroSchema, parse_float: Any) -> Any | BadRecord:
    try:
        row = json.loads(line, parse_float=parse_float)
    except json.JSONDecodeError as error:
        return BadRecord(
            f"the line is not JSON: {error.msg} at column {error.pos + 1}",
            hint="Each line is one JSON object.",
        )
    except RecursionError:
        return BadRecord("the JSON is nested too deeply")
    except (ValueError, ArithmeticError) as error:
        return BadRecord(f"the line is not JSON: {error}")
    try:
        return row_to_value(schema, row)
    except BadRecord as error:
        return error


def _csv_rows(lines: Iterator[NumberedLine], schema: AvroSchema) -> Iterator[Row]:
    header: tuple[str, ...] | None = None
    for number, text in _csv_records(lines):
        cells = text if isinstance(text, BadRecord) else _cells(text)
        if header is None:
            if isinstance(cells, BadRecord):
                raise BadInput(f"the header cannot be read: {cells.message}", hint=cells.hint)
            header = tuple(cell.strip() for cell in cells)
            header_plan(schema, header)
            continue
        if isinstance(cells, BadRecord):
            yield number, cells
            continue
        try:
            yield number, csv_row_to_value(schema, header, cells)
        except BadRecord as error:
            yield number, error
    if header is None:
        raise BadInput("the CSV has no header", hint="The first line names the fields.")


def _cells(text: str) -> list[str] | BadRecord:
    try:
        return next(csv.reader([text], strict=True))
    except (csv.Error, StopIteration) as error:
        return BadRecord(f"the row is not CSV: {error}")


def _csv_records(lines: Iterator[NumberedLine]) -> Iterator[NumberedLine]:
    """Joins lines while a quoted cell is open; where it never closes, only its first line is at fault."""
    waiting: deque[NumberedLine] = deque()
    while True:
        first = waiting.popleft() if waiting else next(lines, None)
        if first is None:
            return
        number, text = first
        if isinstance(text, BadRecord) or text.count('"') % 2 == 0:
            if isinstance(text, BadRecord) or text.strip():
                yield number, text
            continue
        joined = _until_closed(text, waiting, lines)
        yield number, joined or BadRecord("a quoted cell is never closed", hint='A plain " is written "".')


def _until_closed(text: str, waiting: deque[NumberedLine], lines: Iterator[NumberedLine]) -> str | None:
    """The row up to the line that closes its quote. Where none does, the lines go (back) to `waiting`."""
    parts, length = [text], len(text)
    taken: list[NumberedLine] = []
    while length <= MAX_LINE_BYTES:
        following = waiting.popleft() if waiting else next(lines, None)
        if following is None:
            break
        taken.append(following)
        line = following[1]
        if isinstance(line, BadRecord):
            break
        parts.append(line)
        length += len(line)
        if line.count('"') % 2:
            return "".join(parts)
    waiting.extendleft(reversed(taken))
    return None
