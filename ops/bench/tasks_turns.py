"""Whose turn it is when windows are taken in turns, and which windows count in the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

BOUND = 4
"""At most so many windows are taken for each one that must be quiet."""


class Window(Protocol):
    """A window as its turn sees it."""

    @property
    def system(self) -> str: ...

    @property
    def quiet(self) -> bool: ...


_AnyWindow = TypeVar("_AnyWindow", bound=Window)


def next_turns(systems: Sequence[str], taken: Sequence[Window], number: int, wanted: int) -> list[str]:
    """Who has a window in round `number`: all that lack quiet ones and may have more; no one at the end.

    Every other round goes the opposite way: a machine that slows down favours none.
    """
    lacking = [system for system in systems if _lacks(system, taken, wanted)]
    return lacking if number % 2 == 0 else lacking[::-1]


def _lacks(system: str, taken: Sequence[Window], wanted: int) -> bool:
    own = [window for window in taken if window.system == system]
    return len(own) < BOUND * wanted and sum(window.quiet for window in own) < wanted


def counting(windows: Sequence[_AnyWindow], wanted: int) -> tuple[list[_AnyWindow], str]:
    """The windows of one system that count, and what is to be said about them.

    Disturbed ones count only where the machine did not give enough quiet ones.
    """
    quiet = [window for window in windows if window.quiet]
    if len(quiet) >= wanted or not windows:
        return quiet, ""
    seen = f"{len(quiet)} of {len(windows)} windows of {windows[0].system} were quiet"
    return list(windows), f"{seen}, not {wanted}: all count"
