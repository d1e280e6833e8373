"""What a rewind would do, looked at beforehand: nothing is changed by making a plan."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stack.connection import Stack
from stack.deploy.jobs import JobsFeed
from stack.deploy.rewind_cuts import find_cuts
from stack.deploy.rewind_intent import Intent, new_intent
from stack.deploy.rewind_readable import Readable
from stack.deploy.rewinding import Look
from stack.engine.cascade import downstream
from stack.engine.rewind import Cut, Facts, Input, Move, OutputsChoice, Refusal, StateChoice, find_refusals
from stack.errors import BadInput, NotFound
from stack.machine import time_ms
from stack.model.checkpoint import Checkpoint
from stack.model.feed import Table
from stack.model.job import JobSpec, changelog_name
from stack.model.plan import TaskId, job_tasks
from stack.model.startpoint import JobStartpoint, Latest
from stack.offsets.index import CheckpointIndex
from stack.offsets.matching import matching_point
from stack.offsets.points import Point, find_point

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
    # Jobs that read its outputs and stay where they are.
    downstream: Sequence[str]
    wanted: Wanted
    # Where outputs of events end for those who go back with it; per input that it follows, where it is cut.
    event_cuts: Sequence[Cut] = ()
    gaps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    cascade: Sequence[RewindPlan] = ()

    @property
    def all_cuts(self) -> list[Cut]:
        return [*self.cuts, *self.event_cuts]

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
        own = _START_S + touched / _UNDO_PER_S + self.records / _AGAIN_PER_S
        return own + sum(one.seconds for one in self.cascade)

    @property
    def id(self) -> str:
        """The same for the same plan; another one where what it goes to, or who goes, has changed."""
        targets = [f"{one.task}#{'-' if one.then is None else one.then.number}" for one in self.moves]
        followers = [one.id for one in self.cascade]
        text = " ".join([self.job, self.version, *targets, self.state, self.outputs, *followers])
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def intent(self, reason: str, asked: str = "") -> Intent:
        """What carries it out; `asked` is what the person typed."""
        own = new_intent(self.point.words, reason, self.state, self._targets, self._offsets, asked=asked)
        intent = replace(own, leader=self.job)
        followers = {
            one.job: replace(
                intent,
                words=f"{one.point.words}, with {self.job}",
                state=one.state,
                targets=one._targets,
                cuts=one._offsets,
                gaps=one.gaps,
            )
            for one in self.cascade
        }
        return replace(intent, followers=followers)

    def refined(self, intent: Intent) -> Intent:
        """An intent with what this plan says of tables, and of the jobs that follow."""
        new = self.intent(intent.reason, intent.asked)
        followers = {job: replace(one, id=intent.id) for job, one in new.followers.items()}
        return replace(new, id=intent.id, by=intent.by, followers=followers)

    @property
    def _targets(self) -> dict[TaskId, Checkpoint | None]:
        return {one.task: one.then for one in self.moves}

    @property
    def _offsets(self) -> dict[str, tuple[int, ...]]:
        return {one.feed: one.offsets for one in self.cuts}

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
            "cascade": [one.as_json() for one in self.cascade],
            "estimate_s": round(self.seconds, 1),
        }


@dataclass(frozen=True)
class Wanted:
    """What a person asks for. With `cascade` the jobs that read its outputs go back, too."""

    startpoint: JobStartpoint
    state: StateChoice = StateChoice.THEN
    outputs: OutputsChoice = OutputsChoice.RESTORE
    best_effort: bool = False
    cascade: bool = False


def make_plan(stack: Stack, jobs: JobsFeed, index: CheckpointIndex, name: str, wanted: Wanted) -> RewindPlan:
    """The plan; BadInput with everything that speaks against it."""
    spec = jobs.get(name).spec
    if isinstance(wanted.startpoint, Latest):
        raise BadInput("latest is no point to go back to", hint=f"`stack offsets list {name}` shows some.")
    point = find_point(index, spec, wanted.startpoint)
    return _Planning(stack, jobs, index, wanted).plan(spec, point)


def look_again(stack: Stack, jobs: JobsFeed, index: CheckpointIndex, plan: RewindPlan) -> Look:
    """What a rewind asks when all containers stand still: while they ran, more was written every moment."""

    def look(specs: Mapping[str, JobSpec], intent: Intent) -> Intent:
        index.refresh()
        planning = _Planning(stack, jobs, index, plan.wanted)
        for one in (plan, *plan.cascade):
            planning.refuse_changed(one)
        return planning.plan(specs[plan.job], plan.point).refined(intent)

    return look


class _Planning:
    """Makes one plan, with everything that speaks against it."""

    def __init__(self, stack: Stack, jobs: JobsFeed, index: CheckpointIndex, wanted: Wanted) -> None:
        self._stack = stack
        self._jobs = jobs
        self._index = index
        self._wanted = wanted
        self._specs = {name: entry.spec for name, entry in jobs.look()[0].items()}
        self._refusals: list[tuple[str, Refusal]] = []

    def refuse_changed(self, plan: RewindPlan) -> None:
        """NotFound or BadInput if a job is no longer the one that was planned with."""
        now = self._specs.get(plan.job)
        if now is None:
            raise NotFound(f"job {plan.job!r} was removed meanwhile", hint="Nothing was changed.")
        if now.version != plan.version:
            raise BadInput(
                f"job {plan.job!r} was deployed meanwhile: it is version {now.version}, not {plan.version}",
                hint="Nothing was changed. Look at the plan again.",
            )

    def plan(self, spec: JobSpec, point: Point) -> RewindPlan:
        """The plan of the job that was asked for, and of those that go with it."""
        names = downstream(self._specs, spec.name)
        # What others read of it must be cut, too, if they go with it.
        followers = names if self._wanted.cascade else []
        plan = self._one(spec, point, followers, {})
        cuts: dict[str, tuple[int, ...]] = {cut.feed: cut.offsets for cut in plan.all_cuts}
        cascade = []
        for name in followers:
            own = self._specs[name]
            gaps = {one.feed: cuts[one.feed] for one in own.inputs if one.feed in cuts}
            then = matching_point(self._index, own, gaps, spec.name)
            cascade.append(self._one(own, then, followers, gaps))
            cuts |= {cut.feed: cut.offsets for cut in cascade[-1].all_cuts}
        _refuse(spec.name, point, self._refusals)
        return replace(plan, cascade=cascade, downstream=() if followers else names)

    def _one(
        self, spec: JobSpec, point: Point, followers: Sequence[str], gaps: Mapping[str, tuple[int, ...]]
    ) -> RewindPlan:
        stack, name = self._stack, spec.name
        inner = self._inner(spec)
        tables = [feed for feed in spec.outputs if stack.feed(feed).is_table]
        events = [feed for feed in spec.outputs if feed not in tables and feed not in inner]
        read = {one.feed for other in followers for one in self._specs[other].inputs}
        cuts = find_cuts(stack, self._index, name, [*tables, *(one for one in events if one in read)], point)
        moves = [
            Move(task, self._last(name, task), point.checkpoints[task], spec.inner_feeds)
            for task in job_tasks(spec)
        ]
        state = StateChoice.THEN if gaps else self._wanted.state
        facts = Facts(
            job=name,
            version=spec.version,
            moves=moves,
            horizon_ms=spec.settings.horizon_ms,
            now_ms=time_ms(),
            inputs=_inputs(stack, spec),
            cuts=cuts,
            event_outputs=events,
            stores=_stores(stack, spec),
            state=state,
            outputs=self._wanted.outputs,
            best_effort=self._wanted.best_effort,
            other_writers=self._other_writers(name, tables),
            table_horizons=_horizons(stack, tables),
            follows=bool(gaps),
        )
        refusals = list(find_refusals(facts))
        if not refusals:
            # Looked for only where everything else fits: it may take a while.
            readable = Readable(stack, self._jobs, spec, gaps, best_effort=self._wanted.best_effort)
            refusals += readable.refusals(moves, state)
        self._refusals += [(name, one) for one in refusals]
        return RewindPlan(
            name,
            spec.version,
            point,
            moves,
            [cut for cut in cuts if cut.feed in tables],
            state,
            self._wanted.outputs,
            events,
            (),
            self._wanted,
            [cut for cut in cuts if cut.feed in events],
            gaps,
        )

    def _inner(self, spec: JobSpec) -> list[str]:
        """Feeds that only the job's own stages read."""
        read = {
            one.feed for other, of_it in self._specs.items() if other != spec.name for one in of_it.inputs
        }
        return [feed for feed in spec.inner_feeds if feed not in read]

    def _last(self, name: str, task: TaskId) -> Checkpoint | None:
        row = self._index.last(name, task)
        return None if row is None else self._index.checkpoint(row)

    def _other_writers(self, name: str, tables: Sequence[str]) -> dict[str, str]:
        return {
            feed: other
            for other, spec in self._specs.items()
            if other != name
            for feed in spec.outputs
            if feed in tables
        }


def _refuse(job: str, point: Point, refusals: Sequence[tuple[str, Refusal]]) -> None:
    if not refusals:
        return
    said = "; ".join(
        one.message if name == job else f"job {name!r}, which goes with it: {one.message}"
        for name, one in refusals
    )
    raise BadInput(
        f"job {job!r} cannot go back to {point.words}: {said}",
        hint=" ".join(dict.fromkeys(one.hint for _, one in refusals)),
    )


def _inputs(stack: Stack, spec: JobSpec) -> dict[str, Input]:
    """The inputs that are read again."""
    found = {}
    for one in spec.inputs:
        if one.feed in spec.outputs:
            continue
        topic = stack.topic_of(one.feed, stack.feed(one.feed).version)
        about = stack.admin.describe([topic]).get(topic)
        if about is not None:
            bounds = stack.admin.bounds(topic, range(about.partitions))
            found[one.feed] = Input(
                one.feed, topic, about.id, {number: (b.low, b.high) for number, b in bounds.items()}
            )
    return found


def _stores(stack: Stack, spec: JobSpec) -> dict[str, str]:
    names = {one.name: changelog_name(stack.settings.name, spec.name, one.name) for one in spec.stores}
    about = stack.admin.describe(list(names.values()))
    return {store: about[topic].id for store, topic in names.items() if topic in about}


def _horizons(stack: Stack, tables: Sequence[str]) -> dict[str, int]:
    found = {feed: stack.feed(feed).storage for feed in tables}
    return {feed: one.horizon_ms for feed, one in found.items() if isinstance(one, Table)}
