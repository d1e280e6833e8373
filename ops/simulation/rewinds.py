"""Rewinds in a world: commands that bring a job back, each a process of its own, and people who insist.

A command may be killed or stand still before and after each of its requests. Whoever has asked for it then
asks again, and sometimes asks a second time while the first command is still at it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ops.simulation.jobs import CHECKPOINT_IDS, SETTINGS, feed_of, schema_of
from ops.simulation.kernel import START_MS, Broken, Event
from stack.connection import Stack
from stack.deploy.operate import JobWatch, watch_jobs
from stack.deploy.rewind_intent import refuse_another
from stack.deploy.rewind_plan import Wanted, look_again, make_plan
from stack.deploy.rewinding import Rewinding
from stack.errors import BadInput, FeedstackError, NotFound
from stack.feeds.registry.state import RegistryState, state_of
from stack.model.feed import FeedSpec
from stack.model.startpoint import format_time, parse_job_startpoint
from stack.offsets.codec import FixedSchemas
from stack.offsets.index import CheckpointIndex

if TYPE_CHECKING:
    from ops.simulation.kernel import Process
    from ops.simulation.world import World
    from stack.feeds.avro.schema import AvroSchema

# How long people wait until they ask again, and how long some of them wait for a command that stands still.
_AGAIN_S = (0.2, 1.0, 5.0)
_PATIENCE_S = (None, None, 10.0)
# So few keys go into one transaction that many rewinds need several.
_MOST_CHANGES = 3


class Outcome(StrEnum):
    """What became of a command."""

    CUT_OFF = "cut off"
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True)
class _Registered:
    id: int
    schema: AvroSchema | None = None


class _Registry(FixedSchemas):
    """The registry of the simulation: no fault concerns it here."""

    def register(self, _subject: str, schema: AvroSchema) -> _Registered:
        return _Registered(next(number for number, known in self._schemas.items() if known == schema))

    def state(self) -> RegistryState:
        """Nothing was ever deleted from it."""
        return _STATE


_REGISTRY, _STATE = _Registry(CHECKPOINT_IDS), state_of(())


class CommandStack(Stack):
    """The connection of a command: its catalogue and registry are at hand."""

    @cached_property
    def registry(self) -> Any:
        return _REGISTRY

    def feed(self, name: str) -> FeedSpec:
        return feed_of(name)

    def schema(self, feed: str) -> Any:
        return _Registered(*schema_of(feed))


class Command:
    """One `stack rewind`, from its start to its end."""

    def __init__(self, world: World, job: str, to: str | None) -> None:
        self._world = world
        self._job = job
        self._to = to
        self.process: Process = world.new_process("rewind", "rewind")
        self.over = Event(world.kernel)
        self.outcome = Outcome.CUT_OFF
        self.process.on_kill.append(self.over.set)
        world.story.note(self.process.name, f"begins: {job} goes back to {to or 'wherever it was to go'}")
        world.kernel.start(self._main, "main", self.process)

    def _main(self) -> None:
        world, name = self._world, self.process.name
        try:
            self._run()
            self.outcome = Outcome.DONE
            world.story.note(name, "is done")
        except (BadInput, NotFound) as error:
            self.outcome = Outcome.REFUSED
            world.story.note(name, f"is refused: {error.message}")
            world.checks.check_refused(name, error.message)
        except FeedstackError as error:
            world.story.note(name, f"is cut off: {error.message}")
        except Exception as error:
            raise Broken(f"{name} fails: {error!r}") from error
        self.process.alive = False
        self.over.set()

    def _run(self) -> None:
        stack = CommandStack(SETTINGS, self._world.endpoints, self._world.memory_of(self.process))
        with stack, watch_jobs(stack) as watch:
            rewinding = Rewinding(
                stack, watch.jobs, lambda job: len(watch.look(job).reports), most_changes=_MOST_CHANGES
            )
            self._go_back(stack, watch, rewinding)

    def _go_back(self, stack: Stack, watch: JobWatch, rewinding: Rewinding) -> None:
        """As `ops.cli.rewind` does it, for somebody who always agrees."""
        jobs, name, to = watch.jobs, self._job, self._to
        entry = jobs.get(name)
        intent = rewinding.pending(entry.spec)
        if intent is not None:
            refuse_another(name, intent, to)
            rewinding.carry_out(name, intent)
            return
        if entry.rewind is not None and to in (None, rewinding.asked_for(entry)):
            rewinding.clear(entry)
            return
        if to is None:
            return  # it was done, or had not begun
        with CheckpointIndex(stack, in_memory=True) as index:
            index.refresh()
            now_ms = START_MS + int(self._world.kernel.now * 1000)
            wanted = Wanted(parse_job_startpoint(to, now_ms))
            plan = make_plan(stack, jobs, index, name, wanted)
            rewinding.carry_out(name, plan.intent("", to), look_again(stack, jobs, index, plan))


class Person:
    """Somebody who wants a job to go back, and repeats the command for as long as it is cut off.

    Without a place to go to: somebody who brings to its end what others have begun.
    """

    def __init__(self, world: World, job: str, to: str | None) -> None:
        self._world = world
        self._job = job
        self._to = to
        self._commands: list[Command] = []
        self._satisfied = False

    def insist(self) -> None:
        world, chance = self._world, self._world.chance
        to = self._to
        while not self._satisfied:
            command = Command(world, self._job, to)
            self._commands.append(command)
            command.over.wait(chance.choice(_PATIENCE_S))
            self._satisfied = command.outcome is not Outcome.CUT_OFF
            if not self._satisfied:
                world.kernel.wait(chance.choice(_AGAIN_S))
                # One may repeat what one has said, or just say that it is to go on.
                to = chance.choice((None, self._to, self._to))

    @property
    def is_done(self) -> bool:
        """Whether it is over, with every command that was given."""
        return self._satisfied and all(one.over.is_set() for one in self._commands)

    @property
    def was_cut_off(self) -> bool:
        """Whether any of the commands was; some may have been after the person was content."""
        return any(one.outcome is Outcome.CUT_OFF for one in self._commands)


def drawn_point(world: World, job: str) -> str:
    """Somewhere in the past of a job, in one of the ways to say it."""
    chance, commits = world.chance, world.checks.commits_of(job)
    way = chance.random()
    if way < 0.1 or not commits:
        return "oldest"
    if way < 0.25:
        ago_s = chance.random() * min(15.0, world.kernel.now)
        return format_time(START_MS + int((world.kernel.now - ago_s) * 1000))
    task, last = chance.choice(commits)
    return f"{task}#{chance.randint(max(1, last - 6), max(1, last - 1))}"
