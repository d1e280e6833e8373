"""A small world of containers that behave as containers shall, with every delay and mishap that is real.

A container sees plans and releases late, may be killed, may stand still until its session is gone, and may
be one that its runner forgot. Kafka's part is one number per slot: whoever initialised the slot's id last
is the only one that can commit.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from stack.engine.ownership import is_current, may_open, release_generation
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
from stack.model.fleet import JobStatus
from stack.model.job import CodePlace, Desired, InputSpec, JobEntry, JobSettings, JobSpec
from stack.model.plan import (
    ContainerReport,
    Ending,
    Plan,
    Reason,
    TaskId,
    TaskReport,
    TaskState,
)


def spec(version: str = "v1", containers: int = 2, partitions: int = 4, **settings: Any) -> JobSpec:
    return JobSpec(
        "count",
        version,
        (InputSpec("views"),),
        ("counts",),
        (),
        JobSettings(containers=containers, **settings),
        partitions,
        CodePlace(version, 0, 0, 1),
    )


@dataclass
class Container:
    """One process. `epoch` is what it got when it initialised its slot's id."""

    slot: int
    attempt: int
    version: str
    epoch: int | None = None
    plan: Plan | None = None
    released: dict[TaskId, int] = field(default_factory=dict)
    opened: set[TaskId] = field(default_factory=set)
    generation: int = 0
    commits: int = 0
    frozen: bool = False
    session: bool = True
    over: bool = False


class World:
    """Kafka, ZooKeeper, Spark and one runner, all in one thread."""

    def __init__(self, entry: JobEntry, chance: random.Random, cores: int = 99) -> None:
        self.entry = entry
        self.listed = True
        self.chance = chance
        self.cores = cores
        self.now = 0.0
        self.plan: Plan | None = None
        self.released: dict[TaskId, int] = {}
        self.status: JobStatus | None = None
        self.statuses: list[JobStatus] = []
        self.epochs: dict[int, int] = {}
        self.containers: list[Container] = []
        self.queued: list[Container] = []
        self.reports: dict[tuple[int, int], ContainerReport] = {}
        self.endings: list[Ended] = []
        self.fenced: set[int] = set()
        self.fencing: list[int] = []
        self.orders: list[Order] = []
        self.memory = Memory()
        self.removed = False
        self.bad: Ending | None = None
        self.bad_version: str | None = None
        self.idle = False

    # The runner.

    def look(self, stopping: bool = False) -> tuple[Order, ...]:
        """One look of the runner, and its orders carried out."""
        facts = Facts(
            now=self.now,
            time_ms=int(self.now * 1000),
            entry=self.entry if self.listed else None,
            reports=tuple(self.reports.values()),
            released=dict(self.released),
            endings=tuple(self.endings),
            fenced=frozenset(self.fenced),
            stopping=stopping,
            runner="r",
        )
        self.endings, self.fenced = [], set()
        decision = supervise(self.memory, facts)
        self.memory = decision.memory
        for order in decision.orders:
            self.carry_out(order)
        self.orders.extend(decision.orders)
        return decision.orders

    def carry_out(self, order: Order) -> None:
        if isinstance(order, WritePlan):
            assert self.plan is None or order.plan.generation == self.plan.generation + 1
            self.plan = order.plan
        elif isinstance(order, MarkReleased):
            for task, generation in order.generations.items():
                self.released[task] = max(generation, self.released.get(task, 0))
        elif isinstance(order, FenceSlot):
            self.fencing.append(order.slot)
        elif isinstance(order, LaunchSlot):
            self.queued.append(Container(order.slot, order.attempt, order.spec.version))
        elif isinstance(order, CancelSlot):
            self.queued = [
                one for one in self.queued if (one.slot, one.attempt) != (order.slot, order.attempt)
            ]
            running = self.find(order.slot, order.attempt)
            if running is not None and not self.chance.randrange(2):
                self.kill(running)
            elif running is None:
                self.end(order.slot, order.attempt, Ending(Reason.LOST, "cancelled"))
        elif isinstance(order, SetStatus):
            self.status = order.status
            self.statuses.append(order.status)
        elif isinstance(order, RemoveJob):
            self.removed = True
        else:
            self.change_entry(order)

    def change_entry(self, order: ConfirmVersion | RollBack) -> None:
        assert order.version == self.entry.spec.version
        if isinstance(order, ConfirmVersion):
            self.entry = replace(self.entry, confirmed=True)
            return
        assert self.entry.previous is not None
        back = self.entry.previous
        self.entry = JobEntry(back, self.entry.desired, True, None, order.reason, self.entry.try_number)

    def take_over(self) -> None:
        """The runner dies and another one takes its place; the containers do not know yet."""
        self.memory = recall(self.plan, self.released, self.status)
        self.endings, self.fenced, self.fencing, self.queued = [], set(), [], []

    # What happens by itself.

    def fence(self) -> None:
        """A fence that was asked for happens."""
        if self.fencing:
            slot = self.fencing.pop(0)
            self.epochs[slot] = self.epochs.get(slot, 0) + 1
            self.fenced.add(slot)

    def start(self) -> None:
        """A container that waits gets a core: it fences its predecessors, registers, reads the plan."""
        if not self.queued or len([one for one in self.containers if not one.over]) >= self.cores:
            return
        one = self.queued.pop(0)
        self.containers.append(one)
        one.epoch = self.epochs[one.slot] = self.epochs.get(one.slot, 0) + 1
        if any(slot == one.slot and attempt > one.attempt for slot, attempt in self.reports):
            self.finish(one, Ending(Reason.FENCED))
            return
        for key in [key for key in self.reports if key[0] == one.slot]:
            del self.reports[key]
        self.see(one)
        self.report(one)

    def see(self, one: Container) -> None:
        """A container notices the newest plan and releases."""
        one.plan, one.released = self.plan, dict(self.released)

    def report(self, one: Container) -> None:
        if not one.session or (
            (one.slot, one.attempt) not in self.reports and one.generation and not one.over
        ):
            return
        tasks = {task: TaskReport(TaskState.RUNNING, 1) for task in one.opened}
        self.reports[one.slot, one.attempt] = ContainerReport(
            one.slot, one.attempt, one.generation, one.version, "r", "h", 1, one.commits, tasks=tasks
        )

    def work(self, one: Container) -> None:
        """One round of a container: commit, obey the plan as far as it is known, report."""
        if one.over or one.frozen or one.plan is None:
            return
        ending = self.obstacle(one) or self.obey(one, one.plan)
        if ending is not None:
            self.finish(one, ending)

    def obstacle(self, one: Container) -> Ending | None:
        """What a container may notice before it does anything; it need not notice at once."""
        if one.session and (one.slot, one.attempt) not in self.reports:
            return Ending(Reason.FENCED, "removed by a newer attempt")
        if self.epochs[one.slot] != one.epoch and one.opened and self.chance.randrange(2):
            return Ending(Reason.FENCED)
        if not one.session and self.chance.randrange(2):
            return Ending(Reason.LOST)
        return self.bad if one.opened and self.bad_version in (None, one.version) else None

    def obey(self, one: Container, plan: Plan) -> Ending | None:
        current = is_current(plan, one.slot, one.attempt)
        if current is False:
            return Ending(Reason.FENCED)
        mine = plan.slots[one.slot].tasks if current else ()
        if not all(self.release(one, task) for task in sorted(one.opened - set(mine))):
            return Ending(Reason.LOST)
        if not current:
            return Ending(Reason.STOPPED)
        one.opened.update(task for task in mine if may_open(plan, one.slot, task, one.released))
        if not self.idle:
            one.commits += bool(one.opened)
        one.generation = plan.generation
        self.report(one)
        if plan.drain and one.opened == set(mine):
            if all(self.release(one, task) for task in sorted(one.opened)):
                return Ending(Reason.DRAINED)
            return Ending(Reason.LOST)
        return None

    def release(self, one: Container, task: TaskId) -> bool:
        """Only the registered attempt may."""
        one.opened.discard(task)
        if not one.session or (one.slot, one.attempt) not in self.reports or one.plan is None:
            return False
        generation = release_generation(one.plan, task)
        self.released[task] = max(generation, self.released.get(task, 0))
        return True

    def finish(self, one: Container, ending: Ending) -> None:
        one.over = True
        one.opened = set()
        if one.session:
            self.reports.pop((one.slot, one.attempt), None)
        self.end(one.slot, one.attempt, ending)

    def kill(self, one: Container) -> None:
        """As kill -9: its node stays until its session ends."""
        one.over, one.opened = True, set()
        self.end(one.slot, one.attempt, Ending(Reason.LOST, "killed"))

    def freeze(self, one: Container) -> None:
        """As SIGSTOP for longer than the session: it has its tasks open, but nobody sees it."""
        one.frozen, one.session = True, False
        self.reports.pop((one.slot, one.attempt), None)

    def end(self, slot: int, attempt: int, ending: Ending) -> None:
        self.endings.append(Ended(slot, attempt, ending))

    def find(self, slot: int, attempt: int) -> Container | None:
        for one in self.containers:
            if (one.slot, one.attempt) == (slot, attempt) and not one.over:
                return one
        return None

    def expire(self) -> None:
        """Nodes of dead containers go."""
        for key in list(self.reports):
            if self.find(*key) is None:
                del self.reports[key]

    # What must always hold.

    def check(self) -> None:
        """No task is open in two containers that could both commit."""
        open_in: dict[TaskId, tuple[int, int]] = {}
        for one in self.containers:
            if one.over or self.epochs[one.slot] != one.epoch:
                continue
            for task in one.opened:
                assert task not in open_in, f"{task} is open in {open_in[task]} and {one.slot, one.attempt}"
                open_in[task] = (one.slot, one.attempt)

    def live(self) -> list[Container]:
        return [one for one in self.containers if not one.over]

    def settle(self, seconds: float = 60.0) -> None:
        """Let everything happen that is due, in order."""
        until = self.now + seconds
        while self.now < until:
            self.look()
            self.fence()
            self.start()
            for one in self.live():
                self.see(one)
                self.work(one)
                self.check()
            self.expire()
            self.now += 0.25

    def at_rest(self) -> bool:
        return is_at_rest(self.memory)


def running(version: str = "v1", containers: int = 2, partitions: int = 4) -> JobEntry:
    return JobEntry(spec(version, containers, partitions), Desired.RUNNING)
