"""Brings a job back to a point: inputs, state and table outputs together.

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
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from stack.connection import Stack
from stack.deploy.audit import audit_name, audit_plan, to_record
from stack.deploy.jobs import JobsFeed
from stack.deploy.operate import fence_slots
from stack.deploy.rewind_intent import Intent, audit_of, intent_id, intent_of, is_intent
from stack.deploy.topics import ensure_topics
from stack.engine.rewind import StateChoice
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
from stack.model.plan import TaskId, tasks_of
from stack.offsets.checkpoints import checkpoint_partition, checkpoints_topic, last_checkpoints
from stack.offsets.codec import CheckpointDecoder, CheckpointEncoder, registered_id
from stack.offsets.schemas import CHECKPOINT_SCHEMA
from stack.offsets.undo import Change, LogUndo

_TRIES = 20
# So many changes go into one transaction: it must end long before its time limit.
_MOST_CHANGES = 200_000
_STOP_S, _LOOK_S = 30.0, 0.1
# What the checkpoint of a landing says of itself.
REWOUND_BY, REWOUND_TO, REWOUND_ASKED = "rewound-by", "rewound-to", "rewound-asked"

Say = Callable[[str], None]
Look = Callable[[JobSpec], Mapping[str, tuple[int, ...]]]
"""Where the table outputs are to be cut, asked once nobody writes to them any more; BadInput with what
speaks against the rewind after all."""


@dataclass(frozen=True)
class Landed:
    """What a rewind has done: changes of state and of tables that it appended, and how long it took."""

    intent: Intent
    state_changes: int
    output_changes: int
    took_s: float


class Rewinding:
    """Carries an intent out. `reports` tells how many containers of the job are still to be seen."""

    def __init__(
        self,
        stack: Stack,
        jobs: JobsFeed,
        reports: Callable[[], int],
        say: Say = lambda _: None,
        *,
        clock: Callable[[], float] = monotonic,
        most_changes: int = _MOST_CHANGES,
    ) -> None:
        self._stack = stack
        self._most_changes = most_changes
        self._jobs = jobs
        self._reports = reports
        self._say = say
        self._clock = clock
        self._topic = checkpoints_topic(stack.settings.name)
        self._encode = CheckpointEncoder(registered_id(stack.registry, self._topic, CHECKPOINT_SCHEMA))
        self._decode = CheckpointDecoder(stack.registry)

    def pending(self, spec: JobSpec) -> Intent | None:
        """The rewind of a job that was begun and not brought to its end."""
        newest = self._newest(spec)
        return intent_of({task: newest.get(task) for task in tasks_of(spec.partitions)}, self._decode)

    def carry_out(self, name: str, intent: Intent, look: Look | None = None) -> Landed:
        """All steps; what an earlier try has done is not done again. `look` belongs to a new intent."""
        began = self._clock()
        # The writer comes before the mark: whoever takes the mark away has fenced this rewind.
        with self._told(name), self._writer(name) as writer:
            ensure_topics(self._stack.admin, [audit_plan(self._stack.settings.name)])
            spec = self._mark(name, intent).spec
            self._say(f"stopping the containers of {name}")
            self._await_stop()
            self._fence(spec)
            if look is not None:
                intent = self._looked(spec, intent, look)
            before = self._write_intent(writer, spec, intent)
            self._say("bringing state and tables back")
            state, outputs, rest = self._undo(writer, spec, intent)
            self._land(writer, spec, intent, before, rest)
            self._clear_mark(name, intent.id)
        return Landed(intent, state, outputs, self._clock() - began)

    def clear(self, entry: JobEntry) -> str | None:
        """Take away what is left of a rewind that has nothing to do any more: its mark, and an intent that
        not all tasks have. The point that the job is back at by it; None if nothing of it was done."""
        spec = entry.spec
        with self._told(spec.name), self._writer(spec.name) as writer:
            if self.pending(spec) is not None:
                raise _busy(spec.name)
            newest = self._newest(spec)
            if any(map(is_intent, newest.values())):
                self._fence(spec)
                newest = self._newest(spec)
                points = [_as_before(one) for one in newest.values() if is_intent(one)]
                self._commit_points(writer, spec.name, points)
            self._clear_mark(spec.name, entry.rewind)
        landed = (one for one in newest.values() if self._is_landing(one, entry))
        return next((one.annotations[REWOUND_TO] for one in landed), None)

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
        return last_checkpoints(self._stack, self._decode, spec.name, tasks_of(spec.partitions))

    # 1. mark, 7. go on

    def _mark(self, name: str, intent: Intent) -> JobEntry:
        entry = self._jobs.update(name, lambda one: one and replace(one, rewind=intent.mark))
        if entry is None:
            raise NotFound(f"job {name!r} was removed by someone just now")
        return entry

    def _clear_mark(self, name: str, mark: str | None) -> None:
        """Whoever has put another mark there goes on with it."""

        def change(one: JobEntry | None) -> JobEntry | None:
            if one is None or (one.rewind is not None and (mark is None or mark not in one.rewind)):
                return one
            # A try of its own: what a runner said before is not about this.
            return replace(one, rewind=None, try_number=one.try_number + 1)

        self._jobs.update(name, change)

    def _await_stop(self) -> None:
        """A last commit of each container loses nothing; one that does not come is fenced."""
        deadline = self._clock() + _STOP_S
        while self._reports() and self._clock() < deadline:
            sleep(_LOOK_S)

    # 2. fence, 3. look, 4. intent

    def _fence(self, spec: JobSpec) -> None:
        fence_slots(self._stack, spec.name, spec.partitions)

    def _looked(self, spec: JobSpec, intent: Intent, look: Look) -> Intent:
        try:
            return replace(intent, cuts=look(spec))
        except BadInput:
            self._clear_mark(spec.name, intent.id)
            raise

    def _write_intent(
        self, writer: TransactionWriter, spec: JobSpec, intent: Intent
    ) -> dict[TaskId, Checkpoint]:
        """Until every task's newest checkpoint is the intent, and nobody is left who could write another."""
        for _ in range(_TRIES):
            newest = self._newest(spec)
            ids = {intent_id(newest[task]) if task in newest else None for task in intent.targets}
            if ids == {intent.id}:
                return newest
            if len(ids) == 1 and None not in ids:
                # The other one may have gone by when this mark was put over its own.
                self._clear_mark(spec.name, intent.id)
                raise _busy(spec.name)
            ends = self._outputs_now(newest)
            self._commit_points(
                writer,
                spec.name,
                [self._intent_point(spec, intent, task, newest.get(task), ends) for task in intent.targets],
            )
            self._fence(spec)
        raise LostOwnership(
            f"containers of {spec.name!r} are started again and again while it goes back",
            hint="Is there a runner of an older version? Stop it, and repeat the command.",
        )

    def _intent_point(
        self,
        spec: JobSpec,
        intent: Intent,
        task: TaskId,
        newest: Checkpoint | None,
        outputs: Mapping[str, OutputPoint],
    ) -> Checkpoint:
        said = {REWIND: intent.to_text(task, self._encode)}
        now_ms = time_ms()
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

    def _commit_points(self, writer: TransactionWriter, job: str, points: list[Checkpoint]) -> None:
        writer.begin_if_needed()
        self._write_points(writer, job, points)
        writer.deliver_or_abort()
        writer.commit_delivered()

    def _write_points(self, writer: LogWriter, job: str, points: list[Checkpoint]) -> None:
        keys = [checkpoint_key(job, one.task) for one in points]
        writer.write_pairs(self._topic, keys, list(map(self._encode, points)), checkpoint_partition(job))

    # 5. undo

    def _undo(
        self, writer: TransactionWriter, spec: JobSpec, intent: Intent
    ) -> tuple[int, int, list[Change]]:
        """Append what is needed; the last of it is left to go with the landing.

        No transaction is open while logs are read: that may take longer than one may last.
        """
        counts, waiting, held = [0, 0], list[Change](), 0
        for place, changes in enumerate((self._state_changes(spec, intent), self._output_changes(intent))):
            for one in changes:
                counts[place] += len(one.keys)
                held += len(one.keys)
                waiting.append(one)
                if held >= self._most_changes:
                    self._append(writer, waiting)
                    writer.deliver_or_abort()
                    writer.commit_delivered()
                    waiting, held = [], 0
        return counts[0], counts[1], waiting

    def _state_changes(self, spec: JobSpec, intent: Intent) -> Iterator[Change]:
        if intent.state is StateChoice.KEEP:
            return
        for store in spec.stores:
            log = LogUndo(self._stack, changelog_name(self._stack.settings.name, spec.name, store.name))
            for task, target in intent.targets.items():
                point = None if target is None else target.stores.get(store.name)
                cut = 0 if point is None else point.end
                is_empty = intent.state is StateChoice.EMPTY
                yield from log.changes(task.partition, cut, self._most_changes, empty=is_empty)

    def _output_changes(self, intent: Intent) -> Iterator[Change]:
        for feed, offsets in intent.cuts.items():
            log = LogUndo(self._stack, self._stack.topic_of(feed, self._stack.feed(feed).version))
            for partition, cut in enumerate(offsets):
                yield from log.changes(partition, cut, self._most_changes)

    @staticmethod
    def _append(writer: TransactionWriter, changes: Iterable[Change]) -> None:
        writer.begin_if_needed()
        for one in changes:
            writer.write_pairs(one.topic, one.keys, one.values, one.partition)

    # 6. land

    def _land(
        self,
        writer: TransactionWriter,
        spec: JobSpec,
        intent: Intent,
        before: Mapping[TaskId, Checkpoint],
        rest: Iterable[Change],
    ) -> None:
        if self._jobs.find(spec.name) is None:
            raise NotFound(f"job {spec.name!r} was removed by someone while it went back")
        self._append(writer, rest)
        writer.deliver_or_abort()
        outputs = self._outputs_now(before)
        points = [self._landing(spec, intent, before[task], outputs) for task in intent.targets]
        self._write_points(writer, spec.name, points)
        key, value = to_record(audit_of(spec.name, intent, before))
        writer.write_pairs(audit_name(self._stack.settings.name), [key], [value])
        writer.deliver_or_abort()
        writer.commit_delivered()

    def _landing(
        self, spec: JobSpec, intent: Intent, before: Checkpoint, outputs: Mapping[str, OutputPoint]
    ) -> Checkpoint:
        """Where a task goes on: the inputs of the target, and logs as they end now."""
        target = intent.targets[before.task]
        # What is redriven does not come a second time: dead letters are no part of the past of a feed.
        feeds = {one.feed for one in spec.inputs}
        kept = {feed: point for feed, point in before.inputs.items() if feed not in feeds}
        return replace(
            before,
            version=spec.version,
            number=before.number + 1,
            time_ms=time_ms(),
            inputs={**({} if target is None else target.inputs), **kept},
            stores=self._stores_now(spec, before.task),
            outputs=outputs,
            event_time_ms=None if target is None else target.event_time_ms,
            annotations={REWOUND_TO: intent.words, REWOUND_BY: intent.id, REWOUND_ASKED: intent.asked},
        )

    def _stores_now(self, spec: JobSpec, task: TaskId) -> dict[str, StorePoint]:
        stack = self._stack
        names = {one.name: changelog_name(stack.settings.name, spec.name, one.name) for one in spec.stores}
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


def _as_before(intent: Checkpoint) -> Checkpoint:
    """The commit that an intent stands on, once more."""
    return replace(intent, number=intent.number + 1, time_ms=time_ms(), annotations={})


def _busy(job: str) -> BadInput:
    return BadInput(
        f"job {job!r} is busy with another rewind, which somebody began just now",
        hint=f"`stack rewind {job}` brings that one to its end first.",
    )
