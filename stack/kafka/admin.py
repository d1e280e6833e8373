"""Topics: what exists, with which settings, from which offset to which; making and changing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from stack.errors import FeedstackError, NotFound, Unavailable
from stack.kafka.config import KafkaAccess, make_client
from stack.kafka.errors import MISSING, PASSING, REFUSED, translate, translated
from stack.machine import monotonic, sleep, start

_TIMEOUT_S = 20.0
# A leader that died is followed by another within seconds: better ask again than wait for the dead one.
_ATTEMPT_S = 4.0
# How long the news of a new topic may take from broker to broker.
_NEWS_S = 5.0


@dataclass(frozen=True)
class Topic:
    """A topic as Kafka describes it. `id` changes when a topic is deleted and made anew."""

    name: str
    id: str
    partitions: int
    replication: int


@dataclass(frozen=True)
class Bounds:
    """The offsets a partition holds: the first, and the one after the last."""

    low: int
    high: int


@dataclass(frozen=True)
class TopicPlan:
    """A topic to be made. A replication of -1 is the broker's default."""

    name: str
    partitions: int
    settings: Mapping[str, str] = field(default_factory=dict)
    replication: int = -1


def _offsets_of(futures: Mapping[TopicPartition, Future[Any]]) -> dict[tuple[str, int], int]:
    """What was answered for each partition."""
    return {(place.topic, place.partition): future.result().offset for place, future in futures.items()}


def _topics(places: Iterable[TopicPartition]) -> str:
    """Which topics these are partitions of, for people."""
    return ", ".join(sorted({place.topic for place in places}))


class KafkaAdmin:
    """Asks and changes topics. One client, until it finds no broker; the next question has a new one.

    A client may have lost Kafka for good while Kafka is there (`kafka/silence.py`).
    """

    def __init__(
        self,
        access: KafkaAccess,
        timeout_s: float = _TIMEOUT_S,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], None] = sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._refusal: KafkaError | None = None
        self._access = access
        self._timeout_s = timeout_s
        self._begin()

    def _begin(self) -> None:
        self._client = make_client(AdminClient, self._access, {"error_cb": self._on_error})

    def _begin_anew(self) -> None:
        """Put the client aside; letting go of one may take a while."""
        aside = [self._client]
        self._begin()
        start(aside.clear, "close")

    def _fault(self, error: KafkaError, doing: str) -> FeedstackError:
        fault = translate(error, doing)
        if isinstance(fault, Unavailable):
            self._begin_anew()
        return fault

    def topic_names(self) -> set[str]:
        """All topics but Kafka's own."""
        return {name for name in self._listing("listing topics").topics if not name.startswith("__")}

    def broker_ids(self) -> list[int]:
        return sorted(self._listing("asking for the brokers").brokers)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in REFUSED:
            self._refusal = error

    def _listing(self, doing: str) -> Any:
        """Everything that the cluster tells of itself. Why a door stays shut is heard beside the answer."""
        try:
            return self._client.list_topics(timeout=self._timeout_s)
        except KafkaException as error:
            self._client.poll(0)
            raise self._fault(self._refusal or error.args[0], doing) from error

    def describe(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of `names` that exist."""
        wanted = list(names)
        if not wanted:
            return {}
        futures = self._client.describe_topics(TopicCollection(wanted), request_timeout=self._timeout_s)
        found = {}
        for name, future in futures.items():
            try:
                description = self._result(future, f"describing {name}")
            except NotFound:
                continue
            partitions = description.partitions
            replication = len(partitions[0].replicas) if partitions else 0
            found[name] = Topic(name, str(description.topic_id), len(partitions), replication)
        return found

    def settings(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """The settings of topics, broker defaults included."""
        resources = {ConfigResource(ResourceType.TOPIC, name): name for name in names}
        if not resources:
            return {}
        futures = self._client.describe_configs(list(resources), request_timeout=self._timeout_s)
        return {
            resources[resource]: {
                key: entry.value
                for key, entry in self._result(
                    future, f"reading the settings of {resources[resource]}"
                ).items()
            }
            for resource, future in futures.items()
        }

    def create(self, plans: Sequence[TopicPlan]) -> None:
        """Make topics; one that exists already is left alone."""
        topics = [
            NewTopic(plan.name, plan.partitions, plan.replication, config=dict(plan.settings))
            for plan in plans
        ]
        if not topics:
            return
        futures = self._client.create_topics(
            topics, operation_timeout=self._timeout_s, request_timeout=self._timeout_s
        )
        for name, future in futures.items():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                    raise self._fault(error.args[0], f"making {name}") from error
        self._await_leaders({plan.name: plan.partitions for plan in plans})

    def _await_leaders(self, topics: Mapping[str, int]) -> None:
        """Kafka answers before every broker knows a new topic: wait until all its partitions can be used."""
        deadline = self._clock() + self._timeout_s
        for name, partitions in topics.items():
            while not self._has_leaders(name, partitions):
                if self._clock() > deadline:
                    raise Unavailable(
                        f"{name} was made, but not all of its partitions have a leader",
                        hint="A broker may be away: `stack status` tells.",
                    )
                self._sleep(0.02)

    def _has_leaders(self, name: str, partitions: int) -> bool:
        with translated(f"waiting for {name}"):
            topic = self._client.list_topics(name, timeout=self._timeout_s).topics[name]
        ready = [one for one in topic.partitions.values() if one.leader >= 0 and one.error is None]
        return topic.error is None and len(ready) >= partitions

    def change_settings(self, name: str, settings: Mapping[str, str]) -> None:
        """Set some settings of a topic and leave the others."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        futures = self._client.incremental_alter_configs([resource], request_timeout=self._timeout_s)
        for future in futures.values():
            self._result(future, f"changing the settings of {name}")
        # The broker that answers questions may hear of it a moment later than the one that took it.
        deadline = self._clock() + _NEWS_S
        while self._clock() < deadline and not settings.items() <= self.settings([name])[name].items():
            self._sleep(0.02)

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions."""
        futures = self._client.create_partitions(
            [NewPartitions(name, partitions)], request_timeout=self._timeout_s
        )
        self._result(futures[name], f"growing {name}")
        self._await_leaders({name: partitions})

    def delete(self, names: Sequence[str]) -> None:
        """Remove topics with all their records."""
        if not names:
            return
        futures = self._client.delete_topics(
            list(names), operation_timeout=self._timeout_s, request_timeout=self._timeout_s
        )
        for name, future in futures.items():
            self._result(future, f"deleting {name}")
        deadline = self._clock() + self._timeout_s
        while self.topic_names() & set(names) and self._clock() < deadline:
            self._sleep(0.02)

    def bounds(self, name: str, partitions: Iterable[int]) -> dict[int, Bounds]:
        """First offset and end of each of these partitions.

        The end is the high watermark: a commit that was just acknowledged is behind the last stable offset
        for a moment longer. So a read up to it waits for transactions that are open now.
        """
        wanted = list(partitions)
        low = self._offsets(name, wanted, OffsetSpec.earliest())
        high = self._offsets(name, wanted, OffsetSpec.latest())
        return {number: Bounds(low[number], high[number]) for number in wanted}

    def ends(self, name: str, partitions: Iterable[int]) -> dict[int, int]:
        """The high watermark of each partition; it counts what is not committed yet, too."""
        return self._offsets(name, partitions, OffsetSpec.latest())

    def all_ends(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The high watermarks of partitions of several topics, with one question."""
        return self._all_offsets(places, OffsetSpec.latest())

    def stable_ends(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Where readers of committed records would come to an end: before what is not committed yet."""
        return self._all_offsets(places, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)

    def newest_ms(self, places: Iterable[tuple[str, int]]) -> int | None:
        """The time of the newest record in any of some partitions; None if they are empty."""
        wanted = {TopicPartition(name, number): OffsetSpec.max_timestamp() for name, number in places}
        if not wanted:
            return None
        futures = self._client.list_offsets(wanted, request_timeout=self._timeout_s)
        found = [self._result(future, "asking for the newest record") for future in futures.values()]
        return max((one.timestamp for one in found if one.timestamp >= 0), default=None)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """What a consumer group has committed, by partition; nothing if there is no such group."""
        futures = self._client.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=self._timeout_s
        )
        found = self._result(futures[group], f"asking for the offsets of {group}")
        return {(one.topic, one.partition): one.offset for one in found.topic_partitions if one.offset >= 0}

    def move_group(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set what a consumer group has committed. Only of a group that nobody is in: members that work would
        go on where they are, and commit over it."""
        places = [TopicPartition(name, number, offset) for (name, number), offset in offsets.items()]
        if not places:
            return
        futures = self._client.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], request_timeout=self._timeout_s
        )
        doing = f"moving the group {group}"
        try:
            found = futures[group].result().topic_partitions
        except KafkaException as error:
            raise self._group_fault(group, error.args[0], doing) from error
        for one in found:
            if one.error is not None:
                raise self._group_fault(group, one.error, f"{doing} in {one.topic}")

    def _group_fault(self, group: str, error: KafkaError, doing: str) -> FeedstackError:
        if error.code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP):
            return Unavailable(
                f"consumers are at work in Kafka's group {group!r}",
                hint="It can be moved when they have left it.",
            )
        return self._fault(error, doing)

    def begin_ends(
        self, places: Iterable[tuple[str, int]]
    ) -> Callable[[], dict[tuple[str, int], int] | None]:
        """The same, asked now and answered later, by what is returned; None if there was no good answer."""
        wanted = {TopicPartition(name, number): OffsetSpec.latest() for name, number in places}
        if not wanted:
            return dict
        level = IsolationLevel.READ_UNCOMMITTED
        futures = self._client.list_offsets(wanted, isolation_level=level, request_timeout=_ATTEMPT_S)

        def answer() -> dict[tuple[str, int], int] | None:
            try:
                found = _offsets_of(futures)
            except KafkaException:
                return None
            return None if OFFSET_INVALID in found.values() else found

        return answer

    def offsets_at(self, name: str, partitions: int, timestamp_ms: int) -> dict[int, int]:
        """The first offset at or after a moment; the end where no record is that young."""
        found = self._offsets(name, range(partitions), OffsetSpec.for_timestamp(timestamp_ms))
        late = [number for number, offset in found.items() if offset < 0]
        ends = self.ends(name, late) if late else {}
        return {number: ends.get(number, offset) for number, offset in found.items()}

    def _offsets(self, name: str, partitions: Iterable[int], spec: OffsetSpec) -> dict[int, int]:
        found = self._all_offsets(((name, number) for number in partitions), spec)
        return {number: offset for (_, number), offset in found.items()}

    def _all_offsets(
        self,
        places: Iterable[tuple[str, int]],
        spec: OffsetSpec,
        level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[tuple[str, int], int]:
        wanted = {TopicPartition(name, number): spec for name, number in places}
        if not wanted:
            return {}
        deadline = self._clock() + self._timeout_s
        while True:
            futures = self._client.list_offsets(
                wanted,
                isolation_level=level,
                request_timeout=min(_ATTEMPT_S, self._timeout_s),
            )
            try:
                found = _offsets_of(futures)
            except KafkaException as error:
                # A leader that was just elected, or just made, does not know yet that it is one.
                # And a topic that was just made is not known to every broker at once.
                code = error.args[0].code()
                is_new = code in MISSING and self._clock() < deadline - self._timeout_s + _NEWS_S
                if not is_new and (code not in PASSING or self._clock() > deadline):
                    raise self._fault(error.args[0], f"asking for offsets of {_topics(wanted)}") from error
            else:
                # A broker that does not answer in time is no error to librdkafka: the offset is just not set.
                if OFFSET_INVALID not in found.values():
                    return found
                if self._clock() > deadline:
                    raise Unavailable(
                        f"asking for offsets of {_topics(wanted)}: the leader of a partition does not answer",
                        hint="`stack status` and `stack doctor` tell more.",
                    )
            self._sleep(0.05)
            # The client would go on asking the leader that it knows.
            try:
                self._client.list_topics(timeout=_ATTEMPT_S)
            except KafkaException:
                self._begin_anew()

    def _result(self, future: Future[Any], doing: str) -> Any:
        try:
            return future.result()
        except KafkaException as error:
            raise self._fault(error.args[0], doing) from error
