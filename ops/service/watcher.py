"""The thread of the HTTP service that follows metrics, judges how fresh feeds are, and raises alarms.

Here rather than in a runner: there is one HTTP service, it needs no Spark, and a feed whose runner is dead is
stale, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ops.service.alarms import Alarms
from stack.connection import Stack
from stack.deploy.freshness import FreshnessJudge, Looked, last_alarms
from stack.deploy.metrics import Measured, MetricsFollower
from stack.deploy.topics import alarms_plan, ensure_topics, metrics_plan
from stack.errors import FeedstackError
from stack.kafka.writer import LogWriter
from stack.model.freshness import Freshness, FreshnessState, freshness_key, freshness_to_bytes
from stack.model.metrics import metrics_name

log = logging.getLogger("feedstack.watcher")
_FOLLOW_S = 0.5
_JUDGE_S = 2.0
_AGAIN_S = 2.0
_PATIENCE_S = 20.0
_LAST_WAIT_S = 2.0


class Watcher:
    """Knows what metrics say now. Made with a connection of its own: its thread asks all the time."""

    def __init__(
        self,
        connect: Callable[[], Stack],
        alarms: Alarms,
        judge_s: float = _JUDGE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._alarms = alarms
        self._judge_s = judge_s
        self._clock = clock
        self.measured = Measured()
        self.looked = Looked()
        # The alarms that are on, as they were told.
        self._on: dict[str, Freshness] = {}
        self._complaint = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Watch no longer."""
        self._stop.set()
        self._thread.join(_LAST_WAIT_S)
        self._alarms.close()

    def _run(self) -> None:
        """Begin anew whenever Kafka was away."""
        while not self._stop.is_set():
            try:
                with self._connect() as stack:
                    self._watch(stack)
            except FeedstackError as error:
                self._complain(error.message)
            except Exception:
                log.exception("the watcher begins anew")
            # What was known gets old.
            self.measured, self.looked = Measured(), Looked()
            self._stop.wait(_AGAIN_S)

    def _watch(self, stack: Stack) -> None:
        told = last_alarms(stack).items()
        self._on = {name: one for name, one in told if one.state is FreshnessState.ALARM}
        judge = FreshnessJudge(stack, self._on)
        judged_at = float("-inf")
        with (
            MetricsFollower(stack) as follower,
            LogWriter(stack.access, settings={"linger.ms": 50}, timeout_s=_PATIENCE_S) as writer,
        ):
            while not self._stop.is_set():
                self.measured = follower.wait(min(_FOLLOW_S, self._judge_s))
                if not self.measured.containers and not self.looked.feeds:
                    self._stop.wait(_FOLLOW_S)
                if self._clock() - judged_at >= self._judge_s:
                    judged_at = self._clock()
                    looked = judge.look()
                    if looked.feeds and not self.looked.feeds:
                        self._prepare(stack)
                    self._tell(stack.settings.name, writer, looked.feeds)
                    self.looked = looked
                    self._complaint = ""

    @staticmethod
    def _prepare(stack: Stack) -> None:
        name = stack.settings.name
        ensure_topics(stack.admin, [metrics_plan(name), alarms_plan(name)])

    def _tell(self, name: str, writer: LogWriter, feeds: Mapping[str, Freshness]) -> None:
        """Write how fresh feeds are for whoever looks, and tell of alarms that begin or end."""
        for one in feeds.values():
            writer.write_one(metrics_name(name), freshness_to_bytes(one), freshness_key(one.feed))
            is_on = one.state is FreshnessState.ALARM
            if is_on and one.feed not in self._on:
                self._alarms.tell(one, writer)
                self._on[one.feed] = one
            elif not is_on and self._on.pop(one.feed, None) is not None:
                self._alarms.tell(one, writer)
        for feed in [feed for feed in self._on if feed not in feeds]:
            last = self._on.pop(feed)
            gone = replace(last, state=FreshnessState.UNKNOWN, why="it has no objective any more")
            self._alarms.tell(gone, writer)

    def _complain(self, what: str) -> None:
        """Once: it is tried again and again."""
        if what != self._complaint:
            self._complaint = what
            log.warning("metrics cannot be followed: %s", what)
