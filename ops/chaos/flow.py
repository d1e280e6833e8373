"""Watches a feed from outside: how many committed records have come, and when none came."""

from __future__ import annotations

import itertools
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping

from stack.errors import FeedstackError
from stack.kafka.config import KafkaAccess
from stack.kafka.reader import LogReader

_WAIT_S = 0.02


class Flow:
    """Reads a topic in a thread of its own, and notes when records of each partition came."""

    def __init__(
        self, access: KafkaAccess, topic: str, partitions: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self.counts = dict.fromkeys(range(partitions), 0)
        self._arrivals: dict[int, list[float]] = {number: [] for number in range(partitions)}
        self._stop = threading.Event()
        self._reader = LogReader(access, topic, {"fetch.wait.max.ms": 50, "reconnect.backoff.max.ms": 500})
        self._reader.assign(dict.fromkeys(range(partitions), 0))
        self._thread = threading.Thread(target=self._run, name="flow", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                came = Counter(self._reader.read(10_000, _WAIT_S).partitions)
            except FeedstackError:  # the broker is away, as it should be
                self._stop.wait(_WAIT_S)
                continue
            now = self._clock()
            for number, count in came.items():
                self.counts[number] += count
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
        self._reader.close()


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
