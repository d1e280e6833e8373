"""The world of one run: Kafka, ZooKeeper, disks, runners and containers, and what can happen to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from changelog.memory import MemoryDisk
from ops.simulation.checks import Checks
from ops.simulation.jobs import (
    COUNT,
    HORIZON_S,
    MOST_PARTITIONS,
    RECOUNT,
    SETTINGS,
    STACK,
    TALLY,
    Simulated,
    parts_of,
    view_bytes,
)
from ops.simulation.kernel import Broken, Event, Kernel, Process
from ops.simulation.spark import SimulatedSpark
from ops.simulation.steering import DiskSteering, KafkaSteering, Steering, ZooKeeperSteering
from ops.simulation.story import Story
from ops.simulation.themes import Theme
from stack.connection import Stack
from stack.kafka.memory.broker import MemoryKafka, MemoryProcess
from stack.kafka.memory.client import MemoryClient as KafkaClient
from stack.kafka.memory.producer import partition_of
from stack.model.fleet import RunnerPlace
from stack.model.job import jobs_name, rewind_id, transactional_id
from stack.model.plan import Ending, Reason
from stack.offsets.checkpoints import PARTITIONS as CHECKPOINT_PARTITIONS
from stack.offsets.checkpoints import checkpoints_topic
from stack.runtime.container import ending_of, serve
from stack.runtime.launch import Launch
from stack.runtime.loop import Container
from stack.runtime.membership import Membership
from stack.runtime.outputs import Outputs
from stack.runtime.parts import Parts
from stack.runtime.runner import Runner
from stack.runtime.wiring import OpenStore
from stack.settings import Endpoints
from stack.zookeeper.fleet import FleetSession
from stack.zookeeper.memory.client import MemoryClient as ZooKeeperClient
from stack.zookeeper.memory.ensemble import Ensemble

SIMULATED = {one.name: one for one in (COUNT, RECOUNT, TALLY)}
_LIMIT_S = 5_000.0
_MOST_STEPS = 60_000
_TABLE = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": str(HORIZON_S * 1000),
    "delete.retention.ms": str(HORIZON_S * 1000),
    "message.timestamp.type": "LogAppendTime",
}
_EXPIRY_MARGIN_S = 0.01
_USERS = ("ann", "bob", "cyd", "dan", "eve")


@dataclass(eq=False)
class Running:
    """A container: its launch, its process, and its inside once it has one."""

    launch: Launch
    process: Process
    container: Container | None = None

    @property
    def tasks(self) -> int:
        """How many tasks it has open."""
        return 0 if self.container is None else len(self.container._tasks)

    def __str__(self) -> str:
        return str(self.process)


class World:
    """Everything there is. Made anew for every run."""

    def __init__(self, chance: Random, theme: Theme, told: bool = False) -> None:
        self.chance = chance
        # One partition makes one task: the smallest world in which a commit can go wrong.
        self.partitions = 1 if chance.random() < theme.one_partition else MOST_PARTITIONS
        self.kernel = Kernel(chance, _LIMIT_S, _MOST_STEPS)
        self.story = Story(lambda: self.kernel.now, told)
        self.steering = Steering(self, self.kernel, theme)
        self.kafka = MemoryKafka(KafkaSteering(self.steering, self.kernel, self))
        self.zookeeper = Ensemble("simulation", ZooKeeperSteering(self.steering, self.kernel, self))
        self.endpoints = Endpoints("memory", self.zookeeper.hosts, None)
        point = DiskSteering(self.steering, self)
        self.disks = {host: MemoryDisk(point) for host in ("a", "b")}
        self.nature = Process("nature", "nature")
        self.containers: list[Running] = []
        self.runners: list[Process] = []
        self.complete_wanted = False
        # Whether a job reads what another one writes.
        self.chained = False
        # When a runner that died comes back, and where containers are to run, if somebody cares.
        self.runner_back_s: float | None = None
        self.host: str | None = None
        self._processes: dict[str, Process] = {}
        self._session_over: dict[str, float] = {}
        self._news: Event = Event(self.kernel)
        self._borrowed: list[tuple[Simulated, Outputs]] = []
        self._number = 0
        # Commands that have committed something of a rewind.
        self.committed_rewinds: set[str] = set()
        self._make_topics()
        self.checks = Checks(self)

    def _make_topics(self) -> None:
        for feed in ("views", "counts", "totals"):
            self.kafka.create(feed, self.partitions, {})
        self.kafka.create(TALLY.target, self.partitions, _TABLE)
        self.kafka.create(checkpoints_topic(STACK), CHECKPOINT_PARTITIONS, _TABLE)
        self.kafka.create(jobs_name(STACK), 1, {**_TABLE, "min.compaction.lag.ms": "0"})
        for one in SIMULATED.values():
            self.make_changelog(one)

    def make_changelog(self, simulated: Simulated) -> None:
        self.kafka.create(simulated.changelog, self.partitions, _TABLE)

    def tell(self, what: str) -> None:
        """Something for the story, by whoever is at work."""
        if self.story.told:
            self.story.note(str(self.steering.process()), what)

    # Processes

    def new_process(self, name: str, kind: str, host: str = "a") -> Process:
        """A process that begins now."""
        self._number += 1
        process = Process(f"{name}#{self._number}", kind, host)
        process.began = self.kernel.now
        process.slowness = self.chance.choice((1.0, 8.0, 8.0))
        self._processes[process.name] = process
        return process

    def process_of(self, name: str) -> Process | None:
        """The process of a name, if it lives."""
        process = self._processes.get(name)
        return process if process is not None and process.alive else None

    def later(self, after_s: float, act: Callable[[], object]) -> None:
        """Something happens by itself."""
        self.kernel.later(after_s, act)

    def memory_of(self, process: Process) -> MemoryProcess:
        """A process as Kafka knows it, which ends with it."""
        memory = self.kafka.process(process.name)
        process.on_kill.append(memory.kill)
        return memory

    def stack_of(self, process: Process) -> Stack:
        """A connection to the stack that ends with its process."""
        return Stack(SETTINGS, self.endpoints, self.memory_of(process))

    def start_runner(self) -> None:
        """A runner begins, and begins again after every end that it does not want."""
        process = self.new_process("runner", "runner")
        process.slowness = self.chance.choice((6.0, 8.0))
        process.wakes_after_s = self.chance.choice((0.0, 0.3, 0.6))
        self.runners.append(process)
        self.story.note(process.name, "begins")
        spark = SimulatedSpark(self, process)
        process.on_kill.append(lambda: self._runner_died(process, spark))

        def place(runner: str, spark_master: str) -> RunnerPlace:
            return RunnerPlace(runner, process.name, 1, process.began, spark_master)

        def main() -> None:
            Runner(self.stack_of(process), spark, place_of=place, is_dead=lambda _: False).run()

        self.kernel.start(main, "main", process)

    def _runner_died(self, process: Process, spark: SimulatedSpark) -> None:
        self.runners.remove(process)
        spark.driver_died()
        self.later(self.runner_back_s or self.chance.choice((0.5, 3.0, 25.0)), self.start_runner)

    def start_container(self, launch: Launch, on_end: Callable[[Ending], None]) -> Running:
        """A container begins on some machine."""
        name = f"{launch.spec.name}.{launch.slot}.{launch.attempt}"
        process = self.new_process(name, "container", self.host or self.chance.choice(("a", "b")))
        process.idle_s = self.chance.choice((0.2, 0.5, 1.5))
        running = Running(launch, process)
        self.containers.append(running)
        self.story.note(process.name, f"begins on {process.host}, version {launch.spec.version}")

        def main() -> None:
            ending = self._contained(running)
            self.story.note(process.name, f"ends: {ending.reason} {ending.message}")
            if ending.reason is Reason.FAILED:
                raise Broken(f"{process} fails: {ending.message} {ending.detail}")
            self._forget(running)
            on_end(ending)

        self.kernel.start(main, "main", process)
        return running

    def _contained(self, running: Running) -> Ending:
        """As `stack.runtime.container` does it, without what watches a real process."""
        launch, process = running.launch, running.process

        def begin(container: Container) -> None:
            running.container = container

        try:
            with self.stack_of(process) as stack, FleetSession(self.endpoints.zookeeper).start() as session:
                membership = Membership(launch, session)
                open_store = self.disks[process.host].of(process.name)(0, 0)
                gathered = partial(self._parts, launch, stack, open_store)
                return serve(launch, stack, membership, gathered, begin=begin)
        except Exception as error:
            return ending_of(error)

    def _parts(self, launch: Launch, stack: Stack, open_store: OpenStore) -> Parts:
        simulated = SIMULATED[launch.spec.name]
        parts = parts_of(simulated, launch, stack, open_store)
        self._borrowed.append((simulated, parts.outputs))
        return parts

    def _forget(self, running: Running) -> None:
        """A container has ended by itself; what its other threads still want to do, they do not."""
        if running in self.containers:
            self.containers.remove(running)
        running.process.alive = False

    # What can happen

    def crash(self, process: Process, where: str = "") -> None:
        """As kill -9, at any moment."""
        self.story.note(process.name, f"is killed {where and 'at ' + where}")
        for client in self._clients_of(process):
            self.cut(client, None)
            self.zookeeper.clients.remove(client)
        disk = self.disks[process.host]
        disk.crash(process.name, lambda count: self.chance.randint(0, count))
        self.kernel.kill(process)
        self.containers = [one for one in self.containers if one.process is not process]
        self.checks.check_disk(disk)

    def pause(self, process: Process, for_s: float, where: str = "") -> None:
        """It stands still: others may take it for dead."""
        self.story.note(process.name, f"stands still for {for_s} s {where and 'at ' + where}")
        self.kernel.hold(process)
        self.later(for_s, lambda: self._wake(process))
        for client in self._clients_of(process):
            self.cut(client, for_s, tell=False)

    def cut_off(self, process: Process, for_s: float) -> None:
        """A process does not reach ZooKeeper."""
        self.story.note(process.name, f"does not reach ZooKeeper for {for_s} s")
        for client in self._clients_of(process):
            self.cut(client, for_s)

    def _wake(self, process: Process) -> None:
        if process.held is not None:
            process.awake_since = self.kernel.now
            self.story.note(process.name, "goes on")
            self.stir()
            self.kernel.let_go_on(process, self.chance.choice((0.0, 0.05, 1.0)))

    def cut(self, client: ZooKeeperClient, for_s: float | None, tell: bool = True) -> None:
        """The connection of a client to ZooKeeper is gone, for a while or for good."""
        session = client.session
        self.zookeeper.cut(client, tell)
        self.later(session.timeout_s + _EXPIRY_MARGIN_S, lambda: self._expire(client))
        if for_s is not None:
            self.later(for_s, lambda: self._mend(client))

    def _expire(self, client: ZooKeeperClient) -> None:
        session = client.session
        self.zookeeper.tick()
        if session.expired:
            self._session_over.setdefault(client.process, self.kernel.now)

    def _mend(self, client: ZooKeeperClient) -> None:
        if client in self.zookeeper.clients:
            self.zookeeper.mend(client)

    def session_over_s(self, process: Process) -> float | None:
        """For how long a process has been awake without a session."""
        over_at = self._session_over.get(process.name)
        if over_at is None:
            return None
        return self.kernel.now - max(over_at, process.awake_since)

    def _clients_of(self, process: Process) -> list[ZooKeeperClient]:
        return [client for client in self.zookeeper.clients if client.process == process.name]

    @property
    def somebody_stands_still(self) -> bool:
        return any(process.alive and process.held is not None for process in self._processes.values())

    def calm(self) -> None:
        """From now on nothing goes wrong, and what went wrong is mended."""
        self.story.note("nature", "from now on nothing goes wrong")
        self.steering.active = False
        for process in self._processes.values():
            self._wake(process)
        for client in list(self.zookeeper.clients):
            self._mend(client)

    # What Kafka tells of itself

    def wait_for_news(self, seconds: float) -> None:
        """Sleep until something was written somewhere, but no longer than that."""
        self._news.wait(seconds)

    def after_kafka(self, client: KafkaClient, operation: str) -> None:
        """Something took effect in Kafka: look whether all is as it must be."""
        if operation == "commit":
            self._after_commit(client)

    def stir(self) -> None:
        """Something goes wrong: let there be work to do just then."""
        for _ in range(2):
            self.later(self.chance.random() * 0.15, partial(self.write_views, 1))

    def write_views(self, count: int) -> None:
        """Views come in from outside."""
        chance = self.chance
        for _ in range(count):
            user = chance.choice(_USERS)
            value = view_bytes(user, -1 if chance.random() < self.steering.theme.deletions else 1)
            place = ("views", partition_of(user.encode(), self.partitions))
            self.kafka.append(place, [(user.encode(), value, 0, None)])
        self._tell_news()

    def _tell_news(self) -> None:
        self._news.set()
        self._news.clear()

    def _after_commit(self, client: KafkaClient) -> None:
        self.story.mark(int(self.kernel.now * 1e6))
        self.checks.check_owners()
        for running in self.containers:
            launch = running.launch
            if (
                client.process.name == running.process.name
                and transactional_id(STACK, launch.spec.name, launch.slot) == client.name
            ):
                self.checks.check_session(running)
        if client.process.name.startswith("rewind#"):
            self._after_rewind(client)
        self.checks.after_commit()
        if self.chained:
            self._tell_news()
        self.look_whether_done()

    def _after_rewind(self, client: KafkaClient) -> None:
        """A command that brings a job back has committed something: its intent, values of then, or all."""
        job = next((name for name in SIMULATED if client.name == rewind_id(STACK, name)), None)
        if job is not None:
            self.committed_rewinds.add(client.process.name)
            written = {topic for topic, _ in client.written}
            if written != {checkpoints_topic(STACK)}:
                self.checks.check_going_back(job)

    def look_whether_done(self) -> None:
        """Whether the run may end."""
        if self.complete_wanted and self.checks.is_complete:
            self.kernel.finished = True

    def give_back(self) -> None:
        """At the end of a run: what is dear to make is kept for the next one."""
        for simulated, outputs in self._borrowed:
            simulated.spare.append(outputs)
