"""What metrics cost: the counting job with them and without, in turns, in the same cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ops.bench.figures import rounded
from ops.bench.tasks_stage import Stage
from ops.bench.tasks_systems import System
from ops.bench.tasks_throughput import measure_throughput


@dataclass(frozen=True)
class MetricsCost:
    """One pair of runs."""

    system: str
    guarantee: str
    records: int
    with_per_s: float
    without_per_s: float
    with_per_cpu_s: float
    without_per_cpu_s: float
    other_load: float
    right: bool

    def as_json(self) -> dict[str, Any]:
        ratio = round(self.with_per_s / self.without_per_s, 3)
        return {"figure": "metrics", **rounded(self, 3), "ratio": ratio}


def measure_metrics(
    stage: Stage, measured: System, bare: System, guarantee: str, *, records: int, keys: int, rounds: int
) -> Iterator[MetricsCost]:
    """Pairs of runs, every other one in the opposite order: a machine that slows down favours none."""
    for number in range(rounds):
        order = (measured, bare) if number % 2 == 0 else (bare, measured)
        runs = {}
        for system in order:
            stage.say(f"round {number + 1}: throughput of {system.name}")
            runs[system.name] = measure_throughput(stage, system, guarantee, records=records, keys=keys)
        mine, other = runs[measured.name], runs[bare.name]
        yield MetricsCost(
            measured.name,
            guarantee,
            records,
            mine.rate_per_s,
            other.rate_per_s,
            mine.per_cpu_s,
            other.per_cpu_s,
            max(mine.other_load, other.other_load),
            mine.right and other.right,
        )
