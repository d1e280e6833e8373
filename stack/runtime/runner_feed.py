"""What a runner does with Kafka, in threads of its own: a broker that is away must not hold it up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from stack.connection import Stack
from stack.deploy.jobs import JobsFeed, jobs_feed
from stack.errors import FeedstackError, Unavailable
from stack.kafka.writer import LogWriter
from stack.machine import event, sleep, start
from stack.model.job import JobEntry, transactional_id

log = logging.getLogger("feedstack.runner")
_POLL_S = 0.3
_AGAIN_S = 1.0
_FENCE_S = 20.0


class JobsFollower:
    """Reads the jobs feed again and again; `entries` is what stood there last, None before the first look.

    `unreadable` are jobs whose entry is broken: they are left as they are.
    """

    def __init__(self, stack: Stack, on_change: Callable[[], None]) -> None:
        self.entries: Mapping[str, JobEntry] | None = None
        self.unreadable: frozenset[str] = frozenset()
        self.fault = ""
        self._feed: JobsFeed = jobs_feed(stack)
        self._on_change = on_change
        self._stop = event()
        self._look = event()
        self._thread = start(self._run, "jobs-feed")

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                entries, broken = self._feed.look()
            except FeedstackError as error:
                if self.fault != error.message:
                    log.warning("the jobs feed cannot be read: %s", error.message)
                self.fault = error.message
                self._stop.wait(_AGAIN_S)
                continue
            self.fault = ""
            for name in broken.keys() - self.unreadable:
                log.error("%s. %s", broken[name].message, broken[name].hint)
            if entries != self.entries or frozenset(broken) != self.unreadable:
                self.entries, self.unreadable = entries, frozenset(broken)
                self._on_change()
            self._look.wait(_POLL_S)
            self._look.clear()

    def look_now(self) -> None:
        """Do not wait for the next round."""
        self._look.set()

    def confirm(self, job: str, version: str) -> None:
        """Note that a version has committed, unless another one stands there by now."""

        def decide(entry: JobEntry | None) -> JobEntry | None:
            if entry is None or entry.spec.version != version or entry.confirmed:
                return entry
            return replace(entry, confirmed=True, previous=None)

        self._feed.update(job, decide)
        self.look_now()

    def roll_back(self, job: str, version: str, reason: str) -> None:
        """Let the version before come back, unless another one stands there by now."""

        def decide(entry: JobEntry | None) -> JobEntry | None:
            if entry is None or entry.previous is None or entry.confirmed or entry.spec.version != version:
                return entry
            said = f"version {version} was taken back: {reason}"
            return replace(entry, spec=entry.previous, previous=None, confirmed=True, rolled_back=said)

        self._feed.update(job, decide)
        self.look_now()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        self._look.set()
        self._thread.join(5.0)


class Errands:
    """Things that may take long and are tried until they work or nobody wants them any more."""

    def __init__(self, stack: Stack, sleep: Callable[[float], None] = sleep) -> None:
        self._stack = stack
        self._sleep = sleep
        self._closed = event()

    def fence(self, job: str, slot: int, wanted: Callable[[], bool], done: Callable[[], None]) -> None:
        """Take over the transactional id of a slot: no container of it commits from then on."""
        name = transactional_id(self._stack.settings.name, job, slot)

        def run() -> None:
            with LogWriter(self._stack.access, name, timeout_s=_FENCE_S) as writer:
                writer.init_transactions()
            log.info("fenced %s", name)

        self.run(f"fencing {name}", run, wanted, done)

    def run(
        self,
        doing: str,
        errand: Callable[[], None],
        wanted: Callable[[], bool],
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """Try in the background."""

        def repeat() -> None:
            while wanted() and not self._closed.is_set():
                try:
                    errand()
                    done()
                    return
                except Unavailable as error:
                    log.warning("%s: %s", doing, error.message)
                except FeedstackError as error:
                    log.error("%s: %s", doing, error.message)
                self._sleep(_AGAIN_S)

        # Not a pool: its threads would be waited for when the process ends.
        start(repeat, doing)

    def once(self, doing: str, errand: Callable[[], None]) -> None:
        """Do something in the background that is done again later anyway."""

        def run() -> None:
            try:
                errand()
            except FeedstackError as error:
                log.warning("%s: %s", doing, error.message)

        start(run, doing)

    def close(self) -> None:
        """Give up what is under way."""
        self._closed.set()
