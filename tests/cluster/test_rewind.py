"""Rewinds on real Kafka, ZooKeeper and RocksDB: whole, exact, and through compaction and kills."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from stack import Latest, Oldest, Stack
from stack.deploy import rewind_plan
from stack.deploy.jobs import jobs_feed
from stack.deploy.rewind_plan import RewindPlan, Wanted, look_again, make_plan
from stack.deploy.rewinding import Landed, Rewinding
from stack.engine.rewind import OutputsChoice, StateChoice
from stack.errors import BadInput
from stack.kafka.reader import LogReader
from stack.model.checkpoint import Checkpoint
from stack.model.plan import Reason, TaskId, tasks_of
from stack.model.startpoint import AtAnnotation, AtCheckpoint, AtVersion, JobStartpoint
from stack.offsets.audit import read_audit
from stack.offsets.checkpoints import checkpoints_topic
from stack.offsets.index import CheckpointIndex
from stack.offsets.naming import name_point, where_it_stands
from tests.cluster.job_world import DERIVED, SETTINGS, JobWorld
from tests.clusters import RUN_VARIABLE, wait_for
from tests.fleets import HandFleet

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]
TABLE = DERIVED.replace('retention = "forever"', 'table = true\nhorizon = "1h"')
# A click with n = 0 lets its user be forgotten.
CODE = """
from stack import Feed, Job

clicks, tallies = Feed("clicks"), Feed("tallies")
job = Job("count")


@job.task(clicks, store="counts")
def count(click, ctx):
    if click["n"] == 0:
        if click["user"] in ctx.state:
            del ctx.state[click["user"]]
        ctx.emit(tallies, None, key=click["user"])
        return
    number = ctx.state.get(click["user"], 0) + {step}
    ctx.state[click["user"]] = number
    ctx.emit(tallies, {{"user": click["user"], "count": number}})
"""
ONE, TWO = CODE.format(step=1), CODE.format(step=2)
# Users get another name in the table, and with it mostly another partition than their clicks have.
ACROSS = ONE.replace('key=click["user"]', 'key="of-" + click["user"]').replace(
    'tallies, {"user": click["user"]', 'tallies, {"user": "of-" + click["user"]'
)


@dataclass
class Rewinds:
    """A world whose job goes back."""

    world: JobWorld
    fleet: HandFleet
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    @property
    def stack(self) -> Stack:
        return self.world.stack

    def click(self, count: int, users: int = 12) -> None:
        with self.stack.writer("clicks") as writer:
            for _ in range(count):
                user = f"user-{self.chance.randrange(users)}"
                writer.write({"user": user, "n": self.chance.choice((0, 1, 1, 1, 1))})

    def run(self, containers: int = 1) -> None:
        self.fleet.plan(containers)
        for slot in range(containers):
            self.fleet.start(slot)

    def stop(self) -> None:
        slots = list(self.fleet.tasks)
        self.fleet.plan({})
        for slot in slots:
            assert self.fleet.ending(slot).reason is Reason.STOPPED

    def inputs(self) -> dict[int, list[tuple[str, int]]]:
        """Every click by partition: user and number."""
        found: dict[int, list[tuple[str, int]]] = {0: [], 1: []}
        with self.stack.reader("clicks") as reader:
            reader.seek(Oldest(), until=Latest())
            for record in reader.records():
                found[record.partition].append((record.key, record.value["n"]))
        return found

    def table(self) -> dict[str, int]:
        found: dict[str, int] = {}
        with self.stack.reader("tallies") as reader:
            reader.seek(Oldest(), until=Latest())
            for record in reader.records():
                found.pop(record.key, None)
                if record.value is not None:
                    found[record.key] = record.value["count"]
        return found

    def await_read(self) -> None:
        """Until everything that was clicked is committed."""
        topic = self.stack.topic_of("clicks")

        def is_read() -> bool:
            ends = self.stack.admin.ends(topic, range(2))
            points = self.world.checkpoints()
            return all(
                TaskId("main", number) in points
                and points[TaskId("main", number)].inputs["clicks"].offsets[number] >= end
                for number, end in ends.items()
                if end
            )

        wait_for(is_read, "all clicks to be committed")

    def plan(self, to: JobStartpoint, state: StateChoice = StateChoice.THEN) -> RewindPlan:
        with CheckpointIndex(self.stack) as index:
            index.refresh()
            wanted = Wanted(to, state, OutputsChoice.RESTORE)
            return make_plan(self.stack, jobs_feed(self.stack), index, "count", wanted)

    def rewind(self, to: JobStartpoint, asked: str = "") -> Landed:
        jobs = jobs_feed(self.stack)
        rewinding = Rewinding(self.stack, jobs, lambda _: len(self.fleet.nodes.reports()))
        with CheckpointIndex(self.stack) as index:
            index.refresh()
            plan = make_plan(self.stack, jobs, index, "count", Wanted(to))
            look = look_again(self.stack, jobs, index, plan)
            return rewinding.carry_out("count", plan.intent("a test", asked), look)

    def commits(self) -> list[Checkpoint]:
        """Every commit of a container, in order."""
        with CheckpointIndex(self.stack) as index:
            index.refresh()
            return [one for one in index.following("count", 0) if one.slot >= 0]


class CutOff(Exception):
    """A command that was killed."""


def replayed(
    inputs: dict[int, list[tuple[str, int]]], point: dict[TaskId, Checkpoint | None], step: int = 1
) -> dict[str, int]:
    """What the counts must be at a point: the inputs up to it, once more, in plain Python."""
    counts: Counter[str] = Counter()
    for task, one in point.items():
        end = 0 if one is None else one.inputs["clicks"].offsets[task.partition]
        for user, number in inputs[task.partition][:end]:
            if number == 0:
                del counts[user]
            else:
                counts[user] += step
    return dict(counts)


@pytest.fixture
def rewinds(stack: Stack) -> Iterator[Rewinds]:
    world = JobWorld(stack, code=ONE, derived=TABLE)
    with HandFleet(stack, world.folder) as fleet:
        yield Rewinds(world, fleet)


def test_a_job_goes_back_whole_and_comes_out_as_one_that_never_did(rewinds: Rewinds) -> None:
    rewinds.click(300)
    rewinds.run()
    rewinds.await_read()
    spec = rewinds.fleet.spec
    stand = where_it_stands(rewinds.stack, spec, is_still=False)
    name_point(rewinds.stack, spec, stand, "before", {"k": "v"}, by="me")
    before = rewinds.table()
    rewinds.click(200, users=20)
    rewinds.await_read()
    after = rewinds.table()
    assert after != before
    rewinds.stop()
    landed = rewinds.rewind(AtAnnotation("before"))
    assert rewinds.table() == before
    assert rewinds.world.counts() == before
    assert landed.state_changes >= 1
    assert jobs_feed(rewinds.stack).get("count").rewind is None
    (entry,) = [one for one in read_audit(rewinds.stack) if one.what == "rewind"]
    assert (entry.job, entry.reason, entry.after["to"]) == ("count", "a test", "@before")
    # The local store catches up with what was undone, and everything after the point is read again.
    rewinds.run()
    rewinds.await_read()
    assert rewinds.table() == rewinds.world.counts() == after
    # Back to where it was before it went back: a line of commits has no loops.
    rewinds.stop()
    numbers = [one.number for one in rewinds.commits() if one.task.partition == 0]
    assert numbers == sorted(set(numbers))


def test_with_new_code_everything_after_the_point_is_computed_anew(rewinds: Rewinds) -> None:
    rewinds.click(200)
    rewinds.run()
    rewinds.await_read()
    rewinds.stop()
    point = dict.fromkeys(tasks_of(2)) | rewinds.world.checkpoints()
    spec = rewinds.fleet.spec
    name_point(rewinds.stack, spec, where_it_stands(rewinds.stack, spec, is_still=True), "bug", {}, by="me")
    rewinds.click(150, users=30)
    rewinds.world.write_job(TWO, SETTINGS)
    rewinds.fleet.redeploy(rewinds.world.folder)
    rewinds.run()
    rewinds.await_read()
    rewinds.stop()
    version = rewinds.fleet.spec.version
    by_version, by_name = rewinds.plan(AtVersion(version[:6])), rewinds.plan(AtAnnotation("bug"))
    assert {one.task: one.then for one in by_version.moves} == {one.task: one.then for one in by_name.moves}
    rewinds.rewind(AtVersion(version[:6]))
    inputs = rewinds.inputs()
    assert rewinds.table() == rewinds.world.counts() == replayed(inputs, point)
    rewinds.run()
    rewinds.await_read()
    expected = Counter(replayed(inputs, point))
    for task, one in point.items():
        start = one.inputs["clicks"].offsets[task.partition] if one is not None else 0
        for user, number in inputs[task.partition][start:]:
            if number == 0:
                del expected[user]
            else:
                expected[user] += 2
    assert rewinds.table() == rewinds.world.counts() == dict(expected)


def test_nobody_opens_a_task_while_its_job_goes_back(rewinds: Rewinds) -> None:
    rewinds.click(100)
    rewinds.run()
    rewinds.await_read()
    rewinds.click(100)
    rewinds.await_read()
    rewinds.stop()
    jobs = jobs_feed(rewinds.stack)
    rewinding = Rewinding(rewinds.stack, jobs, lambda _: 0)
    intent = rewinds.plan(AtCheckpoint("main-0", 1)).intent("cut off")

    def fail(*_: object) -> None:
        raise CutOff

    rewinding._undo = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(CutOff):
        rewinding.carry_out("count", intent)
    # A runner that has not heard of it starts a container: it leaves, and nothing is committed.
    before = rewinds.world.checkpoints()
    rewinds.run()
    ending = rewinds.fleet.ending()
    assert (ending.reason, ending.message) == (Reason.LOST, "a rewind of job 'count' is not done yet")
    assert rewinds.world.checkpoints() == before
    # Somebody else finds it and brings it to its end.
    again = Rewinding(rewinds.stack, jobs, lambda _: 0)
    found = again.pending(jobs.get("count").spec)
    assert found is not None
    assert (found.id, found.words, found.targets) == (intent.id, intent.words, dict(intent.targets))
    again.carry_out("count", found)
    assert again.pending(jobs.get("count").spec) is None
    assert rewinds.table() == rewinds.world.counts() == replayed(rewinds.inputs(), dict(intent.targets))


@pytest.mark.parametrize(("code", "prefix"), [(ONE, ""), (ACROSS, "of-")], ids=["own", "across"])
def test_several_containers_go_back_exactly_or_not_at_all(stack: Stack, code: str, prefix: str) -> None:
    world = JobWorld(stack, code=code, settings=f"containers = 2\n{SETTINGS}", derived=TABLE)
    with HandFleet(stack, world.folder) as fleet:
        rewinds = Rewinds(world, fleet)
        for part in range(2):
            rewinds.run(containers=2)
            for _ in range(5):
                rewinds.click(40)
                rewinds.await_read()
            rewinds.stop()
            if part == 0:
                stand = where_it_stands(stack, fleet.spec, is_still=True)
                name_point(stack, fleet.spec, stand, "still", {}, by="me")
        after, commits = rewinds.table(), rewinds.commits()
        assert {one.slot for one in commits} == {0, 1}
        places = [AtCheckpoint(str(one.task), one.number) for one in commits[:-2]]
        points: list[JobStartpoint] = [*rewinds.chance.sample(places, 6), AtAnnotation("still")]
        told = [go_back_exactly(rewinds, point, prefix) for point in points]
        # Where commits overlap, what is in doubt is refused, and nothing is changed. Not so where all stood
        # still, and hardly ever where each partition of the table is written by one container.
        assert told[-1] == "", evidence(rewinds, told[-1])
        assert all("several containers were writing" in one for one in told if one)
        assert prefix or sum(map(bool, told)) <= 2, evidence(rewinds, str(told))
        assert jobs_feed(stack).get("count").rewind is None
        # Killed while it catches up, it comes out right all the same.
        rewinds.run(containers=2)
        fleet.kill(0)
        fleet.start(0)
        rewinds.await_read()
        assert rewinds.table() == after, evidence(rewinds, "after a kill")
        assert {prefix + user: count for user, count in world.counts().items()} == after


def go_back_exactly(rewinds: Rewinds, point: JobStartpoint, prefix: str) -> str:
    """Go to a point and look whether everything is as it was then; the words of a refusal."""
    before = rewinds.table()
    try:
        landed = rewinds.rewind(point)
    except BadInput as error:
        assert rewinds.table() == before, evidence(rewinds, f"{point} was refused")
        return error.message
    expected = replayed(rewinds.inputs(), dict(landed.intent.targets))
    cuts = dict(landed.intent.cuts)
    assert rewinds.world.counts() == expected, evidence(rewinds, f"state at {point}, {cuts}")
    named = {prefix + user: count for user, count in expected.items()}
    assert rewinds.table() == named, evidence(rewinds, f"table at {point}, {cuts}")
    return ""


def evidence(rewinds: Rewinds, said: str) -> str:
    """Everything that a cut depends on, and what came of it, for whoever looks for the reason."""
    lines = [said, "commits: task#number, container.attempt, time, input, table (written to)"]
    with CheckpointIndex(rewinds.stack) as index:
        index.refresh()
        for one in index.following("count", 0):
            point = one.outputs.get("tallies")
            place = {} if "clicks" not in one.inputs else dict(one.inputs["clicks"].offsets)
            wrote = None if point is None or point.wrote is None else sorted(point.wrote)
            ends = None if point is None else list(point.ends)
            who = f"{one.task}#{one.number} {one.slot}.{one.attempt} {','.join(one.annotations)}"
            lines.append(f"{who} {one.time_ms} {place} {ends} ({wrote})")
    for topic in (rewinds.stack.topic_of("tallies"), rewinds.world.changelog):
        lines.append(f"{topic}: {rewinds.stack.admin.ends(topic, range(2))}")
        with LogReader(rewinds.stack.access, topic) as reader:
            reader.assign({0: 0, 1: 0}, rewinds.stack.admin.ends(topic, range(2)))
            while not reader.done:
                batch = reader.read()
                rows = zip(batch.partitions, batch.offsets, batch.keys, batch.values, strict=True)
                lines += [f"{part}/{at} {key!r} {value!r}" for part, at, key, value in rows]
    return "\n".join(lines)


def test_twenty_commits_are_restored_exactly_while_compaction_works(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    horizon_s = 15
    settings = SETTINGS.replace("commit_max_ms = 50", f'commit_max_ms = 50\nhorizon = "{horizon_s}s"', 1)
    derived = TABLE.replace('"1h"', f'"{horizon_s}s"')
    world = JobWorld(stack, code=ONE, settings=settings, derived=derived)
    with HandFleet(stack, world.folder) as fleet:
        rewinds = Rewinds(world, fleet)
        small = {"segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "15000"}
        for topic in (world.changelog, stack.topic_of("tallies")):
            stack.admin.change_settings(topic, small)
        _clean_often(stack)
        rewinds.run()
        rewinds.click(400)
        rewinds.await_read()
        old = rewinds.commits()[-1]
        end = min(world.changelog_ends().values())
        # Records come in all the time, so that segments end; those of the beginning become too old.
        deadline = time.monotonic() + 90
        while min(_cleaned(world.changelog).values(), default=0) < end:
            assert time.monotonic() < deadline, "the cleaner has not come by"
            rewinds.click(5)
            time.sleep(0.15)
        rewinds.await_read()
        # From here on nothing is compacted any more, and no time passes for plans: twenty rewinds may take
        # longer than the horizon.
        now_ms = time.time_ns() // 1_000_000
        kept = (world.changelog, stack.topic_of("tallies"), checkpoints_topic(stack.settings.name))
        for topic in kept:
            stack.admin.change_settings(topic, {"min.compaction.lag.ms": "3600000"})
        monkeypatch.setattr(rewind_plan, "time_ms", lambda: now_ms)
        rewinds.stop()
        inputs = rewinds.inputs()
        with pytest.raises(BadInput, match=f"beyond the horizon of {horizon_s} s"):
            rewinds.plan(AtCheckpoint(str(old.task), old.number))
        young = [one for one in rewinds.commits() if now_ms - 10_000 < one.time_ms <= now_ms]
        for one in rewinds.chance.sample(young, 20):
            landed = rewinds.rewind(AtCheckpoint(str(one.task), one.number))
            expected = replayed(inputs, dict(landed.intent.targets))
            assert rewinds.world.counts() == expected, f"state at {one.task}#{one.number}"
            assert rewinds.table() == expected, f"table at {one.task}#{one.number}"


def _clean_often(stack: Stack) -> None:
    """The cleaner of the shared broker looks every half second."""
    client = AdminClient({"bootstrap.servers": stack.access.bootstrap})
    entry = ConfigEntry("log.cleaner.backoff.ms", "500", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    for future in client.incremental_alter_configs([resource]).values():
        future.result(10)


def _cleaned(topic: str) -> dict[int, int]:
    """How far the broker has compacted the partitions of a topic, from its own file."""
    file = Path(os.environ[RUN_VARIABLE]) / ".stack" / "kafka-1" / "cleaner-offset-checkpoint"
    lines = file.read_text().splitlines()[2:] if file.exists() else []
    told = [line.rsplit(" ", 2) for line in lines]
    found = {int(partition): int(offset) for name, partition, offset in told if name == topic}
    return found if len(found) == 2 else {}
