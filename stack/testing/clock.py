"""Time in hand: a clock that a test moves, and a machine without threads that goes by it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from stack.errors import BadInput
from stack.machine import Event, Machine, Outcome, Pool, Running
from stack.model.duration import parse_duration_ms

START_MS = 1_700_000_000_000
T = TypeVar("T")


class Clock:
    """The time of day stands still until it is moved. What waits for a moment does so in no time."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self.now_ms = start_ms
        # Seconds since the beginning; also what is spent with waiting, which the time of day does not show.
        self.passed_s = 0.0

    def advance(self, by: str | float) -> None:
        """Let time pass: `"5m"`, or seconds."""
        passed_ms = parse_duration_ms(by) if isinstance(by, str) else round(by * 1000)
        if passed_ms < 0:
            raise BadInput(
                f"the clock cannot go back by {by!r}", hint="Begin another stack with an earlier start."
            )
        self.now_ms += passed_ms
        self.passed_s += passed_ms / 1000

    def wait(self, seconds: float) -> None:
        """Somebody has nothing to do for so long."""
        self.passed_s += max(0.0, seconds)


class MachineInHand(Machine):
    """One thread, in which everything happens at once, and the time of a clock in hand."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def monotonic(self) -> float:
        return self._clock.passed_s

    def time_ms(self) -> int:
        return self._clock.now_ms

    def sleep(self, seconds: float) -> None:
        self._clock.wait(seconds)

    def event(self) -> Event:
        return _Flag(self._clock)

    def lock(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def start(self, work: Callable[[], object], name: str) -> Running:  # noqa: ARG002
        work()
        return _Over()

    def pool(self, name: str) -> Pool:  # noqa: ARG002
        return _AtOnce()

    def wait(self, outcome: Outcome[Any], timeout_s: float) -> None:
        """All outcomes are there."""


class _Flag:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._clock.wait(timeout or 0.0)
        return self._is_set


class _Over:
    def join(self, timeout: float | None = None) -> None:
        pass

    def is_alive(self) -> bool:
        return False


class _Done(Generic[T]):
    """What has become of work that is done already. An error is told when asked for, a crash at once."""

    def __init__(self, work: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        self._error: BaseException | None = None
        try:
            self._answer = work(*arguments)
        except Exception as error:
            self._error = error

    def done(self) -> bool:
        return True

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._answer


class _AtOnce:
    def submit(self, work: Callable[..., T], /, *arguments: Any) -> Outcome[T]:
        return _Done(work, arguments)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass
