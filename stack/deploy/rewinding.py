"""Brings a job back to a point: inputs, state and table outputs together; and jobs that follow it with it.

A rewind that was cut off anywhere is simply asked for again. Its steps:

1. mark     the entry in the jobs feed says that a rewind is under way: the runner stops the containers
2. fence    every slot's transactional id is taken over: nobody commits any more
3. look     where tables are to be cut: only now nobody writes to them
4. intent   each task's newest checkpoint says what is under way, and where to: nobody opens the task
5. undo     what stores and tables held at the point is appended to their logs, in transactions
6. land     the last of these also has the checkpoints of all tasks, which take the place of the intent,
            and the entry in the audit feed
7. go on    the mark is taken away: the runner starts the containers

Before 6 a container that opens a task finds the intent and leaves; after it, it finds the checkpoint, and
its store catches up with what was appended. Intents are written until nobody has committed since: a
container that was started by a runner which had not heard of it yet is fenced, and its commit counts. So a
container may write its commit over an intent only while nothing is undone yet; an intent that not all tasks
have is none, and the next one takes its place.

The mark is a request, the intent is the truth. A mark without an intent is of a rewind that has done nothing
yet, or everything: whoever comes next may put another in its place, or take it away. All rewinds of a job
write under one transactional id, so of two at once the earlier is fenced.

Jobs that follow go through the same steps at the same time, in the same transactions: under the id of the
job that leads, whose intent has theirs in it. Their own ids are taken over, too, before nobody is left who
could write another intent.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from stack.connection import Stack
from stack.deploy.jobs import JobsFeed
from stack.deploy.operate import fence_slots, take_over
from stack.deploy.rewind_changes import MOST_CHANGES, RewindChanges, append
from stack.deploy.rewind_inputs import LandingInputs
from stack.deploy.rewind_intent import Intent, audit_of, intent_id, intent_of, is_intent
from stack.deploy.rewind_marks import Marks, id_of
from stack.deploy.rewind_mirror import mirror_landing
from stack.deploy.topics import ensure_topics
from stack.errors import BadInput, LostOwnership, NotDelivered, NotFound, Unavailable
from stack.kafka.transactions import TransactionWriter
from stack.kafka.writer import LogWriter
from stack.machine import monotonic, sleep, time_ms
from stack.model.checkpoint import (
    REWIND,
    REWIND_SLOT,
    Checkpoint,
    OutputPoint,
    StorePoint,
    checkpoint_key,
)
from stack.model.job import JobEntry, JobSpec, changelog_name, rewind_id
from stack.model.plan import TaskId, job_tasks
from stack.offsets.audit import audit_name, audit_plan, to_record
from stack.offsets.checkpoints import (
    checkpoint_partition,
    checkpoints_since,
    checkpoints_topic,
    last_checkpoints,
)
from stack.offsets.codec import CheckpointDecoder, CheckpointEncoder, registered_id
from stack.offsets.schemas import CHECKPOINT_SCHEMA
from stack.offsets.undo import Change

_TRIES = 20
_STOP_S, _LOOK_S = 30.0, 0.1
# What the checkpoint of a landing says of itself.
REWOUND_BY, REWOUND_TO, REWOUND_ASKED = "rewound-by", "rewound-to", "rewound-asked"

Say = Callable[[str], None]
Made = tuple[int, Mapping[str, OutputPoint]]
"""When the checkpoints of a rewind are made, and where outputs end then. They share it: whoever goes back to
one of them goes back to all."""
Look = Callable[[Mapping[str, JobSpec], Intent], Intent]
"""The intent with where tables are to be cut, asked once nobody writes to them any more; BadInput with what
speaks against the rewind after all."""
Newest = dict[str, dict[TaskId, Checkpoint]]


@dataclass(frozen=True)
class Landed:
    """What a rewind has done: changes of state and of tables that it appended, and how long it took."""

    intent: Intent
    state_changes: int
    output_changes: int
    took_s: float


class Rewinding:
    """Carries an intent out. `reports` tells how many containers of a job are still to be seen."""

    def __init__(
        self,
        stack: Stack,
        jobs: JobsFeed,
        reports: Callable[[str], int],
        say: Say = lambda _: None,
        *,
        clock: Callable[[], float] = monotonic,
        most_changes: int = MOST_CHANGES,
    ) -> None:
        self._stack = stack
        self._jobs = jobs
        self._reports = reports
        self._say = say
        self._clock = clock
        self._topic = checkpoints_topic(stack.settings.name)
        self._encode = CheckpointEncoder(registered_id(stack.registry, self._topic, CHECKPOINT_SCHEMA))
        self._decode = CheckpointDecoder(stack.registry)
        self._marks = Marks(jobs)
        self._changes = RewindChanges(stack, most_changes)

    def pending(self, spec: JobSpec) -> Intent | None:
        """The rewind of a job that was begun and not brought to its end; that of its leader if it follows."""
        newest = self._newest(spec)
        found = intent_of({task: newest.get(task) for task in job_tasks(spec)}, self._decode)
        if found is None or found.leader in ("", spec.name):
            return found
        leader = self._jobs.find(found.leader)
        whole = None if leader is None else self.pending(leader.spec)
        # Only what the leader says as well may have been begun.
        return whole if whole is not None and whole.id == found.id else None

    def carry_out(self, name: str, intent: Intent, look: Look | None = None) -> Landed:
        """All steps; what an earlier try has done is not done again. `look` belongs to a new intent."""
        began = self._clock()
        # The writer comes before the mark: whoever takes the mark away has fenced this rewind.
        with self._told(name), self._writer(name) as writer:
            ensure_topics(self._stack.admin, [audit_plan(self._stack.settings.name)])
            specs = self._marks.put(name, intent)
            self._say(f"stopping the containers of {', '.join(specs)}")
            self._await_stop(specs)
            self._fence(specs, name)
            if look is not None:
                intent = self._looked(specs, intent, look)
            intents = {job: one for job, one in intent.jobs(name).items() if job in specs}
            before = self._write_intents(writer, specs, intents)
            self._say("bringing state and tables back")
            state, outputs, rest = self._undo(writer, specs, intents)
            self._land(writer, specs, intents, before, rest)
            for job in specs:
                self._marks.clear(job, intent.id)
        return Landed(intent, state, outputs, self._clock() - began)

    def clear(self, entry: JobEntry) -> str | None:
        """Take away what is left of a rewind that has nothing to do any more: its marks, and intents that
        not all tasks have. The point that the job is back at by it; None if nothing of it was done."""
        spec = entry.spec
        with self._told(spec.name), self._writer(spec.name) as writer:
            if self.pending(spec) is not None:
                raise _busy(spec.name)
            newest = self._newest(spec)
            for job, other in self._marks.alike(entry).items():
                self._clear_intents(writer, {job: other}, spec.name)
                self._marks.clear(job, entry.rewind if job == spec.name else id_of(entry.rewind))
        landed = (one for one in newest.values() if self._is_landing(one, entry))
        return next((one.annotations[REWOUND_TO] for one in landed), None)

    def _clear_intents(self, writer: TransactionWriter, one: Mapping[str, JobSpec], own: str) -> None:
        ((job, spec),) = one.items()
        if any(map(is_intent, self._newest(spec).values())) or job != own:
            self._fence(one, own)
            newest = self._newest(spec)
            made = time_ms(), self._outputs_now(newest)
            points = [_as_before(point, made) for point in newest.values() if is_intent(point)]
            if points:
                self._commit_points(writer, points)

    @staticmethod
    def _is_landing(one: Checkpoint, entry: JobEntry) -> bool:
        by = one.annotations.get(REWOUND_BY)
        return entry.rewind is not None and by is not None and by in entry.rewind

    def asked_for(self, entry: JobEntry) -> str | None:
        """What a person typed whose rewind has landed, if only its mark is still there."""
        newest = self._newest(entry.spec).values()
        return next(
            (one.annotations.get(REWOUND_ASKED) for one in newest if self._is_landing(one, entry)), None
        )

    @contextlib.contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """What a person whose rewind was cut off is told."""
        again = f"Repeat the command, or say `stack rewind {name}`: it goes on where it was."
        try:
            yield
        except LostOwnership as error:
            raise LostOwnership(
                f"the rewind of job {name!r} was cut off: {error.message}",
                hint=f"Is somebody else rewinding it, or removing it? {again}",
            ) from error
        except (NotDelivered, Unavailable) as error:
            raise Unavailable(
                f"the rewind of job {name!r} is not done yet: {error.message}", hint=again
            ) from error

    @contextlib.contextmanager
    def _writer(self, name: str) -> Iterator[TransactionWriter]:
        writer = TransactionWriter(self._stack.access, rewind_id(self._stack.settings.name, name))
        with contextlib.closing(writer):
            writer.init_transactions()
            yield writer

    def _newest(self, spec: JobSpec) -> dict[TaskId, Checkpoint]:
        return last_checkpoints(self._stack, self._decode, spec.name, job_tasks(spec))

    def _await_stop(self, names: Iterable[str]) -> None:
        """A last commit of each container loses nothing; one that does not come is fenced."""
        deadline = self._clock() + _STOP_S
        for name in names:
            while self._reports(name) and self._clock() < deadline:
                sleep(_LOOK_S)

    # 2. fence, 3. look, 4. intent

    def _fence(self, specs: Mapping[str, JobSpec], leader: str) -> None:
        """Whoever writes checkpoints of these jobs, but for this rewind itself."""
        for job, spec in specs.items():
            fence_slots(self._stack, job, len(job_tasks(spec)))
            if job != leader:
                take_over(self._stack, rewind_id(self._stack.settings.name, job))

    def _looked(self, specs: Mapping[str, JobSpec], intent: Intent, look: Look) -> Intent:
        try:
            return look(specs, intent)
        except (BadInput, NotFound):
            for job in specs:
                self._marks.clear(job, intent.id)
            raise

    def _write_intents(
        self, writer: TransactionWriter, specs: Mapping[str, JobSpec], intents: Mapping[str, Intent]
    ) -> Newest:
        """Until every task's newest checkpoint is the intent, and nobody is left who could write another."""
        leader = next(iter(intents))
        # Who got in between a look and the intent that was written after it: the next one stands on that.
        slipped: Newest = {}
        for _ in range(_TRIES):
            ends = self._ends(intents)
            newest = {job: self._newest(specs[job]) for job in intents}
            missing = [job for job, one in intents.items() if not _has_intent(one, newest[job])]
            if not missing and not any(slipped.values()):
                return newest
            for job in missing:
                if _is_another(intents[job], newest[job]):
                    # The other one may have gone by when this mark was put over its own.
                    for one in intents:
                        self._marks.clear(one, intents[one].id)
                    raise _busy(job)
            self._commit_points(
                writer,
                [
                    point
                    for job, intent in intents.items()
                    for point in self._intent_points(
                        specs[job], intent, _standing_on(newest[job], slipped.get(job, {}))
                    )
                ],
            )
            self._fence(specs, leader)
            slipped = {job: self._slipped(job, ends[job], one) for job, one in intents.items()}
        raise LostOwnership(
            f"containers of {leader!r} are started again and again while it goes back",
            hint="Is there a runner of an older version? Stop it, and repeat the command.",
        )

    def _ends(self, jobs: Iterable[str]) -> dict[str, int]:
        """Where the checkpoints of jobs end."""
        places = {job: checkpoint_partition(job) for job in jobs}
        bounds = self._stack.admin.bounds(self._topic, sorted(set(places.values())))
        return {job: bounds[partition].high for job, partition in places.items()}

    def _slipped(self, job: str, end: int, intent: Intent) -> dict[TaskId, Checkpoint]:
        """Commits behind an end that an intent was written over unseen."""
        found: dict[TaskId, Checkpoint] = {}
        for one in checkpoints_since(self._stack, self._decode, job, end):
            if not is_intent(one):
                found[one.task] = one
        return {task: one for task, one in found.items() if task in intent.targets}

    def _intent_points(
        self, spec: JobSpec, intent: Intent, newest: Mapping[TaskId, Checkpoint]
    ) -> Iterator[Checkpoint]:
        made = time_ms(), self._outputs_now(newest)
        for task in intent.targets:
            yield self._intent_point(spec, intent, task, newest.get(task), made)

    def _intent_point(
        self,
        spec: JobSpec,
        intent: Intent,
        task: TaskId,
        newest: Checkpoint | None,
        made: Made,
    ) -> Checkpoint:
        said = {REWIND: intent.to_text(task, self._encode)}
        now_ms, outputs = made
        if newest is None:
            return Checkpoint(
                spec.name, task, spec.version, 1, now_ms, {}, annotations=said, slot=REWIND_SLOT
            )
        return replace(
            newest,
            number=newest.number + 1,
            time_ms=now_ms,
            annotations=said,
            slot=REWIND_SLOT,
            attempt=0,
            outputs=outputs,
        )

    def _commit_points(self, writer: TransactionWriter, points: Iterable[Checkpoint]) -> None:
        writer.begin_if_needed()
        self._write_points(writer, points)
        writer.deliver_or_abort()
        writer.commit_delivered()

    def _write_points(self, writer: LogWriter, points: Iterable[Checkpoint]) -> None:
        for job, of_it in itertools.groupby(points, lambda one: one.job):
            own = list(of_it)
            keys = [checkpoint_key(job, one.task) for one in own]
            writer.write_pairs(self._topic, keys, list(map(self._encode, own)), checkpoint_partition(job))

    # 5. undo

    def _undo(
        self, writer: TransactionWriter, specs: Mapping[str, JobSpec], intents: Mapping[str, Intent]
    ) -> tuple[int, int, list[Change]]:
        """Append what is needed; the last of it is left to go with the landing.

        No transaction is open while logs are read: that may take longer than one may last.
        """
        counts, waiting, held = [0, 0], list[Change](), 0
        for place, one in self._changes.of(specs, intents):
            counts[place] += len(one.keys)
            held += len(one.keys)
            waiting.append(one)
            if held >= self._changes.most:
                append(writer, waiting)
                writer.deliver_or_abort()
                writer.commit_delivered()
                waiting, held = [], 0
        return counts[0], counts[1], waiting

    # 6. land

    def _land(
        self,
        writer: TransactionWriter,
        specs: Mapping[str, JobSpec],
        intents: Mapping[str, Intent],
        before: Newest,
        rest: Iterable[Change],
    ) -> None:
        for job in intents:
            if self._jobs.find(job) is None:
                raise NotFound(f"job {job!r} was removed by someone while it went back")
        append(writer, rest)
        writer.deliver_or_abort()
        landed: dict[str, list[Checkpoint]] = {}
        for job, intent in intents.items():
            made = time_ms(), self._outputs_now(before[job])
            inputs = LandingInputs(self._stack, specs[job], intent)
            landed[job] = [
                self._landing(specs[job], intent, before[job][task], made, inputs) for task in intent.targets
            ]
            self._write_points(writer, landed[job])
            key, value = to_record(audit_of(job, intent, before[job]))
            writer.write_pairs(audit_name(self._stack.settings.name), [key], [value])
        writer.deliver_or_abort()
        writer.commit_delivered()
        for job, points in landed.items():
            mirror_landing(self._stack, specs[job], points)

    def _landing(
        self, spec: JobSpec, intent: Intent, before: Checkpoint, made: Made, inputs: LandingInputs
    ) -> Checkpoint:
        """Where a task goes on: the inputs of the target, and logs as they end now."""
        target = intent.targets[before.task]
        return replace(
            before,
            version=spec.version,
            number=before.number + 1,
            time_ms=made[0],
            inputs=inputs.of(before, target),
            stores=self._stores_now(spec, before.task),
            outputs=made[1],
            event_time_ms=None if target is None else target.event_time_ms,
            annotations={REWOUND_TO: intent.words, REWOUND_BY: intent.id, REWOUND_ASKED: intent.asked},
        )

    def _stores_now(self, spec: JobSpec, task: TaskId) -> dict[str, StorePoint]:
        stack = self._stack
        names = {
            one.name: changelog_name(stack.settings.name, spec.name, one.name)
            for one in spec.stores
            if one.stage == task.stage
        }
        about = stack.admin.describe(list(names.values()))
        ends = stack.admin.all_ends([(topic, task.partition) for topic in names.values()])
        return {
            store: StorePoint(topic, about[topic].id, ends[topic, task.partition])
            for store, topic in names.items()
        }

    def _outputs_now(self, points: Mapping[TaskId, Checkpoint]) -> dict[str, OutputPoint]:
        """Where the outputs end now: whatever is written later stands behind."""
        known = {feed: point for one in points.values() for feed, point in one.outputs.items()}
        found = {}
        for feed, point in known.items():
            ends = self._stack.admin.ends(point.topic, range(len(point.ends)))
            ordered = tuple(ends[number] for number in sorted(ends))
            found[feed] = replace(point, ends=ordered, wrote=frozenset())
        return found


def _as_before(intent: Checkpoint, made: Made) -> Checkpoint:
    """The commit that an intent stands on, once more: others may have committed since."""
    return replace(intent, number=intent.number + 1, time_ms=made[0], outputs=made[1], annotations={})


def _standing_on(
    newest: Mapping[TaskId, Checkpoint], slipped: Mapping[TaskId, Checkpoint]
) -> dict[TaskId, Checkpoint]:
    """What intents are to stand on; they are numbered on from the newest all the same."""
    found = dict(newest)
    for task, one in slipped.items():
        number = max(one.number, newest[task].number if task in newest else 0)
        found[task] = replace(one, number=number)
    return found


def _has_intent(intent: Intent, newest: Mapping[TaskId, Checkpoint]) -> bool:
    """Whether the newest checkpoint of every task says so."""
    return all(task in newest and intent_id(newest[task]) == intent.id for task in intent.targets)


def _is_another(intent: Intent, newest: Mapping[TaskId, Checkpoint]) -> bool:
    """Whether all tasks say that another rewind is under way."""
    ids = {intent_id(newest[task]) if task in newest else None for task in intent.targets}
    return len(ids) == 1 and not ids <= {None, intent.id}


def _busy(job: str) -> BadInput:
    return BadInput(
        f"job {job!r} is busy with another rewind, which somebody began just now",
        hint=f"`stack rewind {job}` brings that one to its end first.",
    )
