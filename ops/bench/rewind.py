"""What going back costs: with much state of which little has changed, and a million commits to look in."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ops.bench.tasks_load import encode_views, user_name, write_all
from ops.cluster.temporary import temporary_stack
from ops.demo.counting import JOB
from stack.connection import Stack
from stack.deploy.deploy import deploy, prepare
from stack.deploy.operate import JobWatch, watch_jobs
from stack.deploy.rewind_plan import Wanted, look_again, make_plan
from stack.deploy.rewinding import Rewinding
from stack.deploy.watch import judge_running, too_late, wait
from stack.errors import ClusterFault
from stack.feeds.declare import read_declarations
from stack.feeds.plan import Allowed
from stack.kafka.writer import LogWriter
from stack.model.checkpoint import Checkpoint, InputPoint, OutputPoint, StorePoint, checkpoint_key
from stack.model.plan import TaskId
from stack.model.startpoint import AtAnnotation
from stack.offsets.checkpoints import checkpoint_partition, checkpoints_topic, last_checkpoints
from stack.offsets.codec import CheckpointDecoder, CheckpointEncoder, registered_id
from stack.offsets.index import CheckpointIndex
from stack.offsets.naming import name_point, where_it_stands
from stack.offsets.schemas import CHECKPOINT_SCHEMA
from stack.settings import Settings

PLAN_S, BACK_S, LOOK_UP_MS = 2.0, 10.0, 10.0
"""The bars: a plan, a job that runs again, and one commit found among a million."""

_LIMIT_S = 300.0
_BLOCK = 100_000
_TASKS = 8
_WHOLE = 20


@dataclass(frozen=True)
class RewindFigures:
    """Seconds from the command to the plan, and from there until all tasks run again."""

    keys: int
    changed: int
    plan_s: float
    undo_s: float
    back_s: float
    state_changes: int


@dataclass(frozen=True)
class IndexFigures:
    """How fast the index is built, and how long it takes to find one commit in it."""

    commits: int
    build_s: float
    look_up_ms: float
    record_ms: float


@contextmanager
def stage(say: Callable[[str], None]) -> Iterator[tuple[Settings, Stack]]:
    """A temporary stack with the feeds of the project."""
    with temporary_stack("bench", say) as settings, Stack.connect(settings) as stack:
        declarations = read_declarations(settings.schemas)
        applier = stack.applier
        applier.apply(declarations, applier.plan(declarations, Allowed()), lambda _: None)
        yield settings, stack


def measure_rewind(keys: int, changed: int, say: Callable[[str], None]) -> RewindFigures:
    """A job with `keys` keys, of which `changed` have changed since a point, goes back to it."""
    with stage(say) as (settings, stack), watch_jobs(stack) as watch:
        say(f"writing {keys:,} keys")
        for first in range(0, keys, _BLOCK):
            _write(stack, map(user_name, range(first, min(keys, first + _BLOCK))))
        spec = deploy(stack, Path(settings.root) / "jobs" / JOB).entry.spec
        _await_running(watch)
        _await_read(stack, spec.partitions)
        name_point(stack, spec, where_it_stands(stack, spec, is_still=False), "before", {}, by="bench")
        chance = random.Random(7)
        _write(stack, (user_name(number) for number in chance.sample(range(keys), changed)))
        _await_read(stack, spec.partitions)
        say("going back")
        began = time.monotonic()
        with CheckpointIndex(stack) as index:
            index.refresh()
            plan = make_plan(stack, watch.jobs, index, JOB, Wanted(AtAnnotation("before")))
            planned = time.monotonic()
            rewinding = Rewinding(stack, watch.jobs, lambda job: len(watch.look(job).reports))
            look = look_again(stack, watch.jobs, index, plan)
            landed = rewinding.carry_out(JOB, plan.intent("bench"), look)
        _await_running(watch)
        back = time.monotonic()
        _await_read(stack, spec.partitions)
    return RewindFigures(keys, changed, planned - began, landed.took_s, back - planned, landed.state_changes)


def _write(stack: Stack, users: Iterator[str]) -> None:
    write_all(stack, "page-views", encode_views(stack, "page-views", users))


def _await_running(watch: JobWatch) -> None:
    spec = watch.jobs.get(JOB).spec
    wait(
        lambda: watch.look(JOB),
        judge_running(spec),
        timeout_s=_LIMIT_S,
        show=lambda _: None,
        late=too_late(JOB, _LIMIT_S),
        clock=time.monotonic,
        sleep=time.sleep,
    )


def _await_read(stack: Stack, partitions: int) -> None:
    decode = CheckpointDecoder(stack.registry)
    ends = stack.admin.ends(stack.topic_of("page-views"), range(partitions))
    deadline = time.monotonic() + _LIMIT_S
    tasks = [TaskId("main", number) for number in range(partitions)]
    while time.monotonic() < deadline:
        points = last_checkpoints(stack, decode, JOB, tasks)
        read = {task.partition: one.inputs["page-views"].offsets for task, one in points.items()}
        if all(read.get(number, {}).get(number, 0) >= end for number, end in ends.items()):
            return
        time.sleep(0.2)
    raise ClusterFault(f"after {_LIMIT_S:.0f} s {JOB} has not read all of its input")


def measure_index(commits: int, say: Callable[[str], None]) -> IndexFigures:
    """So many commits of one job in the feed: the index is built, then asked for some of them."""
    with stage(say) as (settings, stack):
        spec = deploy(stack, Path(settings.root) / "jobs" / JOB).entry.spec
        prepare(stack, spec)
        say(f"writing {commits:,} commits")
        _write_commits(stack, commits)
        with CheckpointIndex(stack) as index:
            began = time.monotonic()
            index.refresh()
            build_s = time.monotonic() - began
            chance = random.Random(7)
            look_ups: list[float] = []
            records: list[float] = []
            for _ in range(200):
                task = TaskId("main", chance.randrange(_TASKS))
                moment = chance.randrange(commits // _TASKS)
                began = time.perf_counter()
                row = index.at_time("many", task, _NOW_MS + moment)
                looked = time.perf_counter()
                look_ups.append(looked - began)
                if row is None or row.time_ms != _NOW_MS + moment:
                    raise ClusterFault(f"the index does not find the commit of {task} at {moment}")
                if len(records) < _WHOLE:
                    found = index.checkpoint(row)
                    records.append(time.perf_counter() - looked)
                    if found.number != row.number:
                        raise ClusterFault("the index tells another commit than the feed")
    return IndexFigures(
        commits, build_s, statistics.median(look_ups) * 1000, statistics.median(records) * 1000
    )


_NOW_MS = time.time_ns() // 1_000_000


def _write_commits(stack: Stack, commits: int) -> None:
    topic = checkpoints_topic(stack.settings.name)
    encode = CheckpointEncoder(registered_id(stack.registry, topic, CHECKPOINT_SCHEMA))
    with LogWriter(stack.access) as writer:
        keys, values = [], []
        for number in range(commits):
            task = TaskId("main", number % _TASKS)
            turn = number // _TASKS
            point = Checkpoint(
                "many",
                task,
                "c91f1416725b",
                turn + 1,
                _NOW_MS + turn,
                {"views": InputPoint("views", "x" * 22, _TASKS, {task.partition: turn})},
                {"counts": StorePoint("bench.many.counts.changelog", "y" * 22, turn)},
                {"counts": OutputPoint("counts", "z" * 22, [turn] * _TASKS)},
            )
            keys.append(checkpoint_key("many", task))
            values.append(encode(point))
            if len(keys) == 10_000 or number == commits - 1:
                writer.write_pairs(topic, keys, values, checkpoint_partition("many"))
                keys, values = [], []
        writer.flush()
