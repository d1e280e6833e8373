"""R1: how long a job with a million keys takes to its first new output when its state folder is empty."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import TopicPartition

from ops.bench.figures import rounded
from ops.bench.tasks_load import encode_views, fill_distinct, user_name, write_all
from ops.bench.tasks_outputs import committed_consumer, count_of, ends, output_schema, wait_written
from ops.bench.tasks_stage import OtherLoad, Stage
from ops.bench.tasks_systems import System, Task, task_name
from ops.bench.tasks_throughput import COMMIT_MS, time_limit_s

_NEW_RECORDS = 40
_LIMIT_S = 180.0


@dataclass(frozen=True)
class Restore:
    """One restart of one system with nothing on disk."""

    system: str
    guarantee: str
    keys: int
    first_output_s: float
    all_outputs_s: float
    restoring_s: float | None
    right: bool
    other_load: float

    @property
    def keys_per_s(self) -> float | None:
        """While restoring alone, where the system tells how long that took."""
        return self.keys / self.restoring_s if self.restoring_s else None

    def as_json(self) -> dict[str, Any]:
        return {
            "figure": "restore",
            **rounded(self, 3),
            "restored_keys_per_s": round(self.keys_per_s or 0) or None,
        }


def measure_restore(
    stage: Stage, system: System, guarantee: str, *, keys: int, rounds: int
) -> Iterator[Restore]:
    """Let a system count a feed of distinct users once; then stop it, empty its folder and start it again."""
    name = task_name("r1", system)
    source = f"{name}-in"
    stage.add_source(source)
    stage.say(f"writing {keys:,} records of as many users")
    fill_distinct(stage.stack, source, keys)
    task = Task(name, source, guarantee, COMMIT_MS)
    output = system.make_output(task)
    running = system.start(task)
    try:
        wait_written(stage, output, keys, running.is_alive, limit_s=time_limit_s(keys))
        for number in range(rounds):
            running.stop()
            system.forget_state(task)
            users = [user_name(user) for user in range(_NEW_RECORDS)]
            write_all(stage.stack, source, encode_views(stage.stack, source, users))
            places = [TopicPartition(output, part, end) for part, end in ends(stage, output).items()]
            stage.settle()
            load = OtherLoad(stage)
            running = system.start(task)
            found = _await_outputs(stage, places)
            started_s = running.started_s()
            yield Restore(
                system=system.name,
                guarantee=guarantee,
                keys=keys,
                first_output_s=found.first_s - started_s,
                all_outputs_s=found.last_s - started_s,
                restoring_s=running.restoring_s(),
                right=found.counts == dict.fromkeys(users, number + 2),
                other_load=load.share(),
            )
    finally:
        running.stop()
        system.remove(task)
        stage.remove_feed(source)


@dataclass(frozen=True)
class _Answers:
    first_s: float
    last_s: float
    counts: dict[str, int]


def _await_outputs(stage: Stage, places: list[TopicPartition]) -> _Answers:
    """What a careful reader sees of the new outputs, and when."""
    schema = output_schema(stage)
    consumer = committed_consumer(stage)
    consumer.assign(places)
    deadline = time.monotonic() + _LIMIT_S
    first_s = last_s = 0.0
    counts: dict[str, int] = {}
    try:
        while len(counts) < _NEW_RECORDS:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(counts)} of {_NEW_RECORDS} outputs within {_LIMIT_S:.0f} s")
            message = consumer.poll(0.05)
            if message is None or message.error() is not None:
                continue
            last_s = time.time()
            first_s = first_s or last_s
            user, count = count_of(message, schema)
            counts[user] = count
    finally:
        consumer.close()
    return _Answers(first_s, last_s, counts)
