"""A measured ratio, with its bar."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


def rounded(run: Any, digits: int) -> dict[str, Any]:
    """The fields of a run for people and JSON, with so many digits behind the point."""
    return {
        name: round(value, digits) if isinstance(value, float) else value
        for name, value in asdict(run).items()
    }


@dataclass(frozen=True)
class Figure:
    """Our rate against a baseline's in the same run; `bar` is the least ratio that we accept."""

    name: str
    ours_per_s: float
    baseline_per_s: float
    bar: float | None
    baseline: str
    ratio: float

    @property
    def passes(self) -> bool:
        return self.bar is None or self.ratio >= self.bar

    def as_row(self) -> list[str]:
        bar = "" if self.bar is None else f"{self.bar:.1f}"
        ours, theirs = f"{self.ours_per_s:,.0f}", f"{self.baseline_per_s:,.0f}"
        return [self.name, ours, theirs, f"{self.ratio:.2f}", bar, self.baseline]

    def as_json(self) -> dict[str, Any]:
        return {
            "figure": self.name,
            "ours_per_s": round(self.ours_per_s),
            "baseline_per_s": round(self.baseline_per_s),
            "ratio": round(self.ratio, 3),
            "bar": self.bar,
            "passes": self.passes,
            "baseline": self.baseline,
        }


def compare(
    name: str,
    ours: Callable[[], float],
    baseline: Callable[[], float],
    *,
    rounds: int,
    bar: float | None,
    against: str,
) -> Figure:
    """Run the baseline before and after ours in every round, so that a machine that slows down or speeds up
    meanwhile favours neither; the median of the rounds' ratios counts.

    Each is a function that does the work once and answers records per second.
    """
    pairs = []
    for _ in range(rounds):
        before = baseline()
        mine = ours()
        pairs.append((mine, (before + baseline()) / 2))
    return Figure(
        name,
        statistics.median(mine for mine, _ in pairs),
        statistics.median(theirs for _, theirs in pairs),
        bar,
        against,
        statistics.median(mine / theirs for mine, theirs in pairs),
    )
