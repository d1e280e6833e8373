"""Rewinds of jobs with several stages, and of jobs downstream with them: with and without --cascade, killed
anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stack import BadInput, Feed, Job, NotFound
from stack.deploy.jobs import jobs_feed
from stack.machine import steered_by
from stack.offsets.audit import read_audit
from stack.testing import JobFailed, MemoryStack
from stack.testing.points import REWIND_POINTS
from tests.unit.stage_world import FEEDS, click, paging, seen, watching

FIRST, SECOND = "a1 b1 a2 c1", "c3 a1 b2 d1 a4"


class World:
    """A job of two stages with a named point behind it, and one that reads it."""

    def __init__(self) -> None:
        self.stack = MemoryStack(feeds=FEEDS, jobs=[paging(), watching()])
        self._go(FIRST)
        self.stack.clock.advance("1s")
        self.stack.annotate("pages", "then")
        self.then, self.watched_then = seen(self.stack), self.watched()
        self.stack.clock.advance("1s")
        self._go(SECOND)
        self.now, self.watched_now = seen(self.stack), self.watched()
        self.stack.clock.advance("1s")

    def _go(self, text: str) -> None:
        click(self.stack, text)
        self.stack.run()

    def watched(self) -> tuple[dict[str, int], dict[str, Any]]:
        """State and table of the job downstream."""
        return self.stack.state("watch", "seen"), self.stack.table("totals")


@pytest.fixture
def world() -> Iterator[World]:
    one = World()
    with one.stack, steered_by(one.stack._machine):
        yield one


def test_all_stages_go_back_together_and_catch_up(world: World) -> None:
    assert world.stack.rewind("pages", "@then")
    assert seen(world.stack) == world.then
    world.stack.run()
    assert seen(world.stack) == world.now


def test_without_cascade_the_job_downstream_sees_corrections_as_updates(world: World) -> None:
    world.stack.rewind("pages", "@then")
    world.stack.run()
    assert seen(world.stack) == world.now
    state, table = world.watched()
    assert {page: row["last"] for page, row in table.items()} == world.now[2]
    assert sum(state.values()) > sum(world.watched_now[0].values())


def test_with_cascade_it_goes_back_to_the_matching_cut(world: World) -> None:
    assert world.stack.rewind("pages", "@then", cascade=True)
    assert (seen(world.stack), world.watched()) == (world.then, world.watched_then)
    world.stack.run()
    assert (seen(world.stack), world.watched()) == (world.now, world.watched_now)
    entries = {entry.job: entry for entry in read_audit(world.stack.connection)}
    assert entries["pages"].after["cascade"] == ["watch"]
    assert entries["watch"].after["with"] == "pages"


def test_a_cascade_with_changed_code_is_as_if_it_had_always_been_so(world: World) -> None:
    world.stack.deploy(paging(step=10))
    world.stack.rewind("pages", "@then", cascade=True)
    world.stack.run()
    with MemoryStack(feeds=FEEDS, jobs=[paging(), watching()]) as other:
        click(other, FIRST)
        other.run()
        other.deploy(paging(step=10))
        click(other, SECOND)
        other.run()
        assert seen(world.stack) == seen(other)
        assert world.watched() == (other.state("watch", "seen"), other.table("totals"))


def test_cascades_one_after_the_other(world: World) -> None:
    """What is passed over adds up, and a point before an earlier cascade is still a point."""
    world.stack.annotate("pages", "later")
    for to in ("@then", "@later", "@then"):
        if to == "@later":
            world.stack.run()
        world.stack.clock.advance("1s")
        world.stack.rewind("pages", to, cascade=True)
    assert (seen(world.stack), world.watched()) == (world.then, world.watched_then)
    world.stack.run()
    assert (seen(world.stack), world.watched()) == (world.now, world.watched_now)


def test_a_job_downstream_that_has_read_nothing_of_it_passes_over_it_all_the_same() -> None:
    with MemoryStack(feeds=FEEDS, jobs=[paging()]) as stack:
        click(stack, FIRST)
        stack.run()
        stack.annotate("pages", "then")
        stack.clock.advance("1s")
        click(stack, SECOND)
        stack.run()
        stack.clock.advance("1s")
        stack.deploy(watching())
        stack.rewind("pages", "@then", cascade=True)
        stack.run()
        updates = {page: row["updates"] for page, row in stack.table("totals").items()}
        # As many as there are counts: corrections and what was undone are not among them.
        assert updates == seen(stack)[2]


@pytest.mark.parametrize("point", REWIND_POINTS)
def test_a_cascade_that_is_killed_at_a_point_is_brought_to_its_end(world: World, point: str) -> None:
    assert not world.stack.rewind("pages", "@then", cascade=True, crash_at=point)
    assert world.stack.rewind("pages", "@then", cascade=True)
    assert (seen(world.stack), world.watched()) == (world.then, world.watched_then)
    jobs = jobs_feed(world.stack.connection)
    assert [jobs.get(name).rewind for name in ("pages", "watch")] == [None, None]
    world.stack.run()
    assert (seen(world.stack), world.watched()) == (world.now, world.watched_now)


@pytest.mark.parametrize("point", ["rewind.intent", "rewind.undo", "rewind.land"])
def test_whoever_follows_does_not_begin_before_its_end_and_may_bring_it_there(
    world: World, point: str
) -> None:
    world.stack.rewind("pages", "@then", cascade=True, crash_at=point)
    with pytest.raises(JobFailed, match="a rewind of job 'watch' is not done yet"):
        world.stack.jobs["watch"].settle()
    # Asked of the one that follows, the whole is brought to its end.
    assert world.stack.rewind("watch")
    assert (seen(world.stack), world.watched()) == (world.then, world.watched_then)
    world.stack.run()
    assert (seen(world.stack), world.watched()) == (world.now, world.watched_now)


@pytest.mark.parametrize("point", ["rewind.mark", "rewind.fence"])
def test_one_that_follows_goes_on_if_nothing_was_done_yet(world: World, point: str) -> None:
    world.stack.rewind("pages", "@then", cascade=True, crash_at=point)
    assert world.stack.rewind("pages" if point == "rewind.mark" else "watch")
    world.stack.run()
    assert (seen(world.stack), world.watched()) == (world.now, world.watched_now)


def test_every_request_of_a_cascade_may_be_the_last(world: World) -> None:
    """Killed at each of its requests in turn, and repeated each time."""
    number, killed = 1, 0
    while not world.stack.rewind("pages", "@then", cascade=True, crash_at=number):
        number += 3
        killed += 1
    assert killed > 10
    assert (seen(world.stack), world.watched()) == (world.then, world.watched_then)
    world.stack.run()
    assert (seen(world.stack), world.watched()) == (world.now, world.watched_now)


def test_a_time_means_the_last_moment_before_at_which_all_stood_still(world: World) -> None:
    assert world.stack.rewind("pages", "-100ms")
    (entry,) = read_audit(world.stack.connection)
    assert entry.after["to"].startswith("@then, where all stages stood still last before ")
    assert seen(world.stack) == world.then


def test_a_time_before_every_such_moment_is_refused_with_those_there_are(world: World) -> None:
    with pytest.raises(NotFound, match="has several stages, and none of its points up to") as told:
        world.stack.rewind("pages", "main-0#1")
    assert "@then" in told.value.hint
    assert "stack offsets annotate pages" in told.value.hint
    assert seen(world.stack) == world.now


def test_oldest_is_before_everything(world: World) -> None:
    assert world.stack.rewind("pages", "oldest", cascade=True)
    assert seen(world.stack) == ({}, {}, {})
    assert world.watched() == ({}, {})
    world.stack.run()
    assert (seen(world.stack), world.watched()) == (world.now, world.watched_now)


def test_what_is_left_between_stages_makes_a_point_that_is_none(world: World) -> None:
    """The second stage fails at a page: what the first one has written stays between them."""
    stack = world.stack
    stack.deploy(paging(bad="9"))
    click(stack, "z9")
    with pytest.raises(JobFailed, match="page 9"):
        stack.run()
    stack.clock.advance("1s")
    stack.annotate("pages", "between")
    stack.deploy(paging())
    stack.run()
    stack.clock.advance("1s")
    stack.rewind("pages", "@between")
    (entry,) = read_audit(stack.connection)
    assert entry.after["to"] == "@then, where all stages stood still last before @between"
    assert seen(stack) == world.then


def test_events_downstream_must_be_allowed_and_are_named() -> None:
    feeds = {**FEEDS, "alarms": {"schema": {"page": "string"}, "by": "alarm", "inputs": ["per-page"]}}
    job = Job("alarm")

    @job.task(Feed("per-page"))
    def alarm(value: Any, ctx: Any) -> None:
        ctx.emit("alarms", {"page": ctx.key})

    with MemoryStack(feeds=feeds, jobs=[paging(), job]) as stack:
        click(stack, FIRST)
        stack.run()
        stack.annotate("pages", "then")
        stack.clock.advance("1s")
        click(stack, SECOND)
        stack.run()
        stack.clock.advance("1s")
        with pytest.raises(
            BadInput, match="job 'alarm', which goes with it: the job writes events to alarms"
        ):
            stack.rewind("pages", "@then", cascade=True)
        assert stack.rewind("pages", "@then", cascade=True, outputs="append")
        before = len(stack.values("alarms"))
        stack.run()
        assert len(stack.values("alarms")) == before + len(SECOND.split())


PAIRS = st.lists(st.sampled_from(["a1", "a2", "b1", "b3", "c2", "d1"]), max_size=6).map(" ".join)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("click"), PAIRS),
        st.tuples(st.just("name"), st.sampled_from(["one", "two"])),
        st.tuples(st.just("rewind"), st.sampled_from(["one", "two"])),
        st.tuples(st.just("cascade"), st.sampled_from(["one", "two"])),
        st.tuples(st.just("killed"), st.integers(1, 150)),
        st.tuples(st.just("crash"), st.sampled_from(["pages", "watch"])),
    ),
    min_size=3,
    max_size=14,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ACTS)
def test_random_histories_end_as_a_plain_run(acts: list[tuple[str, Any]]) -> None:
    """Whatever is named, gone back to, killed and crashed: in the end all has been counted once."""
    clicks: list[str] = []
    named: set[str] = set()
    plain = True
    with MemoryStack(feeds=FEEDS, jobs=[paging(), watching()]) as stack:
        click(stack, "a1")
        stack.run()
        clicks.append("a1")
        for act, value in acts:
            stack.clock.advance("1s")
            if act == "click":
                click(stack, value)
                clicks.append(value)
                stack.run()
            elif act == "name":
                stack.annotate("pages", value)
                named.add(value)
            elif act in ("rewind", "cascade") and value in named:
                plain = plain and act == "cascade"
                _go_back(stack, value, cascade=act == "cascade")
            elif act == "killed" and named:
                _go_back(stack, min(named), cascade=True, crash_at=value)
            elif act == "crash":
                stack.crash(value)
        stack.run()
        expected = _counted(" ".join(clicks))
        assert seen(stack) == expected
        table = stack.table("totals")
        assert {page: row["last"] for page, row in table.items()} == expected[2]
        if plain:
            assert {page: row["updates"] for page, row in table.items()} == expected[2]


def _go_back(stack: MemoryStack, name: str, *, cascade: bool, crash_at: int | None = None) -> None:
    try:
        if not stack.rewind("pages", f"@{name}", cascade=cascade, crash_at=crash_at):
            stack.rewind("pages", f"@{name}", cascade=cascade)
    except BadInput as error:
        if "stands at that point already" not in error.message:
            raise


def _counted(text: str) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    users: dict[str, int] = {}
    pages: dict[str, int] = {}
    for pair in text.split():
        users[pair[0]] = users.get(pair[0], 0) + 1
        pages[pair[1]] = pages.get(pair[1], 0) + 1
    return dict(sorted(users.items())), dict(sorted(pages.items())), pages
