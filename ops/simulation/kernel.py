"""Simulated processes and threads: time is a number, and who goes on next is decided by when it may.

Every thread runs in a greenlet, until it waits or asks somebody something; then the one whose time comes
first goes on. Each request takes a time that is drawn at random, and hence so is the order in which things
happen. The same seed draws the same.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

# The first moment of every run, as the time of day.
START_MS = 1_700_000_000_000
_FOREVER_S = 1e9
_BY_ITSELF = -1
# Nobody is late by more than this.
_LATEST_S = 2.0


class Killed(BaseException):
    """Raised into what is left of a thread when its run is over. Nobody on the way is to catch it."""


class Broken(BaseException):
    """Something that must always hold does not. Nobody on the way is to catch it either."""


class Stuck(Exception):
    """Nothing will ever happen again, or too much has."""


class Process:
    """A process: its threads never go on once it was killed, and not while it stands still."""

    def __init__(self, name: str, kind: str, host: str = "") -> None:
        self.name = name
        self.host = host
        self.alive = True
        # What was to go on while it stands still; None if it does not.
        self.held: list[tuple[float, int, Thread, int]] | None = None
        self.awake_since = 0.0
        self.began = 0.0
        # How much later than it should a wait comes to its end here: machines have other things to do.
        self.slowness = 1.0
        # How long it takes to notice that what it waits for has come.
        self.wakes_after_s = 0.0
        # How long it sleeps at least when it has nothing to read.
        self.kind = kind
        self.idle_s = 0.0
        # Called when it is killed.
        self.on_kill: list[Callable[[], None]] = []

    def stretched(self, seconds: float) -> float:
        """How long a wait takes here."""
        slow = seconds * self.slowness
        if slow <= _LATEST_S:
            return slow
        return max(seconds, _LATEST_S)

    def __repr__(self) -> str:
        return self.name


class Thread:
    """One thread of a process; also what `stack.machine.start` returns."""

    __slots__ = ("carrier", "is_over", "kernel", "name", "over", "process", "waits", "work")

    def __init__(self, kernel: Kernel, process: Process, work: Callable[[], object], name: str) -> None:
        self.kernel = kernel
        self.process = process
        self.work = work
        self.name = name
        # What it runs in, from its beginning to its end.
        self.carrier: Carrier | None = None
        # Counts its waits: what was to wake it from an earlier one is void.
        self.waits = 0
        self.over: Event | None = None
        self.is_over = False

    def run(self) -> None:
        try:
            self.work()
        except Killed:
            return
        finally:
            self.is_over = True
            self.carrier = None
        if self.over is not None:
            self.over.set()

    def join(self, timeout: float | None = None) -> None:
        if not self.is_over:
            if self.over is None:
                self.over = Event(self.kernel)
            self.over.wait(timeout)

    def is_alive(self) -> bool:
        return not self.is_over


class Carrier(greenlet):
    """What threads run in, one after the other, in run after run: to make one takes longer than most of what
    they do."""

    thread: Any = None

    def run(self) -> None:
        while True:
            onward = self._carry()
            if onward is not self:
                onward.switch()

    def _carry(self) -> greenlet:
        """Run a thread to its end; what goes on then. Nothing of a thread that is over is kept."""
        thread = self.thread
        thread.run()
        self.thread = None
        return thread.kernel.after_thread(self)


# Those that carry no thread at the moment.
_idle: list[Carrier] = []


class Event:
    """As `threading.Event`."""

    __slots__ = ("_is_set", "_kernel", "_waiting")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._is_set = False
        self._waiting: list[tuple[Thread, int]] = []

    def set(self) -> None:
        self._is_set = True
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for thread, waits in waiting:
                self._kernel.wake(thread, waits)

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            kernel = self._kernel
            thread = kernel.current()
            self._waiting.append((thread, thread.waits + 1))
            kernel.wait(_FOREVER_S if timeout is None else thread.process.stretched(timeout))
        return self._is_set


class Lock:
    """A lock that its holder may take again."""

    __slots__ = ("_count", "_free", "_holder", "_kernel")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._free = Event(kernel)
        self._holder: Any = None
        self._count = 0

    def __enter__(self) -> Lock:
        me = getcurrent()
        while self._holder is not None and self._holder is not me:
            self._free.clear()
            self._free.wait()
        self._holder = me
        self._count += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._holder = None
            self._free.set()


class Outcome:
    """What becomes of work that was handed to a pool."""

    def __init__(self, kernel: Kernel) -> None:
        self._over = Event(kernel)
        self._value: Any = None
        self._error: BaseException | None = None

    def carry_out(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            self._value = work(*arguments)
        except (Killed, Broken):
            raise
        except BaseException as error:
            self._error = error
        self._over.set()

    def done(self) -> bool:
        return self._over.is_set()

    def wait(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)

    def result(self) -> Any:
        while not self._over.is_set():
            self._over.wait()
        if self._error is not None:
            raise self._error
        return self._value


class Pool:
    """One thread that does one thing after the other."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self._kernel = kernel
        self._name = name
        self._lock = Lock(kernel)

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Outcome:
        outcome = Outcome(self._kernel)

        def run() -> None:
            with self._lock:
                outcome.carry_out(work, arguments)

        self._kernel.start(run, self._name)
        return outcome

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing to let go of."""


class Kernel:
    """Runs threads in the order of their time, until somebody says that it is enough."""

    def __init__(self, chance: Random, limit_s: float, most_steps: int) -> None:
        self.chance = chance
        self.now = 0.0
        self.steps = 0
        self.hub = getcurrent()
        self._limit_s = limit_s
        self._most_steps = most_steps
        # When, in which order, who goes on, and from which wait; or what happens by itself, and _BY_ITSELF.
        self._agenda: list[tuple[float, int, Any, int]] = []
        self._number = 0
        self._threads: list[Thread] = []
        self._by_itself: Callable[[], object] | None = None
        # Set by whoever knows that the run has reached its end.
        self.finished = False
        self._is_over = False

    # What runs

    def start(
        self, work: Callable[[], object], name: str, process: Process | None = None, after_s: float = 0.0
    ) -> Thread:
        """Start a thread, of the process that asks for it unless another is named."""
        if process is None:
            process = self.current().process
        thread = Thread(self, process, work, name)
        self._threads.append(thread)
        self._number += 1
        heappush(self._agenda, (self.now + after_s, self._number, thread, 0))
        return thread

    def current(self) -> Thread:
        carrier = getcurrent()
        if self._is_over or carrier.__class__ is not Carrier:
            raise Killed
        return carrier.thread

    def later(self, after_s: float, act: Callable[[], object]) -> None:
        """Something happens by itself. It must not wait: it has no thread."""
        self._number += 1
        heappush(self._agenda, (self.now + after_s, self._number, act, _BY_ITSELF))

    def run(self) -> None:
        """Go on until `finished` is set; Stuck if that never comes."""
        while not self._is_over:
            following = self._next()
            if following is None:
                return
            if following.__class__ is Thread:
                self._carrier_of(following).switch()
            else:
                self._by_itself = following
            # What happens by itself does so here, in no thread: what it finds broken ends the run.
            while self._by_itself is not None:
                act, self._by_itself = self._by_itself, None
                act()

    def _carrier_of(self, thread: Thread) -> Carrier:
        """What a thread runs in; one that begins gets a carrier now."""
        carrier = thread.carrier
        if carrier is None:
            carrier = _idle.pop() if _idle else Carrier(parent=self.hub)
            carrier.thread, thread.carrier = thread, carrier
        return carrier

    def after_thread(self, carrier: Carrier) -> greenlet:
        """A thread has come to its end: its carrier takes the next one, or makes room for who goes on."""
        following = None if self._is_over else self._next()
        _idle.append(carrier)
        if following is None:
            self._is_over = True
        elif following.__class__ is Thread:
            return self._carrier_of(following)
        else:
            self._by_itself = following
        return self.hub

    def _next(self) -> Any:
        """The thread whose turn it is, or what happens by itself; None if the run is over."""
        agenda = self._agenda
        while True:
            if not agenda:
                raise Stuck("nothing happens any more")
            entry = heappop(agenda)
            thread = entry[2]
            if entry[3] != _BY_ITSELF:
                if thread.waits != entry[3] or thread.is_over:
                    continue
                process = thread.process
                if not process.alive:
                    continue
                if process.held is not None:
                    process.held.append(entry)
                    continue
            self.steps += 1
            if entry[0] > self.now:
                self.now = entry[0]
                if self.finished:
                    return None
                if self.now > self._limit_s or self.steps > self._most_steps:
                    raise Stuck(f"no end after {self.now:.0f} s and {self.steps} steps")
            return thread

    # What threads do

    def wait(self, seconds: float) -> None:
        """The current thread waits for so long, or until it is woken."""
        carrier = getcurrent()
        if self._is_over or carrier.__class__ is not Carrier:
            raise Killed
        thread = carrier.thread
        thread.waits += 1
        self._number += 1
        agenda, at = self._agenda, self.now + seconds
        process = thread.process
        if (
            (not agenda or at < agenda[0][0])
            and process.alive
            and process.held is None
            and not self.finished
            and at < self._limit_s
        ):
            # Nobody else comes first.
            self.now = at
            self.steps += 1
            return
        heappush(agenda, (at, self._number, thread, thread.waits))
        following = self._next()
        if following is None:
            self._is_over = True
            self.hub.switch()
        elif following.__class__ is not Thread:
            self._by_itself = following
            self.hub.switch()
        elif following is not thread:
            self._carrier_of(following).switch()
        if self._is_over:
            raise Killed

    def hold(self, process: Process) -> None:
        """Let a process stand still."""
        if process.held is None:
            process.held = []

    def let_go_on(self, process: Process, within_s: float) -> None:
        """It stands still no longer; its threads go on one after the other, each when it gets a core."""
        held, process.held = process.held, None
        for _, _, thread, waits in held or ():
            self._number += 1
            at = self.now + self.chance.random() * within_s
            heappush(self._agenda, (at, self._number, thread, waits))

    def wake(self, thread: Thread, waits: int) -> None:
        """Let a thread that waits go on now."""
        if thread.waits == waits:
            thread.waits += 1
            self._number += 1
            at = self.now + thread.process.wakes_after_s
            heappush(self._agenda, (at, self._number, thread, thread.waits))

    def sleep(self, seconds: float) -> None:
        self.wait(self.current().process.stretched(seconds))

    def leave(self) -> None:
        """The current thread was killed: it never goes on."""
        self.wait(_FOREVER_S)

    def kill(self, process: Process) -> None:
        """As `kill -9`: none of its threads ever does anything again."""
        if process.alive:
            process.alive = False
            for call in process.on_kill:
                call()

    def leap(self, seconds: float) -> None:
        """Everybody sleeps: much time passes, in which nothing happens."""
        self.now += seconds

    def close(self) -> None:
        """Take down what is left of all threads."""
        self._is_over = True
        for thread in self._threads:
            if thread.carrier is not None:
                thread.carrier.throw(Killed)
        self._threads.clear()
        self._agenda.clear()
