"""Draws something again and again until the person has seen enough."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click

from ops.cli.output import json_line, say
from stack.errors import FeedstackError

T = TypeVar("T")
_EVERY_S = 1.0
watch_option = click.option(
    "--watch", "watch_it", is_flag=True, help="Draw it again every second; Ctrl-C ends it."
)


def watch(
    look: Callable[[], T],
    draw: Callable[[T], Sequence[str]],
    to_json: Callable[[T], Any] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Look and draw every second until Ctrl-C; on a terminal in place, elsewhere one after the other.

    With `to_json` each look is one line of JSON. What cannot be looked at now is told, and tried again.
    """
    with contextlib.suppress(KeyboardInterrupt), _frames(plain=to_json is not None) as show:
        while True:
            try:
                found = look()
                show([json_line(to_json(found))] if to_json else [*draw(found), ""])
            except FeedstackError as error:
                show([json_line({"error": error.message}) if to_json else f"stack: {error.message}"])
            sleep(_EVERY_S)


@contextlib.contextmanager
def _frames(plain: bool) -> Iterator[Callable[[Sequence[str]], None]]:
    """What shows a frame: the terminal's other screen, which is gone without a trace at the end."""
    if plain or not sys.stdout.isatty():
        yield _print
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), screen=True, auto_refresh=False) as view:
        yield lambda lines: view.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        say(line)
    sys.stdout.flush()
