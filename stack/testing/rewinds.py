"""Rewinds of jobs in memory: the real ones, by a process that may crash at any request that it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stack.connection import Stack
from stack.deploy.deploy import next_entry
from stack.deploy.jobs import JobsFeed, jobs_feed
from stack.deploy.rewind_intent import refuse_another
from stack.deploy.rewind_plan import Wanted, look_again, make_plan
from stack.deploy.rewinding import Rewinding
from stack.engine.rewind import OutputsChoice, StateChoice
from stack.errors import BadInput
from stack.kafka.memory.hooks import Killed
from stack.model.startpoint import parse_job_startpoint
from stack.offsets.index import CheckpointIndex
from stack.testing.points import REWIND_POINTS, REWIND_PROCESS, Crashed, known_point

if TYPE_CHECKING:
    from stack.testing.jobs import JobInHand
    from stack.testing.kit import MemoryStack

PERSON = "test"


class RewindInHand:
    """One command `stack rewind`: a process of its own, which ends with it."""

    def __init__(self, kit: MemoryStack, job: JobInHand) -> None:
        self._kit = kit
        self._job = job
        self._process = kit.kafka.process(REWIND_PROCESS + job.name)
        connection = kit.connection
        self._stack = Stack(connection.settings, connection.endpoints, self._process)

    def run(
        self,
        to: str | None,
        state: StateChoice,
        outputs: OutputsChoice,
        crash_at: str | int | None,
        *,
        cascade: bool = False,
    ) -> bool:
        """Whether it came to its end; False if it crashed there."""
        tell_jobs(self._kit)
        if isinstance(crash_at, str):
            known_point(crash_at, REWIND_POINTS)
        if crash_at is not None:
            self._kit.hooks.crash_at(self._process, crash_at)
        try:
            self._run(to, state, outputs, cascade)
        except (Crashed, Killed):
            return False
        finally:
            self._kit.hooks.crash_at(None)
            self._process.kill()
        if isinstance(crash_at, str):
            raise BadInput(
                f"the rewind of job {self._job.name!r} came to its end without passing {crash_at!r}",
                hint="Old values are only written where something has changed since.",
            )
        return True

    def _run(self, to: str | None, state: StateChoice, outputs: OutputsChoice, cascade: bool) -> None:
        jobs, name = jobs_feed(self._stack), self._job.name
        rewinding = Rewinding(self._stack, jobs, self._containers)
        entry = jobs.get(name)
        intent = rewinding.pending(entry.spec)
        if intent is not None:
            refuse_another(name, intent, to)
            rewinding.carry_out(intent.leader or name, intent)
            return
        if entry.rewind is not None and to in (None, rewinding.asked_for(entry)):
            rewinding.clear(entry)
            return
        if to is None:
            raise BadInput(f"say where job {name!r} shall go back to", hint="Such as main-0#17 or @NAME.")
        with CheckpointIndex(self._stack, in_memory=True) as index:
            index.refresh()
            startpoint = parse_job_startpoint(to, self._kit.clock.now_ms)
            wanted = Wanted(startpoint, state, outputs, cascade=cascade)
            plan = make_plan(self._stack, jobs, index, name, wanted)
            look = look_again(self._stack, jobs, index, plan)
            rewinding.carry_out(name, plan.intent("", to), look)

    def _containers(self, name: str) -> int:
        """Asked when the mark stands, which a runner sees: it stops the containers."""
        self._kit.jobs[name].stop()
        return 0


def tell_jobs(kit: MemoryStack) -> JobsFeed:
    """Put every job of a kit into the jobs feed, as deploys do."""
    jobs = jobs_feed(kit.connection)
    known = jobs.entries()
    for name, one in kit.jobs.items():
        spec = one.spec
        if name not in known or known[name].spec != spec:
            jobs.update(name, lambda before, spec=spec: next_entry(before, spec))  # type: ignore[misc]
    return jobs
