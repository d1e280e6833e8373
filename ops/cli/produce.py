"""stack feeds produce: lines of a file become records."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from ops.cli.feeds import feeds
from ops.cli.output import plural, progress, say, say_json
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.connection import Stack


@feeds.command()
@click.argument("name")
@click.argument("file", default="-")
@click.option(
    "--format", "row_format", type=click.Choice(["jsonl", "csv"]), help="By default from the file's ending."
)
@click.option(
    "--on-bad",
    type=click.Choice(["stop", "skip", "dead"]),
    default="stop",
    show_default=True,
    help="Stop at a bad line, skip it, or keep it in NAME.dead with the cause.",
)
@click.option("--from-line", type=click.IntRange(1), default=1, help="Begin at this line of the input.")
@json_option
@pass_session
def produce(
    session: Session, name: str, file: str, row_format: str | None, on_bad: str, from_line: int, as_json: bool
) -> None:
    """Write the lines of FILE, or of standard input, to a feed: JSON lines or CSV with a header.

    Every record is checked against the feed's schema; a fault names the line and the field. With --on-bad
    stop a file is checked whole before its first record is written.

    \b
    Example:
      stack feeds produce page-views views.jsonl
      stack feeds produce page-views views.csv --on-bad dead
      head -n 100 views.jsonl | stack feeds produce page-views
    """
    from stack.feeds.produce import LineMemory, OnBad, Produced, check_rows, write_rows

    policy = OnBad(on_bad)
    form = row_format or ("csv" if file.endswith(".csv") else "jsonl")
    with (
        session.open() as stack,
        _dead_letters(stack, name, file, policy) as dead,
        stack.writer(name) as writer,
    ):
        schema = stack.schema(name).schema
        if file != "-" and policy is OnBad.STOP:
            with _open_input(file) as stream, progress(f"checking {file}", None) as line:
                rows = LineMemory(stream, from_line).rows(form, schema)
                check_rows(rows, writer, lambda seen: line.advance_to(seen.rows))
        with _open_input(file, writer.send) as stream, progress(f"writing to {name}", None) as line:
            memory = LineMemory(stream, from_line)

            def moved(seen: Produced) -> None:
                line.advance_to(seen.rows)

            rows = memory.rows(form, schema)
            seen = write_rows(
                rows, writer, policy, lambda at, fault: dead(at, memory.since(at), fault), moved
            )
    if as_json:
        say_json({"written": seen.written, "bad": seen.bad, "first_fault": seen.first_fault or None})
        return
    say(f"wrote {plural(seen.written, 'record')} to {name}")
    if seen.bad:
        kept = f"kept in {name}.dead" if policy is OnBad.DEAD else "skipped"
        say(f"{plural(seen.bad, 'bad line')} {kept}; the first: {seen.first_fault}")


class _LiveInput(io.RawIOBase):
    """Standard input that tells before it waits, so that what was read meanwhile is sent; Ctrl-C ends it."""

    def __init__(self, descriptor: int, before_wait: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._before_wait = before_wait

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            if not select.select([self._descriptor], [], [], 0)[0]:
                self._before_wait()
            return os.readv(self._descriptor, [buffer])
        except KeyboardInterrupt:
            return 0


@contextlib.contextmanager
def _open_input(file: str, before_wait: Callable[[], None] = lambda: None) -> Iterator[IO[bytes]]:
    from stack.errors import BadInput

    if file == "-":
        try:
            descriptor = sys.stdin.fileno()
        except OSError:  # it is no file of the system
            yield sys.stdin.buffer
        else:
            yield io.BufferedReader(_LiveInput(descriptor, before_wait))
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}", hint="Check the path.") from None
    with stream:
        yield stream


@contextlib.contextmanager
def _dead_letters(stack: Stack, name: str, source: str, policy: str) -> Iterator[Callable[..., None]]:
    from stack.feeds.plan import topic_settings
    from stack.feeds.produce import DeadRows, OnBad, dead_feed, dead_spec
    from stack.kafka.admin import TopicPlan
    from stack.kafka.writer import LogWriter

    if policy != OnBad.DEAD:
        yield lambda *_: None
        return
    stack.feed(name)
    topic = stack.topic_of(dead_feed(name))
    stack.admin.create([TopicPlan(topic, 1, topic_settings(dead_spec(dead_feed(name))))])
    with LogWriter(stack.access) as log:
        yield DeadRows(log, topic, "standard input" if source == "-" else source).write
