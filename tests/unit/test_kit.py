"""The test kit: what a test can do, what it sees, and what it is told when it asks for something wrong."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.bench.kit import measure_kit
from stack import BadCatalogue, BadConfig, BadInput, BadRecord, Feed, Job, NotFound, Record
from stack.feeds.fixture import fixture_lines
from stack.testing import JobFailed, MemoryStack

FEEDS: dict[str, dict[str, Any]] = {
    "clicks": {"schema": {"user": "string", "n": "long"}, "key": "user", "partitions": 2},
    "tallies": {
        "schema": {"user": "string", "count": "long"},
        "key": "user",
        "partitions": 2,
        "by": "count",
        "inputs": ["clicks"],
    },
    "winners": {"schema": {"user": "string"}, "by": "choose", "inputs": ["tallies"]},
}


def counting(bad: int | None = None) -> Job:
    """The counting job; its code fails at one click, if one is named."""
    job = Job("count")

    @job.task(Feed("clicks"), store="counts")
    def count(click: dict[str, Any], ctx: Any) -> None:
        if click["n"] == bad:
            raise ValueError("this one is bad")
        number = ctx.state.get(click["user"], 0) + 1
        ctx.state[click["user"]] = number
        ctx.count("clicks")
        ctx.emit("tallies", {"user": click["user"], "count": number})

    return job


def choosing() -> Job:
    job = Job("choose")

    @job.task(Feed("tallies"))
    def choose(tally: dict[str, Any], ctx: Any) -> None:
        if tally["count"] == 3:
            ctx.emit("winners", {"user": tally["user"]})

    return job


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    with MemoryStack(feeds=FEEDS, jobs=[counting(), choosing()]) as kit:
        yield kit


def click(stack: MemoryStack, users: str, first: int = 0) -> None:
    stack.write("clicks", *({"user": user, "n": number} for number, user in enumerate(users, first)))


def test_jobs_run_one_after_the_other_until_all_is_handled(stack: MemoryStack) -> None:
    click(stack, "abaab")
    stack.run()
    assert stack.table("tallies") == {"a": {"user": "a", "count": 3}, "b": {"user": "b", "count": 2}}
    assert stack.values("winners") == [{"user": "a"}]
    assert stack.state("count", "counts") == {"a": 3, "b": 2}
    assert stack.counters("count") == {"clicks": 5}


def test_order_of_deployment_does_not_matter() -> None:
    with MemoryStack(feeds=FEEDS, jobs=[choosing(), counting()]) as stack:
        click(stack, "aaa")
        stack.run()
        assert stack.values("winners") == [{"user": "a"}]


def test_running_again_without_records_does_nothing(stack: MemoryStack) -> None:
    click(stack, "ab")
    stack.run()
    before = stack.records("tallies")
    stack.run()
    assert stack.records("tallies") == before
    assert stack.lag("count") == 0


def test_lag_counts_records_that_are_not_committed(stack: MemoryStack) -> None:
    click(stack, "abc")
    assert stack.lag("count") == 3
    stack.crash("count", at="commit.flush")
    assert stack.lag("count") == 3
    stack.run()
    assert stack.lag("count") == 0


def test_the_same_test_ends_the_same_every_time() -> None:
    def run() -> list[Any]:
        with MemoryStack(feeds=FEEDS, jobs=[counting(), choosing()]) as stack:
            click(stack, "abcabcabc")
            stack.crash("count", at="commit.points")
            stack.run()
            return [*stack.records("tallies"), *stack.records("winners"), stack.clock.passed_s]

    assert run() == run()


def test_the_clock_stands_still_until_it_is_moved() -> None:
    job = Job("stamp")

    @job.task(Feed("clicks"))
    def stamp(_click: Any, ctx: Any) -> None:
        ctx.emit("times", {"at": ctx.now})

    feeds = {**FEEDS, "times": {"schema": {"at": "long"}, "by": "stamp", "inputs": ["clicks"]}}
    with MemoryStack(feeds=feeds, jobs=[job], start_ms=1_000_000) as stack:
        click(stack, "a")
        stack.run()
        stack.clock.advance("5m")
        click(stack, "a")
        stack.run()
        assert sorted(value["at"] for value in stack.values("times")) == [1_000_000, 1_300_000]
        with pytest.raises(BadInput, match="cannot go back"):
            stack.clock.advance(-1)


def test_code_that_fails_is_told_with_the_record_and_the_cause() -> None:
    with MemoryStack(feeds=FEEDS, jobs=[counting(bad=2)]) as stack:
        click(stack, "aaaa")
        with pytest.raises(JobFailed, match="offset 2: count failed: ValueError: this one is bad") as told:
            stack.run()
        assert isinstance(told.value.__cause__, ValueError)
        assert stack.values("tallies") == []
        stack.deploy(counting())
        stack.run()
        assert [value["count"] for value in stack.values("tallies")] == [1, 2, 3, 4]


def test_a_new_version_goes_on_with_the_state(stack: MemoryStack) -> None:
    click(stack, "aa")
    stack.run()
    doubling = Job("count")

    @doubling.task(Feed("clicks"), store="counts")
    def count(one: dict[str, Any], ctx: Any) -> None:
        ctx.state[one["user"]] = ctx.state.get(one["user"], 0) + 100

    stack.deploy(doubling)
    click(stack, "a")
    stack.run()
    assert stack.state("count", "counts") == {"a": 102}


def test_hooks_run_when_a_job_begins_and_stops() -> None:
    job, heard = counting(), []
    job.open(lambda ctx: heard.append(f"open {ctx.task}"))
    job.close(lambda ctx: heard.append(f"close {ctx.task}"))
    with MemoryStack(feeds=FEEDS, jobs=[job]) as stack:
        stack.run()
        stack.stop("count")
        stack.stop("count")
    assert heard == ["open main-0", "open main-1", "close main-0", "close main-1"]


def test_settings_of_a_job_are_those_of_job_toml() -> None:
    with MemoryStack(feeds=FEEDS) as stack:
        stack.deploy(counting(), {"guarantee": "at-least-once", "stores": {"counts": {"value": "int"}}})
        click(stack, "aab")
        stack.crash("count", at="outputs")
        stack.run()
        assert stack.state("count", "counts") == {"a": 2, "b": 1}
        assert {value["count"] for value in stack.values("tallies") if value["user"] == "a"} == {1, 2}
        with pytest.raises(BadConfig, match="guarantee"):
            stack.deploy(counting(), {"guarantee": "sometimes"})


def test_tables_take_deletions() -> None:
    job = Job("mirror")

    @job.task(Feed("rates"), store="rates")
    def mirror(rate: Any, ctx: Any) -> None:
        if rate is None:
            del ctx.state[ctx.key]
        else:
            ctx.state[ctx.key] = rate["value"]

    feeds = {"rates": {"schema": {"name": "string", "value": "long"}, "key": "name", "table": True}}
    with MemoryStack(feeds=feeds, jobs=[job]) as stack:
        stack.write("rates", {"name": "usd", "value": 1}, {"name": "gbp", "value": 2})
        stack.delete("rates", "usd")
        stack.run()
        assert stack.table("rates") == {"gbp": {"name": "gbp", "value": 2}}
        assert stack.state("mirror", "rates") == {"gbp": 2}


def job_folder(folder: Path, name: str, factor: int) -> Path:
    """A job whose number stands in a module beside it; all such modules have the same name."""
    folder.mkdir()
    (folder / "factor.py").write_text(f"FACTOR = {factor}\n")
    (folder / "later.py").write_text("from factor import FACTOR\n")
    (folder / "job.py").write_text(
        textwrap.dedent(f"""
        from factor import FACTOR
        from stack import Feed, Job

        job = Job("{name}")


        @job.task(Feed("clicks"), store="sums")
        def add(click, ctx):
            import later

            ctx.state["sum"] = ctx.state.get("sum", 0) + click["n"] * FACTOR * later.FACTOR
        """)
    )
    return folder


def test_folders_may_have_modules_of_the_same_name(tmp_path: Path) -> None:
    folders = [job_folder(tmp_path / name, name, factor) for name, factor in (("two", 2), ("three", 3))]
    feeds = {"clicks": {"schema": {"n": "long"}}}
    with MemoryStack(feeds=feeds, jobs=folders) as stack:
        stack.write("clicks", {"n": 1}, {"n": 10})
        stack.run()
        assert stack.state("two", "sums") == {"sum": 44}
        assert stack.state("three", "sums") == {"sum": 99}


def test_the_example_job_of_the_project() -> None:
    root = Path(__file__).parents[2]
    with MemoryStack(root / "schemas", jobs=[root / "jobs/count-views"]) as stack:
        views = [{"user": "ada", "page": f"/{n}", "ms": stack.clock.now_ms, "load": 0.5} for n in range(3)]
        stack.write("page-views", *views)
        stack.run()
        assert stack.table("views-per-user") == {"ada": {"user": "ada", "count": 3}}


def test_whoever_dies_while_it_begins_cleans_up_nothing(stack: MemoryStack) -> None:
    click(stack, "aab")
    stack.crash("count", at="commit.flush")
    stack.crash("count", at="open.fence")
    stack.crash("count", at="open.store")
    stack.run()
    assert stack.state("count", "counts") == {"a": 2, "b": 1}


def test_a_lost_disk_is_restored_from_the_changelog(stack: MemoryStack) -> None:
    click(stack, "aab")
    stack.run()
    stack.stop("count")
    stack.crash("count", lose_disk=True)
    click(stack, "a")
    stack.crash("count", at="open.restore")
    stack.run()
    assert stack.state("count", "counts") == {"a": 3, "b": 1}


def test_records_that_fail_are_dead_letters_and_the_others_are_handled() -> None:
    with MemoryStack(feeds=FEEDS) as stack:
        stack.deploy(counting(bad=2), {"on_error": "dead-letter"})
        click(stack, "aaaa")
        stack.crash("count", at="commit.flush")
        assert stack.dead("count") == []
        stack.run()
        (letter,) = stack.dead("count")
        assert (letter.feed, letter.offset, letter.attempt) == ("clicks", 2, 1)
        assert "ValueError: this one is bad" in letter.cause
        assert stack.table("tallies") == {"a": {"user": "a", "count": 3}}
        stack.run()
        assert len(stack.dead("count")) == 1


def test_a_mended_job_gets_its_dead_letters_back_once() -> None:
    with MemoryStack(feeds=FEEDS) as stack:
        stack.deploy(counting(bad=2), {"on_error": "dead-letter"})
        click(stack, "aaaa")
        stack.run()
        stack.deploy(counting(), {"on_error": "dead-letter"})
        with pytest.raises(BadInput, match="no way back"):
            stack.redrive("count", to="nowhere")
        with pytest.raises(NotFound, match="none of the 1 dead letters"):
            stack.redrive("count", where="offset > 100")
        assert stack.redrive("count", where="kind = 'code'") == 1
        stack.crash("count", at="commit.flush")
        stack.run()
        assert stack.state("count", "counts") == {"a": 4}
        with pytest.raises(NotFound, match="nothing is left to redrive"):
            stack.redrive("count")


def test_a_fixture_with_what_cannot_be_decoded_dies(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    with MemoryStack(feeds=FEEDS) as stack:
        stack.deploy(counting(), {"on_error": "dead-letter"})
        schema = stack.connection.schema("clicks").schema
        bad = Record("clicks", 0, 0, stack.clock.now_ms, "a", BadRecord("no Avro"))
        lines = fixture_lines(stack.connection.feed("clicks"), schema, 1, [(bad, b"\xffnot avro")])
        file.write_text("\n".join(lines))
        stack.play(file)
        stack.run()
        assert [letter.value for letter in stack.dead("count")] == [b"\xffnot avro"]


# Bad input


def test_unknown_names_are_told_with_the_nearest(stack: MemoryStack) -> None:
    with pytest.raises(NotFound, match="no feed 'click'") as told:
        stack.write("click", {})
    assert "clicks" in told.value.hint
    with pytest.raises(NotFound, match="no job 'counts'"):
        stack.state("counts", "counts")
    with pytest.raises(NotFound, match="no store 'count'"):
        stack.state("count", "count")
    with pytest.raises(NotFound, match="keeps no dead letters"):
        stack.dead("count")
    with pytest.raises(BadInput, match=r"no crash point 'commit.flash'") as told_point:
        stack.crash("count", at="commit.flash")
    assert "commit.flush" in told_point.value.hint


def test_a_record_that_the_schema_refuses_leaves_none_behind(stack: MemoryStack) -> None:
    with pytest.raises(BadRecord, match="field 'n'"):
        stack.write("clicks", {"user": "a", "n": 1}, {"user": "a", "n": "many"})
    assert stack.values("clicks") == []


def test_a_point_that_is_never_reached_is_told(stack: MemoryStack) -> None:
    stack.run()
    with pytest.raises(BadInput, match="came to rest without passing 'outputs'"):
        stack.crash("count", at="outputs")


def test_a_job_that_does_not_load_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"holds no job\.py"):
        MemoryStack(feeds=FEEDS, jobs=[tmp_path])
    (tmp_path / "job.py").write_text("from stack import Job\njob = Job('x')\n1 / 0\n")
    with pytest.raises(BadConfig, match=r"ZeroDivisionError.*line 3"):
        MemoryStack(feeds=FEEDS, jobs=[tmp_path])
    with pytest.raises(BadConfig, match="has no task"):
        MemoryStack(feeds=FEEDS, jobs=[Job("x")])


def test_a_job_that_deploy_would_refuse_is_refused() -> None:
    feeds = {"clicks": FEEDS["clicks"]}
    job = Job("lost")
    job.task(Feed("clickz"))(lambda _value, _ctx: None)
    with pytest.raises(BadConfig, match="the catalogue has no such feed; did you mean clicks"):
        MemoryStack(feeds=feeds, jobs=[job])


def test_feeds_that_are_declared_wrongly_are_told_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadCatalogue) as told:
        MemoryStack(feeds={"a": {"schema": {"x": "lng"}}, "b": {"schema": 5}, "c": {"key": "x"}})
    assert [fault.partition(":")[0] for fault in told.value.faults] == [
        "feeds.a.schema",
        "feeds.b.schema",
        "feeds.c.schema",
    ]
    with pytest.raises(BadCatalogue, match="neither a folder nor"):
        MemoryStack(tmp_path / "nowhere.toml")


def test_a_thousand_records_take_milliseconds() -> None:
    """The bar is 50 ms on a machine that has the time; `stack bench kit` measures it."""
    figures = measure_kit(1_000, 3, time.process_time)
    assert figures.whole_ms < 500
