"""How long a job on a Spark cluster is silent after `kill -9` of an executor, a worker, the runner.

The cluster is a standalone one on this machine, a master and two workers; the job has a container on each.
What counts is when every partition has a new output, and that in the end every record was counted once.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ops.bench.figures import rounded
from ops.bench.tasks_load import fill_random
from ops.bench.tasks_ours import BY_RECORD, Ours
from ops.bench.tasks_outputs import ends, read_outputs, wait_written
from ops.bench.tasks_recovery import containers_of, fleet_of, trickle
from ops.bench.tasks_stage import PARTITIONS, OtherLoad, Stage, open_stage
from ops.bench.tasks_systems import EXACTLY_ONCE, Task, task_name
from ops.bench.tasks_throughput import COMMIT_MS, time_limit_s
from ops.chaos.flow import Flow
from ops.cluster import processes
from ops.cluster.java import find_java
from ops.cluster.standalone import Standalone, standalone
from stack.model.plan import TaskState
from stack.zookeeper.fleet import FleetNodes

_WORKERS = 2
_LIMIT_S = 60.0
_PAUSE_S = 5.0


@dataclass(frozen=True)
class Takeover:
    """One kill: what was killed, and how long some partition had no new output."""

    system: str
    guarantee: str
    killed: str
    silent_s: float
    other_load: float
    right: bool

    def as_json(self) -> dict[str, Any]:
        return {"figure": "takeover", **rounded(self, 2)}


def measure_takeovers(say: Callable[[str], None], name: str, *, keys: int) -> Iterator[Takeover]:
    """Kill one after the other on a stack and a cluster of their own."""
    with (
        tempfile.TemporaryDirectory(prefix="feedstack-spark-") as folder,
        standalone(Path(folder), find_java().command, _WORKERS) as spark,
        open_stage(say, f'[spark]\nmaster = "{spark.master}"\n') as stage,
    ):
        yield from _Kills(stage, spark, name, keys).all()


class _Kills:
    """The kills of one job."""

    def __init__(self, stage: Stage, spark: Standalone, name: str, keys: int) -> None:
        self._stage = stage
        self._spark = spark
        self._system = Ours(name, stage, BY_RECORD)
        self._keys = keys
        self._task = Task(task_name("takeover", self._system), "views", EXACTLY_ONCE, COMMIT_MS, _WORKERS)

    def all(self) -> list[Takeover]:
        stage, task = self._stage, self._task
        output = self._system.make_output(task)
        fill_random(stage.stack, task.source, self._keys, self._keys)
        load = OtherLoad(stage)
        running = self._system.start(task)
        flow = Flow(stage.stack.access, output, PARTITIONS)
        silent_s = {}
        try:
            wait_written(stage, output, self._keys, running.is_alive, limit_s=time_limit_s(self._keys))
            # Later the time that the killed have used would count as somebody else's.
            other_load = load.share()
            with trickle(stage, task.source, self._keys), fleet_of(stage) as fleet:
                for killed, kill in (
                    ("executor", self._kill_executor),
                    ("worker", self._kill_worker),
                    ("runner", self._kill_runner),
                ):
                    time.sleep(_PAUSE_S)
                    stage.say(f"kill -9 of the {killed}")
                    begun = time.monotonic()
                    self._await_others(fleet, kill(fleet))
                    self._await_outputs(flow)
                    silent_s[killed] = flow.longest_silence_s(begun, time.monotonic())
            total = sum(ends(stage, stage.stack.topic_of(task.source)).values())
            wait_written(stage, output, total, running.is_alive, limit_s=time_limit_s(total))
        finally:
            flow.close()
            running.stop()
        found = read_outputs(stage, output)
        right = found.counted == len(found.times_ms) == total
        return [
            Takeover(self._system.name, EXACTLY_ONCE, killed, silence_s, other_load, right)
            for killed, silence_s in silent_s.items()
        ]

    def _executor(self, fleet: FleetNodes) -> tuple[psutil.Process, set[int]]:
        """The JVM above a container, and the containers below it."""
        pids = {one.pid for one in containers_of(fleet, self._task.name)}
        for executor in self._spark.executors():
            own = pids & {child.pid for child in executor.children(recursive=True)}
            if own:
                return executor, own
        raise TimeoutError(f"no executor has a container of {self._task.name}")

    def _kill_executor(self, fleet: FleetNodes) -> set[int]:
        executor, own = self._executor(fleet)
        executor.kill()
        return own

    def _kill_worker(self, fleet: FleetNodes) -> set[int]:
        """Its executor notices and goes, too; another worker takes its place."""
        executor, own = self._executor(fleet)
        above = executor.ppid()
        name, worker = next((name, one) for name, one in self._spark.processes.items() if one.pid == above)
        worker.kill()
        worker.wait()
        self._spark.start_worker(int(name.removeprefix("worker-")))
        return own

    def _kill_runner(self, fleet: FleetNodes) -> set[int]:
        """The supervisor of the stack starts it again."""
        own = {one.pid for one in containers_of(fleet, self._task.name)}
        os.kill(processes.find(self._stage.settings.data)["runner"].pid, signal.SIGKILL)
        return own

    def _await_others(self, fleet: FleetNodes, killed: set[int]) -> None:
        """Wait until others have all tasks: containers below what was killed may work on for a moment."""
        deadline = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline:
            reports = fleet.job(self._task.name).reports()
            running = [
                task
                for one in reports
                if one.pid not in killed
                for task, told in one.tasks.items()
                if told.state is TaskState.RUNNING
            ]
            if len(set(running)) == PARTITIONS:
                return
            time.sleep(0.05)
        raise TimeoutError(f"after {_LIMIT_S:.0f} s not all tasks run again")

    def _await_outputs(self, flow: Flow) -> None:
        """Wait until each partition has an output for everything that was written before now.

        Views and counts have the same keys, and so the same place.
        """
        wanted = ends(self._stage, self._stage.stack.topic_of(self._task.source))
        deadline = time.monotonic() + _LIMIT_S
        while not flow.has_reached(wanted):
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {_LIMIT_S:.0f} s some records have no output")
            time.sleep(0.02)
