"""Random lives of a job, and rewinds in them: what it holds then must be what a plain replay says."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stack import Feed, Job
from stack.errors import BadInput
from stack.offsets.index import CheckpointIndex
from stack.testing import MemoryStack

State = dict[str, int]
Table = dict[str, int]
KEYS = "abcdef"
# More of them for whoever has changed something here.
EXAMPLES = int(os.environ.get("FEEDSTACK_HISTORIES", "60"))


def job_of(factor: int) -> Job:
    """Sums by user in a store and a table: zero deletes, and a large sum is told of its neighbour as well.

    `factor` is the code: another one writes other values, and some other keys.
    """
    job = Job("sum")

    @job.task(Feed("clicks"), store="sums")
    def add(click: dict[str, Any], ctx: Any) -> None:
        user, n = click["user"], click["n"]
        if n == 0:
            ctx.state.pop(user, None)
            ctx.emit("totals", None, key=user)
            return
        total = ctx.state.get(user, 0) + n * factor
        ctx.state[user] = total
        ctx.emit("totals", {"user": user, "total": total})
        if total % 5 == 0:
            ctx.emit("totals", {"user": f"{user}-{factor}", "total": total})

    return job


def replay(state: State, table: Table, clicks: Iterable[tuple[str, int]], factor: int) -> None:
    """The same without any of our code."""
    for user, n in clicks:
        if n == 0:
            state.pop(user, None)
            table.pop(user, None)
            continue
        state[user] = state.get(user, 0) + n * factor
        table[user] = state[user]
        if state[user] % 5 == 0:
            table[f"{user}-{factor}"] = state[user]


@dataclass
class Moment:
    """A place in the life of the job at which it stood still: what it held, and ways to say where that is."""

    clicks: int
    state: State
    table: Table
    ways: list[str]


@dataclass
class Life:
    """The job, and what it must hold."""

    stack: MemoryStack
    factor: int = 1
    clicks: list[tuple[str, int]] = field(default_factory=list)
    handled: int = 0
    state: State = field(default_factory=dict)
    table: Table = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    names: int = 0

    def click(self, clicks: list[tuple[str, int]]) -> None:
        self.clicks += clicks
        self.stack.write("clicks", *({"user": user, "n": n} for user, n in clicks))

    def run(self) -> None:
        self.stack.run()
        replay(self.state, self.table, self.clicks[self.handled :], self.factor)
        self.handled = len(self.clicks)
        self.check()
        self.note()

    def check(self) -> None:
        assert self.stack.state("sum", "sums") == self.state
        assert {key: one["total"] for key, one in self.stack.table("totals").items()} == self.table

    def note(self) -> None:
        """Remember this moment with its ways, the clock goes on so that it can be told by its time."""
        last = self.newest()
        ways = [f"{task}#{number}" for task, number in last.items()][:1]
        if last:
            self.names += 1
            self.stack.annotate("sum", f"point-{self.names}", number=str(self.names))
            ways += [f"@point-{self.names}", time_text(self.stack.clock.now_ms)]
        self.stack.clock.advance("1s")
        self.moments.append(Moment(self.handled, dict(self.state), dict(self.table), ways))

    def newest(self) -> dict[str, int]:
        """The number of each task's newest commit; the task that committed last comes first."""
        with CheckpointIndex(self.stack.connection, in_memory=True) as index:
            index.refresh()
            rows = [index.last("sum", task) for task in index.tasks("sum")]
        known = [row for row in rows if row is not None]
        return {str(row.task): row.number for row in sorted(known, key=lambda row: -row.at)}

    def deploy(self, factor: int) -> None:
        before = (self.state, self.table, self.handled)
        self.factor = factor
        self.stack.deploy(job_of(factor))
        version = self.stack.jobs["sum"].spec.version
        count = len(self.clicks)
        # The first commit of a version tells where it took over.
        self.click([("a", 1)])
        at = Moment(before[2], dict(before[0]), dict(before[1]), [f"v:{version}"])
        self.run()
        assert self.handled == count + 1
        if self.newest():
            self.moments.append(at)

    def rewind(self, moment: Moment, way: int, crash: int | None) -> None:
        to = moment.ways[way % len(moment.ways)]
        try:
            if not self.stack.rewind("sum", to, crash_at=crash):
                # Whoever cannot be sure repeats it: often enough it was over before.
                assert self.stack.rewind("sum", to)
        except BadInput as error:
            if "stands at that point already" not in error.message:
                raise
            return
        self.handled, self.state, self.table = moment.clicks, dict(moment.state), dict(moment.table)
        self.check()
        self.note()


def time_text(ms: int) -> str:
    from stack.model.startpoint import format_time

    return format_time(ms)


def life_of(partitions: int) -> Life:
    feeds: dict[str, dict[str, Any]] = {
        "clicks": {"schema": {"user": "string", "n": "long"}, "key": "user", "partitions": partitions},
        "totals": {
            "schema": {"user": "string", "total": "long"},
            "key": "user",
            "partitions": partitions,
            "table": True,
            "by": "sum",
            "inputs": ["clicks"],
        },
    }
    return Life(MemoryStack(feeds=feeds, jobs=[job_of(1)]))


clicks = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 4)), min_size=1, max_size=6)
steps = st.one_of(
    st.tuples(st.just("run"), clicks),
    st.tuples(st.just("run"), clicks),
    st.tuples(
        st.just("crash"), st.tuples(clicks, st.sampled_from(["outputs", "commit.flush", "commit.commit"]))
    ),
    st.tuples(st.just("lose"), st.none()),
    st.tuples(st.just("deploy"), st.integers(1, 3)),
    st.tuples(
        st.just("rewind"),
        st.tuples(st.integers(0, 30), st.integers(0, 2), st.one_of(st.none(), st.integers(1, 320))),
    ),
)


def do(life: Life, what: str, how: Any) -> None:
    match what:
        case "run":
            life.click(how)
            life.run()
        case "crash":
            life.click(how[0])
            # Nothing is written where all were deletions of what was not there.
            with contextlib.suppress(BadInput):
                life.stack.crash("sum", at=how[1])
            life.run()
        case "lose":
            life.stack.crash("sum", lose_disk=True)
        case "deploy":
            life.deploy(how)
        case "rewind":
            known = [one for one in life.moments if one.ways]
            if known:
                life.rewind(known[how[0] % len(known)], how[1], how[2])


@settings(
    max_examples=int(os.environ.get("FEEDSTACK_HISTORIES", "60")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.integers(1, 2), st.lists(steps, min_size=3, max_size=10))
def test_a_rewind_brings_back_what_a_plain_replay_says(
    partitions: int, history: list[tuple[str, Any]]
) -> None:
    life = life_of(partitions)
    with life.stack:
        for what, how in history:
            do(life, what, how)
        life.run()
