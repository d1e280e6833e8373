"""What goes wrong around a container: each fault is told by name, and nothing is lost, skipped or doubled."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from changelog.lock import FolderLock
from stack import Stack
from stack.kafka.admin import TopicPlan
from stack.kafka.writer import LogWriter
from stack.model.job import changelog_name, group_name
from stack.model.plan import Ending, Reason
from tests.cluster.job_world import COUNT, SETTINGS, JobWorld
from tests.clusters import wait_for
from tests.fleets import HandFleet

pytestmark = pytest.mark.cluster


@pytest.fixture
def world(stack: Stack) -> JobWorld:
    return JobWorld(stack)


@pytest.fixture
def fleet(world: JobWorld, stack: Stack) -> Iterator[HandFleet]:
    with HandFleet(stack, world.folder) as fleet:
        yield fleet


def ran(fleet: HandFleet) -> Ending:
    """How a container of the whole job ends by itself."""
    fleet.plan(1)
    fleet.start()
    return fleet.ending()


def with_line(line: str) -> str:
    """The counting job with one line more in its handler."""
    return COUNT.replace("    number = ctx", f"    {line}\n    number = ctx")


CODE_FAULTS = {
    "raises": (
        with_line('if click["n"] == 7: raise ValueError("seven is bad")'),
        ["clicks, partition", "offset", "count failed: ValueError: seven is bad", "job.py, line"],
        True,
    ),
    "undeclared feed": (
        with_line('ctx.emit("clicks", click)'),
        ["emits to 'clicks', which the catalogue does not give it"],
        False,
    ),
    "refused value": (
        COUNT.replace('"count": number}', '"count": "many"}'),
        ["count emits a value that the feed refuses", "count"],
        False,
    ),
    "missing field": (COUNT.replace(', "count": number}', "}"), ["the feed refuses", "count"], False),
    "wrong state": (
        COUNT.replace('ctx.state[click["user"]] = number', 'ctx.state[click["user"]] = str(number)'),
        ["store 'counts' has int values, got str"],
        False,
    ),
    "large output": (
        COUNT.replace('{"user": click["user"], "count"', '{"user": "u" * 1_100_000, "count"'),
        ["bytes; Kafka takes"],
        False,
    ),
}


@pytest.mark.parametrize("fault", CODE_FAULTS)
def test_code_that_fails_is_told_with_the_record(stack: Stack, fault: str) -> None:
    code, words, retry = CODE_FAULTS[fault]
    world = JobWorld(stack, code=code)
    world.click(100)
    with HandFleet(stack, world.folder) as fleet:
        ending = ran(fleet)
    assert ending.reason is Reason.FAILED
    assert all(word in ending.message for word in words), ending
    assert ending.hint
    assert ending.retry is retry
    assert world.tallies() == {}
    assert world.counts() == {}


def test_a_delta_larger_than_the_broker_takes(stack: Stack) -> None:
    code = COUNT.replace('ctx.state[click["user"]] = number', 'ctx.state["big"] = "x" * 1_100_000')
    world = JobWorld(stack, code=code, settings='[stores.counts]\nvalue = "str"\n')
    world.click(10)
    with HandFleet(stack, world.folder) as fleet:
        ending = ran(fleet)
    assert (ending.reason, ending.retry) == (Reason.FAILED, False)
    assert "store 'counts': the value of key b'big' has 1,100,000 bytes" in ending.message
    assert world.tallies() == {}


HANGS = (
    'while click["n"] == 5: pass',
    'click["n"] == 5 and time.sleep(600)',
    'try:\n        click["n"] == 5 and time.sleep(600)\n    except Exception: pass',
)


@pytest.mark.parametrize("line", HANGS)
def test_a_record_that_hangs_fails_the_job_and_names_it(stack: Stack, line: str) -> None:
    code = "import time\n" + with_line(line)
    world = JobWorld(stack, code=code, settings='record_limit = "1s"\n' + SETTINGS)
    world.click(10, users=1)
    with HandFleet(stack, world.folder) as fleet:
        ending = ran(fleet)
    assert (ending.reason, ending.retry) == (Reason.FAILED, False)
    assert "offset 5: count has kept one record for more than 1 s" in ending.message
    assert "job.py" in ending.message


def test_a_leak_is_stopped_at_the_limit(stack: Stack) -> None:
    code = "held = []\n" + with_line("held.append(bytearray(8_000_000)); __import__('time').sleep(0.02)")
    world = JobWorld(stack, code=code, settings='memory = "600MB"\n' + SETTINGS)
    world.click(1_000)
    with HandFleet(stack, world.folder) as fleet:
        ending = ran(fleet)
    assert (ending.reason, ending.retry) == (Reason.FAILED, False), ending
    assert "has made the container grow to" in ending.message
    assert "its limit is 600 MiB" in ending.message


def test_a_record_that_is_not_avro(world: JobWorld, fleet: HandFleet) -> None:
    world.click(30)
    with LogWriter(world.stack.access) as writer:
        writer.write_pairs(world.stack.topic_of("clicks"), [b"k"], [b"rubbish"], 0)
    ending = ran(fleet)
    assert (ending.reason, ending.retry) == (Reason.FAILED, False)
    assert "clicks, partition 0, offset" in ending.message
    assert "cannot be decoded" in ending.message


def stopped(world: JobWorld, fleet: HandFleet, count: int = 200) -> None:
    """Run the job once and stop it in good order."""
    clicks = world.click(count)
    fleet.plan(1)
    fleet.start()
    world.await_exact(clicks)
    fleet.plan({})
    assert fleet.ending().reason is Reason.STOPPED


def cut(stack: Stack, topic: str, offset: int) -> None:
    """Delete the records of partition 0 and 1 before an offset, as retention would."""
    admin = AdminClient({"bootstrap.servers": stack.access.bootstrap})

    def is_cut() -> bool:
        places = [TopicPartition(topic, number, offset) for number in (0, 1)]
        try:
            for future in admin.delete_records(places).values():
                future.result()
        except KafkaException as error:
            # A changed cleanup.policy takes a moment to be heard of.
            if error.args[0].code() != KafkaError.POLICY_VIOLATION:
                raise
            return False
        return True

    wait_for(is_cut, f"{topic} to be cut")


def test_an_offset_that_retention_removed_is_never_skipped(world: JobWorld, fleet: HandFleet) -> None:
    stopped(world, fleet)
    world.click(400)
    ends = world.stack.admin.ends(world.stack.topic_of("clicks"), range(2))
    cut(world.stack, world.stack.topic_of("clicks"), min(ends.values()))
    ending = ran(fleet)
    assert (ending.reason, ending.retry) == (Reason.FAILED, False)
    assert "continues at offset" in ending.message
    assert "removed by retention before they were read" in ending.message
    assert "stack jobs remove count --state" in ending.hint


def test_a_feed_made_anew(world: JobWorld, fleet: HandFleet) -> None:
    stopped(world, fleet)
    topic = world.stack.topic_of("clicks")
    world.stack.admin.delete([topic])
    world.stack.admin.create([TopicPlan(topic, 2)])
    world.click(300)
    ending = ran(fleet)
    assert (ending.reason, ending.retry) == (Reason.FAILED, False)
    assert "feed 'clicks' was deleted and made anew" in ending.message


def test_input_partitions_grown(world: JobWorld, fleet: HandFleet) -> None:
    stopped(world, fleet)
    world.stack.admin.grow(world.stack.topic_of("clicks"), 5)
    ending = ran(fleet)
    assert (ending.reason, ending.retry) == (Reason.FAILED, False)
    assert "feed 'clicks' has 5 partitions now; job 'count' was deployed for 2" in ending.message


def test_group_offsets_changed_by_another_tool_do_not_matter(world: JobWorld, fleet: HandFleet) -> None:
    stopped(world, fleet)
    stack = world.stack
    group = group_name(stack.settings.name, "count")
    consumer = Consumer({"bootstrap.servers": stack.access.bootstrap, "group.id": group})
    topic = stack.topic_of("clicks")
    consumer.commit(offsets=[TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 3)], asynchronous=False)
    consumer.close()
    clicks = world.click(100)
    for user in clicks:
        clicks[user] += 20
    fleet.plan(1)
    fleet.start()
    world.await_exact(clicks)


def test_a_truncated_changelog_is_refused(world: JobWorld, fleet: HandFleet) -> None:
    stopped(world, fleet)
    topic = changelog_name(world.stack.settings.name, "count", "counts")
    shutil.rmtree(world.stack.settings.data / "state")
    world.stack.admin.change_settings(topic, {"cleanup.policy": "compact,delete"})
    cut(world.stack, topic, 5)
    ending = ran(fleet)
    assert (ending.reason, ending.retry) == (Reason.FAILED, False)
    assert "before offset 5 were deleted" in ending.message


def test_a_changelog_made_anew_is_refused(world: JobWorld, fleet: HandFleet) -> None:
    stopped(world, fleet)
    topic = changelog_name(world.stack.settings.name, "count", "counts")
    world.stack.admin.delete([topic])
    world.stack.admin.create([TopicPlan(topic, 2, {"cleanup.policy": "compact"})])
    ending = ran(fleet)
    assert (ending.reason, ending.retry) == (Reason.FAILED, False)
    assert "was deleted and made anew" in ending.message


def spoil(folder: Path) -> None:
    """Break the files of every store."""
    for file in folder.rglob("*.sst"):
        file.write_bytes(b"broken" * 100)
    for file in folder.rglob("CURRENT"):
        file.write_bytes(b"nonsense")


@pytest.mark.parametrize("how", ["deleted", "corrupted", "other format"])
def test_a_store_that_cannot_be_used_is_rebuilt(world: JobWorld, fleet: HandFleet, how: str) -> None:
    stopped(world, fleet, 500)
    state = world.stack.settings.data / "state" / "count"
    if how == "deleted":
        shutil.rmtree(state)
    elif how == "corrupted":
        spoil(state)
    else:
        for file in state.rglob("manifest.json"):
            file.write_text('{"format": 99}')
    clicks = world.click(100)
    for user in clicks:
        clicks[user] += 50
    fleet.plan(1)
    fleet.start()
    world.await_exact(clicks)
    aside = [one for one in state.glob("counts/*") if "aside" in one.name]
    assert bool(aside) is (how != "deleted")


def test_a_locked_store_is_waited_for(world: JobWorld, fleet: HandFleet) -> None:
    stopped(world, fleet)
    lock = FolderLock(world.stack.settings.data / "state" / "count" / "counts" / "0")
    fleet.plan(1)
    fleet.start()
    wait_for(
        lambda: any(
            "locked" in task.note or "uses" in task.note or "process" in task.note
            for one in fleet.nodes.reports()
            for task in one.tasks.values()
        ),
        "the note that the store is locked",
    )
    lock.release()
    clicks = world.click(100)
    for user in clicks:
        clicks[user] += 20
    world.await_exact(clicks)
