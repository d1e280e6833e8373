"""One run: a world, a plan of what people do in it, faults, and the verdict."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from ops.simulation.jobs import COUNT, HORIZON_S, RECOUNT, STACK, TALLY, Simulated
from ops.simulation.kernel import Broken, Process, Stuck
from ops.simulation.machine import SimulatedMachine
from ops.simulation.points import CrashPoint, Fate
from ops.simulation.rewinds import Person, drawn_point
from ops.simulation.story import LogTold
from ops.simulation.themes import PLAIN, Theme, drawn
from ops.simulation.world import Running, World
from stack.deploy.deploy import next_entry
from stack.deploy.jobs import jobs_feed
from stack.errors import FeedstackError
from stack.kafka.memory.hooks import BEFORE
from stack.machine import steered_by
from stack.model.checkpoint import checkpoint_key
from stack.model.job import (
    Desired,
    Guarantee,
    JobEntry,
    JobSettings,
    JobSpec,
    entry_to_json,
    jobs_name,
    transactional_id,
)
from stack.model.plan import tasks_of
from stack.offsets.checkpoints import checkpoint_partition, checkpoints_topic


@dataclass(frozen=True)
class Verdict:
    """How a run ended: `fault` says what was wrong, None if nothing was."""

    seed: int
    fault: str | None
    digest: int
    steps: int
    faults: int
    seconds: float
    story: tuple[str, ...] = ()


# Entries as they stand in the jobs feed, by what differs in them: the same in many runs.
_FIRST_ENTRIES: dict[tuple[object, ...], bytes] = {}


class Run:
    """What people do in a world, drawn from its seed."""

    def __init__(self, seed: int, told: bool = False, theme: Theme | None = None) -> None:
        self.seed = seed
        chance = random.Random(seed)
        self._theme = theme = theme or drawn(chance)
        self.world = World(chance, theme, told)
        self._chance = chance
        self._operator = Process("operator", "operator")
        self._versions: dict[str, int] = {}
        self._jobs: list[Simulated] = [COUNT, RECOUNT] if chance.random() < theme.two_jobs else [COUNT]
        if theme.goes_back:
            self._jobs = [TALLY]
        self._persons: list[Person] = []
        self.world.chained = len(self._jobs) > 1
        at_least_once = chance.random() < theme.at_least_once
        self._guarantee = Guarantee.AT_LEAST_ONCE if at_least_once else Guarantee.EXACTLY_ONCE
        self.world.story.note("nature", f"seed {seed}: {theme.name}, {self._guarantee}")

    def play(self) -> None:
        """The whole run. Broken or Stuck if something was wrong."""
        world = self.world
        for simulated in self._jobs:
            self._follow(simulated)
        world.kernel.start(self._operate, "operator", self._operator)
        world.start_runner()
        if self._chance.random() < self._theme.two_runners:
            world.start_runner()
        world.kernel.run()
        world.checks.check_end()

    def _follow(self, simulated: Simulated) -> None:
        self.world.checks.follow(simulated, self._guarantee is Guarantee.EXACTLY_ONCE)

    # What people do

    def _operate(self) -> None:
        world, chance = self.world, self._chance
        with world.stack_of(self._operator) as stack:
            self._feed = jobs_feed(stack)
            world.write_views(chance.randrange(2, 6))
            for simulated in self._jobs:
                self._deploy_first(simulated)
            world.kernel.wait(chance.random() * self._theme.begins_s)
            self._act()
            world.calm()
            self._await_rewinds()
            world.write_views(2)
            world.complete_wanted = True
            # A look at everything now and then tells the end of a run in which no commit is left.
            while not world.kernel.finished:
                world.look_whether_done()
                world.kernel.wait(3.0)

    def _act(self) -> None:
        """What people do while things go wrong."""
        world, chance, theme = self.world, self._chance, self._theme
        world.steering.begin()
        steps, often = list(theme.steps), list(theme.steps.values())
        for _ in range(chance.randint(*theme.turns)):
            world.kernel.wait(chance.random() * 2)
            world.write_views(chance.randrange(1, 4))
            step = chance.choices(steps, often)[0]
            self._insist(partial(getattr(self, f"_{step}"), chance.choice(self._jobs)))
        world.kernel.wait(chance.random() * 2)
        while world.somebody_stands_still and chance.random() < 0.85:
            world.kernel.wait(6.0)
            world.write_views(1)

    def _rewind(self, simulated: Simulated) -> None:
        """Somebody brings the job back, mostly at an awkward moment, while others go on with what they do."""
        world, chance = self.world, self._chance
        self._write(simulated)
        self._choose_the_moment(simulated, chance.random())
        person = Person(world, simulated.name, drawn_point(world, simulated.name))
        self._persons.append(person)
        world.kernel.start(person.insist, "person")
        world.kernel.wait(chance.choice((0.5, 3.0, 12.0)))
        world.write_views(2)

    def _choose_the_moment(self, simulated: Simulated, which: float) -> None:
        world, chance = self.world, self._chance
        there = [one.process for one in world.containers if one.tasks]
        if there and which < 0.3:
            # A container wakes up when it counts as dead: while the job goes back, or soon after that.
            operation = chance.choice(("commit", "produce", "offsets"))
            world.steering.trap = (chance.choice(there).name, operation, BEFORE)
            world.steering.trap_s = 6.2 + chance.random() * 4
            self._write(simulated)
        elif there and which < 0.45:
            world.crash(chance.choice(there), "its worst moment")
            world.kernel.wait(chance.random() * 2.5)
        elif there and which < 0.8:
            # Nobody is to be seen, and a runner that comes back is just about to start the next ones.
            world.runner_back_s = 4.0
            for process in (*world.runners, *there):
                world.crash(process, "its worst moment")
            world.kernel.wait(6.0 + chance.random() * 3)
            world.runner_back_s = None

    def _await_rewinds(self) -> None:
        """Until everybody who wanted the job to go back has what they want; somebody ends what is left."""
        kernel = self.world.kernel
        while not all(one.is_done for one in self._persons):
            kernel.wait(1.0)
        if any(one.was_cut_off for one in self._persons):
            last = Person(self.world, self._jobs[0].name, None)
            kernel.start(last.insist, "person")
            while not last.is_done:
                kernel.wait(1.0)

    def _refuse(self, simulated: Simulated) -> None:
        """The next records of a container never arrive."""
        self.world.steering.refuses = True
        self._write(simulated)

    def _write(self, _simulated: Simulated) -> None:
        for _ in range(self._chance.randrange(2, 6)):
            self.world.kernel.wait(self._chance.random() * 0.1)
            self.world.write_views(1)

    def _bounce(self, simulated: Simulated) -> None:
        """Pause and resume."""
        self._insist(partial(self._want, simulated, Desired.PAUSED))
        self.world.kernel.wait(self._chance.random() * 8)
        self._insist(partial(self._want, simulated, Desired.RUNNING))

    def _move(self, simulated: Simulated) -> None:
        """To the other machine."""
        there = self.world.containers[0].process.host
        self.world.host = "b" if there == "a" else "a"
        self._bounce(simulated)

    def _sleep(self, simulated: Simulated) -> None:
        """The job is paused, everybody sleeps for longer than the horizon, and compaction comes by."""
        self._insist(partial(self._want, simulated, Desired.PAUSED))
        self.world.kernel.wait(self._chance.random() * 8)
        for _ in range(2):
            self._note("everybody sleeps")
            self.world.kernel.leap(HORIZON_S * 1.2)
            self._compact(simulated)
        self._insist(partial(self._want, simulated, Desired.RUNNING))

    def _linger(self, _simulated: Simulated) -> None:
        """Nobody does anything for a while; views come in."""
        for _ in range(3):
            self.world.kernel.wait(self._chance.random() * 9)
            self.world.write_views(1)

    def _lose_one(self, simulated: Simulated) -> None:
        """One container is not to be seen for a while, from an awkward moment on; the job does without."""
        there: list[Running] = []
        for _ in range(6):
            there = [one for one in self.world.containers if one.launch.slot > 0 and one.tasks]
            if there:
                break
            self.world.kernel.wait(1.0)
        if there:
            operation = self._chance.choice(("commit", "produce", "offsets", "init"))
            self.world.steering.trap = (there[-1].process.name, operation, BEFORE)
            # An abort makes it take over its own id again.
            self.world.steering.refuses = operation == "init"
            self._write(simulated)
            self.world.kernel.wait(1.0)
        self._scale(simulated)
        self._linger(simulated)

    def _alone(self, simulated: Simulated) -> None:
        """For a while there is no runner, and a container does not reach ZooKeeper."""
        world = self.world
        world.runner_back_s = 25.0
        for runner in list(world.runners):
            world.crash(runner, "its worst moment")
        if world.containers:
            world.cut_off(self._chance.choice(world.containers).process, 55.0)
        self._linger(simulated)
        world.runner_back_s = None

    def _age(self, simulated: Simulated) -> None:
        """A store is left behind on one machine while the job goes on on the other, for very long."""
        world = self.world
        for host in ("a", "b"):
            world.host = host
            self._bounce(simulated)
            world.kernel.wait(3.0)
            self._write(simulated)
            world.kernel.wait(3.0)
        world.host = "a"
        self._sleep(simulated)
        world.host = None

    def _reset(self, simulated: Simulated) -> None:
        """The job is removed with its state, as far as Kafka knows, and begins anew; local stores stay."""
        if len(self._jobs) > 1:
            return
        world, kafka = self.world, self.world.kafka
        self._insist(partial(self._want, simulated, Desired.PAUSED))
        while world.containers:
            world.kernel.wait(2.0)
        self._note(f"resets {simulated.name}")
        for slot in range(world.partitions):
            kafka.coordinator.initialise(transactional_id(STACK, simulated.name, slot), 45.0)
        for task in tasks_of(world.partitions):
            place = (checkpoints_topic(STACK), checkpoint_partition(simulated.name))
            kafka.append(place, [(checkpoint_key(simulated.name, task), None, 0, None)])
        kafka.delete(simulated.changelog)
        kafka.delete(simulated.target)
        kafka.create(simulated.target, world.partitions, {})
        world.make_changelog(simulated)
        self._follow(simulated)
        self._insist(partial(self._want, simulated, Desired.RUNNING))

    def _deploy_first(self, simulated: Simulated) -> None:
        """Straight into the jobs feed: nothing can go wrong yet."""
        spec = self._next_spec(simulated)
        settings = spec.settings
        # Most jobs have worked for long.
        confirmed = self._chance.random() < 0.8
        key = (
            spec.name,
            spec.partitions,
            settings.containers,
            settings.guarantee,
            settings.commit_max_ms,
            confirmed,
        )
        entry = _FIRST_ENTRIES.get(key)
        if entry is None:
            first = replace(next_entry(None, spec), confirmed=confirmed)
            entry = _FIRST_ENTRIES[key] = json.dumps(entry_to_json(first)).encode()
        self.world.kafka.append((jobs_name(STACK), 0), [(simulated.name.encode(), entry, 0, None)])

    def _deploy(self, simulated: Simulated) -> None:
        """A new version."""
        spec = self._next_spec(simulated)
        self._feed.update(simulated.name, lambda before: next_entry(before, spec))

    def _next_spec(self, simulated: Simulated) -> JobSpec:
        number = self._versions[simulated.name] = self._versions.get(simulated.name, 0) + 1
        settings = JobSettings(
            containers=2 if self._chance.random() < self._theme.two_containers else 1,
            guarantee=self._guarantee,
            commit_max_ms=self._chance.choice((20, 100, 300)),
            horizon_ms=HORIZON_S * 1000,
            deploy_limit_ms=600_000,
            # Nobody reads them here, and no fault concerns them.
            metrics=False,
        )
        spec = simulated.spec(f"v{number}", settings, self.world.partitions)
        self._note(f"deploys {simulated.name} {spec.version}, {settings.containers} containers")
        return spec

    def _scale(self, simulated: Simulated) -> None:
        """One container where there were two, or the other way round."""
        self._note(f"scales {simulated.name}")

        def change(one: JobEntry | None) -> JobEntry | None:
            if one is None:
                return None
            settings = replace(one.spec.settings, containers=3 - one.spec.settings.containers)
            return replace(one, spec=replace(one.spec, settings=settings))

        self._feed.update(simulated.name, change)

    def _want(self, simulated: Simulated, desired: Desired) -> None:
        self._note(f"wants {simulated.name} {desired}")

        def change(one: JobEntry | None) -> JobEntry | None:
            return None if one is None else replace(one, desired=desired, try_number=one.try_number + 1)

        self._feed.update(simulated.name, change)

    def _compact(self, simulated: Simulated) -> None:
        self._note("compaction comes by")
        self.world.checks.before_compaction()
        self.world.kafka.compact(simulated.changelog)
        self.world.kafka.compact(checkpoints_topic(STACK))

    def _insist(self, act: Callable[[], object]) -> None:
        """As a person does whose command failed."""
        while True:
            try:
                act()
                return
            except FeedstackError as error:
                self._note(f"tries again: {error.message}")
                self.world.kernel.wait(1.0)

    def _note(self, what: str) -> None:
        self.world.story.note("operator", what)


@contextmanager
def _on_a_simulated_machine(run: Run) -> Iterator[None]:
    """Time and threads are the kernel's; whatever else draws at random draws from the seed."""
    random.seed(run.seed)
    world = run.world
    handler = LogTold(world.story, lambda: str(world.steering.process()))
    root = logging.getLogger("feedstack")
    if world.story.told:
        root.addHandler(handler)
        root.setLevel(logging.INFO)
    else:
        logging.disable(logging.CRITICAL)
    try:
        with steered_by(SimulatedMachine(world.kernel)):
            yield
    finally:
        logging.disable(logging.NOTSET)
        root.removeHandler(handler)


class CrashRun(Run):
    """A run in which one process is killed, at one point."""

    def __init__(self, seed: int, point: CrashPoint, told: bool = False) -> None:
        super().__init__(seed, told, PLAIN)
        self._point = point
        self.fate: Fate | None = None

    def _act(self) -> None:
        world = self.world
        # Until everything that happens now and then has happened.
        world.kernel.wait(9.0)
        world.steering.killed = self._note_fate
        world.steering.kill_at, world.steering.active = self._point, True
        getattr(self, f"_{self._point.way}")(COUNT)
        for _ in range(20):
            if self.fate is not None:
                break
            world.kernel.wait(1.0)
            world.write_views(1)

    def _bounce(self, simulated: Simulated) -> None:
        """Pause until it has happened, and resume."""
        self._want(simulated, Desired.PAUSED)
        for _ in range(30):
            if not self.world.containers:
                break
            self.world.kernel.wait(1.0)
        self._want(simulated, Desired.RUNNING)

    def _note_fate(self, process: Process) -> None:
        """Whether what the process has under way is in no commit: its commit, or else what it has handled."""
        lost = False
        for running in self.world.containers:
            container = running.container
            if running.process is not process or container is None:
                continue
            committer = getattr(container, "_committer", None)
            if committer is not None and committer.in_flight and not committer.leads:
                under_way = [(edge.task.id, edge.positions) for edge in committer._edges]
            else:
                under_way = [(task.id, task.positions) for task in container._tasks.values()]
            lacks = self.world.checks.lacks
            lost = lost or any(lacks(COUNT.name, task, positions) for task, positions in under_way)
        self.fate = Fate.AGAIN if lost else Fate.KEPT


def run_crash(point: CrashPoint, seed: int = 2, told: bool = False) -> tuple[Verdict, Fate | None]:
    """Kill a process at a point; what became of its work, None if it never came there."""
    run = CrashRun(seed, point, told)
    return _played(run), run.fate


def run_seed(seed: int, told: bool = False) -> Verdict:
    """Play the run of a seed to its end."""
    return _played(Run(seed, told))


def _played(run: Run) -> Verdict:
    world, fault = run.world, None
    with _on_a_simulated_machine(run):
        try:
            run.play()
        except (Broken, Stuck) as error:
            fault = f"{type(error).__name__}: {error}"
        finally:
            world.kernel.close()
            world.zookeeper.close()
            world.give_back()
    return Verdict(
        run.seed,
        fault,
        world.story.digest,
        world.kernel.steps,
        world.steering.faults,
        world.kernel.now,
        tuple(world.story.lines),
    )
