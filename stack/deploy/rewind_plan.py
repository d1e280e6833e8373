"""What a rewind would do, looked at beforehand: nothing is changed by making a plan."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from stack.connection import Stack
from stack.deploy.jobs import JobsFeed
from stack.deploy.rewind_intent import Intent, new_intent
from stack.deploy.rewinding import Look
from stack.engine.rewind import (
    Cut,
    Facts,
    Input,
    Move,
    OutputsChoice,
    Refusal,
    StateChoice,
    find_refusals,
    find_unclear,
    is_settled,
    may_be_first,
    output_cut,
)
from stack.errors import BadInput
from stack.machine import time_ms
from stack.model.checkpoint import Checkpoint
from stack.model.feed import Table
from stack.model.job import JobEntry, JobSpec, changelog_name
from stack.model.plan import TaskId, tasks_of
from stack.model.startpoint import JobStartpoint, Latest
from stack.offsets.index import CheckpointIndex, Row
from stack.offsets.points import Point, find_point

# Behind the point so many commits are looked at first for what they wrote at the same time.
_FIRST_LATER = 200
# What two cores read and write in a second, for an estimate.
_UNDO_PER_S, _AGAIN_PER_S, _START_S = 300_000, 50_000, 3.0


@dataclass(frozen=True)
class RewindPlan:
    """Where a job goes back to, and what that takes."""

    job: str
    version: str
    point: Point
    moves: Sequence[Move]
    cuts: Sequence[Cut]
    state: StateChoice
    outputs: OutputsChoice
    event_outputs: Sequence[str]
    downstream: Sequence[str]
    best_effort: bool = False

    @property
    def records(self) -> int:
        """Records that are read again, at most."""
        return sum(one.records for one in self.moves)

    @property
    def deltas(self) -> int:
        """Changes of state that are looked at, at most."""
        return 0 if self.state is StateChoice.KEEP else sum(one.deltas for one in self.moves)

    @property
    def seconds(self) -> float:
        """About how long until the job runs again, and has caught up."""
        touched = self.deltas + sum(one.span for one in self.cuts)
        return _START_S + touched / _UNDO_PER_S + self.records / _AGAIN_PER_S

    @property
    def id(self) -> str:
        """The same for the same plan; another one where what it goes to, or who goes, has changed."""
        targets = [f"{one.task}#{'-' if one.then is None else one.then.number}" for one in self.moves]
        text = " ".join([self.job, self.version, *targets, self.state, self.outputs])
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def intent(self, reason: str, asked: str = "") -> Intent:
        """What carries it out; `asked` is what the person typed."""
        targets = {one.task: one.then for one in self.moves}
        cuts = {one.feed: one.offsets for one in self.cuts}
        return new_intent(self.point.words, reason, self.state, targets, cuts, asked=asked)

    def as_json(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        return {
            "plan": self.id,
            "job": self.job,
            "version": self.version,
            "to": self.point.words,
            "time_ms": self.point.time_ms,
            "state": str(self.state),
            "outputs": str(self.outputs),
            "tasks": {
                str(one.task): {
                    "from": None if one.now is None else one.now.number,
                    "to": None if one.then is None else one.then.number,
                    "records": one.records,
                    "deltas": one.deltas,
                }
                for one in self.moves
            },
            "tables": {one.feed: one.span for one in self.cuts},
            "events": list(self.event_outputs),
            "downstream": list(self.downstream),
            "estimate_s": round(self.seconds, 1),
        }


@dataclass(frozen=True)
class Wanted:
    """What a person asks for."""

    startpoint: JobStartpoint
    state: StateChoice = StateChoice.THEN
    outputs: OutputsChoice = OutputsChoice.RESTORE
    best_effort: bool = False


def make_plan(stack: Stack, jobs: JobsFeed, index: CheckpointIndex, name: str, wanted: Wanted) -> RewindPlan:
    """The plan; BadInput with everything that speaks against it."""
    entry = jobs.get(name)
    spec = entry.spec
    if isinstance(wanted.startpoint, Latest):
        raise BadInput("latest is no point to go back to", hint=f"`stack offsets list {name}` shows some.")
    tasks = tasks_of(spec.partitions)
    point = find_point(index, name, tasks, wanted.startpoint, _divided_input(entry))
    now = {task: None if row is None else index.checkpoint(row) for task, row in _last(index, name, tasks)}
    moves = [Move(task, now[task], point.checkpoints[task]) for task in tasks]
    tables = [feed for feed in spec.outputs if stack.feed(feed).is_table]
    events = [feed for feed in spec.outputs if not stack.feed(feed).is_table]
    cuts = _cuts(stack, index, name, tables, point)
    facts = Facts(
        job=name,
        version=spec.version,
        moves=moves,
        horizon_ms=spec.settings.horizon_ms,
        now_ms=time_ms(),
        inputs=_inputs(stack, entry),
        cuts=cuts,
        event_outputs=events,
        stores=_stores(stack, entry),
        state=wanted.state,
        outputs=wanted.outputs,
        best_effort=wanted.best_effort,
        other_writers=_other_writers(jobs, name, tables),
        table_horizons=_horizons(stack, tables),
    )
    _refuse(name, point, list(find_refusals(facts)))
    return RewindPlan(
        name,
        spec.version,
        point,
        moves,
        cuts,
        wanted.state,
        wanted.outputs,
        events,
        downstream_of(jobs, name),
        wanted.best_effort,
    )


def look_again(stack: Stack, index: CheckpointIndex, plan: RewindPlan) -> Look:
    """What a rewind asks when all containers stand still: while they ran, more was written every moment."""

    def look(spec: JobSpec) -> dict[str, tuple[int, ...]]:
        if spec.version != plan.version:
            raise BadInput(
                f"job {plan.job!r} was deployed meanwhile: it is version {spec.version}, not {plan.version}",
                hint="Nothing was changed. Look at the plan again.",
            )
        index.refresh()
        cuts = _cuts(stack, index, plan.job, [one.feed for one in plan.cuts], plan.point)
        _refuse(plan.job, plan.point, list(find_unclear(cuts, plan.best_effort)))
        return {one.feed: one.offsets for one in cuts}

    return look


def _refuse(job: str, point: Point, refusals: Sequence[Refusal]) -> None:
    if refusals:
        raise BadInput(
            f"job {job!r} cannot go back to {point.words}: " + "; ".join(one.message for one in refusals),
            hint=" ".join(dict.fromkeys(one.hint for one in refusals)),
        )


def _last(index: CheckpointIndex, name: str, tasks: Sequence[TaskId]) -> list[tuple[TaskId, Row | None]]:
    return [(task, index.last(name, task)) for task in tasks]


def _divided_input(entry: JobEntry) -> str | None:
    divided = [one.feed for one in entry.spec.inputs if not one.broadcast]
    return divided[0] if len(divided) == 1 else None


def _inputs(stack: Stack, entry: JobEntry) -> dict[str, Input]:
    found = {}
    for one in entry.spec.inputs:
        topic = stack.topic_of(one.feed, stack.feed(one.feed).version)
        about = stack.admin.describe([topic]).get(topic)
        if about is not None:
            bounds = stack.admin.bounds(topic, range(about.partitions))
            found[one.feed] = Input(
                one.feed, topic, about.id, {number: (b.low, b.high) for number, b in bounds.items()}
            )
    return found


def _stores(stack: Stack, entry: JobEntry) -> dict[str, str]:
    names = {
        one.name: changelog_name(stack.settings.name, entry.spec.name, one.name) for one in entry.spec.stores
    }
    about = stack.admin.describe(list(names.values()))
    return {store: about[topic].id for store, topic in names.items() if topic in about}


def _horizons(stack: Stack, tables: Sequence[str]) -> dict[str, int]:
    found = {feed: stack.feed(feed).storage for feed in tables}
    return {feed: one.horizon_ms for feed, one in found.items() if isinstance(one, Table)}


def _other_writers(jobs: JobsFeed, name: str, tables: Sequence[str]) -> dict[str, str]:
    return {
        feed: other
        for other, entry in jobs.look()[0].items()
        if other != name
        for feed in entry.spec.outputs
        if feed in tables
    }


def downstream_of(jobs: JobsFeed, name: str) -> list[str]:
    """The jobs that read what this one writes, and those that read what they write, in order."""
    entries = jobs.look()[0]
    found: list[str] = []
    feeds = list(entries[name].spec.outputs) if name in entries else []
    while feeds:
        feed = feeds.pop(0)
        for other, entry in entries.items():
            if other != name and other not in found and feed in [one.feed for one in entry.spec.inputs]:
                found.append(other)
                feeds += entry.spec.outputs
    return found


def _cuts(stack: Stack, index: CheckpointIndex, name: str, tables: Sequence[str], point: Point) -> list[Cut]:
    """Where tables are cut; commits behind the point are looked at until none can matter any more."""
    if not tables:
        return []
    targets = point.checkpoints
    goes = [index.next_of(name, task, 0 if one is None else one.number) for task, one in targets.items()]
    start = min((row.at for row in goes if row is not None), default=None)
    later, firsts = _before(index, targets, start), _firsts(index, targets)
    stream = iter(()) if start is None else index.following(name, start)
    size = _FIRST_LATER
    while True:
        portion = list(islice(stream, size))
        later += portion
        cuts = [_cut(stack, feed, targets, later, firsts) for feed in tables]
        if not portion or is_settled(later, targets, cuts):
            return cuts
        size *= 2


def _before(
    index: CheckpointIndex, targets: Mapping[TaskId, Checkpoint | None], start: int | None
) -> list[Checkpoint]:
    """The targets that stand before the first commit that goes; everything else there stays as well."""
    places = [(index.offset_of(one), one) for one in targets.values() if one is not None]
    known = [
        (-1 if at is None else at, one) for at, one in places if at is None or start is None or at < start
    ]
    return [one for _, one in sorted(known, key=lambda pair: pair[0])]


def _firsts(index: CheckpointIndex, targets: Mapping[TaskId, Checkpoint | None]) -> set[TaskId]:
    """Tasks that may have come to their container just before the point."""
    found = set()
    for task, one in targets.items():
        if one is not None:
            row = index.numbered(one.job, task, one.number - 1)
            if may_be_first(one, None if row is None else row.slot):
                found.add(task)
    return found


def _cut(
    stack: Stack,
    feed: str,
    targets: Mapping[TaskId, Checkpoint | None],
    later: Sequence[Checkpoint],
    firsts: Collection[TaskId],
) -> Cut:
    spec = stack.feed(feed)
    topic = stack.topic_of(feed, spec.version)
    about = stack.admin.describe([topic])[topic]
    ends = stack.admin.ends(topic, range(about.partitions))
    now = [ends[number] for number in sorted(ends)]
    return output_cut(feed, now, targets, later, (topic, about.id), firsts=firsts)
