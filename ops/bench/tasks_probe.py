"""Whether a window was quiet: judged by what the machine gave, never by the result, for all systems alike.

A watcher on every core sleeps a millisecond at a time. With real-time priority nothing that the benchmark
does, nor any other program, comes before it: what holds it up is the host, which gives the core to somebody
else, or the kernel's own interrupts. A host that takes the core away for a few milliseconds at a time shows
in the kernel's account of stolen time instead; that counts, too.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import psutil

from ops.bench.tasks_stage import NOISY, OtherLoad, Stage

HELD_UP_LIMIT_MS = 15.0
"""A window is disturbed if a core stood still for this long."""

STOLEN_LIMIT = 0.01
"""Or if the host took this share of the machine while there was work. Fixed before it first decided."""

_NAP_S = 0.001
_SHORT_MS = 5.0
_PRIORITY = 50
_ANSWER_LIMIT_S = 30.0


@dataclass(frozen=True)
class HeldUp:
    """How long naps took beyond their time: the longest, and the sum of those above 5 ms on one core."""

    longest_ms: float
    sum_ms: float
    real_time: bool


@dataclass(frozen=True)
class Disturbance:
    """What a window suffered. Shares of the machine: what others used, and what the host took while we had
    work; of one core: Java's compilers, in the broker or in a system.
    """

    other_load: float
    held_up: HeldUp
    stolen: float
    compiling: float

    @property
    def quiet(self) -> bool:
        """Whether the window counts. What was compiled is told and does not decide."""
        return (
            self.other_load <= NOISY
            and self.held_up.longest_ms < HELD_UP_LIMIT_MS
            and self.stolen < STOLEN_LIMIT
        )


def hold_ups(late_ms: Iterable[float], real_time: bool) -> HeldUp:
    """What the naps of one core say, each by how much it was late."""
    longest_ms = sum_ms = 0.0
    for late in late_ms:
        longest_ms = max(longest_ms, late)
        if late > _SHORT_MS:
            sum_ms += late
    return HeldUp(longest_ms, sum_ms, real_time)


def worst_of(cores: Sequence[HeldUp]) -> HeldUp:
    """The machine as its worst core tells it."""
    return HeldUp(
        max(core.longest_ms for core in cores),
        max(core.sum_ms for core in cores),
        all(core.real_time for core in cores),
    )


def naps_late_ms(
    is_over: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterable[float]:
    """Nap until it is over; by how much each nap was late."""
    before = clock()
    while not is_over():
        sleep(_NAP_S)
        now = clock()
        yield max(0.0, now - before - _NAP_S) * 1000
        before = now


class Probe:
    """Watches all cores within `with`, from `begin` until `held_up`."""

    def __init__(self) -> None:
        spawning = multiprocessing.get_context("spawn")
        # In shared memory: to ask a pipe after every nap would take more of the core than the naps.
        self._is_on = spawning.RawValue("b", 0)
        self._pipes: list[Any] = []
        self._watchers = []
        for core in _cores():
            mine, theirs = spawning.Pipe()
            self._pipes.append(mine)
            watcher = spawning.Process(target=_watch, args=(theirs, self._is_on, core), daemon=True)
            self._watchers.append(watcher)

    def __enter__(self) -> Probe:
        for watcher in self._watchers:
            watcher.start()
        for pipe in self._pipes:
            self._answer(pipe)
        return self

    def begin(self) -> None:
        """Begin to watch."""
        self._is_on.value = 1
        for pipe in self._pipes:
            pipe.send("watch")

    def held_up(self) -> HeldUp:
        """What the cores have seen since `begin`."""
        self._is_on.value = 0
        return worst_of([self._answer(pipe) for pipe in self._pipes])

    def _answer(self, pipe: Any) -> Any:
        if not pipe.poll(_ANSWER_LIMIT_S):
            raise TimeoutError("a watcher of the benchmark does not answer")
        return pipe.recv()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for watcher in self._watchers:
            watcher.terminate()
            watcher.join()


class Watch:
    """Watches a window from when it is made until `end`."""

    def __init__(self, stage: Stage, probe: Probe, clock: Callable[[], float] = time.monotonic) -> None:
        self._stage = stage
        self._probe = probe
        self._clock = clock
        probe.begin()
        self._other = OtherLoad(stage)
        self._begun = self._look()

    def end(self) -> Disturbance:
        other_load, held_up = self._other.share(), self._probe.held_up()
        at, stolen_s, compilers_s = (now - then for now, then in zip(self._look(), self._begun, strict=True))
        stolen = stolen_s / at / (os.cpu_count() or 1)
        return Disturbance(other_load, held_up, stolen=stolen, compiling=compilers_s / at)

    def _look(self) -> tuple[float, float, float]:
        stolen_s = float(getattr(psutil.cpu_times(), "steal", 0.0))
        return self._clock(), stolen_s, self._stage.compilers_cpu_s()


def _cores() -> list[int | None]:
    """One watcher for each core; a single one where processes cannot be bound to cores."""
    if not hasattr(os, "sched_getaffinity"):
        return [None]
    return [*sorted(os.sched_getaffinity(0))]


def _watch(pipe: Any, is_on: Any, core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})
    real_time = _become_real_time()
    pipe.send("ready")
    while True:
        pipe.recv()
        pipe.send(hold_ups(naps_late_ms(lambda: not is_on.value), real_time))


def _become_real_time() -> bool:
    """Come before everything else on this core; False where that is not permitted."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    except (AttributeError, OSError):
        return False
    return True
