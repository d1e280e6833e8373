"""Watches a container from beside its loop: its parent, its memory, records and waits that take too long."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType

import psutil

from stack.model.job import JobSettings
from stack.runtime.faults import OverMemory, OverTime, Verdict
from stack.runtime.membership import Membership
from stack.runtime.work import Work

log = logging.getLogger("feedstack.container")
_TICK_S = 0.25
# Whoever stood still for so long was stopped from outside: no record is to blame for that.
_STOOD_STILL_S = 2.0
# User code that cannot be interrupted is given so long before the process ends.
_GRACE_S = 5.0
# Everything that the loop waits for has a limit, and none is this long: what takes longer will never end.
STANDSTILL_S = 180.0
# After this part of it, the log tells where the loop stands.
_TELL_AT = 1 / 6
_SIGNAL = signal.SIGUSR2
# For the log to reach its feed.
_LAST_WORDS_S = 0.5
_FRAMES = 8
ORPHANED_EXIT, STUCK_EXIT = 71, 72


class _Same:
    """For how long something has been the same."""

    def __init__(self) -> None:
        self._seen: object = None
        self._since = 0.0

    def for_s(self, value: object, now: float, anew: bool) -> float:
        """Seconds since `value` was another one, or since it was last counted `anew`."""
        if value != self._seen or anew:
            self._seen, self._since = value, now
        return now - self._since


class Watch:
    """A thread that ends the process, or the handler at hand, when a limit is passed."""

    def __init__(
        self,
        settings: JobSettings,
        membership: Membership,
        clock: Callable[[], float] = time.monotonic,
        leave: Callable[[int], object] = os._exit,
        standstill_s: float = STANDSTILL_S,
    ) -> None:
        self._settings = settings
        self._membership = membership
        self._clock = clock
        self._leave = leave
        self._standstill_s = standstill_s
        self._told = False
        self._process = psutil.Process()
        self._parent = os.getppid()
        self._stop = threading.Event()
        self._work: Work | None = None
        self._turns: Callable[[], int] | None = None
        self._is_main = threading.current_thread() is threading.main_thread()
        # What is to be raised, and at which record alone; None is any.
        self._verdict: Verdict | None = None
        self._aim: tuple[int, int, int] | None = None
        self._previous = signal.signal(_SIGNAL, self._interrupt) if self._is_main else None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def follow(self, work: Work, turns: Callable[[], int]) -> None:
        """Look at this work, and at how often its loop has gone round, from now on."""
        self._work = work
        self._turns = turns

    def close(self) -> None:
        """Watch no longer."""
        self._stop.set()
        self._thread.join(2.0)
        if self._is_main:
            signal.signal(_SIGNAL, self._previous or signal.SIG_DFL)

    def _interrupt(self, _signum: int, _frame: FrameType | None) -> None:
        """Runs in the main thread: raises into user code, and only there."""
        verdict, at = self._verdict, self._at()
        if verdict is not None and not verdict.lifted and at is not None and self._aim in (None, at):
            raise verdict

    def _run(self) -> None:
        record, turn = _Same(), _Same()
        last = self._clock()
        while not self._stop.wait(_TICK_S):
            now = self._clock()
            stopped, last = now - last > _STOOD_STILL_S, now
            if os.getppid() != self._parent:
                log.error("the executor is gone: this container ends")
                self._leave(ORPHANED_EXIT)
            at = self._at()
            limit_s = self._settings.record_limit_ms / 1000
            if record.for_s(at, now, stopped) > limit_s and at is not None:
                self._pronounce(OverTime(f"has kept one record for more than {limit_s:g} s"), at)
            if self._turns is not None:
                # User code has limits of its own.
                self._look_at_turns(turn.for_s(self._turns(), now, stopped or at is not None))
            self._weigh()

    def _look_at_turns(self, still_s: float) -> None:
        """End a process whose loop waits for what will not come; tell before where it waits."""
        if still_s < self._standstill_s * _TELL_AT:
            self._told = False
        elif not self._told:
            self._told = True
            log.warning("the container has stood still for %.0f s:\n%s", still_s, _stacks())
        elif still_s > self._standstill_s:
            log.error("the container has stood still for %.0f s: its process ends", still_s)
            self._stop.wait(_LAST_WORDS_S)
            self._leave(STUCK_EXIT)

    def _at(self) -> tuple[int, int, int] | None:
        run = None if self._work is None else self._work.current
        return None if run is None else (id(run), run.at, run.task.context.index)

    def _weigh(self) -> None:
        used = int(self._process.memory_info().rss)
        self._membership.memory_bytes = used
        limit = self._settings.memory_bytes
        if used > limit:
            sizes = f"{used >> 20:,} MiB; its limit is {limit >> 20:,} MiB"
            self._pronounce(OverMemory(f"has made the container grow to {sizes}"))

    def _pronounce(self, verdict: Verdict, aim: tuple[int, int, int] | None = None) -> None:
        """End the handler at hand, or the loop; the process if neither can be reached.

        With an `aim` only the handler of that record: once it is let go of, the container may go on.
        """
        self._aim = aim
        self._verdict = self._membership.verdict = verdict
        deadline = self._clock() + _GRACE_S
        while self._clock() < deadline:
            if aim is not None and (verdict.lifted or self._at() != aim):
                verdict.lifted = True
                self._verdict = self._membership.verdict = None
                return
            if self._is_main and self._at() is not None:
                # Only user code is interrupted: a library in the middle of its work may not bear it.
                signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
            if self._stop.wait(_TICK_S):
                return
        log.error("the container %s and cannot be interrupted: its process ends", verdict)
        self._leave(STUCK_EXIT)


def _stacks() -> str:
    """Where each thread is, innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)[-_FRAMES:])}"
        for ident, frame in sys._current_frames().items()
    )
