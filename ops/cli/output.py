"""How commands speak: plain lines, tables, JSON, faults, progress."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from stack.errors import BadExpression, FeedstackError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def say(line: str = "") -> None:
    """A line of the answer."""
    click.echo(line)


def note(line: str) -> None:
    """A line about the work, not part of the answer: it goes to standard error, out of a pipe's way."""
    click.secho(f"  {line}", err=True, dim=sys.stderr.isatty())


def say_json(value: Any) -> None:
    """The answer as one JSON document on one line."""
    click.echo(json_line(value))


def json_line(value: Any) -> str:
    """A JSON document on one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def plural(count: int, noun: str) -> str:
    """'1 record', '2,000 records'."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def fail(error: FeedstackError, as_json: bool) -> int:
    """Print a fault and what to do next; returns the exit code."""
    if as_json:
        click.echo(
            json.dumps({"error": error.message, "kind": type(error).__name__, "hint": error.hint}), err=True
        )
    else:
        message = error.message
        if isinstance(error, BadExpression):
            # Its message is two lines, the second pointing into the first: keep them in line.
            message = "this expression does not do:\n" + "\n".join(
                f"  {line}" for line in message.splitlines()
            )
        click.secho(f"stack: {message}", err=True, fg="red" if sys.stderr.isatty() else None)
        if error.hint:
            click.echo(f"  {error.hint}", err=True)
    return 1


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[str] = ()) -> None:
    """Columns as wide as their content; numbers to the right where named."""
    for index, line in enumerate(table_lines(headers, rows, right)):
        click.secho(line, bold=index == 0 and sys.stdout.isatty())


def table_lines(
    headers: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[str] = ()
) -> list[str]:
    """The same as lines, for whoever draws them."""
    cells = [[("" if cell is None else str(cell)) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(headers), *cells]) for i in range(len(headers))]
    return [
        "  ".join(
            cell.rjust(width) if header in right else cell.ljust(width)
            for cell, width, header in zip(line, widths, headers, strict=True)
        ).rstrip()
        for line in [list(headers), *cells]
    ]


@contextlib.contextmanager
def progress(title: str, total: int | None, unit: str = "records") -> Iterator[ProgressLine]:
    """A bar on a terminal; nothing where standard error is a file or a pipe."""
    if not sys.stderr.isatty():
        yield ProgressLine(None, None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} " + unit),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield ProgressLine(bar, bar.add_task(title, total=total, rate=""))


class ProgressLine:
    """The handle that the work moves forward."""

    def __init__(self, bar: Progress | None, task: TaskID | None) -> None:
        self._bar = bar
        self._task = task

    def advance_to(self, done: int) -> None:
        if self._bar is not None and self._task is not None:
            speed = self._bar.tasks[self._task].speed
            self._bar.update(self._task, completed=done, rate=f"{speed:,.0f}/s" if speed else "")

    def show(self, done: int, total: int | None, title: str) -> None:
        """For work that goes back and forth: how much of it stands, without a rate."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total, description=title)
