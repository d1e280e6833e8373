"""When to start a child again: pure decisions of the supervisor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
# A child that served this long has recovered: its next fall starts with a short delay again.
STEADY_S = 60.0
# A child that never served and fell this often will not start without somebody's help.
HOPELESS_STARTS = 3


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    SILENT = "silent"
    RESTARTING = "restarting"
    FAILED = "failed"


@dataclass(frozen=True)
class Life:
    """What has happened to one child so far. Times are seconds of one monotonic clock."""

    state: State = State.RESTARTING
    falls: int = 0
    restarts: int = 0
    ever_ready: bool = False
    ready_since: float = 0.0
    start_at: float = 0.0


def started(life: Life) -> Life:
    """The child's process runs; whether it serves is not known yet."""
    return replace(life, state=State.STARTING)


def answered(life: Life, now: float, steady_s: float | None = None) -> Life:
    """The child serves."""
    if life.state is State.READY:
        steady_s = STEADY_S if steady_s is None else steady_s
        return replace(life, falls=0) if now - life.ready_since >= steady_s else life
    return replace(life, state=State.READY, ever_ready=True, ready_since=now)


def silent(life: Life) -> Life:
    """The child's process runs but no longer answers. It is left alone: it may be stopped or very busy."""
    return replace(life, state=State.SILENT) if life.state is State.READY else life


def fell(life: Life, now: float, first_delay_s: float | None = None) -> Life:
    """The child's process ended by itself: wait longer after each fall, give up on one that never served."""
    first_delay_s = FIRST_DELAY_S if first_delay_s is None else first_delay_s
    falls = life.falls + 1
    if not life.ever_ready and falls >= HOPELESS_STARTS:
        return replace(life, state=State.FAILED, falls=falls)
    delay_s = first_delay_s if falls == 1 else min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (falls - 1))
    return replace(
        life, state=State.RESTARTING, falls=falls, restarts=life.restarts + 1, start_at=now + delay_s
    )


def failed(life: Life) -> Life:
    """The child cannot be started at all, with a reason that no retry changes."""
    return replace(life, state=State.FAILED)
