"""A container's place in the fleet: its node, the plan, releases, and whether it may go on at all."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping

from stack.errors import FeedstackError, LostOwnership, Unavailable
from stack.machine import Running, event, monotonic, start
from stack.model.plan import ContainerReport, Plan, TaskId
from stack.model.stillness import StillRequest
from stack.runtime.faults import Verdict
from stack.runtime.launch import Launch
from stack.zookeeper.fleet import FleetNodes, FleetSession

log = logging.getLogger("feedstack.container")
_REPORT_S = 1.0


class Orphaned(Exception):
    """The runner that started this container is gone."""


class Membership:
    """Follows ZooKeeper from its own threads; the container's loop asks it between two records."""

    def __init__(self, launch: Launch, session: FleetSession) -> None:
        self._launch = launch
        self._session = session
        fleet = FleetNodes(session, launch.settings.name)
        self._nodes = fleet.job(launch.spec.name)
        self._plan: Plan | None = None
        self._released: Mapping[TaskId, int] = {}
        self._runner_gone = event()
        self._fenced: str | None = None
        self._stop = event()
        # Something to do for the thread that reports: releases have changed, or the end has come.
        self._news = event()
        self._releases_changed = False
        self._thread: Running | None = None
        self._still_request: StillRequest | None = None
        # Reports that were asked for, and up to which they were made and have reached ZooKeeper.
        self._asked = self._told = 0
        self.memory_bytes = 0
        # Set by the watch: what ends the container from outside its loop.
        self.verdict: Verdict | None = None
        fleet.watch_runner(launch.runner, self._runner_gone.set)

    def confirm(self) -> None:
        """After the writer was initialised: LostOwnership unless the newest plan has this very attempt."""
        plan = self._nodes.plan(fresh=True)
        launch = self._launch
        own = None if plan is None else plan.slots.get(launch.slot)
        if plan is None or (own is not None and own.attempt != launch.attempt):
            raise LostOwnership(f"the plan does not have attempt {launch.attempt} of slot {launch.slot}")
        if own is not None and plan.version != launch.spec.version:
            raise LostOwnership(f"the plan has version {plan.version}, this is {launch.spec.version}")

    def join(self, report: ContainerReport, tell: Callable[[], ContainerReport]) -> None:
        """Announce the container, follow the plan, and report from now on."""
        self._nodes.register(report)
        self._nodes.watch_released(self._on_released)
        # Read once, now that every later one is told of.
        self._look_at_releases()
        self._nodes.watch_plan(self._on_plan)
        self._nodes.watch_still_request(self._on_still_request)
        self._thread = start(lambda: self._report(tell), "report")

    def _on_plan(self, plan: Plan) -> None:
        self._plan = plan

    def _on_released(self) -> None:
        self._releases_changed = True
        self._news.set()

    def _on_still_request(self, request: StillRequest | None) -> None:
        self._still_request = request

    def _report(self, tell: Callable[[], ContainerReport]) -> None:
        reported_at = float("-inf")
        while not self._stop.is_set():
            self._news.wait(_REPORT_S)
            try:
                self._news.clear()
                if self._releases_changed:
                    self._look_at_releases()
                asked = self._asked
                due = monotonic() - reported_at >= _REPORT_S or asked > self._told
                if due and not self._stop.is_set():
                    reported_at = monotonic()
                    self._nodes.update_report(tell())
                    self._told = asked
            except LostOwnership as error:
                self._fenced = error.message
                return
            except Unavailable as error:
                log.debug("ZooKeeper does not answer: %s", error.message)
            except Exception:
                log.exception("the report cannot be made")

    def _look_at_releases(self) -> None:
        """Read them; what cannot be read now is read the next time, since nobody tells of it again."""
        self._releases_changed = False
        try:
            self._released = self._nodes.released()
        except BaseException:
            self._releases_changed = True
            self._news.set()
            raise

    def check(self) -> None:
        """Raise what ends the container: its runner gone, its session lost, a newer attempt, a limit."""
        if self.verdict is not None and not self.verdict.lifted:
            raise self.verdict
        if self._fenced is not None:
            raise LostOwnership(self._fenced)
        if self._runner_gone.is_set():
            raise Orphaned(f"runner {self._launch.runner} is gone")
        if self._session.lost.is_set():
            raise Unavailable("the ZooKeeper session is lost", hint="It goes on when ZooKeeper is back.")

    def news(self) -> Plan | None:
        """The newest plan."""
        return self._plan

    @property
    def released(self) -> Mapping[TaskId, int]:
        """Per task the generation up to which nobody else has it open."""
        return self._released

    def still_request(self) -> StillRequest | None:
        """Whether, and for what, tasks shall stand still."""
        return self._still_request

    def ask_report(self) -> int:
        """Let a report be made at once; `is_told` says when one that was made after this has arrived."""
        self._asked += 1
        self._news.set()
        return self._asked

    def is_told(self, ticket: int) -> bool:
        """Whether a report that was asked for has reached ZooKeeper."""
        return self._told >= ticket

    def release(self, task: TaskId, generation: int) -> None:
        """Say that the task is closed here. If ZooKeeper is away, the runner will find out by itself."""
        try:
            self._nodes.release(task, generation)
        except Unavailable as error:
            log.warning("the release of task %s did not reach ZooKeeper: %s", task, error.message)

    def leave(self) -> None:
        """Take the node away."""
        self._stop.set()
        self._news.set()
        self._nodes.close()
        if self._thread is not None:
            self._thread.join(2.0)
        with contextlib.suppress(FeedstackError):
            self._nodes.unregister()
