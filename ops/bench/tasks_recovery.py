"""How long a job is silent after `kill -9` of its container, and whether its memory stays bounded."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import TopicPartition

from ops.bench.tasks_load import encode_views, fill_random, random_users, write_all
from ops.bench.tasks_outputs import committed_consumer, ends, wait_written
from ops.bench.tasks_stage import OtherLoad, Stage
from ops.bench.tasks_systems import EXACTLY_ONCE, System, Task, task_name
from ops.bench.tasks_throughput import COMMIT_MS, time_limit_s
from stack.model.plan import ContainerReport
from stack.zookeeper.fleet import FleetNodes, open_fleet

_LIMIT_S = 60.0
_PER_S = 500
_PAUSE_S = 3.0


@dataclass(frozen=True)
class Recovery:
    """Kills of one container, each with the time to the first new output."""

    system: str
    guarantee: str
    keys: int
    silent_s: tuple[float, ...]
    other_load: float
    right: bool = True

    @property
    def median_s(self) -> float:
        return statistics.median(self.silent_s)

    def as_json(self) -> dict[str, Any]:
        worst = {"median_s": round(self.median_s, 3), "worst_s": round(max(self.silent_s), 3)}
        return {"figure": "recovery", **asdict(self), **worst}


@dataclass(frozen=True)
class Memory:
    """What a container holds after a first part of the records, and at the end."""

    system: str
    guarantee: str
    records: int
    early_bytes: int
    late_bytes: int
    other_load: float
    right: bool = True

    def as_json(self) -> dict[str, Any]:
        return {"figure": "memory", **asdict(self), "ratio": round(self.late_bytes / self.early_bytes, 3)}


def measure_recovery(stage: Stage, system: System, *, keys: int, kills: int) -> Recovery:
    """Kill the only container of a job again and again while records come in."""
    source = f"recovery-{keys}"
    stage.add_source(source)
    fill_random(stage.stack, source, keys * 3, keys)
    task = Task(task_name("kill", system), source, EXACTLY_ONCE, COMMIT_MS)
    output = system.make_output(task)
    stage.settle()
    load = OtherLoad(stage)
    running = system.start(task)
    silent_s = []
    try:
        wait_written(stage, output, keys * 3, running.is_alive, limit_s=time_limit_s(keys * 3))
        with trickle(stage, source, keys), fleet_of(stage) as fleet:
            for _ in range(kills):
                time.sleep(_PAUSE_S)
                victim = containers_of(fleet, task.name)[-1]
                consumer = committed_consumer(stage)
                os.kill(victim.pid, signal.SIGKILL)
                killed = time.monotonic()
                # What it committed before it died is no sign of life.
                places = [TopicPartition(output, part, end) for part, end in ends(stage, output).items()]
                consumer.assign(places)
                try:
                    silent_s.append(_first_output_s(consumer, killed))
                finally:
                    consumer.close()
    finally:
        running.stop()
        system.remove(task)
    return Recovery(system.name, EXACTLY_ONCE, keys, tuple(silent_s), load.share())


def measure_memory(stage: Stage, system: System, *, records: int, keys: int) -> Memory:
    """Watch the resident memory of a container while it handles so many records."""
    source = f"views-{records}"
    if stage.add_source(source):
        fill_random(stage.stack, source, records, keys)
    task = Task(task_name("memory", system), source, EXACTLY_ONCE, COMMIT_MS)
    output = system.make_output(task)
    load = OtherLoad(stage)
    running = system.start(task)
    try:
        early = late = 0
        with fleet_of(stage) as fleet:
            deadline = time.monotonic() + time_limit_s(records)
            while time.monotonic() < deadline:
                report = containers_of(fleet, task.name)[-1]
                if report.records >= records // 5 and not early:
                    early = report.memory_bytes
                late = report.memory_bytes
                if report.records >= records:
                    break
                time.sleep(0.2)
        wait_written(stage, output, records, running.is_alive, limit_s=time_limit_s(records))
    finally:
        running.stop()
        system.remove(task)
    return Memory(system.name, EXACTLY_ONCE, records, early or 1, late, load.share())


def fleet_of(stage: Stage) -> contextlib.AbstractContextManager[FleetNodes]:
    """What ZooKeeper has of the jobs on a stage."""
    return open_fleet(stage.stack.endpoints.zookeeper, stage.settings.name)


def containers_of(fleet: FleetNodes, job: str) -> list[ContainerReport]:
    """The containers of a job that have tasks, as soon as there are any."""
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        found = [one for one in fleet.job(job).reports() if one.tasks]
        if found:
            return found
        time.sleep(0.05)
    raise TimeoutError(f"{job} has no container")


@contextlib.contextmanager
def trickle(stage: Stage, source: str, keys: int) -> Iterator[None]:
    """Write records steadily for as long as the block lasts."""
    views = encode_views(stage.stack, source, random_users(_PER_S, keys))
    part = _PER_S // 20
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for start in range(0, len(views), part):
                end = start + part
                write_all(stage.stack, source, type(views)(views.keys[start:end], views.payloads[start:end]))
                if stop.wait(1 / 20):
                    return

    thread = threading.Thread(target=write, name="trickle", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_LIMIT_S)


def _first_output_s(consumer: Any, killed: float) -> float:
    while time.monotonic() - killed < _LIMIT_S:
        message = consumer.poll(0.01)
        if message is not None and message.error() is None:
            return time.monotonic() - killed
    raise TimeoutError(f"no output within {_LIMIT_S:.0f} s after the container was killed")
