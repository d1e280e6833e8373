"""Whether a task goes on working while another one of its container restores its state."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from confluent_kafka import TopicPartition

from ops.bench.figures import rounded
from ops.bench.tasks_load import encode_views
from ops.bench.tasks_ours import Ours
from ops.bench.tasks_outputs import committed_consumer, ends, wait_written
from ops.bench.tasks_stage import OtherLoad, Stage, remove_folder
from ops.bench.tasks_systems import EXACTLY_ONCE, Task, task_name
from ops.bench.tasks_throughput import COMMIT_MS, time_limit_s
from ops.chaos.flow import longest_silence_s
from stack.kafka.writer import LogWriter

_WORKING, _RESTORING = 0, 1
_USERS = 20_000
_BLOCK = 250_000
_BATCH = 10_000
# The consumer of the benchmark takes what is there so often.
_LOOK_S = 0.02
_STUCK_S = 60.0

Arrivals = Sequence[tuple[float, int]]
"""When a careful reader got outputs, and how many."""


@dataclass(frozen=True)
class Sibling:
    """How a working task fared while another restored so many keys, and afterwards."""

    system: str
    guarantee: str
    keys: int
    restoring_s: float
    during_per_s: float
    alone_per_s: float
    longest_gap_s: float
    other_load: float
    right: bool

    def as_json(self) -> dict[str, Any]:
        ratio = round(self.during_per_s / self.alone_per_s, 3)
        return {"figure": "sibling", **rounded(self, 3), "ratio": ratio}


def measure_sibling(stage: Stage, system: Ours, *, keys: int, records: int) -> Sibling:
    """Two partitions with one container: one has a backlog, the other has lost its state."""
    name = task_name("sibling", system)
    source = f"{name}-in"
    stage.add_source(source)
    task = Task(name, source, EXACTLY_ONCE, COMMIT_MS)
    output = system.make_output(task)
    stage.say(f"writing {keys:,} records of as many users")
    _write(stage, source, _RESTORING, (f"restored-{number:07d}" for number in range(keys)))
    _write(stage, source, _WORKING, _workers(_USERS))
    running = system.start(task)
    try:
        wait_written(stage, output, keys + _USERS, running.is_alive, limit_s=time_limit_s(keys))
        running.stop()
        remove_folder(system.state_folder(task) / "counts" / str(_RESTORING))
        _write(stage, source, _WORKING, _workers(records))
        places = [TopicPartition(output, part, end) for part, end in ends(stage, output).items()]
        stage.settle()
        load = OtherLoad(stage)
        running = system.start(task)
        arrivals = _arrivals(stage, places, records)
        begin_s, end_s = running.restored_from_to()
        flowing_s = max(begin_s, arrivals[0][0])
        during = rate_per_s(arrivals, flowing_s, end_s)
        return Sibling(
            system=system.name,
            guarantee=EXACTLY_ONCE,
            keys=keys,
            restoring_s=end_s - begin_s,
            during_per_s=during,
            alone_per_s=rate_per_s(arrivals, end_s, arrivals[-1][0]),
            longest_gap_s=longest_silence_s([at for at, _ in arrivals], flowing_s, end_s),
            other_load=load.share(),
            right=sum(count for _, count in arrivals) == records and during > 0,
        )
    finally:
        running.stop()
        system.remove(task)
        stage.remove_feed(source)


def rate_per_s(arrivals: Arrivals, from_s: float, to_s: float) -> float:
    """Outputs per second after one moment and up to another."""
    return sum(count for at, count in arrivals if from_s < at <= to_s) / max(to_s - from_s, 0.001)


def _workers(records: int) -> Iterator[str]:
    return (f"working-{number % _USERS:05d}" for number in range(records))


def _write(stage: Stage, source: str, partition: int, users: Iterator[str]) -> None:
    """Write a view of each user to one partition, whatever their keys say."""
    topic = stage.stack.topic_of(source)
    with LogWriter(stage.stack.access) as writer:
        while names := list(islice(users, _BLOCK)):
            views = encode_views(stage.stack, source, names)
            writer.write_pairs(topic, views.keys, views.payloads, partition)
        writer.flush()


def _arrivals(stage: Stage, places: list[TopicPartition], records: int) -> Arrivals:
    """When a careful reader got the outputs of the backlog."""
    consumer = committed_consumer(stage)
    consumer.assign(places)
    found: list[tuple[float, int]] = []
    got, heard = 0, time.monotonic()
    try:
        while got < records:
            count = sum(one.error() is None for one in consumer.consume(_BATCH, _LOOK_S))
            if count:
                got, heard = got + count, time.monotonic()
                found.append((time.time(), count))
            elif time.monotonic() - heard > _STUCK_S:
                raise TimeoutError(f"{got:,} of {records:,} outputs, and no more for {_STUCK_S:.0f} s")
    finally:
        consumer.close()
    return found
