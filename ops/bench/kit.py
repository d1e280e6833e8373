"""What a test of a job costs in the test kit: setting up, writing, running and looking, with one job."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from stack import Feed, Job
from stack.testing import MemoryStack

BAR_MS = 50.0
_FEEDS: dict[str, dict[str, Any]] = {
    "views": {"schema": {"user": "string", "page": "string", "load": "double"}, "key": "user"},
    "counts": {
        "schema": {"user": "string", "count": "long"},
        "key": "user",
        "by": "count",
        "inputs": ["views"],
    },
}


@dataclass(frozen=True)
class KitFigures:
    """Milliseconds of each part of a test, the median of the rounds."""

    records: int
    set_up_ms: float
    write_ms: float
    run_ms: float
    look_ms: float
    whole_ms: float

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def counting_job() -> Job:
    """The job that is tested: one count per user, and every change of it written out."""
    views, counts = Feed("views"), Feed("counts")
    job = Job("count")

    @job.task(views, store="counts")
    def count(view: dict[str, Any], ctx: Any) -> None:
        number = ctx.state.get(view["user"], 0) + 1
        ctx.state[view["user"]] = number
        ctx.emit(counts, {"user": view["user"], "count": number})

    return job


def measure_kit(records: int, rounds: int, clock: Callable[[], float] = time.perf_counter) -> KitFigures:
    """Run the same test again and again; the first time loads modules and does not count."""
    taken = [_round(records, clock) for _ in range(rounds + 1)][1:]
    medians = [statistics.median(column) * 1000 for column in zip(*taken, strict=True)]
    whole_ms = statistics.median(map(sum, taken)) * 1000
    return KitFigures(records, *(round(one, 1) for one in (*medians, whole_ms)))


def _round(records: int, clock: Callable[[], float]) -> tuple[float, float, float, float]:
    values = [{"user": f"user-{n % 50}", "page": "/", "load": n / 2} for n in range(records)]
    moments = [clock()]
    with MemoryStack(feeds=_FEEDS, jobs=[counting_job()]) as stack:
        moments.append(clock())
        stack.write("views", *values)
        moments.append(clock())
        stack.run()
        moments.append(clock())
        counts, state = stack.table("counts"), stack.state("count", "counts")
        moments.append(clock())
    if sum(state.values()) != records or {user: one["count"] for user, one in counts.items()} != state:
        raise AssertionError("the job has not counted every record once")
    first, second, third, fourth = (after - before for before, after in itertools.pairwise(moments))
    return first, second, third, fourth
