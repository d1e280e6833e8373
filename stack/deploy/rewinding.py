"""Brings a job back to a point: inputs, state and table outputs together.

A rewind that was cut off anywhere is simply asked for again. Its steps:

1. mark     the entry in the jobs feed says that a rewind is under way: the runner stops the containers
2. fence    every slot's transactional id is taken over: nobody commits any more
3. intent   each task's newest checkpoint says what is under way, and where to: nobody opens the task
4. undo     what stores and tables held at the point is appended to their logs, in transactions
5. land     the last of these also has the checkpoints of all tasks, which take the place of the intent,
            and the entry in the audit feed
6. go on    the mark is taken away: the runner starts the containers

Before 5 a container that opens a task finds the intent and leaves; after it, it finds the checkpoint, and
its store catches up with what was appended. Intents are written until nobody has committed since: a
container that was started by a runner which had not heard of it yet is fenced, and its commit counts.
"""

from __future__ import annotations

import base64
import contextlib
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stack.connection import Stack
from stack.deploy.audit import AuditEntry, audit_name, audit_plan, person, to_record
from stack.deploy.jobs import JobsFeed
from stack.deploy.topics import ensure_topics
from stack.engine.rewind import StateChoice
from stack.errors import BadInput, LostOwnership
from stack.kafka.transactions import TransactionWriter
from stack.kafka.writer import LogWriter
from stack.machine import monotonic, sleep, time_ms
from stack.model.checkpoint import REWIND, Checkpoint, OutputPoint, StorePoint, checkpoint_key
from stack.model.job import JobEntry, JobSpec, changelog_name, transactional_id
from stack.model.plan import TaskId, tasks_of
from stack.offsets.checkpoints import checkpoint_partition, checkpoints_topic, last_checkpoints
from stack.offsets.codec import CheckpointDecoder, CheckpointEncoder, registered_id
from stack.offsets.schemas import CHECKPOINT_SCHEMA
from stack.offsets.undo import LogUndo

_TRIES = 20
# So many changes go into one transaction: it must end long before its time limit.
_MOST_CHANGES = 200_000
_STOP_S, _LOOK_S = 30.0, 0.1
_SLOT = -1

Say = Callable[[str], None]


@dataclass(frozen=True)
class Intent:
    """What a rewind is about to do; each task's newest checkpoint carries it while it is under way."""

    id: str
    words: str
    by: str
    reason: str
    state: StateChoice
    targets: Mapping[TaskId, Checkpoint | None]
    # Per table output the offsets at which its partitions are cut.
    cuts: Mapping[str, tuple[int, ...]]

    def to_text(self, task: TaskId, encode: CheckpointEncoder) -> str:
        """What the checkpoint of one task carries."""
        target = self.targets[task]
        packed = None if target is None else base64.b64encode(encode(target)).decode()
        return json.dumps(
            {
                "id": self.id,
                "to": self.words,
                "by": self.by,
                "reason": self.reason,
                "state": str(self.state),
                "target": packed,
                "cuts": {feed: list(offsets) for feed, offsets in self.cuts.items()},
            }
        )


def new_intent(
    words: str,
    reason: str,
    state: StateChoice,
    targets: Mapping[TaskId, Checkpoint | None],
    cuts: Mapping[str, tuple[int, ...]],
) -> Intent:
    """The intent of whoever runs this, under an id of its own."""
    return Intent(uuid.uuid4().hex[:12], words, person(), reason, state, targets, cuts)


def intent_of(points: Mapping[TaskId, Checkpoint], decode: CheckpointDecoder) -> Intent | None:
    """The rewind that these newest checkpoints say is under way."""
    texts = {task: point.annotations[REWIND] for task, point in points.items() if REWIND in point.annotations}
    if not texts:
        return None
    trees: dict[TaskId, dict[str, Any]] = {task: json.loads(text) for task, text in texts.items()}
    tree = next(iter(trees.values()))
    return Intent(
        tree["id"],
        tree["to"],
        tree["by"],
        tree["reason"],
        StateChoice(tree["state"]),
        {
            task: None if one["target"] is None else decode(base64.b64decode(one["target"]))
            for task, one in trees.items()
        },
        {feed: tuple(offsets) for feed, offsets in tree["cuts"].items()},
    )


@dataclass(frozen=True)
class Landed:
    """What a rewind has done: changes of state and of tables that it appended, and how long it took."""

    intent: Intent
    state_changes: int
    output_changes: int
    took_s: float


class Rewinding:
    """Carries an intent out. `reports` tells which containers of the job are still to be seen."""

    def __init__(
        self,
        stack: Stack,
        jobs: JobsFeed,
        reports: Callable[[], int],
        say: Say = lambda _: None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._stack = stack
        self._jobs = jobs
        self._reports = reports
        self._say = say
        self._clock = clock
        # How many changes the open transaction has.
        self._open_changes = 0
        self._topic = checkpoints_topic(stack.settings.name)
        self._encode = CheckpointEncoder(registered_id(stack.registry, self._topic, CHECKPOINT_SCHEMA))
        self._decode = CheckpointDecoder(stack.registry)

    def pending(self, spec: JobSpec) -> Intent | None:
        """The rewind of a job that was begun and not brought to its end."""
        return intent_of(self._newest(spec), self._decode)

    def carry_out(self, entry: JobEntry, intent: Intent) -> Landed:
        """All steps; what an earlier try has done is not done again."""
        began = self._clock()
        spec = entry.spec
        name = spec.name
        ensure_topics(self._stack.admin, [audit_plan(self._stack.settings.name)])
        self._mark(name, intent)
        self._say(f"stopping the containers of {name}")
        self._await_stop()
        with contextlib.closing(TransactionWriter(self._stack.access, self._id(name))) as writer:
            writer.init_transactions()
            before = self._write_intent(writer, spec, intent)
            self._say("bringing state and tables back")
            state, outputs = self._undo(writer, spec, intent)
            self._land(writer, spec, intent, before)
        self._jobs.update(name, lambda one: one and _without_mark(one, intent.id))
        return Landed(intent, state, outputs, self._clock() - began)

    def _id(self, job: str) -> str:
        return f"{self._stack.settings.name}.{job}.rewind"

    def _newest(self, spec: JobSpec) -> dict[TaskId, Checkpoint]:
        return last_checkpoints(self._stack, self._decode, spec.name, tasks_of(spec.partitions))

    # 1. mark

    def _mark(self, name: str, intent: Intent) -> None:
        words = f"to {intent.words}, {intent.id}"

        def change(one: JobEntry | None) -> JobEntry | None:
            if one is None or (one.rewind is not None and intent.id not in one.rewind):
                return one
            return replace(one, rewind=words)

        entry = self._jobs.update(name, change)
        if entry is None:
            raise LostOwnership(f"job {name!r} was removed by someone just now")
        if entry.rewind != words:
            raise BadInput(
                f"job {name!r} is busy with another rewind ({entry.rewind})",
                hint=f"`stack rewind {name}` brings that one to its end first.",
            )

    def _await_stop(self) -> None:
        """A last commit of each container loses nothing; one that does not come is fenced."""
        deadline = self._clock() + _STOP_S
        while self._reports() and self._clock() < deadline:
            sleep(_LOOK_S)

    # 2. fence, 3. intent

    def _fence(self, spec: JobSpec) -> None:
        for slot in range(spec.partitions):
            with LogWriter(
                self._stack.access, transactional_id(self._stack.settings.name, spec.name, slot)
            ) as writer:
                writer.init_transactions()

    def _write_intent(
        self, writer: TransactionWriter, spec: JobSpec, intent: Intent
    ) -> dict[TaskId, Checkpoint]:
        """Until every task's newest checkpoint is the intent, and nobody is left who could write another."""
        for _ in range(_TRIES):
            self._fence(spec)
            newest = self._newest(spec)
            if newest.keys() == intent.targets.keys() and all(map(_is_intent, newest.values())):
                return newest
            ends = self._outputs_now(newest)
            points = [
                self._intent_point(spec, intent, task, newest.get(task), ends) for task in intent.targets
            ]
            writer.begin_if_needed()
            self._write_points(writer, spec.name, points)
            writer.deliver_or_abort()
            writer.commit_delivered()
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
            return Checkpoint(spec.name, task, spec.version, 1, now_ms, {}, annotations=said, slot=_SLOT)
        return replace(
            newest,
            number=newest.number + 1,
            time_ms=now_ms,
            annotations=said,
            slot=_SLOT,
            attempt=0,
            outputs=outputs,
        )

    def _write_points(self, writer: LogWriter, job: str, points: list[Checkpoint]) -> None:
        keys = [checkpoint_key(job, one.task) for one in points]
        writer.write_pairs(self._topic, keys, list(map(self._encode, points)), checkpoint_partition(job))

    # 4. undo

    def _undo(self, writer: TransactionWriter, spec: JobSpec, intent: Intent) -> tuple[int, int]:
        """Append what is needed; what is left of it in the open transaction goes with the landing."""
        state = outputs = 0
        if intent.state is not StateChoice.KEEP:
            for store in spec.stores:
                log = LogUndo(self._stack, changelog_name(self._stack.settings.name, spec.name, store.name))
                for task, target in intent.targets.items():
                    point = None if target is None else target.stores.get(store.name)
                    cut = 0 if point is None else point.end
                    is_empty = intent.state is StateChoice.EMPTY
                    state += self._append(writer, log, task.partition, cut, is_empty)
        for feed, offsets in intent.cuts.items():
            log = LogUndo(self._stack, self._stack.topic_of(feed, self._stack.feed(feed).version))
            for partition, cut in enumerate(offsets):
                outputs += self._append(writer, log, partition, cut, False)
        return state, outputs

    def _append(
        self, writer: TransactionWriter, log: LogUndo, partition: int, cut: int, is_empty: bool
    ) -> int:
        count = 0
        for one in log.passes(partition, cut, empty=is_empty):
            keys, values = list(one.changes), list(one.changes.values())
            for start in range(0, len(keys), _MOST_CHANGES):
                part = slice(start, start + _MOST_CHANGES)
                writer.begin_if_needed()
                writer.write_pairs(one.topic, keys[part], values[part], partition)
                self._open_changes += len(keys[part])
                if self._open_changes >= _MOST_CHANGES:
                    writer.deliver_or_abort()
                    writer.commit_delivered()
                    self._open_changes = 0
            count += len(keys)
        return count

    # 5. land

    def _land(
        self, writer: TransactionWriter, spec: JobSpec, intent: Intent, before: Mapping[TaskId, Checkpoint]
    ) -> None:
        writer.begin_if_needed()
        writer.deliver_or_abort()
        outputs = self._outputs_now(before)
        points = [self._landing(spec, intent, before[task], outputs) for task in intent.targets]
        self._write_points(writer, spec.name, points)
        key, value = to_record(_audit(spec, intent, before))
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
            annotations={"rewound-to": intent.words, "rewound-by": intent.id},
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


def _is_intent(point: Checkpoint) -> bool:
    return REWIND in point.annotations


def _without_mark(entry: JobEntry, rewind: str) -> JobEntry:
    done = entry.rewind is not None and rewind in entry.rewind
    # A try of its own: what a runner said before is not about this.
    return replace(entry, rewind=None, try_number=entry.try_number + 1) if done else entry


def _audit(spec: JobSpec, intent: Intent, before: Mapping[TaskId, Checkpoint]) -> AuditEntry:
    def told(points: Mapping[TaskId, Checkpoint | None]) -> dict[str, Any]:
        return {
            str(task): None
            if one is None
            else {
                "number": one.number,
                "version": one.version,
                "inputs": {
                    feed: {str(number): offset for number, offset in point.offsets.items()}
                    for feed, point in one.inputs.items()
                },
            }
            for task, one in points.items()
        }

    return AuditEntry(
        "rewind",
        spec.name,
        intent.by,
        time_ms(),
        intent.reason,
        before=told(before),
        after={
            "to": intent.words,
            "id": intent.id,
            "state": str(intent.state),
            "tasks": told(intent.targets),
        },
    )
