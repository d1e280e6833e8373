"""What happened in a run, told in order."""

from __future__ import annotations

import logging
from collections.abc import Callable

# Enough to tell two runs apart that should be the same.
_MASK = (1 << 64) - 1


class Story:
    """Notes what happens, if somebody wants to read it; in any case a number that tells runs apart."""

    def __init__(self, now: Callable[[], float], told: bool) -> None:
        self._now = now
        self.told = told
        self.lines: list[str] = []
        self.digest = 0

    def note(self, who: str, what: str) -> None:
        """One thing that happened."""
        if self.told:
            self.lines.append(f"{self._now():9.3f} s  {who:<14} {what}")

    def mark(self, number: int) -> None:
        """A number that is the same in every run of the seed."""
        self.digest = (self.digest * 1_000_003 + number) & _MASK


class LogTold(logging.Handler):
    """What the simulated processes log, as part of the story."""

    def __init__(self, story: Story, who: Callable[[], str]) -> None:
        super().__init__(logging.DEBUG)
        self._story = story
        self._who = who

    def emit(self, record: logging.LogRecord) -> None:
        self._story.note(self._who(), f"  {record.name.removeprefix('feedstack.')}: {record.getMessage()}")
