"""How stale a feed is, and whether that is worth an alarm.

A derived feed is as stale as its job is behind in time: as long as the oldest record of the job's inputs has
waited to be committed. A quiet source is no reason: where nothing waits, nothing is stale. How long a record
has waited is told by when the input was first seen to reach beyond the commit, not by the record's own time,
which may be years old in a backfill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stack.model.freshness import FreshnessState
from stack.model.place import Place

# The alarm begins when this part of the window was too stale, and ends when no more than that was: a feed
# at the edge of its objective does not ring all the time.
ALARM_SHARE, CLEAR_SHARE = 0.5, 0.1
# Looks at one partition that are kept; beyond, every other one goes.
_MOST_LOOKS = 600


@dataclass(frozen=True, slots=True)
class Objective:
    """How stale a feed may be, and the window over which that is judged."""

    limit_ms: int
    window_ms: int


@dataclass(frozen=True, slots=True)
class Sample:
    """How stale it was at a moment; it counts until the next one."""

    time_ms: int
    staleness_ms: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the window says."""

    state: FreshnessState
    share: float

    @property
    def alarmed(self) -> bool:
        return self.state is FreshnessState.ALARM


def judge(objective: Objective, samples: Sequence[Sample], alarmed: bool, now_ms: int) -> Judgement:
    """Judge the last window. What nobody has looked at counts as fresh: no alarm without evidence."""
    begin_ms = now_ms - objective.window_ms
    stale_ms = 0
    ends_ms = [*(one.time_ms for one in samples[1:]), now_ms]
    for sample, end_ms in zip(samples, ends_ms, strict=False):
        if sample.staleness_ms > objective.limit_ms:
            stale_ms += max(0, min(end_ms, now_ms) - max(sample.time_ms, begin_ms))
    share = stale_ms / objective.window_ms
    if share >= ALARM_SHARE or (alarmed and share > CLEAR_SHARE):
        return Judgement(FreshnessState.ALARM, share)
    is_stale = bool(samples) and samples[-1].staleness_ms > objective.limit_ms
    return Judgement(FreshnessState.STALE if is_stale else FreshnessState.FRESH, share)


def within(samples: Sequence[Sample], objective: Objective, now_ms: int) -> list[Sample]:
    """The samples that the window still needs: those in it, and the last one before it."""
    begin_ms = now_ms - objective.window_ms
    before = sum(one.time_ms <= begin_ms for one in samples)
    return list(samples[max(0, before - 1) :])


class Arrivals:
    """When records came, as far as looking at the ends of partitions now and then can tell."""

    def __init__(self) -> None:
        # Per partition the looks at which it had grown, each with its time and the end then. The first one
        # is where looking began, or the last that the job had committed.
        self._looks: dict[Place, list[tuple[int, int]]] = {}
        self._asked: dict[Place, tuple[int, int]] = {}

    def note(self, ends: Mapping[Place, int], now_ms: int) -> None:
        """Take down where partitions end now; those that are not among them are forgotten."""
        for place in self._looks.keys() - ends.keys():
            del self._looks[place]
            self._asked.pop(place, None)
        for place, end in ends.items():
            looks = self._looks.setdefault(place, [])
            if looks and end < looks[-1][1]:
                # The feed was made anew.
                looks.clear()
            if not looks or end > looks[-1][1]:
                looks.append((now_ms, end))
            if len(looks) > _MOST_LOOKS:
                looks[1:] = _thinned(looks[1:])

    def waiting_ms(
        self, committed: Mapping[Place, int], now_ms: int, time_of: Callable[[Place, int], int]
    ) -> int:
        """How long the oldest record that is not committed has waited; 0 if all are.

        `time_of` tells the time of the record at an offset, for one that was there before anybody looked.
        """
        longest = 0
        for place, looks in self._looks.items():
            position = committed.get(place, 0)
            reached = next((index for index, (_, end) in enumerate(looks) if end > position), None)
            if reached is None:
                del looks[:-1]
                continue
            if reached:
                del looks[: reached - 1]
                since_ms = looks[1][0]
            else:
                since_ms = min(looks[0][0], self._ask(place, position, time_of))
            longest = max(longest, now_ms - since_ms)
        return longest

    def _ask(self, place: Place, position: int, time_of: Callable[[Place, int], int]) -> int:
        known = self._asked.get(place)
        if known is None or known[0] != position:
            known = self._asked[place] = position, time_of(place, position)
        return known[1]

    def last_ms(self) -> int | None:
        """When the last record came, of all partitions together; None if nobody has seen one come."""
        return max((looks[-1][0] for looks in self._looks.values() if len(looks) > 1), default=None)


def _thinned(looks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Half as many: two as one with the earlier time, so that no record seems to have waited for less."""
    last = looks[-1:] if len(looks) % 2 else []
    return [(a[0], b[1]) for a, b in zip(looks[::2], looks[1::2], strict=False)] + last
