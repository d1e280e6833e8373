"""What the supervisor knows about each child: how to prepare, start and ask it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Service:
    """One child of the supervisor.

    `prepare` makes files it needs and may raise ClusterFault; `answers` tells whether it serves now;
    `explain` turns the end of its log into a sentence with what to do, or None if it knows nothing.
    """

    name: str
    port: int
    command: Sequence[str]
    log: Path
    prepare: Callable[[], None]
    answers: Callable[[], bool]
    explain: Callable[[str], str | None]
    patience_s: float = 20.0
    # How long the supervisor waits before it starts a child again that fell for the first time.
    first_delay_s: float | None = None
    # How long it must have served for its next fall to count as the first.
    steady_s: float | None = None
