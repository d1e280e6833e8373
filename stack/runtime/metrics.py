"""Metrics of a container: gathered in its loop at the cost of a few additions, written from their own thread.

The loop only adds up and leaves what it has at hand; once a second a thread of its own makes a record of it,
also while the loop waits or restores, and hands it to the thread that writes the log. Metrics that get lost
are no reason for anything to fail.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from stack.machine import Running, event, monotonic, start, time_ms
from stack.model.metrics import (
    COMMIT_BOUNDS_S,
    PROCESSING_BOUNDS_S,
    CommitMetrics,
    ContainerMetrics,
    StoreMetrics,
    TaskMetrics,
    Times,
    metrics_key,
    metrics_name,
    metrics_to_bytes,
)
from stack.model.plan import TaskId, TaskReport
from stack.runtime.launch import Launch
from stack.runtime.opening import Opening
from stack.runtime.outputs import Outputs
from stack.runtime.task import Task

if TYPE_CHECKING:
    from stack.runtime.runs import Run

log = logging.getLogger("feedstack.container")
_EVERY_S = 1.0
# Asking RocksDB costs microseconds for each store; there may be hundreds.
_STORES_S = 2.0
Send = Callable[[str, bytes, bytes], None]
"""Takes topic, key and value, and never waits."""


class Meter:
    """What the loop adds up. Only its thread writes here; others read."""

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        clock_ms: Callable[[], int] = time_ms,
    ) -> None:
        self._clock = clock
        self._clock_ms = clock_ms
        self._looked_at = float("-inf")
        self._processing = Times(PROCESSING_BOUNDS_S)
        self._commits = Times(COMMIT_BOUNDS_S)
        self._written = self._last = (0, 0)
        self._last_s = 0.0
        self._records_in: Counter[str] = Counter()
        self._delays_ms: dict[TaskId, int] = {}
        self._stores: dict[TaskId, dict[str, StoreMetrics]] = {}

    def handled(self, run: Run, records: int, took_s: float) -> None:
        """A stretch of records is done. Each counts with the average of the stretch: a look at the clock for
        every one would cost a tenth of what a record takes.
        """
        if records:
            self._processing.add(took_s / records, records)
            self._records_in[run.records.feed] += records
            self._delays_ms[run.task.id] = self._clock_ms() - run.records.timestamp_ms(run.at - 1)

    def committed(self, took_s: float, size: tuple[int, int]) -> None:
        """A commit is done; `size` is how many records it wrote, and their bytes."""
        self._commits.add(took_s)
        self._last_s, self._last = took_s, size
        self._written = self._written[0] + size[0], self._written[1] + size[1]

    def look_at_stores(self, tasks: Mapping[TaskId, Task]) -> None:
        """Note how large the stores are, now and then; here, since a store belongs to one thread."""
        now = self._clock()
        if now - self._looked_at >= _STORES_S:
            self._looked_at = now
            # A store in trouble tells so when it is used; its size is no reason to fail.
            with contextlib.suppress(Exception):
                self._stores = {
                    task: {
                        name: StoreMetrics(store.approximate_keys(), store.size_bytes())
                        for name, store in one.backing.items()
                    }
                    for task, one in tasks.items()
                }

    # For the thread that writes.

    def records_in(self) -> dict[str, int]:
        """How many records of each feed were handled."""
        return dict(self._records_in)

    def processing(self) -> Times:
        return self._processing

    def commits(self) -> CommitMetrics:
        """The commits so far."""
        return CommitMetrics(self._commits.taken(), *self._written, self._last_s, *self._last)

    def tasks(
        self, reports: Mapping[TaskId, TaskReport], openings: Mapping[TaskId, Opening]
    ) -> dict[TaskId, TaskMetrics]:
        """The tasks that a container reports, with what was measured of each."""
        opening = dict(openings)
        return {
            task: TaskMetrics(
                one.state,
                one.lag,
                self._delays_ms.get(task),
                opening[task].progress if task in opening else None,
                self._stores.get(task, {}),
            )
            for task, one in reports.items()
        }


class MetricsMaker:
    """Makes a record of what a meter holds; for one thread, since it remembers the last one for rates."""

    def __init__(self, launch: Launch, meter: Meter, outputs: Outputs) -> None:
        self._launch = launch
        self._meter = meter
        self._outputs = outputs
        self._began_ms: int | None = None
        self._before: tuple[int, int, int] | None = None

    def make(
        self,
        tasks: Mapping[TaskId, TaskMetrics],
        errors: Mapping[str, int],
        counters: Mapping[str, int],
        memory_bytes: int,
        time_ms: int,
    ) -> ContainerMetrics:
        """The metrics as of now."""
        records_in = self._meter.records_in()
        records_out = {name: output.emitted for name, output in self._outputs.by_name.items()}
        in_per_s, out_per_s = self._rates(sum(records_in.values()), sum(records_out.values()), time_ms)
        self._began_ms = self._began_ms or time_ms
        return ContainerMetrics(
            time_ms=time_ms,
            job=self._launch.spec.name,
            slot=self._launch.slot,
            attempt=self._launch.attempt,
            version=self._launch.spec.version,
            host=socket.gethostname(),
            pid=os.getpid(),
            began_ms=self._began_ms,
            memory_bytes=memory_bytes,
            records_in=records_in,
            records_out=records_out,
            in_per_s=in_per_s,
            out_per_s=out_per_s,
            commits=self._meter.commits(),
            processing=self._meter.processing().taken(),
            tasks=tasks,
            errors=errors,
            counters=counters,
        )

    def _rates(self, records_in: int, records_out: int, time_ms: int) -> tuple[float, float]:
        before, self._before = self._before, (records_in, records_out, time_ms)
        if before is None or time_ms <= before[2]:
            return 0.0, 0.0
        span_s = (time_ms - before[2]) / 1000
        return round((records_in - before[0]) / span_s, 1), round((records_out - before[1]) / span_s, 1)


class MetricsThread:
    """Sends a container's metrics every second from `start` to `stop`; `prepare` is given the topic first."""

    def __init__(self, launch: Launch, send: Send, prepare: Callable[[str], object] = lambda _: None) -> None:
        self._topic = metrics_name(launch.settings.name)
        self._key = metrics_key(launch.spec.name, launch.slot)
        self._send = send
        self._prepare = prepare
        self._stop = event()
        self._thread: Running | None = None

    def start(self, make: Callable[[], ContainerMetrics | None]) -> None:
        """Send what `make` makes; nothing where it makes nothing."""
        self._thread = start(lambda: self._run(make), "metrics")

    def _run(self, make: Callable[[], ContainerMetrics | None]) -> None:
        prepared = told = False
        while not self._stop.wait(_EVERY_S):
            try:
                made = make()
                if made is None:
                    continue
                if not prepared:
                    self._prepare(self._topic)
                    prepared = True
                self._send(self._topic, self._key, metrics_to_bytes(made))
            except Exception:
                # The next second is another try.
                if not told:
                    told = True
                    log.warning("metrics of a second are lost; further losses are not told", exc_info=True)

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_EVERY_S)
