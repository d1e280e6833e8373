"""An admin client on a Kafka in memory: topics, settings, offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import ConfigResource, NewPartitions, NewTopic, OffsetSpec

from stack.kafka.memory.client import MemoryClient, PartitionAbout
from stack.kafka.memory.hooks import Hangs

Answer = TypeVar("Answer")
_NONE = -1
_EARLIEST, _LATEST = OffsetSpec.earliest(), OffsetSpec.latest()


class Told(Generic[Answer]):
    """A future that is over: all answers come at once here."""

    __slots__ = ("_answer", "_error")

    def __init__(self, answer: Answer | None = None, error: KafkaException | None = None) -> None:
        self._answer = answer
        self._error = error

    def result(self, timeout: float | None = None) -> Answer | None:  # noqa: ARG002
        if self._error is not None:
            raise self._error
        return self._answer

    def done(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Description:
    """What Kafka tells of a topic that it was asked for."""

    name: str
    topic_id: str
    partitions: list[PartitionAbout]


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """Where a partition begins or ends."""

    offset: int


class MemoryAdmin(MemoryClient):
    """The part of confluent_kafka's AdminClient that the adapters use."""

    def poll(self, timeout: float = -1) -> int:  # noqa: ARG002
        return 0

    def describe_topics(self, topics: TopicCollection, **_options: Any) -> dict[str, Told[Description]]:
        return self._each("describe", topics.topic_names, self._describe)

    def _describe(self, name: str) -> Description:
        topic = self.kafka.topic(name)
        return Description(name, topic.id, [PartitionAbout(number) for number in range(len(topic.logs))])

    def describe_configs(
        self, resources: Sequence[ConfigResource], **_options: Any
    ) -> dict[ConfigResource, Told[dict[str, Entry]]]:
        return self._each(
            "settings",
            resources,
            lambda one: {
                name: Entry(name, value) for name, value in self.kafka.topic(one.name).settings.items()
            },
        )

    def incremental_alter_configs(
        self, resources: Sequence[ConfigResource], **_options: Any
    ) -> dict[ConfigResource, Told[None]]:
        return self._each("alter", resources, self._alter)

    def _alter(self, resource: ConfigResource) -> None:
        changed = {entry.name: entry.value for entry in resource.incremental_configs}
        self.kafka.topic(resource.name).settings.update(changed)

    def create_topics(self, topics: Sequence[NewTopic], **_options: Any) -> dict[str, Told[None]]:
        by_name = {one.topic: one for one in topics}

        def create(name: str) -> None:
            self.kafka.create(name, by_name[name].num_partitions, by_name[name].config)

        return self._each("create", by_name, create)

    def create_partitions(self, wanted: Sequence[NewPartitions], **_options: Any) -> dict[str, Told[None]]:
        totals = {one.topic: one.new_total_count for one in wanted}

        def grow(name: str) -> None:
            topic = self.kafka.topic(name)
            if totals[name] <= len(topic.logs):
                raise KafkaException(
                    KafkaError(
                        KafkaError.INVALID_PARTITIONS,
                        f"The topic {name} currently has {len(topic.logs)} partition(s); {totals[name]} "
                        "would not be an increase.",
                    )
                )
            topic.grow(totals[name])

        return self._each("grow", totals, grow)

    def delete_topics(self, names: Sequence[str], **_options: Any) -> dict[str, Told[None]]:
        return self._each("delete", names, self.kafka.delete)

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, OffsetSpec],
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        **_options: Any,
    ) -> dict[TopicPartition, Told[OffsetAnswer]]:
        committed = isolation_level == IsolationLevel.READ_COMMITTED

        def answers() -> dict[TopicPartition, Told[OffsetAnswer]]:
            return {place: self._told_offset(place, spec, committed) for place, spec in wanted.items()}

        try:
            return self._ask("list-offsets", answers)
        except KafkaException as error:
            return {place: Told(error=error) for place in wanted}
        except Hangs:
            return {place: Told(OffsetAnswer(OFFSET_INVALID)) for place in wanted}

    def _told_offset(self, place: TopicPartition, spec: OffsetSpec, committed: bool) -> Told[OffsetAnswer]:
        log = self.kafka.find((place.topic, place.partition))
        if log is None:
            # The client asks for the leaders first, and finds none.
            error = KafkaError(KafkaError._NOENT, "Failed to query partition leaders")
            return Told(error=KafkaException(error))
        if spec is _EARLIEST:
            offset = log.low
        elif spec is _LATEST:
            offset = log.stable if committed else log.high
        else:
            offset = log.offset_at(spec._value) if spec._value >= 0 else _NONE
        return Told(OffsetAnswer(offset))

    def list_consumer_group_offsets(
        self, groups: Sequence[ConsumerGroupTopicPartitions], **_options: Any
    ) -> dict[str, Told[ConsumerGroupTopicPartitions]]:
        def offsets(group: str) -> ConsumerGroupTopicPartitions:
            known = self.kafka.groups.get(group, {}).items()
            places = [TopicPartition(name, number, offset) for (name, number), offset in known]
            return ConsumerGroupTopicPartitions(group, places)

        return self._each("group-offsets", [one.group_id for one in groups], offsets)

    def alter_consumer_group_offsets(
        self, groups: Sequence[ConsumerGroupTopicPartitions], **_options: Any
    ) -> dict[str, Told[ConsumerGroupTopicPartitions]]:
        """Nobody is a member of a group here: consumers are given their partitions."""
        wanted = {one.group_id: one for one in groups}

        def alter(group: str) -> ConsumerGroupTopicPartitions:
            places = wanted[group].topic_partitions
            known = self.kafka.groups.setdefault(group, {})
            known.update({(one.topic, one.partition): one.offset for one in places})
            return ConsumerGroupTopicPartitions(group, places)

        return self._each("move-group", list(wanted), alter)

    def _each(self, operation: str, keys: Any, act: Callable[[Any], Answer]) -> dict[Any, Told[Answer]]:
        """One request for all of them; each has its answer or its error."""

        def answers() -> dict[Any, Told[Answer]]:
            return {key: _told(act, key) for key in keys}

        try:
            return self._ask(operation, answers)
        except KafkaException as error:
            return {key: Told(error=error) for key in keys}


def _told(act: Callable[[Any], Answer], key: Any) -> Told[Answer]:
    try:
        return Told(act(key))
    except KafkaException as error:
        return Told(error=error)
