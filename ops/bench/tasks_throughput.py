"""W1: how many records a second are counted, one output for each, with state and changelog."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ops.bench.tasks_load import fill_random
from ops.bench.tasks_outputs import read_outputs, wait_written
from ops.bench.tasks_stage import OtherLoad, Stage
from ops.bench.tasks_systems import EXACTLY_ONCE, System, Task, task_name

COMMIT_MS = 100
_SLOWEST_PER_S = 2_000
_START_LIMIT_S = 120


@dataclass(frozen=True)
class Throughput:
    """One run of one system."""

    system: str
    guarantee: str
    workers: int
    records: int
    outputs: int
    counted: int
    rate_per_s: float
    second_half_per_s: float
    cpu_s: float
    per_cpu_s: float
    first_output_s: float
    other_load: float

    @property
    def right(self) -> bool:
        """Nothing lost; and under exactly-once nothing doubled."""
        exact = self.outputs == self.records if self.guarantee == EXACTLY_ONCE else True
        return self.counted == self.records and exact

    def as_json(self) -> dict[str, Any]:
        rounded = {
            name: round(value, 3 if value < 100 else None) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }
        return {"figure": "throughput", **rounded, "right": self.right}


def time_limit_s(records: int) -> float:
    """When a run of so many records is given up."""
    return _START_LIMIT_S + records / _SLOWEST_PER_S


def measure_throughput(
    stage: Stage, system: System, guarantee: str, *, records: int, keys: int, workers: int = 1
) -> Throughput:
    """Let a system count a feed of so many records from its beginning, and look at what it wrote."""
    source = f"views-{records}"
    if stage.add_source(source):
        stage.say(f"writing {records:,} records")
        fill_random(stage.stack, source, records, keys)
    task = Task(task_name("w1", system), source, guarantee, COMMIT_MS, workers)
    output = system.make_output(task)
    stage.settle()
    load = OtherLoad(stage)
    running = system.start(task)
    try:
        wait_written(stage, output, records, running.is_alive, limit_s=time_limit_s(records))
        cpu_s, other_load, started_s = running.cpu_s(), load.share(), running.started_s()
    finally:
        running.stop()
    found = read_outputs(stage, output)
    system.remove(task)
    return Throughput(
        system=system.name,
        guarantee=guarantee,
        workers=workers,
        records=records,
        outputs=len(found.times_ms),
        counted=found.counted,
        rate_per_s=found.rate_per_s(),
        second_half_per_s=found.second_half_per_s(),
        cpu_s=cpu_s,
        per_cpu_s=records / cpu_s,
        first_output_s=found.times_ms[0] / 1000 - started_s,
        other_load=other_load,
    )
