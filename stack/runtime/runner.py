"""The runner: hosts jobs on Spark. It leads those that nobody else leads, until it is told to stop.

One thread decides. Everything else, watches, containers that ended, Kafka, only leaves notes and wakes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from stack.connection import Stack
from stack.errors import FeedstackError, LostOwnership, Unavailable
from stack.machine import event, monotonic
from stack.model.fleet import RunnerPlace
from stack.model.job import JobEntry, JobSpec
from stack.runtime.containers import Containers
from stack.runtime.host import is_dead, is_former_self, this_place
from stack.runtime.runner_feed import Errands, JobsFollower
from stack.runtime.runner_job import LedJob, Means
from stack.zookeeper.fleet import FleetNodes, FleetSession, JobNodes
from stack.zookeeper.lead import JobLead, bury_dead_runners

log = logging.getLogger("feedstack.runner")
_TICK_S = 0.25
_CLAIM_S = 0.5
_LEFTOVERS_S = 5.0
_STOP_S = 10.0
_AGAIN_S = 0.3


class Runner:
    """Leads jobs for as long as it has a ZooKeeper session; begins anew when it lost one."""

    def __init__(
        self,
        stack: Stack,
        containers: Containers,
        alive: Path | None = None,
        *,
        clock: Callable[[], float] = monotonic,
        place_of: Callable[[str, str], RunnerPlace] = this_place,
        is_dead: Callable[[RunnerPlace], bool] = is_dead,
        align: Callable[[JobNodes, JobSpec], None] | None = None,
    ) -> None:
        self.place_of = place_of
        self.is_dead = is_dead
        self._align = align
        self._stack = stack
        self._containers = containers
        self._alive = alive
        self._clock = clock
        self._wake = event()
        self._stopping = event()
        self._sessions = 0
        self.jobs: dict[str, LedJob] = {}
        self.session: FleetSession | None = None

    def stop(self) -> None:
        """Ask the runner to end; safe from a signal handler."""
        self._stopping.set()
        self._wake.set()

    def run(self) -> None:
        """Run until stopped; Unavailable if Spark is gone for good."""
        follower = JobsFollower(self._stack, self._wake.set)
        errands = Errands(self._stack)
        try:
            while not self._stopping.is_set():
                try:
                    self._live(follower, errands)
                except LostOwnership as error:
                    log.warning("begins anew: %s", error.message)
                except Unavailable as error:
                    self._raise_spark_fault()
                    log.warning("begins anew: %s", error.message)
                    self._stopping.wait(_AGAIN_S)
        finally:
            errands.close()
            follower.close()

    def _live(self, follower: JobsFollower, errands: Errands) -> None:
        """One session with ZooKeeper, from its start to its end."""
        self._sessions += 1
        runner = f"{self._containers.identity}.{self._sessions}"
        with FleetSession(self._stack.endpoints.zookeeper, self._wake.set) as session:
            session.start()
            self.session = session
            fleet = FleetNodes(session, self._stack.settings.name)
            fleet.register_runner(self.place_of(runner, self._stack.settings.spark_master))
            means = Means(
                self._stack.settings,
                self._stack.endpoints,
                runner,
                self._containers,
                follower,
                errands,
                self._wake.set,
                self._clock,
                align=self._align,
            )
            try:
                reign = _Reign(self, session, fleet, means)
                log.info("runner %s is ready", runner)
                self._lead(reign)
            finally:
                self._let_all_go(renounce=not session.lost.is_set())

    def _lead(self, reign: _Reign) -> None:
        while not self._stopping.is_set():
            if reign.session.lost.is_set():
                raise LostOwnership("the ZooKeeper session is lost")
            if reign.gone.is_set():
                raise LostOwnership("somebody removed this runner from ZooKeeper")
            self._raise_spark_fault()
            self._beat()
            reign.round()
            self._wake.wait(_TICK_S)
            self._wake.clear()
        deadline = self._clock() + _STOP_S
        while self.jobs and self._clock() < deadline and not reign.session.lost.is_set():
            reign.round(stopping=True)
            self._wake.wait(_TICK_S)
            self._wake.clear()

    def _raise_spark_fault(self) -> None:
        fault = self._containers.fault()
        if fault is not None:
            self._stopping.set()
            raise SparkGone(fault, hint="The supervisor starts the runner again.")

    def _beat(self) -> None:
        """A file whose time tells that the runner decides."""
        if self._alive is not None:
            self._alive.touch()

    def _let_all_go(self, renounce: bool) -> None:
        for job in self.jobs.values():
            try:
                job.let_go(renounce)
            except FeedstackError as error:
                log.warning("letting %s go: %s", job.name, error.message)
        self.jobs.clear()


class SparkGone(FeedstackError):
    """Spark ended: this process can start no container any more."""


class _Reign:
    """The rounds of one session."""

    def __init__(self, runner: Runner, session: FleetSession, fleet: FleetNodes, means: Means) -> None:
        self.session = session
        self._jobs = runner.jobs
        self._fleet = fleet
        self._means = means
        self._place = runner.place_of(means.runner, "")
        self._is_dead = runner.is_dead
        self._claimed_at = self._leftovers_at = float("-inf")
        self._complaints: set[str] = set()
        self.gone = event()
        fleet.watch_runner(means.runner, self.gone.set)
        bury_dead_runners(fleet, self._is_gone)

    def _is_gone(self, place: RunnerPlace) -> bool:
        return self._is_dead(place) or is_former_self(place, self._place)

    def round(self, stopping: bool = False) -> None:
        """Look at every job once; claim what nobody leads."""
        entries = self._means.jobs.entries
        if entries is None:
            return
        if not stopping:
            self._claim()
        for name, job in list(self._jobs.items()):
            if name in self._means.jobs.unreadable and not stopping:
                continue
            self._look(job, entries.get(name), stopping)

    def _look(self, job: LedJob, entry: JobEntry | None, stopping: bool) -> None:
        try:
            job.look(entry, stopping)
            if job.removed:
                log.info("%s is removed", job.name)
                del self._jobs[job.name]
            elif stopping and job.at_rest:
                job.let_go(renounce=True)
                del self._jobs[job.name]
        except Unavailable as error:
            log.debug("%s: %s", job.name, error.message)
        except LostOwnership as error:
            log.warning("%s: %s", job.name, error.message)
            del self._jobs[job.name]
            job.let_go(renounce=False)
        except FeedstackError as error:
            self._complain(f"{job.name}: {error.message}")

    def _claim(self) -> None:
        """Try to lead every job that this runner does not lead, now and then."""
        now = self._means.clock()
        if now - self._claimed_at < _CLAIM_S:
            return
        self._claimed_at = now
        known = self._means.jobs.entries or {}
        for name in (*known, *self._left_behind(now)):
            if name not in self._jobs:
                self._claim_one(name)

    def _claim_one(self, name: str) -> None:
        lead = JobLead(self._fleet.job(name), self._place, self._is_gone)
        try:
            if lead.claim():
                log.info("leads %s, term %s", name, lead.term)
                self._jobs[name] = LedJob(lead, self._means)
        except FeedstackError as error:
            self._complain(f"claiming {name}: {error.message}")

    def _complain(self, what: str) -> None:
        """Once: it will be tried again and again."""
        if what not in self._complaints:
            self._complaints.add(what)
            log.error("%s", what)

    def _left_behind(self, now: float) -> tuple[str, ...]:
        """Jobs that were removed while nobody led them: what is left of them is stopped and removed."""
        if now - self._leftovers_at < _LEFTOVERS_S:
            return ()
        self._leftovers_at = now
        bury_dead_runners(self._fleet, self._is_gone)
        known = self._means.jobs.entries or {}
        return tuple(
            name
            for name in self._fleet.jobs()
            if name not in known and name not in self._means.jobs.unreadable
        )
