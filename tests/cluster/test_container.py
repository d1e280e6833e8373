"""Containers on real Kafka, ZooKeeper and RocksDB: exact through crashes, moves and every kind of input."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack import Stack
from stack.kafka.inputs import InputReader
from stack.kafka.writer import LogWriter
from stack.model.job import group_name
from stack.model.plan import Reason, TaskId, TaskState
from tests.cluster.job_world import COUNT, SETTINGS, JobWorld, numbers
from tests.clusters import wait_for
from tests.fleets import HandFleet

pytestmark = pytest.mark.cluster
ZERO, ONE = TaskId("main", 0), TaskId("main", 1)


@pytest.fixture
def world(stack: Stack) -> JobWorld:
    return JobWorld(stack)


@pytest.fixture
def fleet(world: JobWorld, stack: Stack) -> Iterator[HandFleet]:
    with HandFleet(stack, world.folder) as fleet:
        yield fleet


def test_counts_and_keeps_its_state(world: JobWorld, fleet: HandFleet) -> None:
    clicks = world.click(2_000)
    fleet.plan(1)
    fleet.start()
    world.await_exact(clicks)
    fleet.plan({})
    assert fleet.ending().reason is Reason.STOPPED
    assert world.counts() == clicks
    points = world.checkpoints()
    ends = world.stack.admin.ends(world.stack.topic_of("clicks"), range(2))
    assert {
        task.partition: point.inputs["clicks"].offsets[task.partition] for task, point in points.items()
    } == ends
    outputs = world.stack.admin.ends(world.stack.topic_of("tallies"), range(2))
    for task, point in points.items():
        # The last record of the log is the marker of the commit.
        assert point.stores["counts"].end == world.changelog_ends()[task.partition] - 1
        # The other task may have committed its last records before.
        assert all(0 <= point.outputs["tallies"].ends[number] <= end for number, end in outputs.items())
        assert point.outputs["tallies"].ends[task.partition] < outputs[task.partition]
    # A second life begins where the first ended, from the stores on disk.
    clicks += world.click(500, first=3)
    fleet.plan(1)
    fleet.start()
    world.await_exact(clicks)


def test_group_offsets_follow_the_checkpoint(world: JobWorld, fleet: HandFleet) -> None:
    clicks = world.click(100)
    fleet.plan(1)
    fleet.start()
    world.await_exact(clicks)
    topic = world.stack.topic_of("clicks")
    ends = world.stack.admin.ends(topic, range(2))
    group = group_name(world.stack.settings.name, "count")
    reader = InputReader(world.stack.access, group)
    try:
        places = {(topic, 0): ends[0], (topic, 1): ends[1]}
        # Also if no other commit comes.
        wait_for(lambda: reader.committed(places) == places, "the mirrored offsets", limit_s=5)
    finally:
        reader.close()


def test_killed_again_and_again_it_stays_exact(world: JobWorld, fleet: HandFleet) -> None:
    clicks: Counter[str] = Counter()
    fleet.plan(1)
    fleet.start()
    for life in range(4):
        before = world.outputs()
        clicks += world.click(3_000, users=50, first=life)
        wait_for(lambda before=before: world.outputs() > before + 200, "outputs to flow")  # type: ignore[misc]
        fleet.kill()
        fleet.start()
    world.await_exact(clicks)
    assert world.counts() == clicks


def test_a_stopped_container_finds_itself_fenced(world: JobWorld, fleet: HandFleet, tmp_path: Path) -> None:
    clicks = world.click(1_000)
    fleet.plan(1)
    first = fleet.start()
    world.await_exact(clicks)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGSTOP)
    clicks += world.click(1_000)
    fleet.start(data=tmp_path / "elsewhere")
    world.await_exact(clicks)
    os.kill(first.pid, signal.SIGCONT)
    first.join(20)
    assert not first.is_alive()
    clicks += world.click(500)
    world.await_exact(clicks)


def test_checkpoints_tell_true_ends_even_if_somebody_else_writes_to_the_changelog(
    world: JobWorld, fleet: HandFleet, tmp_path: Path
) -> None:
    clicks = world.click(1_000)
    fleet.plan(1)
    fleet.start()
    world.await_exact(clicks)
    with LogWriter(world.stack.access) as stranger:
        for partition in (0, 1):
            stranger.write_pairs(world.changelog, [b"stranger"] * 3, [bytes(8)] * 3, partition)
    clicks += world.click(1_000, first=7)
    world.await_exact(clicks)
    fleet.kill()
    fleet.start(data=tmp_path / "elsewhere")
    clicks += world.click(1_000, first=3)
    world.await_exact(clicks)
    assert {user: count for user, count in world.counts().items() if user != "stranger"} == clicks


def test_at_least_once_may_repeat_outputs_but_its_state_is_exact(world: JobWorld, fleet: HandFleet) -> None:
    world.write_job(settings='guarantee = "at-least-once"\n' + SETTINGS)
    fleet.redeploy(world.folder)
    clicks: Counter[str] = Counter()
    fleet.plan(1)
    fleet.start()
    for life in range(3):
        before = world.outputs()
        clicks += world.click(2_000, users=20, first=life)
        wait_for(lambda before=before: world.outputs() > before + 100, "outputs to flow")  # type: ignore[misc]
        fleet.kill()
        fleet.start()
    wait_for(lambda: world.counts() == clicks, "all clicks counted")
    for user, tallies in world.tallies().items():
        assert set(tallies) == set(range(1, clicks[user] + 1))


def test_at_least_once_outputs_keep_their_order_behind_and_caught_up(
    world: JobWorld, fleet: HandFleet
) -> None:
    world.write_job(settings='guarantee = "at-least-once"\n' + SETTINGS)
    fleet.redeploy(world.folder)
    clicks = world.click(8_000, users=50)
    fleet.plan(1)
    fleet.start()
    for burst in range(2):
        world.await_exact(clicks)
        # Behind, outputs go in transactions, which leave a marker; caught up, each is there by itself.
        assert world.outputs() > sum(clicks.values())
        before = world.outputs()
        for number in range(20):
            clicks += world.click(1, first=number)
        world.await_exact(clicks)
        assert world.outputs() == before + 20
        clicks += world.click(12_000, users=50, first=burst)
    world.await_exact(clicks)


def test_a_task_moves_only_when_it_was_released(world: JobWorld, fleet: HandFleet) -> None:
    clicks = world.click(1_000)
    fleet.plan(1)
    fleet.start(0)
    world.await_exact(clicks)
    fleet.plan({0: (ZERO,), 1: (ONE,)})
    fleet.start(1)
    clicks += world.click(1_000)
    world.await_exact(clicks)
    reports = {one.slot: one for one in fleet.nodes.reports()}
    assert set(reports) == {0, 1}
    # Back to one container: the other ends in good order.
    fleet.plan({0: (ZERO, ONE)})
    assert fleet.ending(1).reason is Reason.STOPPED
    clicks += world.click(1_000)
    world.await_exact(clicks)


def test_a_task_that_is_not_released_waits(world: JobWorld, fleet: HandFleet) -> None:
    clicks = world.click(200)
    fleet.plan({0: (ZERO, ONE)}, release=False)
    fleet.start()
    wait_for(lambda: bool(fleet.nodes.reports()), "the container")
    wait_for(
        lambda: [one.state for one in fleet.nodes.reports()[0].tasks.values()] == [TaskState.WAITING] * 2,
        "both tasks to wait",
    )
    assert world.tallies() == {}
    fleet.lead.mark_released({ZERO: 1, ONE: 1})
    world.await_exact(clicks)


def test_drain_reads_to_the_end_and_stops(world: JobWorld, fleet: HandFleet) -> None:
    clicks = world.click(5_000)
    fleet.plan(1)
    fleet.plan(1, drain=True)
    fleet.start()
    assert fleet.ending().reason is Reason.DRAINED
    world.await_exact(clicks)


def test_without_its_runner_a_container_ends(world: JobWorld, fleet: HandFleet) -> None:
    world.click(10)
    fleet.plan(1)
    fleet.start()
    wait_for(lambda: bool(fleet.nodes.reports()), "the container")
    fleet.session.close()
    assert fleet.ending().reason in (Reason.ORPHANED, Reason.FENCED)


def test_batches_and_deletions(stack: Stack) -> None:
    code = """
    import pyarrow as pa
    from stack import Feed, Job

    clicks, tallies = Feed("clicks"), Feed("tallies")
    job = Job("count")


    @job.task(clicks, store="counts", batch=True)
    def count(batch, ctx):
        for user in ctx.deleted:
            ctx.state.delete(user)
        users = batch.column("user").to_pylist()
        numbers = []
        for user in users:
            number = ctx.state.get(user, 0) + 1
            ctx.state[user] = number
            numbers.append(number)
        columns = {"user": pa.array(users, pa.string()), "count": pa.array(numbers, pa.int64())}
        ctx.emit_batch(tallies, pa.record_batch(columns))
    """
    world = JobWorld(stack, {"clicks": "2 table"}, code)
    clicks = world.click(600)
    with stack.writer("clicks") as writer:
        writer.delete("user-3")
        writer.write({"user": "user-3", "n": 1})
        writer.delete("user-4")
    with HandFleet(stack, world.folder) as fleet:
        fleet.plan(1)
        fleet.start()
        expected = dict(clicks) | {"user-3": 1}
        del expected["user-4"]
        wait_for(lambda: world.counts() == expected, "the counts")
        assert world.tallies()["user-3"] == [*range(1, clicks["user-3"] + 1), 1]


def test_broadcast_and_bootstrap_inputs(stack: Stack) -> None:
    code = """
    from stack import Feed, Job

    clicks, names, rates = Feed("clicks"), Feed("names"), Feed("rates")
    tallies = Feed("tallies")
    job = Job("count")


    @job.task(names.bootstrap(), store="names")
    def name(record, ctx):
        ctx.state[record["user"]] = record["n"]


    @job.task(rates.broadcast().bootstrap(), store="rates")
    def rate(record, ctx):
        ctx.state[record["user"]] = record["n"]


    @job.task(clicks)
    def click(record, ctx):
        known = ctx.store("names").get(record["user"], -1)
        factor = ctx.store("rates").get("factor", 0)
        ctx.emit(tallies, {"user": record["user"], "count": known * factor})
        ctx.count("clicks")
    """
    world = JobWorld(stack, {"clicks": 2, "names": "2 table", "rates": 1}, code, "commit_max_ms = 50\n")
    for user in range(10):
        with stack.writer("names") as writer:
            writer.write({"user": f"user-{user}", "n": user + 1})
    with stack.writer("rates") as writer:
        writer.write({"user": "factor", "n": 100})
    world.click(400)
    with HandFleet(stack, world.folder) as fleet:
        fleet.plan(2)
        fleet.start(0)
        fleet.start(1)
        wait_for(lambda: sum(map(len, world.tallies().values())) == 400, "all tallies")
        assert {user: set(values) for user, values in world.tallies().items()} == {
            f"user-{user}": {(user + 1) * 100} for user in range(10)
        }
        wait_for(
            lambda: sum(one.counters.get("clicks", 0) for one in fleet.nodes.reports()) == 400, "counters"
        )
        # Both tasks follow the broadcast, also after their start.
        with stack.writer("rates") as writer:
            writer.write({"user": "factor", "n": 7})
        wait_for(lambda: set(numbers(world.state("rates")).values()) == {7}, "the new rate")
        world.click(100)
        wait_for(lambda: sum(map(len, world.tallies().values())) == 500, "all tallies")
        assert world.tallies()["user-9"][-1] == 70


def test_several_stores_hooks_scans_and_commits_on_request(stack: Stack) -> None:
    code = """
    from stack import Feed, Job

    clicks, tallies = Feed("clicks"), Feed("tallies")
    job = Job("count")


    @job.open
    def opened(ctx):
        assert "opened" not in ctx.store("notes") or ctx.store("notes")["opened"] > 0
        ctx.store("notes")["opened"] = ctx.store("notes").get("opened", 0) + 1


    @job.close
    def closed(ctx):
        ctx.store("notes")["closed"] = True


    @job.task(clicks, stores=("recent", "notes"))
    def count(click, ctx):
        key = f"{click['user']}/{click['n']:06d}"
        ctx.state[key] = {"n": click["n"], "offset": ctx.offset, "feed": ctx.feed}
        mine = list(ctx.state.prefix(click["user"] + "/"))
        if len(mine) > 3:
            del ctx.state[mine[0][0]]
        assert ctx.key == click["user"] and ctx.timestamp > 0 and ctx.now > 0 and ctx.partition in (0, 1)
        ctx.emit(tallies, {"user": click["user"], "count": len(list(ctx.state.prefix(click["user"] + "/")))})
        ctx.request_commit()
    """
    world = JobWorld(stack, code=code, settings="commit_min_ms = 5000\ncommit_max_ms = 10000\n")
    world.click(60, users=4)
    with HandFleet(stack, world.folder) as fleet:
        fleet.plan(1)
        fleet.start()
        wait_for(
            lambda: sum(map(len, world.tallies().values())) == 60, "tallies, sooner than the interval", 8
        )
        assert all(values[-1] == 3 for values in world.tallies().values())
        fleet.plan({})
        assert fleet.ending().reason is Reason.STOPPED
    kept = numbers(world.state("recent"))
    assert sorted(kept) == sorted(f"user-{number % 4}/{number:06d}" for number in range(48, 60))
    assert numbers(world.state("notes"))["closed"] is True


def test_a_new_version_takes_the_state_over(world: JobWorld, fleet: HandFleet) -> None:
    clicks = world.click(500)
    fleet.plan(1)
    fleet.start()
    world.await_exact(clicks)
    world.write_job(COUNT.replace("number = ctx", "number = 0 + ctx"))
    old = fleet.spec.version
    fleet.redeploy(world.folder)
    assert fleet.spec.version != old
    fleet.plan({})
    assert fleet.ending().reason is Reason.STOPPED
    clicks += world.click(500)
    fleet.plan(1)
    fleet.start()
    world.await_exact(clicks)
    wait_for(
        lambda: {one.version for one in world.checkpoints().values()} == {fleet.spec.version}, "checkpoints"
    )
