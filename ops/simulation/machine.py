"""The machine of `stack.machine` on which simulated processes run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

from ops.simulation.kernel import START_MS, Event, Kernel, Lock, Pool, Thread
from stack.machine import Machine


class SimulatedMachine(Machine):
    """Threads are the kernel's, and so is time."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        # Asked for a thousand times in a run: hence no function of Python.
        self.monotonic = partial(attrgetter("now"), kernel)  # type: ignore[method-assign]

    def time_ms(self) -> int:
        return START_MS + int(self._kernel.now * 1000)

    def sleep(self, seconds: float) -> None:
        self._kernel.sleep(seconds)

    def event(self) -> Event:
        return Event(self._kernel)

    def lock(self) -> contextlib.AbstractContextManager[Any]:
        return Lock(self._kernel)

    def start(self, work: Callable[[], object], name: str) -> Thread:
        return self._kernel.start(work, name)

    def pool(self, name: str) -> Pool:
        return Pool(self._kernel, name)

    def wait(self, outcome: Any, timeout_s: float) -> None:
        outcome.wait(timeout_s)
