"""The loop of a container: follow the plan, open tasks, read, handle, commit, until it is told to end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from stack.engine.cadence import Cadence
from stack.engine.ownership import may_open, release_generation
from stack.errors import CorruptState, LostOwnership, NotFound, Unavailable
from stack.kafka.config import KafkaAccess
from stack.kafka.inputs import InputReader
from stack.kafka.transactions import Aborted, TransactionWriter
from stack.machine import Outcome, monotonic, time_ms
from stack.model.job import Guarantee, transactional_id
from stack.model.metrics import ContainerMetrics
from stack.model.plan import ContainerReport, Ending, Plan, Reason, TaskId, TaskReport
from stack.offsets.checkpoints import last_checkpoints, refuse_rewinding
from stack.runtime.commit import Committer
from stack.runtime.intake import Intake
from stack.runtime.launch import Launch
from stack.runtime.membership import Membership
from stack.runtime.metrics import Meter, MetricsMaker
from stack.runtime.opening import Opening
from stack.runtime.outlet import Outlet
from stack.runtime.parts import Parts
from stack.runtime.stillness import Stillness
from stack.runtime.task import Task
from stack.runtime.telling import Telling, counters_of
from stack.runtime.upkeep import Upkeep
from stack.runtime.watch import STANDSTILL_S
from stack.runtime.work import Work

log = logging.getLogger("feedstack.container")
_READ_RECORDS = 10_000
# The longest wait for input: the plan and the clock are looked at in between.
_WAIT_S = 0.05
_OPENING_S = 0.015
_OPENING_ALONE_S = 0.2
# Nobody sees outputs of a transaction before its commit, whose flush waits for nothing: gather until then.
# With no time to gather, requests become so small that the broker needs three times as long.
_GATHERING = {"linger.ms": 5}
# For so long a job that has caught up lets records come together.
_GATHER_S = 0.005
_IDLE_S = 0.3
# A job counts as behind while more records than these wait for it; looked at so often.
_BEHIND_RECORDS, _BEHIND_S = 2_000, 0.02


class Container:
    """One container: made of a launch, driven by the plan. `run` returns how it ended."""

    def __init__(
        self,
        parts: Parts,
        membership: Membership,
        first: Outcome[TransactionWriter] | None = None,
        *,
        clock: Callable[[], float] = monotonic,
        clock_ms: Callable[[], int] = time_ms,
    ) -> None:
        self.parts = parts
        self._clock = clock
        self._clock_ms = clock_ms
        self._membership = membership
        self._first = first
        spec = parts.spec
        self._exactly_once = spec.settings.guarantee is Guarantee.EXACTLY_ONCE
        self._cadence = Cadence(
            spec.settings.commit_min_ms, spec.settings.commit_max_ms, eager=self._exactly_once
        )
        self._plan: Plan | None = None
        self._generation = 0
        self._tasks: dict[TaskId, Task] = {}
        self._openings: dict[TaskId, Opening] = {}
        self._waiting: set[TaskId] = set()
        self.work = Work(parts, clock)
        self._meter = self.work.meter = Meter(clock, clock_ms) if spec.settings.metrics else None
        self._maker = None if self._meter is None else MetricsMaker(parts.launch, self._meter, parts.outputs)
        self._uncommitted_since: float | None = None
        self._heard_at = clock()
        self._behind, self._behind_until = False, 0.0
        self._upkeep = Upkeep(parts.launch, clock, clock_ms)
        self._telling = Telling(parts.launch, clock)
        self._commits = self._handled_before = 0
        # How many stages are to be drained by now.
        self._draining = 0
        # For the watch: a loop that goes round is alive.
        self.turns = 0

    def run(self) -> Ending:
        """Work until the plan has no place for this container; raises what ends it otherwise."""
        self.begin()
        try:
            while True:
                ending = self.turn()
                if ending is not None:
                    return ending
        finally:
            self.let_go()

    def begin(self) -> None:
        """Become the owner of the slot and join the fleet; then `turn` after turn, and at last `let_go`."""
        settings, access = self.parts.spec.settings, self.parts.stack.access
        self._outlet = Outlet(self.parts.outputs, self.work.dead_letters, settings.guarantee, access)
        self._reader = InputReader(self.parts.stack.access, self.parts.group)
        self._intake = Intake(self.parts, self._reader)
        stages = self.parts.spec.stages
        self._stillness = Stillness(stages, self._membership, self._intake, self.work)
        try:
            writer = self._initialised()
            self._committer = Committer(
                self.parts,
                writer,
                self._reader,
                self._outlet.plain,
                clock=self._clock,
                clock_ms=self._clock_ms,
            )
            self._membership.join(self.report(), self.report)
        except BaseException:
            self.let_go()
            raise

    def _initialised(self) -> TransactionWriter:
        """A writer under the slot's id, which fences every other; only then is the plan looked at.

        LostOwnership if the plan has a newer attempt: that one was fenced just now and will be started again.
        """
        begun, self._first = self._first, None
        if begun is not None:
            writer = begun.result()
        else:
            writer = fencing_writer(self.parts.launch, self.parts.stack.access)
        try:
            self._membership.confirm()
        except BaseException:
            writer.close()
            raise
        return writer

    def turn(self) -> Ending | None:
        """Do a little of everything that is due; an ending if the plan has no place for this container."""
        self.turns += 1
        self._membership.check()
        ending = self._follow_plan()
        if ending is not None:
            return ending
        self._stand_still()
        self._open_some()
        if self.work:
            self.work.step()
            self._note_work()
        else:
            self._read()
        self._outlet.send(self._committer, self._behind)
        self._tend_commit()
        self._upkeep.tend(self._tasks.values())
        self._telling.look_at_lags(self._tasks, self._reader)
        if self._meter is not None:
            self._meter.look_at_stores(self._tasks)
        return None

    @property
    def is_settled(self) -> bool:
        """Whether nothing was left to open, handle or commit when the inputs were last looked at."""
        busy = self._plan is None or self._waiting or self._openings or self.work or self._committer.in_flight
        return not busy and self._uncommitted_since is None and self._reader.caught_up()

    # The plan

    def _follow_plan(self) -> Ending | None:
        """Close what is no longer ours, begin to open what is; an ending if the plan has none of us."""
        news = self._membership.news()
        if news is not None and news is not self._plan:
            self._plan = news
            own = news.slots.get(self.parts.launch.slot)
            if own is not None and own.attempt != self.parts.launch.attempt:
                raise LostOwnership(f"attempt {own.attempt} takes the place of {self.parts.launch.attempt}")
            wanted = () if own is None else own.tasks
            self._close(sorted(task for task in self._all_tasks() if task not in wanted), news)
            # Only now: whoever reads it takes everything that the plan says for done.
            self._generation = self._committer.generation = news.generation
            if own is None:
                return Ending(Reason.STOPPED)
            self._waiting = {task for task in wanted if task not in self._all_tasks()}
            if news.drain and news.drain != self._draining:
                self._draining = news.drain
                stage = list(self.parts.spec.stages)[news.drain - 1]
                self._intake.begin_drain(task for task in wanted if task.stage == stage)
        self._begin_openings()
        if self._draining and self._plan is not None:
            self._stillness.tend_drain(self._tasks, self._plan)
            if self._is_drained():
                self._close(list(self._tasks), self._plan)
                return Ending(Reason.DRAINED)
        return None

    def _stand_still(self) -> None:
        """If somebody asks for it: commit, and say that the tasks stand still."""
        if not self._stillness.is_asked:
            return
        opening = {*self._openings, *self._waiting}
        if self._stillness.follow(self._tasks, opening, self._plan):
            self._commit_now()
            if self._stillness.follow(self._tasks, opening, self._plan):
                self._stillness.tell()

    def _all_tasks(self) -> list[TaskId]:
        return [*self._tasks, *self._openings]

    def _begin_openings(self) -> None:
        """Open tasks that nobody else has open any more."""
        if not self._waiting or self._plan is None:
            return
        slot, released = self.parts.launch.slot, self._membership.released
        free = sorted(task for task in self._waiting if may_open(self._plan, slot, task, released))
        if not free:
            return
        parts = self.parts
        stack = parts.stack
        found = last_checkpoints(stack, parts.decode_checkpoint, parts.spec.name, free)
        refuse_rewinding(parts.spec.name, found.values())
        for task in free:
            self._openings[task] = Opening(
                parts, task, found.get(task), clock=self._clock, clock_ms=self._clock_ms
            )
        self._waiting -= set(free)

    def _open_some(self) -> None:
        """Go on opening the next task, for a moment if others have work to do."""
        if not self._openings:
            return
        task, opening = next(iter(self._openings.items()))
        began = self._clock()
        if self._step(opening, began + (_OPENING_S if self._tasks else _OPENING_ALONE_S)):
            del self._openings[task]
            if opening.task is not None:
                self._begin(opening.task)
        # As long as the opening took, the others may work.
        spent = self._clock() - began
        until = self._clock() + spent
        while self.work and self._clock() < until:
            self.work.step()
            self._note_work()
            self._outlet.send(self._committer, self._behind)
            self._tend_commit()

    def _step(self, opening: Opening, until: float) -> bool:
        """Go on with an opening; True when the task is open."""
        try:
            return opening.step(until)
        except (CorruptState, NotFound):
            # A container that stood still meanwhile sees what its successor has written since then, which
            # does not fit to what it read before. That is no fault of the state: ask who owns the slot.
            self._membership.check()
            self._membership.confirm()
            raise

    def _begin(self, task: Task) -> None:
        """A task is open: run its hook, give it its inputs."""
        self._tasks[task.id] = task
        if self.parts.job.on_open is not None:
            self.parts.job.on_open(task.context)
            self.parts.outputs.encode()
            self._note_work()
        self._intake.begin(task)
        self._uncommitted_since = self._uncommitted_since or self._clock()
        log.info("task %s is open", task.id)

    def _close(self, gone: Iterable[TaskId], plan: Plan) -> None:
        """Commit and close tasks, and tell that they are free for whom the plan gives them to."""
        leaving = [self._tasks[task] for task in gone if task in self._tasks]
        for task_id in [task for task in gone if task in self._openings]:
            self._openings.pop(task_id).abandon()
            self._membership.release(task_id, release_generation(plan, task_id))
        if not leaving:
            return
        self.work.drop(leaving)
        if self.parts.job.on_close is not None:
            for task in leaving:
                self.parts.job.on_close(task.context)
            self.parts.outputs.encode()
        self._commit_now()
        for task in leaving:
            self._tasks.pop(task.id)
            self._intake.end(task)
            task.write_pending(self._clock_ms())
            task.close()
            self._membership.release(task.id, release_generation(plan, task.id))
            log.info("task %s is closed at commit %d", task.id, task.number)

    def _is_drained(self) -> bool:
        """Whether the last stage is drained, and with it the job, as far as this container is concerned."""
        if self._openings or self._waiting or self.work or self._draining < len(self.parts.spec.stages):
            return False
        return all(self._intake.is_held(task) for task in self._tasks)

    # Reading and handling

    def _read(self) -> None:
        """Queue what has come; waits a moment if nothing has."""
        self._gather()
        portions = self._reader.read(_READ_RECORDS, self._wait_s())
        for portion in portions:
            self.work.add(portion, self._intake.readers_of(portion.place))
        if portions:
            self._heard_at = self._clock()
        self._intake.tend_bootstraps()

    def _gather(self) -> None:
        """Let a few records come together where nobody waits for each of them: what they cause is seen only
        with the next commit, and the machine has better things to do than to wake up for every one.
        """
        if self._exactly_once and not self._behind and not self._openings:
            pause_s = min(self._heard_at + _GATHER_S - self._clock(), self._wait_s())
            if pause_s > 0:
                self._committer.wait(pause_s)

    def _wait_s(self) -> float:
        if self._openings:
            return 0.0
        if self._committer.in_flight:
            # Short at first; but a commit may also wait until Kafka is back.
            return min(_WAIT_S, max(0.001, self._committer.waited_s / 10))
        if self._uncommitted_since is None:
            return _WAIT_S
        return max(0.0, min(_WAIT_S, self._due_at(self._uncommitted_since) - self._clock()))

    def _note_work(self) -> None:
        if self._uncommitted_since is None:
            self._uncommitted_since = self._clock()

    # Committing

    def _due_at(self, since: float) -> float:
        """When to commit what is uncommitted since then."""
        now = self._clock()
        if now > self._behind_until:
            self._look_whether_behind()
        committer = self._committer
        return self._cadence.due_at(self._behind, since, committer.finished_at, committer.last_took_s)

    def _look_whether_behind(self) -> None:
        self._behind_until = self._clock() + _BEHIND_S
        self._behind = self._reader.is_behind(_BEHIND_RECORDS)

    def _tend_commit(self) -> None:
        """Finish a commit that is done; start one that is due."""
        if self._committer.in_flight:
            if self._committer.ready or self._outlet.is_full:
                self._finish_commit()
            elif self._committer.waited_s > STANDSTILL_S:
                raise Unavailable(f"a commit has not come to an end for {STANDSTILL_S:.0f} s")
            return
        if self._uncommitted_since is None:
            if self._committer.mirror_is_due:
                self._committer.note_passed(self._tasks.values())
                if self._committer.has_unmirrored:
                    self._committer.start([])
            return
        asked = any(task.context.commit_requested for task in self._tasks.values())
        if self._clock() >= self._due_at(self._uncommitted_since) or asked:
            self._start_commit()

    def _start_commit(self) -> None:
        tasks = [task for task in self._tasks.values() if self._is_due(task)]
        for task in self._tasks.values():
            task.context.commit_requested = False
        self._uncommitted_since = None
        if tasks and self._should_lead():
            self._outlet.send_all(self._committer)
            self._committer.lead(tasks)
        elif tasks:
            self._handled_before = self.work.handled
            self._outlet.send_all(self._committer)
            self._committer.start(tasks)
        elif any(not task.announced for task in self._tasks.values()):
            self._uncommitted_since = self._clock()

    def _should_lead(self) -> bool:
        """Whether a lead pays, and nothing of this commit was sent so far."""
        records = self.work.handled - self._handled_before
        return self._cadence.leads(self._behind, records) and not self._committer.writer.in_transaction

    def _is_due(self, task: Task) -> bool:
        """A task with changes, or one that is new here and has nothing to do."""
        if task.has_changes:
            return True
        idle = self._clock() - self._heard_at > _IDLE_S and self._reader.caught_up()
        return not task.announced and idle

    def _finish_commit(self) -> None:
        """Finish what is under way. After a lead the commit itself begins at once."""
        led = self._committer.leads
        try:
            if self._committer.finish():
                self._commits += 1
                if self._meter is not None:
                    self._meter.committed(self._committer.last_took_s, self._committer.last_size)
        except Aborted as error:
            log.warning("a commit was aborted, the tasks go back to the last one: %s", error.message)
            self._go_back()
        else:
            if led:
                self._start_commit()
                return
        if self._committer.writer.disturbed:
            self._renew_writer()
        self._look_whether_behind()
        self._outlet.choose(self._behind)
        self._outlet.send(self._committer, self._behind)

    def _commit_now(self) -> None:
        """Commit everything and wait for it; after it nothing is under way."""
        while True:
            while self._committer.in_flight:
                self._finish_commit()
            tasks = [task for task in self._tasks.values() if task.has_changes]
            self._outlet.send_all(self._committer)
            if not (tasks or self._committer.writer.in_transaction or self._committer.has_unmirrored):
                break
            self._committer.start(tasks, last=True)
        self._outlet.flush()
        self._uncommitted_since = None

    def _go_back(self) -> None:
        """Take up at the last commit again: state, outputs and inputs."""
        self.work.drop()
        self.work.dead_letters.drop()
        self.parts.outputs.drop()
        for task in self._tasks.values():
            task.drop()
        self._intake.go_back()
        self._uncommitted_since = self._clock()

    def _renew_writer(self) -> None:
        """Raise the epoch, so that a late answer to an old request ends no newer transaction."""
        log.info("the connection was disturbed: the writer is opened anew")
        self._committer.writer.close()
        writer = self._initialised()
        try:
            self._refuse_overtaken()
        except BaseException:
            writer.close()
            raise
        self._committer.renew(writer)

    def _refuse_overtaken(self) -> None:
        """LostOwnership if somebody else has written checkpoints of the open tasks, Unavailable if that is a
        rewind which is not done: it had fenced this container, which has the id of its slot again now.
        """
        spec = self.parts.spec
        found = last_checkpoints(self.parts.stack, self.parts.decode_checkpoint, spec.name, list(self._tasks))
        refuse_rewinding(spec.name, found.values())
        for task in self._tasks.values():
            point = found.get(task.id)
            number = 0 if point is None else point.number
            if number != task.number:
                raise LostOwnership(
                    f"task {task.id} is at commit {number}, by somebody else, not at {task.number}"
                )

    # Telling

    def _task_reports(self) -> dict[TaskId, TaskReport]:
        drained = self._drained() if self._draining else ()
        return self._telling.tasks(self._waiting, self._openings, self._tasks, self._intake, drained)

    def _drained(self) -> list[TaskId]:
        """Tasks whose last record of a drain is committed."""
        if self._committer.in_flight:
            return []
        held = [task for task in list(self._tasks.values()) if self._intake.is_held(task.id)]
        return [task.id for task in held if not task.has_changes]

    def metrics(self) -> ContainerMetrics | None:
        """What the container has measured, for the metrics' thread; None if it does not, or not yet."""
        if self._meter is None or self._maker is None or not self.turns:
            return None
        tasks = self._meter.tasks(self._task_reports(), self._openings)
        errors, counters = self.work.guard.faults, counters_of(self._tasks)
        return self._maker.make(tasks, errors, counters, self._membership.memory_bytes, self._clock_ms())

    def report(self) -> ContainerReport:
        """What the container says of itself; called from the membership's thread, too."""
        return self._telling.report(
            self._task_reports(),
            generation=self._generation,
            commits=self._commits,
            records=self.work.handled,
            memory_bytes=self._membership.memory_bytes,
            counters=counters_of(self._tasks),
            faults=self.work.guard.faults,
            still=self._stillness.told,
        )

    def let_go(self) -> None:
        """Release everything; what is not committed is dropped. What cannot be released is only told:
        the reason for the end is what counts.
        """
        steps: list[Callable[[], object]] = [opening.abandon for opening in self._openings.values()]
        steps += [task.close for task in self._tasks.values()]
        steps += [self._outlet.close, self._reader.close]
        committer = getattr(self, "_committer", None)
        if committer is not None:
            steps.insert(0, committer.close)
        for step in steps:
            try:
                step()
            except (LostOwnership, Unavailable, Aborted) as error:
                log.info("the open transaction is left to Kafka: %s", error.message)
            except Exception:
                log.exception("something could not be released")


def fencing_writer(launch: Launch, access: KafkaAccess) -> TransactionWriter:
    """A writer under the id of the launch's slot; whoever had it is fenced when this returns."""
    name = transactional_id(launch.settings.name, launch.spec.name, launch.slot)
    writer = TransactionWriter(access, name, settings=_GATHERING)
    try:
        writer.init_transactions()
    except BaseException:
        writer.close()
        raise
    return writer
