"""The Kafka in memory where no real one can be made to do it: late requests, delays, cleaning, kills."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from stack.errors import LostOwnership, Unavailable
from stack.kafka.admin import KafkaAdmin
from stack.kafka.config import KafkaAccess
from stack.kafka.memory.broker import MemoryKafka, MemoryProcess
from stack.kafka.memory.client import MemoryClient
from stack.kafka.memory.hooks import AFTER, BEFORE, Hangs, Killed, Late
from stack.kafka.reader import LogReader
from stack.kafka.transactions import Aborted, OutcomeUnknown, TransactionWriter
from stack.kafka.writer import LogWriter
from stack.machine import steered_by
from stack.testing.clock import Clock, MachineInHand
from stack.testing.points import KitHooks

LOST = KafkaError(KafkaError._TIMED_OUT, "planted", retriable=True)
GONE = KafkaError(KafkaError._TRANSPORT, "planted")


class Steered(KitHooks):
    """Lets one request go wrong, and markers come late."""

    sends_at_once = False

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.planted: dict[tuple[str, str], Exception] = {}
        self.delay_s = 0.0

    def point(self, _client: MemoryClient, operation: str, phase: str) -> None:
        fault = self.planted.pop((operation, phase), None)
        if fault is not None:
            raise fault

    def marker_delay_s(self, _topic: str, _partition: int) -> float:
        return self.delay_s


class World:
    """One topic `t`, and a process with a writer."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.hooks = Steered(clock)
        self.kafka = MemoryKafka(self.hooks)
        self.kafka.create("t", 1, {})
        self.process = self.kafka.process("first")

    def writer(self, process: MemoryProcess | None = None) -> TransactionWriter:
        made = TransactionWriter(KafkaAccess("memory", memory=process or self.process), "id")
        made.init_transactions()
        return made

    def committed(self, topic: str = "t") -> list[bytes | None]:
        log = self.kafka.log((topic, 0))
        return [one.value() for one in log.read(0, 1 << 30, committed=True)[0]]

    def write(self, writer: TransactionWriter, *values: bytes) -> None:
        writer.begin_if_needed()
        writer.write("t", [{"key": b"k", "value": value} for value in values])
        writer.flush()


@pytest.fixture
def world() -> Iterator[World]:
    clock = Clock()
    with steered_by(MachineInHand(clock)):
        yield World(clock)


def test_a_commit_whose_answer_is_lost_is_repeated_and_counts_once(world: World) -> None:
    writer = world.writer()
    world.write(writer, b"1")
    world.hooks.planted["commit", AFTER] = KafkaException(LOST)
    writer.commit_delivered()
    assert world.committed() == [b"1"]
    assert writer.disturbed
    assert world.kafka.log(("t", 0)).high == 2


def test_a_commit_of_which_nothing_is_heard_is_unknown(world: World) -> None:
    writer = world.writer()
    world.write(writer, b"1")
    world.hooks.planted["commit", AFTER] = KafkaException(GONE)
    with pytest.raises(OutcomeUnknown):
        writer.commit_delivered()
    assert world.committed() == [b"1"]


def test_a_late_end_ends_the_next_transaction_of_the_same_epoch(world: World) -> None:
    """The hazard that a disturbed writer is made anew for."""
    writer = world.writer()
    world.write(writer, b"1")
    world.hooks.planted["commit", BEFORE] = Late(5.0, LOST)
    writer.commit_delivered()
    world.write(writer, b"2")
    assert world.committed() == [b"1"]
    world.clock.wait(6.0)
    world.kafka.tick()
    assert world.committed() == [b"1", b"2"]
    writer.write("t", [{"key": b"k", "value": b"3"}])
    with pytest.raises(Aborted):
        writer.commit_delivered()
    assert world.committed() == [b"1", b"2"]


def test_a_late_end_of_an_older_epoch_does_nothing(world: World) -> None:
    writer = world.writer()
    world.write(writer, b"1")
    world.hooks.planted["commit", BEFORE] = Late(5.0, LOST)
    writer.commit_delivered()
    writer.close()
    again = world.writer()
    world.write(again, b"2")
    world.clock.wait(6.0)
    world.kafka.tick()
    assert world.committed() == [b"1"]
    again.commit_delivered()
    assert world.committed() == [b"1", b"2"]


def test_a_commit_may_be_acknowledged_before_it_is_visible(world: World) -> None:
    world.hooks.delay_s = 1.0
    writer = world.writer()
    world.write(writer, b"1")
    writer.commit_delivered()
    assert world.committed() == []
    assert KafkaAdmin(KafkaAccess("memory", memory=world.process)).ends("t", [0]) == {0: 1}
    world.clock.wait(1.0)
    world.kafka.tick()
    assert world.committed() == [b"1"]


def test_a_next_transaction_waits_for_the_markers_of_the_last(world: World) -> None:
    world.hooks.delay_s = 1.0
    writer = world.writer()
    for value in (b"1", b"2"):
        world.write(writer, value)
        writer.commit_delivered()
    assert world.committed() == [b"1"]


def test_a_killed_process_neither_aborts_nor_writes(world: World) -> None:
    writer = world.writer()
    world.write(writer, b"1")
    plain = LogWriter(KafkaAccess("memory", memory=world.process))
    plain.write("t", [{"key": b"k", "value": b"queued"}])
    world.process.kill()
    plain.close()
    writer.close()
    with pytest.raises(Killed):
        writer.commit_delivered()
    world.clock.wait(10.0)
    world.kafka.tick()
    log = world.kafka.log(("t", 0))
    assert (log.high, log.stable) == (1, 0)
    heir = world.writer(world.kafka.process("second"))
    assert log.stable == log.high == 2
    world.write(heir, b"2")
    heir.commit_delivered()
    assert world.committed() == [b"2"]


def test_an_open_transaction_ends_by_its_limit(world: World) -> None:
    writer = world.writer()
    world.write(writer, b"1")
    world.clock.wait(46.0)
    world.kafka.tick()
    assert world.kafka.log(("t", 0)).stable == 2
    with pytest.raises(LostOwnership):
        writer.commit_delivered()


def test_a_leader_that_hangs_tells_no_offset(world: World) -> None:
    admin = KafkaAdmin(KafkaAccess("memory", memory=world.process), timeout_s=1.0)
    world.hooks.planted["list-offsets", BEFORE] = Hangs()
    assert admin.ends("t", [0]) == {0: 0}
    answer = admin.begin_ends([("t", 0)])
    assert answer() == {("t", 0): 0}
    world.hooks.planted["list-offsets", BEFORE] = Hangs()
    assert admin.begin_ends([("t", 0)])() is None


def test_metadata_that_does_not_come_is_told(world: World) -> None:
    admin = KafkaAdmin(KafkaAccess("memory", memory=world.process))
    world.hooks.planted["metadata", BEFORE] = KafkaException(GONE)
    with pytest.raises(Unavailable):
        admin.topic_names()


def test_records_whose_answer_is_lost_are_not_written_twice(world: World) -> None:
    writer = LogWriter(KafkaAccess("memory", memory=world.process))
    world.hooks.planted["produce", AFTER] = KafkaException(LOST)
    writer.write("t", [{"key": b"k", "value": b"1"}])
    writer.flush()
    world.hooks.planted["produce", BEFORE] = KafkaException(LOST)
    writer.write("t", [{"key": b"k", "value": b"2"}])
    writer.flush()
    assert world.committed() == [b"1", b"2"]


def table(world: World, **settings: str) -> None:
    own = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    world.kafka.create("c", 1, {**own, **{key.replace("_", "."): text for key, text in settings.items()}})


def put(world: World, key: bytes, value: bytes | None) -> None:
    world.kafka.append(("c", 0), [(key, value, 1, None)])


def test_compaction_keeps_the_last_of_each_key_and_all_within_the_lag(world: World) -> None:
    table(world, min_compaction_lag_ms="60000")
    put(world, b"a", b"1")
    put(world, b"a", b"2")
    put(world, b"b", b"1")
    assert world.kafka.compact("c") == 0
    world.clock.advance("2m")
    put(world, b"a", b"3")
    assert world.kafka.compact("c") == 1
    log = world.kafka.log(("c", 0))
    assert [(one.offset(), one.value()) for one in log.read(0, 99, committed=True)[0]] == [
        (1, b"2"),
        (2, b"1"),
        (3, b"3"),
    ]
    assert (log.low, log.high) == (0, 4)
    world.clock.advance("2m")
    assert world.kafka.compact("c") == 1


def test_deletions_stay_for_a_while_after_they_were_first_cleaned(world: World) -> None:
    table(world, delete_retention_ms="60000")
    put(world, b"a", b"1")
    put(world, b"a", None)
    assert world.kafka.compact("c") == 1
    assert world.committed("c") == [None]
    world.clock.advance("61s")
    assert world.kafka.compact("c") == 1
    assert world.committed("c") == []


def test_compaction_stops_before_an_open_transaction_and_drops_aborted_records(world: World) -> None:
    table(world)
    writer = world.writer()
    for commits in (False, True, None):
        writer.begin_if_needed()
        writer.write("c", [{"key": b"a", "value": str(commits).encode()}])
        writer.flush()
        if commits:
            writer.commit_delivered()
        elif commits is False:
            writer.abort_all()
    assert world.kafka.compact("c") == 1
    assert world.committed("c") == [b"True"]
    writer.commit_delivered()
    assert world.kafka.compact("c") == 1
    assert world.committed("c") == [b"None"]


def test_what_retention_removed_is_out_of_range(world: World) -> None:
    for number in range(5):
        world.kafka.append(("t", 0), [(None, b"%d" % number, 0, None)])
    world.kafka.delete_records("t", 0, 3)
    assert world.committed() == [b"3", b"4"]
    with LogReader(KafkaAccess("memory", memory=world.process), "t") as reader:
        reader.assign({0: 3}, {0: 5})
        assert reader.read().offsets == [3, 4]
