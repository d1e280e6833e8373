"""Many runs in a row, and the search for runs that notice planted bugs."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from ops.simulation.planted import BUGS, Bug, planted
from ops.simulation.run import Verdict, run_seed

# How many seeds a planted bug may take to be found.
PATIENCE = 3_000
# A run leaves a few thousand objects that refer to each other. Memory that is used again soon is still near.
_COLLECT_EVERY = 4


@dataclass
class Series:
    """What came out of many runs."""

    runs: int = 0
    faults: int = 0
    simulated_s: float = 0.0
    took_s: float = 0.0
    wrong: list[Verdict] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        self.runs += 1
        self.faults += verdict.faults
        self.simulated_s += verdict.seconds
        if verdict.fault is not None:
            self.wrong.append(verdict)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "wrong": [{"seed": one.seed, "fault": one.fault} for one in self.wrong]}


def run_series(seeds: Iterable[int], progress: Callable[[int], None] = lambda _: None) -> Series:
    """Run all of these seeds, whatever comes out."""
    series = Series()
    began = time.perf_counter()
    with _calm_collector() as collect:
        for seed in seeds:
            series.add(run_seed(seed))
            progress(series.runs)
            if series.runs % _COLLECT_EVERY == 0:
                collect()
    series.took_s = time.perf_counter() - began
    return series


@dataclass(frozen=True)
class Found:
    """The first seed that notices a bug, and what it says; None if no seed does."""

    bug: Bug
    seed: int | None
    fault: str | None = None


def find_bugs(tell: Callable[[Found], None] = lambda _: None) -> Iterator[Found]:
    """Plant each bug, and look for a seed that notices; known ones are tried first."""
    with _calm_collector() as collect:
        for bug in BUGS:
            found = find_bug(bug)
            tell(found)
            yield found
            collect()


def find_bug(bug: Bug, patience: int = PATIENCE) -> Found:
    """The same for one."""
    seeds = [] if bug.seed is None else [bug.seed]
    with planted(bug.name):
        for seed in (*seeds, *range(patience)):
            verdict = run_seed(seed)
            if verdict.fault is not None:
                return Found(bug, seed, verdict.fault)
    return Found(bug, None)


@contextlib.contextmanager
def _calm_collector() -> Iterator[Callable[[], object]]:
    """Collect garbage only between runs, and without a look at what was there before."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield _collect
    finally:
        gc.enable()
        gc.unfreeze()


def _collect() -> None:
    """What is left after a collection is kept for all runs: the next one need not look at it."""
    gc.collect()
    gc.freeze()
