"""Rewinds in the test kit: through every crash point, with others in the way, and what one is told then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from stack import BadInput, Feed, Job, NotFound
from stack.deploy.jobs import jobs_feed
from stack.deploy.operate import remove_state
from stack.deploy.rewind_plan import Wanted, look_again, make_plan
from stack.deploy.rewinding import Rewinding
from stack.engine.rewind import OutputsChoice
from stack.errors import LostOwnership, Unavailable
from stack.kafka.memory.client import MemoryClient
from stack.kafka.writer import LogWriter
from stack.machine import steered_by
from stack.model.checkpoint import REWIND, checkpoint_key
from stack.model.plan import tasks_of
from stack.model.startpoint import parse_job_startpoint
from stack.offsets.audit import read_audit
from stack.offsets.checkpoints import checkpoint_partition, checkpoints_topic, last_checkpoints
from stack.offsets.codec import CheckpointDecoder, CheckpointEncoder, registered_id
from stack.offsets.index import CheckpointIndex
from stack.offsets.schemas import CHECKPOINT_SCHEMA
from stack.testing import JobFailed, MemoryStack
from stack.testing.points import REWIND_POINTS, KitHooks
from stack.testing.rewinds import tell_jobs

FEEDS: dict[str, dict[str, Any]] = {
    "clicks": {"schema": {"user": "string", "n": "long"}, "key": "user", "partitions": 2},
    "tallies": {
        "schema": {"user": "string", "count": "long"},
        "key": "user",
        "partitions": 2,
        "table": True,
        "by": "count",
        "inputs": ["clicks"],
    },
    "events": {"schema": {"user": "string"}, "by": "tell", "inputs": ["clicks"]},
}
Seen = tuple[dict[str, int], dict[str, int]]


def counting(step: int = 1) -> Job:
    job = Job("count")

    @job.task(Feed("clicks"), store="counts")
    def count(click: dict[str, Any], ctx: Any) -> None:
        number = ctx.state.get(click["user"], 0) + step
        ctx.state[click["user"]] = number
        ctx.emit("tallies", {"user": click["user"], "count": number})

    return job


def telling() -> Job:
    job = Job("tell")

    @job.task(Feed("clicks"))
    def tell(click: dict[str, Any], ctx: Any) -> None:
        ctx.emit("events", {"user": click["user"]})

    return job


def click(stack: MemoryStack, users: str) -> None:
    stack.write("clicks", *({"user": user, "n": 1} for user in users))


def seen(stack: MemoryStack) -> Seen:
    table = {key: value["count"] for key, value in stack.table("tallies").items()}
    return stack.state("count", "counts"), table


class World:
    """A job with a named point behind it."""

    def __init__(self) -> None:
        self.stack = MemoryStack(feeds=FEEDS, jobs=[counting()])
        click(self.stack, "abcxyabc")
        self.stack.run()
        self.stack.annotate("count", "then", ticket="OPS-17")
        self.then = seen(self.stack)
        self.stack.clock.advance("1s")
        click(self.stack, "abdez")
        self.stack.run()
        self.now = seen(self.stack)
        self.stack.clock.advance("1s")

    @property
    def mark(self) -> str | None:
        return jobs_feed(self.stack.connection).get("count").rewind

    def points(self) -> list[dict[str, str]]:
        connection = self.stack.connection
        found = last_checkpoints(connection, CheckpointDecoder(connection.registry), "count", tasks_of(2))
        return [dict(one.annotations) for one in found.values()]


@pytest.fixture
def world() -> Iterator[World]:
    one = World()
    with one.stack, steered_by(one.stack._machine):
        yield one


def test_a_job_goes_back_and_catches_up(world: World) -> None:
    assert world.stack.rewind("count", "@then")
    assert seen(world.stack) == world.then
    assert world.stack.lag("count") == 5
    # So has the group that ordinary tools look at, before anything runs again.
    admin = world.stack.connection.admin
    ends = admin.ends("clicks", range(2))
    assert (
        sum(ends[number] - offset for (_, number), offset in admin.committed("test.count.main").items()) == 5
    )
    world.stack.run()
    assert seen(world.stack) == world.now
    assert world.mark is None
    (entry,) = read_audit(world.stack.connection)
    assert (entry.what, entry.job, entry.after["to"]) == ("rewind", "count", "@then")


def test_changed_code_goes_on_from_the_old_state(world: World) -> None:
    world.stack.deploy(counting(10))
    assert world.stack.rewind("count", "@then")
    assert seen(world.stack) == world.then
    world.stack.run()
    expected = dict(world.then[0])
    for user in "abdez":
        expected[user] = expected.get(user, 0) + 10
    assert seen(world.stack) == (expected, expected)


@pytest.mark.parametrize("point", REWIND_POINTS)
def test_killed_at_a_point_and_repeated(world: World, point: str) -> None:
    assert not world.stack.rewind("count", "@then", crash_at=point)
    assert world.stack.rewind("count", "@then")
    assert seen(world.stack) == world.then
    assert world.mark is None
    assert not any(REWIND in one for one in world.points())
    world.stack.run()
    assert seen(world.stack) == world.now


@pytest.mark.parametrize("point", ["rewind.intent", "rewind.undo", "rewind.land"])
def test_no_container_opens_a_task_between_intent_and_landing(world: World, point: str) -> None:
    world.stack.rewind("count", "@then", crash_at=point)
    with pytest.raises(JobFailed, match="a rewind of job 'count' is not done yet") as told:
        world.stack.run()
    assert "stack rewind count" in told.value.hint
    assert world.stack.rewind("count")
    world.stack.run()
    assert seen(world.stack) == world.now


@pytest.mark.parametrize("point", ["rewind.mark", "rewind.fence"])
def test_a_container_that_is_started_before_the_intent_works_on(world: World, point: str) -> None:
    world.stack.rewind("count", "@then", crash_at=point)
    click(world.stack, "q")
    world.stack.run()
    assert world.stack.rewind("count", "@then")
    assert seen(world.stack) == world.then


@pytest.mark.parametrize("to", ["@then", "main-0#1"])
def test_without_to_a_rewind_that_did_nothing_is_taken_away(world: World, to: str) -> None:
    world.stack.rewind("count", to, crash_at="rewind.mark")
    assert world.mark is not None
    assert world.stack.rewind("count")
    assert world.mark is None
    world.stack.run()
    assert seen(world.stack) == world.now


def test_without_to_the_mark_of_one_that_landed_is_taken_away(world: World) -> None:
    world.stack.rewind("count", "@then", crash_at="rewind.landed")
    assert world.mark is not None
    assert seen(world.stack) == world.then
    assert world.stack.rewind("count")
    assert world.mark is None
    assert seen(world.stack) == world.then
    assert len(list(read_audit(world.stack.connection))) == 1


def test_repeated_after_it_landed_it_does_not_go_twice(world: World) -> None:
    world.stack.rewind("count", "-2s", crash_at="rewind.landed")
    assert world.stack.rewind("count", "-2s")
    assert world.mark is None
    assert len(list(read_audit(world.stack.connection))) == 1


def test_an_age_means_the_same_rewind_when_it_is_repeated(world: World) -> None:
    world.stack.rewind("count", "-2s", crash_at="rewind.undo")
    world.stack.clock.advance("5s")
    assert world.stack.rewind("count", "-2s")
    assert seen(world.stack) == world.then


def test_another_rewind_waits_for_the_one_under_way(world: World) -> None:
    world.stack.rewind("count", "@then", crash_at="rewind.undo")
    with pytest.raises(BadInput, match=r"busy with another rewind \(to @then") as told:
        world.stack.rewind("count", "oldest")
    assert "`stack rewind count` brings that one to its end" in told.value.hint
    assert world.stack.rewind("count")
    assert world.stack.rewind("count", "oldest")
    assert seen(world.stack) == ({}, {})
    world.stack.run()
    assert seen(world.stack) == world.now


def test_a_mark_that_did_nothing_gives_way(world: World) -> None:
    world.stack.rewind("count", "oldest", crash_at="rewind.fence")
    assert world.stack.rewind("count", "@then")
    assert seen(world.stack) == world.then
    assert world.mark is None


def test_going_back_before_an_earlier_rewind_and_to_what_it_undid(world: World) -> None:
    stack = world.stack
    stack.annotate("count", "late")
    stack.rewind("count", "@then")
    stack.clock.advance("1s")
    click(stack, "aaa")
    stack.run()
    assert stack.rewind("count", "@late")
    assert seen(stack) == world.now
    assert stack.rewind("count", "@then")
    assert stack.rewind("count", "oldest")
    assert seen(stack) == ({}, {})
    assert stack.rewind("count", "@late")
    assert seen(stack) == world.now


def test_state_may_stay_or_be_emptied(world: World) -> None:
    stack = world.stack
    stack.rewind("count", "@then", state="keep")
    assert seen(stack) == (world.now[0], world.then[1])
    stack.rewind("count", "@then", state="empty")
    assert seen(stack) == ({}, world.then[1])
    stack.run()
    assert stack.state("count", "counts") == {"a": 1, "b": 1, "d": 1, "e": 1, "z": 1}


def test_tables_that_are_written_at_least_once_go_back_too() -> None:
    with MemoryStack(feeds=FEEDS) as stack:
        stack.deploy(counting(), {"guarantee": "at-least-once"})
        found = []
        for number, users in enumerate(["abc", "abd", "ab", "ez"]):
            click(stack, users)
            stack.run()
            stack.annotate("count", f"n{number}")
            found.append(seen(stack))
            stack.clock.advance("1s")
        for number in (2, 0, 1):
            assert stack.rewind("count", f"@n{number}")
            assert seen(stack) == found[number]
        stack.run()
        assert seen(stack) == found[-1]


def test_lost_stores_come_back_as_they_were_then(world: World) -> None:
    world.stack.rewind("count", "@then")
    world.stack.crash("count", lose_disk=True)
    world.stack.run()
    assert seen(world.stack) == world.now


def test_event_feeds_are_only_added_to_if_one_says_so() -> None:
    with MemoryStack(feeds=FEEDS, jobs=[telling()]) as stack:
        click(stack, "ab")
        stack.run()
        with pytest.raises(BadInput, match="events are not unwritten") as told:
            stack.rewind("tell", "oldest")
        assert "--outputs append" in told.value.hint
        assert stack.rewind("tell", "oldest", outputs=str(OutputsChoice.APPEND))
        stack.run()
        assert len(stack.values("events")) == 4


def test_partitions_that_never_committed_go_back_to_their_beginning() -> None:
    with MemoryStack(feeds=FEEDS, jobs=[counting()]) as stack:
        click(stack, "aaa")
        stack.run()
        first = seen(stack)
        stack.annotate("count", "one")
        stack.clock.advance("1s")
        click(stack, "abcdefgh")
        stack.run()
        after = seen(stack)
        assert stack.rewind("count", "@one")
        assert seen(stack) == first
        stack.run()
        assert seen(stack) == after


def test_a_job_that_never_committed_cannot_go_back() -> None:
    with MemoryStack(feeds=FEEDS, jobs=[counting()]) as stack:
        with pytest.raises(BadInput, match="has not committed anything yet"):
            stack.rewind("count", "oldest")
        with pytest.raises(NotFound, match="there is no point to name"):
            stack.annotate("count", "one")


def test_wrong_questions_are_told(world: World) -> None:
    with pytest.raises(BadInput, match="say where job 'count' shall go back to"):
        world.stack.rewind("count")
    with pytest.raises(BadInput, match=r"there is no crash point 'rewind.lnd'") as told:
        world.stack.rewind("count", "@then", crash_at="rewind.lnd")
    assert "'rewind.land'" in told.value.hint
    with pytest.raises(NotFound, match="no point of job 'count' is named 'them'") as missing:
        world.stack.rewind("count", "@them")
    assert "@then" in missing.value.hint


class Command:
    """`stack rewind` up to the moment at which it is carried out, with something in between."""

    def __init__(self, world: World, to: str = "@then", between: Any = lambda: None) -> None:
        self.stack = world.stack.connection
        self.kit = world.stack
        self.jobs = jobs = tell_jobs(self.kit)
        self.index = CheckpointIndex(self.stack, in_memory=True)
        self.index.refresh()
        wanted = Wanted(parse_job_startpoint(to, self.kit.clock.now_ms))
        self.plan = make_plan(self.stack, jobs, self.index, "count", wanted)
        self.rewinding = Rewinding(self.stack, jobs, self._stopped)
        self.intent = self.plan.intent("because", to)
        self._between = between

    def _stopped(self, _: str) -> int:
        self.kit.jobs["count"].stop()
        self._between()
        return 0

    def go(self) -> Any:
        look = look_again(self.stack, self.jobs, self.index, self.plan)
        return self.rewinding.carry_out("count", self.intent, look)


def test_what_was_written_after_the_plan_is_undone_too(world: World) -> None:
    stack = world.stack
    stack.annotate("count", "last")
    stack.clock.advance("1s")
    command = Command(world, "@then")
    click(stack, "zzz")
    stack.run()
    landed = command.go()
    assert seen(stack) == world.then
    assert min(landed.state_changes, landed.output_changes) > 0
    assert landed.intent.reason == "because"


def test_a_deploy_between_plan_and_rewind_is_noticed(world: World) -> None:
    command = Command(world)
    world.stack.deploy(counting(5))
    tell_jobs(world.stack)
    with pytest.raises(BadInput, match="was deployed meanwhile: it is version test-2, not test-1"):
        command.go()
    assert world.mark is None
    assert seen(world.stack) == world.now


def test_a_job_that_was_removed_meanwhile_gets_no_checkpoints(world: World) -> None:
    command = Command(world)
    jobs_feed(world.stack.connection).remove("count")
    with pytest.raises(NotFound, match="was removed by someone just now"):
        command.go()


def test_removing_the_state_fences_a_rewind_under_way(world: World) -> None:
    def remove() -> None:
        jobs = jobs_feed(world.stack.connection)
        jobs.remove("count")
        remove_state(world.stack.connection, jobs, "count")

    command = Command(world)
    fence = command.rewinding._fence

    def fence_and_remove(specs: Any, leader: str) -> None:
        fence(specs, leader)
        remove()

    command.rewinding._fence = fence_and_remove  # type: ignore[method-assign]
    with pytest.raises((LostOwnership, NotFound)):
        command.go()
    assert world.points() == []


def test_of_two_at_once_the_earlier_is_fenced_and_told(world: World) -> None:
    second = Command(world, "@then")
    first = Command(world, "oldest", between=lambda: None)
    fence = first.rewinding._fence
    calls: list[int] = []

    def fence_and_wait(specs: Any, leader: str) -> None:
        fence(specs, leader)
        if not calls:
            calls.append(1)
            second.go()

    first.rewinding._fence = fence_and_wait  # type: ignore[method-assign]
    with pytest.raises(LostOwnership, match="the rewind of job 'count' was cut off") as told:
        first.go()
    assert "`stack rewind count`: it goes on" in told.value.hint
    assert seen(world.stack) == world.then
    assert world.stack.rewind("count") if world.mark else True
    world.stack.run()
    assert seen(world.stack) == world.now


def test_an_intent_that_a_container_wrote_over_is_none(world: World) -> None:
    """It had the task open before the intent came, and commits after it."""
    stack = world.stack
    stack.rewind("count", "@then", crash_at="rewind.intent")
    connection = stack.connection
    decode = CheckpointDecoder(connection.registry)
    topic = checkpoints_topic("test")
    task = tasks_of(2)[1]
    one = last_checkpoints(connection, decode, "count", [task])[task]
    encode = CheckpointEncoder(registered_id(connection.registry, topic, CHECKPOINT_SCHEMA))
    slipped = replace(one, number=one.number, annotations={}, slot=0, attempt=1)
    with LogWriter(connection.access) as writer:
        record = {"key": checkpoint_key("count", task), "value": encode(slipped)}
        writer.write(topic, [record], checkpoint_partition("count"))
    with pytest.raises(JobFailed, match="is not done yet"):
        stack.run()
    assert stack.rewind("count")
    assert not any(REWIND in said for said in world.points())
    stack.run()
    assert seen(stack) == world.now
    assert stack.rewind("count", "@then")
    assert seen(stack) == world.then


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("kind", ["lost", "aborted"])
def test_a_commit_without_an_answer_says_repeat(world: World, nth: int, kind: str) -> None:
    hooks = world.stack.hooks
    point, count = hooks.point, 0

    def failing(client: MemoryClient, operation: str, phase: str) -> None:
        nonlocal count
        point(client, operation, phase)
        if client.name.endswith(".rewind") and operation == "commit":
            wanted = "after" if kind == "lost" else "before"
            count += phase == wanted
            if phase == wanted and count == nth:
                if kind == "lost":
                    raise KafkaException(KafkaError(KafkaError._STATE, "planted"))
                raise KafkaException(
                    KafkaError(KafkaError.TRANSACTION_ABORTABLE, "planted", txn_requires_abort=True)
                )

    assert isinstance(hooks, KitHooks)
    hooks.point = failing  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="the rewind of job 'count' is not done yet") as told:
        world.stack.rewind("count", "@then")
    assert "Repeat the command" in told.value.hint
    assert world.stack.rewind("count", "@then")
    assert seen(world.stack) == world.then
    world.stack.run()
    assert seen(world.stack) == world.now
    assert len(list(read_audit(world.stack.connection))) == 1


@pytest.mark.parametrize("part", range(8))
def test_killed_at_any_request_and_repeated(part: int) -> None:
    """Every eighth of the beginnings and ends of requests, each part with others of them."""
    step = part + 1
    while True:
        world = World()
        with world.stack, steered_by(world.stack._machine):
            if world.stack.rewind("count", "@then", crash_at=step):
                return
            assert world.stack.rewind("count", "@then")
            assert seen(world.stack) == world.then
            assert world.mark is None
            world.stack.run()
            assert seen(world.stack) == world.now
        step += 8
