"""One job of a stack in memory: deployed as a real one, run turn by turn by the real container."""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stack.connection import Stack
from stack.deploy.deploy import checked_spec, prepare
from stack.deploy.inspect import declared_of
from stack.deploy.settings import job_file_of, read_job_file
from stack.errors import FeedstackError, LostOwnership, NotFound
from stack.kafka.memory.broker import MemoryProcess
from stack.kafka.memory.hooks import Killed
from stack.model.job import JobSpec
from stack.model.plan import ContainerReport, Ending, Plan, SlotPlan, TaskId, job_tasks
from stack.model.stillness import StillRequest
from stack.offsets.checkpoints import last_checkpoints
from stack.runtime.container import ending_of
from stack.runtime.faults import Verdict
from stack.runtime.launch import Launch
from stack.runtime.loop import Container
from stack.runtime.membership import Membership
from stack.runtime.parts import Parts, gather
from stack.runtime.wiring import MemoryDisk
from stack.tasks.declare import Job
from stack.tasks.load import JOB_FILE, load_job, refuse_empty
from stack.testing.points import Crashed

if TYPE_CHECKING:
    from stack.testing.kit import MemoryStack

_SLOT = 0
# A job that has nothing to do comes to rest within a few turns; one that does not never will.
_MOST_TURNS = 1_000_000


class JobFailed(FeedstackError):
    """A job ended as a deployed one would: its message, and the error of its code as the cause."""

    def __init__(self, message: str, hint: str = "", place: str = "") -> None:
        super().__init__(message, hint)
        self.place = place


class Alone(Membership):
    """The place of a container that has all tasks of its job, in a fleet without ZooKeeper."""

    def __init__(self, launch: Launch) -> None:
        self.memory_bytes = 0
        self.verdict = None
        tasks = job_tasks(launch.spec)
        generation = launch.attempt
        self._plan = Plan(
            generation,
            launch.spec.version,
            {launch.slot: SlotPlan(launch.attempt, tasks)},
            since=dict.fromkeys(tasks, generation),
        )
        self._free = dict.fromkeys(tasks, generation)
        self._after = Plan(generation + 1, launch.spec.version)

    def stop(self) -> None:
        """Let the container commit, close its tasks and end."""
        self._plan = self._after

    def confirm(self) -> None:
        pass

    def join(self, report: ContainerReport, tell: Callable[[], ContainerReport]) -> None:
        pass

    def check(self) -> None:
        pass

    def news(self) -> Plan | None:
        return self._plan

    def still_request(self) -> StillRequest | None:
        return None

    @property
    def released(self) -> Mapping[TaskId, int]:
        return self._free

    def release(self, task: TaskId, generation: int) -> None:
        pass

    def leave(self) -> None:
        pass


class Code:
    """A job and the modules that came with its folder. Two folders may have modules of the same name."""

    def __init__(self, source: Job | Path | str) -> None:
        self.folder = None if isinstance(source, Job) else Path(source)
        self._modules: dict[str, ModuleType] = {}
        if isinstance(source, Job):
            refuse_empty(source)
            self.job = source
            return
        with self.at_hand():
            self.job = load_job(Path(source))

    @contextlib.contextmanager
    def at_hand(self) -> Iterator[None]:
        """While the code runs its own modules are found, and nobody else's."""
        if self.folder is None:
            yield
            return
        own, path, before = self.folder.absolute(), list(sys.path), dict(sys.modules)
        sys.path.insert(0, str(own))
        sys.modules.update(self._modules)
        try:
            yield
        finally:
            for name in sys.modules.keys() - before.keys() | {Path(JOB_FILE).stem}:
                module = sys.modules.get(name)
                file = getattr(module, "__file__", None)
                if module is not None and file and Path(file).is_relative_to(own):
                    self._modules[name] = module
            for name in self._modules:
                if name in before:
                    sys.modules[name] = before[name]
                else:
                    sys.modules.pop(name, None)
            sys.path[:] = path


class JobInHand:
    """A deployed job: its spec, and its container while it has one."""

    def __init__(self, kit: MemoryStack, code: Code, settings: Mapping[str, Any] | None) -> None:
        self._kit = kit
        self.code = code
        self.name = code.job.name
        if settings is not None:
            file = job_file_of(settings, code.folder or Path(), f"the settings of job {self.name!r}")
        elif code.folder is not None:
            file = read_job_file(code.folder)
        else:
            file = job_file_of({}, Path(), "")
        before = kit.jobs.get(self.name)
        others = {name: one.spec for name, one in kit.jobs.items() if name != self.name}
        self.disk: MemoryDisk = MemoryDisk(kit.hooks.disk_point) if before is None else before.disk
        self.attempt: int = 0 if before is None else before.attempt
        self.number: int = 1 if before is None else before.number + 1
        self.spec: JobSpec = checked_spec(
            kit.connection,
            declared_of(code.job),
            file,
            f"test-{self.number}",
            others=others,
            running=None if before is None else before.spec,
        )
        prepare(kit.connection, self.spec)
        self._process: MemoryProcess | None = None
        self._container: Container | None = None
        self._membership: Alone | None = None

    @property
    def process_name(self) -> str:
        return f"{self.name}#{self.attempt}"

    @property
    def parts(self) -> Parts:
        """Feeds, codecs and stores of the job."""
        if self._container is not None:
            return self._container.parts
        return self._gathered(self._kit.connection, self._launch())

    @property
    def counters(self) -> dict[str, int]:
        """What the tasks have counted since the container began."""
        return {} if self._container is None else dict(self._container.report().counters)

    def lag(self) -> int:
        """How many records of the inputs are not committed yet."""
        stack, parts = self._kit.connection, self.parts
        tasks = job_tasks(self.spec)
        found = last_checkpoints(stack, parts.decode_checkpoint, self.name, tasks)
        waiting: set[tuple[str, int, int]] = set()
        for task in tasks:
            for name, part in parts.inputs_by_stage[task.stage].items():
                point = found[task].inputs.get(name) if task in found else None
                for topic, number in part.places_of(task):
                    log = self._kit.kafka.log((topic, number))
                    start = log.low if point is None else point.offsets.get(number, log.low)
                    records, _ = log.read(start, log.high + 1, committed=True)
                    waiting.update((topic, number, one.offset()) for one in records)
        return len(waiting)

    def _launch(self) -> Launch:
        kit = self._kit.connection
        return Launch(kit.settings, kit.endpoints, self.spec, _SLOT, self.attempt, "test")

    def _gathered(self, stack: Stack, launch: Launch) -> Parts:
        return gather(launch, stack, self.code.job, self.disk.of(self.process_name))

    def _new_process(self) -> MemoryProcess:
        self.attempt += 1
        self._process = self._kit.kafka.process(self.process_name)
        return self._process

    def _begin(self, process: MemoryProcess) -> Container:
        connection = self._kit.connection
        stack = Stack(connection.settings, connection.endpoints, process)
        launch = self._launch()
        self._membership = Alone(launch)
        container = Container(self._gathered(stack, launch), self._membership)
        container.begin()
        self._container = container
        return container

    def settle(self, crash_at: str | None = None) -> bool:
        """Run until everything that has come is handled and committed; whether it crashed on the way."""
        with self.code.at_hand():
            try:
                try:
                    return self._settle(crash_at)
                except LostOwnership:  # fenced, as by a rewind: a runner would start the next attempt
                    self._let_go()
                    return self._settle(crash_at)
            except (Crashed, Killed):
                self.crash()
                return True
            except (Exception, Verdict) as error:
                raise self._failed(error) from (error.__cause__ or error)
            finally:
                self._kit.hooks.crash_at(None)

    def _settle(self, crash_at: str | None) -> bool:
        process = self._process
        if process is None or self._container is None:
            process = self._new_process()
        if crash_at is not None:
            self._kit.hooks.crash_at(process, crash_at)
        container = self._container or self._begin(process)
        for _ in range(_MOST_TURNS):
            container.turn()
            if container.is_settled:
                return False
        raise FeedstackError("it does not come to rest", hint="Does its code ask for a commit at every turn?")

    def stop(self) -> None:
        """Commit, close the tasks and end, as a container does that the plan has no place for."""
        container, membership = self._container, self._membership
        if container is None or membership is None:
            return
        with self.code.at_hand():
            try:
                membership.stop()
                ending: Ending | None = None
                while ending is None:
                    ending = container.turn()
            except (Exception, Verdict) as error:
                raise self._failed(error) from (error.__cause__ or error)
            container.let_go()
            self._container = None

    def crash(self, lose_disk: bool = False) -> None:
        """End as by `kill -9`: nothing is written, closed or told."""
        if self._process is not None:
            self._process.kill()
            self.disk.crash(self._process.name)
        self._container = self._process = None
        if lose_disk:
            self.disk = MemoryDisk(self._kit.hooks.disk_point)

    def _let_go(self) -> None:
        container, self._container = self._container, None
        self._process = None
        if container is not None:
            container.let_go()

    def _failed(self, error: Exception | Verdict) -> JobFailed:
        """Let go of the container; the next run begins another, at the last commit."""
        self._let_go()
        ending = ending_of(error)
        return JobFailed(f"job {self.name!r}: {ending.message}", ending.hint, ending.place)


def unknown_job(name: str, known: Mapping[str, object]) -> NotFound:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known) or 'none'}."
    return NotFound(f"there is no job {name!r} in this test", hint=hint)
