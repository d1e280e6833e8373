"""Jobs of two stages and a job downstream on real Kafka, ZooKeeper and RocksDB: points under load, rewinds
with and without cascade, kills, drains.
"""

from __future__ import annotations

import random
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stack import Latest, Oldest, Stack
from stack.deploy.aligning import stand_of, take_aligned_point
from stack.deploy.jobs import jobs_feed
from stack.deploy.rewind_plan import Wanted, look_again, make_plan
from stack.deploy.rewinding import Landed, Rewinding
from stack.model.annotation import Annotated
from stack.model.plan import Reason, TaskId, TaskState, job_tasks
from stack.model.startpoint import AtAnnotation, AtTime
from stack.offsets.checkpoints import last_checkpoints
from stack.offsets.codec import CheckpointDecoder
from stack.offsets.index import CheckpointIndex
from stack.offsets.naming import name_point
from tests.cluster.conftest import apply
from tests.clusters import wait_for
from tests.fleets import HandFleet

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
_PAGE = '{"name":"page","type":"string"}'
CLICK = f'{{"type":"record","name":"Click","fields":[{{"name":"user","type":"string"}},{_PAGE}]}}'
COUNT = f'{{"type":"record","name":"Count","fields":[{_PAGE},{{"name":"count","type":"long"}}]}}'
CATALOGUE = """
[feeds.clicks]
kind = "source"
for = "test"
owner = "test"
schema = "click.avsc"
key = "user"
partitions = 2
retention = "forever"

[feeds.by-page]
kind = "derived"
for = "test"
owner = "test"
schema = "click.avsc"
key = "page"
partitions = 3
retention = "forever"
by = "pages"
inputs = ["clicks"]

[feeds.per-page]
kind = "derived"
for = "test"
owner = "test"
schema = "count.avsc"
key = "page"
partitions = 3
table = true
horizon = "1h"
by = "pages"
inputs = ["by-page"]

[feeds.updates]
kind = "derived"
for = "test"
owner = "test"
schema = "count.avsc"
key = "page"
partitions = 3
table = true
horizon = "1h"
by = "watch"
inputs = ["per-page"]
"""
PAGES = """
from stack import Feed, Job

clicks, by_page, per_page = Feed("clicks"), Feed("by-page"), Feed("per-page")
job = Job("pages")


@job.task(clicks, store="users")
def divide(click, ctx):
    ctx.state[click["user"]] = ctx.state.get(click["user"], 0) + 1
    ctx.emit(by_page, click, key=click["page"])


@job.task(by_page, stage="count", store="counts")
def count(click, ctx):
    number = ctx.state.get(click["page"], 0) + 1
    ctx.state[click["page"]] = number
    ctx.emit(per_page, {"page": click["page"], "count": number})
"""
WATCH = """
from stack import Feed, Job

per_page, updates = Feed("per-page"), Feed("updates")
job = Job("watch")


@job.task(per_page, store="seen")
def watch(value, ctx):
    number = ctx.state.get(ctx.key, 0) + 1
    ctx.state[ctx.key] = number
    ctx.emit(updates, {"page": ctx.key, "count": number}, key=ctx.key)
"""
SETTINGS = "commit_min_ms = 10\ncommit_max_ms = 50\n"


@dataclass
class Stages:
    """Both jobs, their containers, and a load that one can begin and end."""

    stack: Stack
    pages: HandFleet
    watch: HandFleet
    clicks: list[tuple[str, str]] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(11))

    def click(self, count: int) -> None:
        with self.stack.writer("clicks") as writer:
            for _ in range(count):
                user, page = f"u{self.chance.randrange(20)}", f"/{self.chance.randrange(15)}"
                writer.write({"user": user, "page": page})
                self.clicks.append((user, page))

    def run(self, containers: int = 2) -> None:
        for fleet, count in ((self.pages, containers), (self.watch, 1)):
            fleet.plan(count)
            for slot in range(count):
                fleet.start(slot)

    def stop(self) -> None:
        for fleet in (self.pages, self.watch):
            slots = list(fleet.tasks)
            fleet.plan({})
            for slot in slots:
                assert fleet.ending(slot).reason is Reason.STOPPED

    def table(self, feed: str) -> dict[str, int]:
        found: dict[str, int] = {}
        with self.stack.reader(feed) as reader:
            reader.seek(Oldest(), until=Latest())
            for record in reader.records():
                found.pop(record.key, None)
                if record.value is not None:
                    found[record.key] = record.value["count"]
        return found

    def expected(self) -> dict[str, int]:
        return dict(Counter(page for _, page in self.clicks))

    def await_exact(self) -> None:
        """Until all that was clicked is counted, in the table and by whoever reads it."""
        wanted = self.expected()
        wait_for(lambda: self.table("per-page") == wanted, "the counts of pages", 60)

    def name(self, name: str) -> Annotated:
        spec = self.pages.spec
        stand = stand_of(self.stack, self.pages.nodes, spec)
        return name_point(self.stack, spec, stand, name, {}, by="me")

    def rewind(self, to: Any, *, cascade: bool) -> Landed:
        jobs = jobs_feed(self.stack)
        reports = {"pages": self.pages.nodes.reports, "watch": self.watch.nodes.reports}
        rewinding = Rewinding(self.stack, jobs, lambda job: len(reports[job]()))
        with CheckpointIndex(self.stack) as index:
            index.refresh()
            plan = make_plan(self.stack, jobs, index, "pages", Wanted(to, cascade=cascade))
            look = look_again(self.stack, jobs, index, plan)
            return rewinding.carry_out("pages", plan.intent("a test"), look)

    def counted_at(self, point: Annotated) -> dict[str, int]:
        """What a plain reader counts of the clicks that stand before a point."""
        ends = {
            task.partition: one.inputs["clicks"].offsets[task.partition]
            for task, one in point.checkpoints.items()
            if task.stage == "main"
        }
        counts: Counter[str] = Counter()
        with self.stack.reader("clicks") as reader:
            reader.seek(Oldest(), until=Latest())
            for record in reader.records():
                if record.offset < ends.get(record.partition, 0):
                    counts[record.value["page"]] += 1
        return dict(counts)


@pytest.fixture
def stages(stack: Stack) -> Iterator[Stages]:
    schemas = stack.settings.schemas
    (schemas / "click.avsc").write_text(CLICK)
    (schemas / "count.avsc").write_text(COUNT)
    (schemas / "catalog.toml").write_text(CATALOGUE)
    apply(stack)
    folders = []
    for name, code in (("pages", PAGES), ("watch", WATCH)):
        folder = Path(stack.settings.root) / name
        folder.mkdir()
        (folder / "job.py").write_text(textwrap.dedent(code))
        (folder / "job.toml").write_text(SETTINGS)
        folders.append(folder)
    with HandFleet(stack, folders[0]) as pages, HandFleet(stack, folders[1]) as watch:
        yield Stages(stack, pages, watch)


def test_points_taken_under_load_are_exact_and_can_be_gone_back_to_with_those_who_read_it(
    stages: Stages,
) -> None:
    stages.run()
    stages.click(300)
    is_over = threading.Event()

    def load() -> None:
        while not is_over.is_set():
            stages.click(40)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        wait_for(lambda: len(stages.table("per-page")) > 10, "counts")
        points = [stages.name(f"point-{number}") for number in range(3)]
    finally:
        is_over.set()
        thread.join()
    assert [one.aligned for one in points] == [True] * 3
    assert {len(one.checkpoints) for one in points} == {5}
    stages.await_exact()
    updates = stages.table("updates")
    assert updates == stages.expected()

    # With whoever reads it: both are what they were, and become what they were.
    landed = stages.rewind(AtAnnotation("point-1"), cascade=True)
    assert sorted(landed.intent.followers) == ["watch"]
    assert stages.table("per-page") == stages.table("updates") == stages.counted_at(points[1])
    stages.run()
    stages.await_exact()
    wait_for(lambda: stages.table("updates") == stages.expected(), "each count told once", 30)

    # A container is killed while it catches up. Without whoever reads it, that one sees corrections, too.
    stages.stop()
    stages.rewind(AtAnnotation("point-0"), cascade=False)
    assert stages.table("per-page") == stages.counted_at(points[0])
    stages.run()
    stages.pages.kill(1)
    stages.pages.start(1)
    stages.await_exact()
    wait_for(
        lambda: sum(stages.table("updates").values()) > sum(stages.expected().values()), "corrections", 30
    )


def test_a_runner_takes_points_by_itself_and_a_time_means_the_last_of_them(stages: Stages) -> None:
    stages.click(200)
    stages.run()
    stages.await_exact()
    name = take_aligned_point(stages.stack, stages.pages.nodes, stages.pages.spec)
    assert name is not None
    with CheckpointIndex(stages.stack) as index:
        index.refresh()
        assert index.aligned("pages") == [name]
        point = index.annotated("pages", name)
    assert point is not None
    stages.click(100)
    stages.await_exact()
    stages.stop()
    landed = stages.rewind(AtTime(point.time_ms + 1), cascade=False)
    assert landed.intent.words.startswith(f"@{name}, where all stages stood still")
    assert stages.table("per-page") == stages.counted_at(point)
    stages.run()
    stages.await_exact()


def test_a_container_that_is_gone_makes_no_point_and_the_others_go_on(stages: Stages) -> None:
    stages.click(100)
    stages.run()
    stages.await_exact()
    stages.pages.kill(0)
    wait_for(lambda: len(stages.pages.nodes.reports()) == 1, "its node to go", 30)
    stand = stand_of(stages.stack, stages.pages.nodes, stages.pages.spec, limit_s=2.0)
    assert not stand.aligned
    stages.pages.start(0)
    stages.click(100)
    stages.await_exact()
    assert stages.name("now").aligned


def test_stages_are_drained_one_after_the_other(stages: Stages) -> None:
    stages.click(400)
    fleet = stages.pages
    fleet.plan(2, drain=1)
    for slot in range(2):
        fleet.start(slot)

    def states() -> dict[TaskId, TaskState]:
        return {task: one.state for report in fleet.nodes.reports() for task, one in report.tasks.items()}

    def main_is_drained() -> bool:
        found = states()
        return all(found.get(TaskId("main", number)) is TaskState.DRAINED for number in range(2))

    wait_for(main_is_drained, "the first stage to be drained", 30)
    # What comes now is not read any more: the second stage has an end.
    stages.click(50)
    fleet.plan(2, drain=2)
    for slot in range(2):
        assert fleet.ending(slot).reason is Reason.DRAINED
    assert sum(stages.table("per-page").values()) == 400
    decode = CheckpointDecoder(stages.stack.registry)
    points = last_checkpoints(stages.stack, decode, "pages", job_tasks(fleet.spec))
    assert len(points) == 5
    stand = stand_of(stages.stack, fleet.nodes, fleet.spec)
    assert stand.aligned
    assert stand.checkpoints == points
