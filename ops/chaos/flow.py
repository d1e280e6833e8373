"""Watches a feed from outside: how many committed records have come, and when none came."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, TopicPartition


class Flow:
    """Reads a topic in a thread of its own, and notes when records of each partition came."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self.counts = dict.fromkeys(range(partitions), 0)
        self._arrivals: dict[int, list[float]] = {number: [] for number in range(partitions)}
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"chaos-{uuid.uuid4()}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
                "socket.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        self._thread = threading.Thread(target=self._run, name="flow", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            messages = self._consumer.consume(10_000, 0.02)
            now, came = self._clock(), set()
            for message in messages:
                if message.error() is None:
                    self.counts[message.partition()] += 1
                    came.add(message.partition())
            for number in came:
                self._arrivals[number].append(now)

    def has_reached(self, wanted: Mapping[int, int]) -> bool:
        """Whether so many records of each partition have come."""
        return all(self.counts[number] >= count for number, count in wanted.items())

    def longest_silence_s(self, since: float, until: float) -> float:
        """The longest time that a partition had no record, of those silences that reach into the span."""
        return max(longest_silence_s(times, since, until) for times in self._arrivals.values())

    def close(self) -> None:
        """Watch no longer."""
        self._stop.set()
        self._thread.join(5.0)
        self._consumer.close()


def longest_silence_s(arrivals: list[float], since: float, until: float) -> float:
    """The longest time between two arrivals, from the last before `since` to the first after `until`."""
    first = max(0, bisect_left(arrivals, since) - 1)
    last = bisect_left(arrivals, until) + 1
    times = arrivals[first:last]
    if not times or times[0] > since:
        times = [since, *times]
    if times[-1] < until:
        times = [*times, until]
    return max((after - before for before, after in itertools.pairwise(times)), default=0.0)
