"""What the stores of a container need from time to time."""

from __future__ import annotations

from collections.abc import Callable, Collection

from stack.deploy.unpack import code_place
from stack.deploy.unused import mark_used
from stack.runtime.launch import Launch
from stack.runtime.task import Task

_PENDING_S = 5.0
# What is only in RocksDB's memory is read from the changelog again after a crash.
_FLUSH_S = 20.0
_SNAPSHOT_S = 300.0


class Upkeep:
    """Brings RocksDB up, flushes it, keeps a snapshot: each in its own time."""

    def __init__(self, launch: Launch, clock: Callable[[], float], clock_ms: Callable[[], int]) -> None:
        self._launch = launch
        self._clock = clock
        self._clock_ms = clock_ms
        self._written_at = self._flushed_at = self._kept_at = clock()

    def tend(self, tasks: Collection[Task]) -> None:
        """Do what is due."""
        now = self._clock()
        if now - self._written_at < _PENDING_S:
            return
        self._written_at = now
        for task in tasks:
            task.write_pending(self._clock_ms())
        if now - self._flushed_at >= _FLUSH_S:
            self._flushed_at = now
            for task in tasks:
                for store in task.backing.values():
                    store.flush(wait=False)
        if now - self._kept_at >= _SNAPSHOT_S:
            self._kept_at = now
            mark_used(code_place(self._launch.settings.data, self._launch.spec.code.sha256))
            for task in tasks:
                for store in task.backing.values():
                    store.snapshot()
