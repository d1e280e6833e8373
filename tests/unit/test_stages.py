"""Jobs of several stages: declared, checked, run, killed and stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stack import BadConfig, Feed, Job
from stack.deploy.checks import Facts, find_faults
from stack.deploy.inspect import Declared, DeclaredHandler, declared_of
from stack.model.feed import Events, FeedSpec, Kind
from stack.model.job import (
    CodePlace,
    InputSpec,
    JobSettings,
    JobSpec,
    StoreSpec,
    spec_from_json,
    spec_to_json,
)
from stack.model.plan import TaskId, job_tasks, task_number
from stack.testing import MemoryStack
from stack.testing.points import POINTS
from tests.unit.stage_world import FEEDS, click, paging, seen

COMMIT_POINTS = [name for name in POINTS if name.startswith("commit.")]


def feed(name: str, partitions: int, by: str | None = None, inputs: tuple[str, ...] = ()) -> FeedSpec:
    kind = Kind.DERIVED if by else Kind.SOURCE
    return FeedSpec(name, kind, "x", "x", "x.avsc", partitions, Events(1), by=by, inputs=inputs)


KNOWN = {
    one.name: one
    for one in (
        feed("clicks", 2),
        feed("by-page", 3, "pages", ("clicks",)),
        feed("per-page", 3, "pages", ("by-page",)),
    )
}
FACTS = Facts(
    job=declared_of(paging()),
    settings=JobSettings(),
    stores=(StoreSpec("users"), StoreSpec("counts", stage="count")),
    feeds=KNOWN,
    partitions={"clicks": 2, "by-page": 3, "per-page": 3},
    schemas=set(KNOWN),
)
SPEC = JobSpec(
    "pages",
    "one",
    (InputSpec("clicks"), InputSpec("by-page", stage="count")),
    ("by-page", "per-page"),
    FACTS.stores,
    JobSettings(),
    2,
    CodePlace("a" * 64, 0, 1, 10),
    later_stages=(("count", 3),),
)


def handler(*inputs: InputSpec) -> DeclaredHandler:
    return DeclaredHandler("handle", inputs, (), False, inputs[0].stage)


def test_each_stage_has_tasks_of_its_own() -> None:
    assert find_faults(FACTS) == []
    assert FACTS.task_counts == {"main": 2, "count": 3}
    assert [str(task) for task in job_tasks(SPEC)] == ["main-0", "main-1", "count-0", "count-1", "count-2"]
    assert [task_number(SPEC, task) for task in job_tasks(SPEC)] == [0, 1, 2, 3, 4]
    assert SPEC.inner_feeds == ("by-page",)
    assert [one.feed for one in SPEC.inputs_of("count")] == ["by-page"]


def test_a_spec_with_stages_survives_its_feed_and_one_from_before_has_one_stage() -> None:
    tree = spec_to_json(SPEC)
    assert spec_from_json(tree) == SPEC
    for one in (*tree["inputs"], *tree["stores"]):
        del one["stage"]
    del tree["later_stages"]
    old = spec_from_json(tree)
    assert old.stages == {"main": 2}
    assert {one.stage for one in old.inputs} | {one.stage for one in old.stores} == {"main"}


@pytest.mark.parametrize(
    ("handlers", "says", "to_do"),
    [
        (
            (handler(InputSpec("clicks")), handler(InputSpec("by-page"))),
            "feed 'by-page' is an input and an output of the job",
            "later stage",
        ),
        (
            (handler(InputSpec("clicks")), handler(InputSpec("by-page", broadcast=True, stage="count"))),
            "stage 'count': all inputs are broadcast",
            "take .broadcast() off",
        ),
        (
            (
                handler(InputSpec("clicks")),
                handler(InputSpec("by-page", stage="count"), InputSpec("rates", stage="count")),
            ),
            "stage 'count': inputs must have the same number of partitions, but by-page has 3, rates has 1",
            "declare them alike",
        ),
        (
            (handler(InputSpec("clicks")), handler(InputSpec("rates", stage="late"))),
            "stage 'late' reads no feed that the job writes",
            "leave stage='late' out",
        ),
        (
            (handler(InputSpec("by-page", stage="count")),),
            "no task is of the first stage",
            "leave stage='count' out",
        ),
        (
            (handler(InputSpec("clicks")), handler(InputSpec("by-page", bootstrap=True, stage="count"))),
            "feed 'by-page' is written by the job itself",
            ".bootstrap()",
        ),
    ],
)
def test_stages_that_cannot_be_are_refused(
    handlers: tuple[DeclaredHandler, ...], says: str, to_do: str
) -> None:
    feeds = {**KNOWN, "rates": feed("rates", 1)}
    facts = replace(
        FACTS,
        job=Declared("pages", handlers),
        stores=(),
        feeds=feeds,
        partitions={**FACTS.partitions, "rates": 1},
        schemas=set(feeds),
    )
    (fault,) = [one for one in find_faults(facts) if says in one]
    assert to_do in fault


def test_state_of_a_stage_belongs_to_its_partitions() -> None:
    grown = replace(SPEC, later_stages=(("count", 2),))
    (fault,) = find_faults(replace(FACTS, running=grown))
    assert "by-page: now 3 partitions, but the job's state was made for 2" in fault
    moved = replace(SPEC, stores=(StoreSpec("users"), StoreSpec("counts")))
    (fault,) = find_faults(replace(FACTS, running=moved))
    assert "store 'counts': it belonged to stage 'main', now to 'count'" in fault


def test_a_store_is_of_one_stage_and_a_stage_has_a_name() -> None:
    job = Job("pages")
    job.task(Feed("clicks"), store="users")(lambda _value, _ctx: None)
    with pytest.raises(BadConfig, match=r"store 'users' is used in two stages, 'main' by .* and 'count'"):
        job.task(Feed("by-page"), stage="count", store="users")(lambda _value, _ctx: None)
    for name in ("Count", "", 3):
        wrong: Any = name
        with pytest.raises(BadConfig, match=r"stage .* the name does not do"):
            job.task(Feed("by-page"), stage=wrong)


def test_records_pass_the_stages_one_after_the_other() -> None:
    with MemoryStack(feeds=FEEDS, jobs=[paging()]) as stack:
        click(stack, "a1 b1 a2 c1 c3 a1")
        stack.run()
        counts = {"1": 4, "2": 1, "3": 1}
        assert seen(stack) == ({"a": 3, "b": 1, "c": 2}, counts, counts)
        assert stack.lag("pages") == 0


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_crash_anywhere_loses_and_doubles_nothing(point: str) -> None:
    with MemoryStack(feeds=FEEDS, jobs=[paging()]) as stack:
        click(stack, "a1 b1 a2 c1")
        stack.crash("pages", at=point)
        click(stack, "c3 a1")
        stack.crash("pages", at=point, lose_disk=True)
        stack.run()
        counts = {"1": 4, "2": 1, "3": 1}
        assert seen(stack) == ({"a": 3, "b": 1, "c": 2}, counts, counts)
        tallies = [one["count"] for one in stack.values("per-page") if one["page"] == "1"]
        assert tallies == [1, 2, 3, 4]


def test_dead_letters_of_a_later_stage_come_back_to_it() -> None:
    job = Job("pages")

    @job.task(Feed("clicks"))
    def by_page(value: dict[str, Any], ctx: Any) -> None:
        ctx.emit("by-page", value, key=value["page"])

    @job.task(Feed("by-page"), stage="count", store="counts")
    def count(value: dict[str, Any], ctx: Any) -> None:
        number = ctx.state.get(value["page"], 0) + 1
        if value["page"] == "2" and not mended:
            raise ValueError("page 2")
        ctx.state[value["page"]] = number
        ctx.emit("per-page", {"page": value["page"], "count": number})

    mended: list[bool] = []
    with MemoryStack(feeds=FEEDS) as stack:
        stack.deploy(job, {"on_error": "dead-letter"})
        click(stack, "a1 b2 c2 d1")
        stack.run()
        letters = stack.dead("pages")
        assert {TaskId.parse(one.task).stage for one in letters} == {"count"}
        assert stack.state("pages", "counts") == {"1": 2}
        mended.append(True)
        assert stack.redrive("pages") == 2
        stack.run()
        assert stack.state("pages", "counts") == {"1": 2, "2": 2}
