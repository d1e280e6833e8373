"""The judge of freshness on a Kafka that is told by hand: jobs, quiet sources, alarms that outlive it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from stack.deploy.freshness import FreshnessJudge
from stack.errors import NotFound
from stack.model.feed import Events, FeedSpec, FreshnessOf, Kind
from stack.model.freshness import FreshnessState
from stack.model.job import CodePlace, InputSpec, JobEntry, JobSettings, JobSpec, entry_to_json
from stack.model.ledger import MemoryLedger
from stack.model.place import Place

MINUTE_MS = 60_000
INPUTS = (InputSpec("views"), InputSpec("users", broadcast=True))
SPEC = JobSpec("count", "v1", INPUTS, ("counts",), (), JobSettings(), 2, CodePlace("", 0, 0, 0))


def feed(name: str, kind: Kind, **more: Any) -> FeedSpec:
    return FeedSpec(name, kind, "x", "web", "x.avsc", 2, Events(None), **more)


class World:
    """A stack of one job, as the judge sees it."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.ends: dict[Place, int] = {("views", 0): 10, ("views", 1): 10, ("users", 0): 99, ("users", 1): 99}
        self.committed: dict[Place, int] = {("views", 0): 10, ("views", 1): 10}
        self.newest_ms: int | None = None
        self.feeds = {
            "views": feed("views", Kind.SOURCE, freshness_ms=MINUTE_MS),
            "users": feed("users", Kind.SOURCE),
            "counts": feed(
                "counts", Kind.DERIVED, by="count", freshness_ms=1_000, freshness_window_ms=10_000
            ),
        }
        ledger = MemoryLedger({"count": json.dumps(entry_to_json(JobEntry(SPEC)))})
        admin = SimpleNamespace(
            committed=lambda group: dict(self.committed) if group == "s.count.main" else {},
            all_ends=self.ends_of,
            stable_ends=self.ends_of,
            newest_ms=lambda _: self.newest_ms,
        )
        self.stack: Any = SimpleNamespace(
            settings=SimpleNamespace(name="s"),
            catalogue=SimpleNamespace(feeds=lambda: dict(self.feeds)),
            ledger=lambda _: ledger,
            admin=admin,
            topic_of=lambda name, _version=1: name,
        )
        self.jobs = ledger

    def ends_of(self, places: Iterable[Place]) -> dict[Place, int]:
        wanted = list(places)
        if not wanted or set(wanted) - self.ends.keys():
            raise NotFound(f"nobody has {wanted}")
        return {place: self.ends[place] for place in wanted}

    def judge(self, *alarmed: str) -> FreshnessJudge:
        return FreshnessJudge(self.stack, alarmed, lambda: self.now_ms)


@pytest.fixture
def world() -> World:
    return World()


def state_after(world: World, judge: FreshnessJudge, seconds: int) -> FreshnessState:
    """Look every second for so long."""
    for _ in range(seconds):
        world.now_ms += 1_000
        judge.look()
    return judge.look().feeds["counts"].state


def test_only_feeds_with_something_to_judge_are_judged(world: World) -> None:
    looked = world.judge().look()
    assert list(looked.feeds) == ["counts"]
    assert {(one.feed, one.partition, one.records) for one in looked.lags["count"]} == {
        ("views", 0, 0),
        ("views", 1, 0),
    }


def test_a_job_that_stands_still_makes_its_feed_stale_once_records_come(world: World) -> None:
    judge = world.judge()
    assert state_after(world, judge, 100) is FreshnessState.FRESH
    world.ends["views", 1] = 15
    assert state_after(world, judge, 2) is FreshnessState.FRESH
    assert state_after(world, judge, 2) is FreshnessState.STALE
    assert state_after(world, judge, 6) is FreshnessState.ALARM
    one = judge.look().feeds["counts"]
    assert (one.staleness_ms, judge.look().lags["count"][1].records) == (9_000, 5)
    world.committed["views", 1] = 15
    assert state_after(world, judge, 5) is FreshnessState.ALARM
    assert state_after(world, judge, 5) is FreshnessState.FRESH


def test_an_alarm_outlives_the_judge(world: World) -> None:
    judge = world.judge("counts")
    assert judge.look().feeds["counts"].state is FreshnessState.ALARM
    assert state_after(world, judge, 5) is FreshnessState.ALARM
    assert state_after(world, judge, 5) is FreshnessState.FRESH


def test_what_waited_before_the_judge_came_is_dated_by_its_own_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FreshnessJudge, "_time_of", lambda *_: world.now_ms - 3_000)
    world.committed["views", 0] = 4
    assert world.judge().look().feeds["counts"].staleness_ms == 3_000


def test_a_job_that_is_not_there_is_no_alarm(world: World) -> None:
    world.jobs.update(lambda _: {"count": None})
    one = world.judge().look().feeds["counts"]
    assert (one.state, one.staleness_ms, one.why) == (
        FreshnessState.UNKNOWN,
        None,
        "job 'count' is not deployed",
    )


def test_a_topic_that_is_gone_is_told_of_its_own_feed_only(world: World) -> None:
    del world.ends["views", 0]
    world.feeds["users"] = feed("users", Kind.SOURCE, freshness_ms=1_000, freshness_of=FreshnessOf.RECORDS)
    world.newest_ms = world.now_ms - 400
    looked = world.judge().look()
    assert looked.feeds["counts"].why.startswith("nobody has")
    assert looked.feeds["users"].staleness_ms == 400
    assert looked.lags == {}


def test_a_source_that_must_not_be_quiet_is_judged_by_its_records(world: World) -> None:
    world.feeds["views"] = feed(
        "views",
        Kind.SOURCE,
        freshness_ms=5_000,
        freshness_window_ms=10_000,
        freshness_of=FreshnessOf.RECORDS,
    )
    judge = world.judge()
    assert judge.look().feeds["views"].why == "it has no record yet"
    world.newest_ms = world.now_ms - 7_000
    judge = world.judge()
    assert judge.look().feeds["views"].staleness_ms == 7_000
    world.ends["views", 0] += 1
    world.now_ms += 1_000
    assert judge.look().feeds["views"].staleness_ms == 0
    world.now_ms += 4_000
    assert judge.look().feeds["views"].staleness_ms == 4_000


def test_a_changed_objective_is_judged_anew(world: World) -> None:
    judge = world.judge("counts")
    assert judge.look().feeds["counts"].state is FreshnessState.ALARM
    world.feeds["counts"] = feed("counts", Kind.DERIVED, by="count", freshness_ms=9_000)
    assert judge.look().feeds["counts"].state is FreshnessState.FRESH
