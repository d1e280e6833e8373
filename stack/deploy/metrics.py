"""The metrics feed as it is read: the newest of what each container has measured, and how fresh feeds are."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

from stack.connection import Stack
from stack.kafka.reader import LogReader, RawBatch
from stack.model.freshness import Freshness, freshness_from_json
from stack.model.metrics import ContainerMetrics, metrics_from_json, metrics_name

_PARTITION = 0
# Containers write every second. Who has been silent for so long is gone, or is not to be relied on.
SILENT_MS = 10_000


@dataclass(frozen=True)
class Measured:
    """What the metrics feed says now."""

    containers: Mapping[tuple[str, int], ContainerMetrics] = field(default_factory=dict)
    feeds: Mapping[str, Freshness] = field(default_factory=dict)

    def of_job(self, job: str) -> tuple[ContainerMetrics, ...]:
        """The containers of one job, by slot."""
        return tuple(one for (name, _), one in sorted(self.containers.items()) if name == job)


class MetricsFollower:
    """Follows the metrics feed from a little before now on. Where there is none it says nothing."""

    def __init__(
        self,
        stack: Stack,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stack = stack
        self._topic = metrics_name(stack.settings.name)
        self._clock_ms = clock_ms
        self._clock = clock
        self._reader: LogReader | None = None
        self._containers: dict[tuple[str, int], ContainerMetrics] = {}
        self._feeds: dict[str, Freshness] = {}

    def look(self, timeout_s: float = 3.0) -> Measured:
        """Read on to the end as of now, for so long at most, and tell what stands."""
        reader = self._reader or self._begin()
        if reader is not None:
            end = self._stack.admin.ends(self._topic, [_PARTITION])[_PARTITION]
            deadline = self._clock() + timeout_s
            while reader.positions[_PARTITION] < end and self._clock() < deadline:
                self._take(reader.read(timeout_s=0.25))
        return self._measured()

    def wait(self, timeout_s: float) -> Measured:
        """Read what comes within that time, if anything does."""
        reader = self._reader or self._begin()
        if reader is not None:
            self._take(reader.read(timeout_s=timeout_s))
        return self._measured()

    def _begin(self) -> LogReader | None:
        if self._topic not in self._stack.admin.describe([self._topic]):
            return None
        start = self._stack.admin.offsets_at(self._topic, 1, self._clock_ms() - SILENT_MS)
        reader = LogReader(self._stack.access, self._topic)
        reader.assign(start)
        self._reader = reader
        return reader

    def _take(self, batch: RawBatch) -> None:
        for value in batch.values:
            tree = record_json(value)
            container, freshness = metrics_from_json(tree), freshness_from_json(tree)
            if container is not None:
                self._containers[container.job, container.slot] = container
            elif freshness is not None:
                self._feeds[freshness.feed] = freshness

    def _measured(self) -> Measured:
        oldest_ms = self._clock_ms() - SILENT_MS
        self._containers = {key: one for key, one in self._containers.items() if one.time_ms >= oldest_ms}
        self._feeds = {name: one for name, one in self._feeds.items() if one.time_ms >= oldest_ms}
        return Measured(dict(self._containers), dict(self._feeds))

    def close(self) -> None:
        """Release the connection."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __enter__(self) -> MetricsFollower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def record_json(value: bytes | None) -> dict[str, object]:
    """A record of a feed of the stack as JSON; whatever else stands there is nothing."""
    try:
        tree = json.loads(value or b"")
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}
