"""Time and threads as a process has them: the machine's own, unless something steers them.

The runtime and the rooms below it take clocks, waits, events, locks and threads from here. A simulation puts
a machine of its own in place, on which time is a number and a thread a stretch of work that it resumes when
it likes; a test kit one on which everything happens at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Event(Protocol):
    """As `threading.Event`."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Running(Protocol):
    """A thread that was started."""

    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class Outcome(Protocol[T_co]):
    """What becomes of work that was handed to a pool."""

    def done(self) -> bool: ...
    def result(self) -> T_co: ...


class Pool(Protocol):
    """One thread that does one thing after the other."""

    def submit(self, work: Callable[..., T], /, *arguments: Any) -> Outcome[T]: ...
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...


class Machine:
    """The real one. Whoever steers overrides all of it."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def event(self) -> Event:
        return threading.Event()

    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """One that its holder may take again."""
        return threading.RLock()

    def start(self, work: Callable[[], object], name: str) -> Running:
        """Do something in a thread that nobody waits for when the process ends."""
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def pool(self, name: str) -> Pool:
        return ThreadPoolExecutor(1, name)

    def wait(self, outcome: Outcome[Any], timeout_s: float) -> None:
        """Wait for that long, or until the outcome is there."""
        if isinstance(outcome, Future):
            wait([outcome], timeout_s)


_machine = Machine()


# Seconds of a clock that never goes back. Looked at many times for each record and request: hence no function
# of Python, but something that can be pointed to another clock.
monotonic: Callable[[], float] = partial(time.monotonic)


def time_ms() -> int:
    """Milliseconds since 1970, as everybody's clock tells them."""
    return _machine.time_ms()


def sleep(seconds: float) -> None:
    """Let time pass."""
    _machine.sleep(seconds)


def event() -> Event:
    """An event that threads wait for."""
    return _machine.event()


def lock() -> contextlib.AbstractContextManager[Any]:
    """A lock that its holder may take again."""
    return _machine.lock()


def start(work: Callable[[], object], name: str) -> Running:
    """Do something in a thread that nobody waits for when the process ends."""
    return _machine.start(work, name)


def pool(name: str) -> Pool:
    """A thread that does one thing after the other."""
    return _machine.pool(name)


def wait_for(outcome: Outcome[Any], timeout_s: float) -> None:
    """Wait for that long, or until the outcome is there."""
    _machine.wait(outcome, timeout_s)


@contextlib.contextmanager
def steered_by(machine: Machine) -> Iterator[None]:
    """Let everything in this process that begins in the block run on another machine."""
    global _machine  # noqa: PLW0603 - a process has one machine
    before, _machine = _machine, machine
    _look_at(machine)
    try:
        yield
    finally:
        _machine = before
        _look_at(before)


def _look_at(machine: Machine) -> None:
    """Let `monotonic` tell the time of a machine."""
    monotonic.__setstate__((machine.monotonic, (), {}, None))  # type: ignore[attr-defined]
