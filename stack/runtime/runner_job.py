"""One job in the hands of its leader: looks at it, asks the engine what to do, and does it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from stack.engine.supervise import is_at_rest, supervise
from stack.engine.supervision import (
    CancelSlot,
    ConfirmVersion,
    Ended,
    Facts,
    FenceSlot,
    LaunchSlot,
    MarkReleased,
    Memory,
    Order,
    RemoveJob,
    RollBack,
    SetStatus,
    WritePlan,
    recall,
)
from stack.errors import Unavailable
from stack.machine import monotonic, time_ms
from stack.model.fleet import JobState
from stack.model.job import JobEntry, JobSpec
from stack.model.plan import ContainerReport, Ending, TaskId
from stack.runtime.containers import Containers
from stack.runtime.launch import Launch
from stack.runtime.runner_feed import Errands, JobsFollower
from stack.settings import Endpoints, Settings
from stack.zookeeper.fleet import JobNodes
from stack.zookeeper.lead import JobLead

log = logging.getLogger("feedstack.runner")
T = TypeVar("T")
# Reports are read this often while something is under way, and when all is well.
_BUSY_S = 0.25
_QUIET_S = 2.0


@dataclass(frozen=True)
class Means:
    """What a led job works with."""

    settings: Settings
    endpoints: Endpoints
    runner: str
    containers: Containers
    jobs: JobsFollower
    errands: Errands
    wake: Callable[[], None]
    clock: Callable[[], float] = monotonic
    clock_ms: Callable[[], int] = time_ms
    # Takes a point of a whole job; None where nobody wants that.
    align: Callable[[JobNodes, JobSpec], None] | None = None


class LedJob:
    """A job that this runner leads, from the claim until it is let go. Used by one thread."""

    def __init__(self, lead: JobLead, means: Means) -> None:
        self.name = lead.nodes.job
        self.removed = False
        self._lead = lead
        self._nodes = lead.nodes
        self._means = means
        self._live = True
        self._orders: deque[Order] = deque()
        self._endings: deque[Ended] = deque()
        self._fenced: deque[int] = deque()
        self._launches: dict[tuple[int, int], Launch] = {}
        # What a container said last, also of one that is no longer to be seen: its process may live on.
        self._last: dict[tuple[int, int], ContainerReport] = {}
        self._reports: tuple[ContainerReport, ...] = ()
        self._reports_at = float("-inf")
        self._members_changed = True
        self._released: dict[TaskId, int] = {}
        self._releases_changed = False
        self._memory = self._recalled()
        self._aligned_at = means.clock()
        self._is_aligning = False
        self._nodes.watch_members(self._on_members)
        self._nodes.watch_released(self._on_released)

    def _recalled(self) -> Memory:
        self._released = self._nodes.released()
        return recall(self._nodes.plan(fresh=True), self._released, self._nodes.status())

    # Called from other threads: they only leave a note.

    def _on_members(self) -> None:
        self._members_changed = True
        self._means.wake()

    def _on_released(self) -> None:
        self._releases_changed = True
        self._means.wake()

    def _on_end(self, slot: int, attempt: int, ending: Ending) -> None:
        if self._live:
            log.info(
                "%s: container %d.%d ended: %s %s", self.name, slot, attempt, ending.reason, ending.message
            )
        self._endings.append(Ended(slot, attempt, ending))
        self._means.wake()

    def _on_fenced(self, slot: int) -> None:
        self._fenced.append(slot)
        self._means.wake()

    # The runner's thread.

    def look(self, entry: JobEntry | None, stopping: bool = False) -> None:
        """One look. LostOwnership: somebody else leads the job. Unavailable: look again later."""
        self._carry_out_rest()
        self._read_reports()
        self._read_releases()
        facts = Facts(
            now=self._means.clock(),
            time_ms=self._means.clock_ms(),
            entry=entry,
            reports=self._reports,
            released=self._released,
            endings=tuple(_drawn(self._endings)),
            fenced=frozenset(_drawn(self._fenced)),
            stopping=stopping,
            runner=self._means.runner,
            warm_at=self._means.containers.warm_at,
        )
        decision = supervise(self._memory, facts)
        self._memory = decision.memory
        self._orders.extend(decision.orders)
        self._carry_out_rest()
        if entry is not None and not stopping:
            self._align(entry)

    def _align(self, entry: JobEntry) -> None:
        """Take a point of the whole job now and then, while it runs as it should."""
        means, status = self._means, self._memory.status
        due = means.clock() - self._aligned_at >= entry.spec.settings.align_ms / 1000
        runs = status is not None and status.state is JobState.RUNNING and entry.rewind is None
        if means.align is None or self._is_aligning or not (due and runs):
            return
        align, nodes, spec = means.align, self._nodes, entry.spec
        self._is_aligning = True

        def errand() -> None:
            try:
                align(nodes, spec)
            finally:
                self._aligned_at, self._is_aligning = means.clock(), False

        means.errands.once(f"taking a point of {self.name}", errand)

    @property
    def at_rest(self) -> bool:
        """Whether nothing of it runs."""
        return is_at_rest(self._memory) and not self._orders

    @property
    def _busy(self) -> bool:
        status = self._memory.status
        if status is None or status.state in (JobState.STARTING, JobState.STOPPING, JobState.WAITING):
            return True
        return bool(self._memory.holders) or self._memory.proof_since is not None

    def _read_reports(self) -> None:
        now = self._means.clock()
        if not self._members_changed and now - self._reports_at < (_BUSY_S if self._busy else _QUIET_S):
            return
        self._members_changed = False
        try:
            self._reports = self._nodes.reports()
            self._reports_at = now
            self._last.update({(one.slot, one.attempt): one for one in self._reports})
            self._last = {key: one for key, one in self._last.items() if key in self._launches}
        except Unavailable:
            self._members_changed = True
            raise

    def _read_releases(self) -> None:
        if self._releases_changed:
            self._releases_changed = False
            try:
                self._released = self._nodes.released()
            except Unavailable:
                self._releases_changed = True
                raise

    def _carry_out_rest(self) -> None:
        """In order: what could not be done is tried again before anything else is decided."""
        while self._orders:
            self._carry_out(self._orders[0])
            self._orders.popleft()

    def _carry_out(self, order: Order) -> None:
        means = self._means
        if isinstance(order, WritePlan):
            self._lead.write_plan(order.plan)
        elif isinstance(order, MarkReleased):
            self._lead.mark_released(order.generations)
            self._released = {**self._released, **order.generations}
        elif isinstance(order, SetStatus):
            log.info("%s: %s %s", self.name, order.status.state, order.status.message)
            self._lead.write_status(order.status)
        elif isinstance(order, LaunchSlot):
            self._launch(order)
        elif isinstance(order, CancelSlot):
            self._cancel(order.slot, order.attempt)
        elif isinstance(order, FenceSlot):
            slot = order.slot
            means.errands.fence(self.name, slot, self._is_live, lambda: self._on_fenced(slot))
        elif isinstance(order, ConfirmVersion):
            version = order.version
            log.info("%s: version %s works", self.name, version)
            self._errand("confirming", lambda: means.jobs.confirm(self.name, version))
        elif isinstance(order, RollBack):
            version, reason = order.version, order.reason
            log.warning("%s: version %s is taken back: %s", self.name, version, reason)
            self._errand("taking back", lambda: means.jobs.roll_back(self.name, version, reason))
        elif isinstance(order, RemoveJob):
            self._lead.remove_job()
            self.removed = True

    def _errand(self, doing: str, errand: Callable[[], None]) -> None:
        self._means.errands.run(f"{doing} {self.name}", errand, self._is_live)

    def _is_live(self) -> bool:
        return self._live

    def _launch(self, order: LaunchSlot) -> None:
        means, slot, attempt = self._means, order.slot, order.attempt
        launch = Launch(means.settings, means.endpoints, order.spec, slot, attempt, means.runner)
        self._launches[slot, attempt] = launch
        log.info("%s: container %d.%d is launched", self.name, slot, attempt)

        def on_end(ending: Ending) -> None:
            self._launches.pop((slot, attempt), None)
            self._on_end(slot, attempt, ending)

        means.containers.launch(launch, on_end)

    def _cancel(self, slot: int, attempt: int) -> None:
        launch = self._launches.get((slot, attempt))
        if launch is None:
            return
        log.warning("%s: container %d.%d is cancelled", self.name, slot, attempt)
        self._means.containers.cancel(launch, self._last.get((slot, attempt)))

    def let_go(self, renounce: bool) -> None:
        """Lead it no longer: what still runs is killed. Without `renounce` ZooKeeper is not asked."""
        self._live = False
        self._nodes.close()
        for slot, attempt in list(self._launches):
            self._cancel(slot, attempt)
        if renounce:
            self._lead.renounce()


def _drawn(notes: deque[T]) -> list[T]:
    """Everything that was noted so far; more may be noted meanwhile."""
    drawn = []
    while notes:
        drawn.append(notes.popleft())
    return drawn
