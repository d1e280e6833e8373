"""Topics, their ids, settings and offsets; and tables of the stack."""

from __future__ import annotations

import pytest

from stack.errors import FeedstackError, NotFound, Unavailable
from stack.kafka.admin import KafkaAdmin, TopicPlan
from stack.kafka.ledger import KafkaLedger
from stack.kafka.writer import LogWriter
from tests.contract.conftest import KafkaWorld
from tests.contract.test_reading_writing import records


def test_a_topic_made_anew_has_another_id(kafka: KafkaWorld) -> None:
    topic = kafka.topic(partitions=2)
    first = kafka.admin.describe([topic])[topic]
    assert first.partitions == 2
    kafka.admin.create([TopicPlan(topic, 2)])
    assert kafka.admin.describe([topic])[topic] == first
    kafka.admin.delete([topic])
    assert kafka.admin.describe([topic]) == {}
    kafka.topic(partitions=2)
    assert kafka.admin.describe([topic])[topic].id != first.id


def test_settings_are_told_with_defaults_and_changed_one_by_one(kafka: KafkaWorld) -> None:
    topic = kafka.topic(cleanup_policy="compact", segment_ms="60000")
    found = kafka.admin.settings([topic])[topic]
    assert found["cleanup.policy"] == "compact"
    assert found["segment.ms"] == "60000"
    assert found["message.timestamp.type"] == "CreateTime"
    assert found["min.compaction.lag.ms"] == "0"
    kafka.admin.change_settings(topic, {"segment.ms": "70000"})
    changed = kafka.admin.settings([topic])[topic]
    assert (changed["segment.ms"], changed["cleanup.policy"]) == ("70000", "compact")


def test_topics_grow_and_never_shrink(kafka: KafkaWorld) -> None:
    topic = kafka.topic(partitions=2)
    kafka.admin.grow(topic, 4)
    assert kafka.admin.describe([topic])[topic].partitions == 4
    with pytest.raises(FeedstackError, match="grow"):
        kafka.admin.grow(topic, 3)


def test_offsets_by_time_and_ends(kafka: KafkaWorld) -> None:
    topic = kafka.topic()
    start_ms = 1_600_000_000_000
    with LogWriter(kafka.access) as writer:
        writer.write(topic, [{**one, "timestamp": start_ms + at} for at, one in enumerate(records(10))])
    bounds = kafka.admin.bounds(topic, [0])[0]
    assert (bounds.low, bounds.high) == (0, 10)
    assert kafka.admin.offsets_at(topic, 1, start_ms + 4) == {0: 4}
    assert kafka.admin.offsets_at(topic, 1, start_ms + 99) == {0: 10}
    answer = kafka.admin.begin_ends([(topic, 0)])
    assert answer() == {(topic, 0): 10}


def test_a_group_that_nobody_is_in_is_moved_forwards_and_back(kafka: KafkaWorld) -> None:
    topic, group = kafka.topic(partitions=2), f"{kafka.unique}.group"
    assert kafka.admin.committed(group) == {}
    kafka.admin.move_group(group, {(topic, 0): 7, (topic, 1): 3})
    assert kafka.admin.committed(group) == {(topic, 0): 7, (topic, 1): 3}
    kafka.admin.move_group(group, {(topic, 0): 2})
    assert kafka.admin.committed(group) == {(topic, 0): 2, (topic, 1): 3}
    kafka.admin.move_group(group, {})


def test_what_does_not_exist_is_named(kafka: KafkaWorld) -> None:
    with pytest.raises(Unavailable, match="partition leaders"):
        KafkaAdmin(kafka.access, timeout_s=2).ends(f"{kafka.unique}.nothing", [0])
    with pytest.raises(NotFound):
        kafka.admin.delete([f"{kafka.unique}.nothing"])
    assert f"{kafka.unique}.nothing" not in kafka.admin.topic_names()


def test_a_ledger_is_seen_by_all_and_changed_in_turns(kafka: KafkaWorld) -> None:
    topic = f"{kafka.unique}.ledger"
    first, second = KafkaLedger(kafka.access, topic), KafkaLedger(kafka.other_process(), topic)
    assert second.entries() == {}
    first.update(lambda _: {"a": "1", "b": "2"})
    assert second.entries() == {"a": "1", "b": "2"}
    for ledger in (second, first, second):
        ledger.update(lambda entries: {"a": str(int(entries["a"]) + 1)})
    assert first.entries() == {"a": "4", "b": "2"}
    second.update(lambda _: {"b": None})
    assert first.entries() == {"a": "4"}
    first.close()
    second.close()
