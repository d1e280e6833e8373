"""A connection to one stack: the way from settings to feeds, for programs and commands alike."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stack.errors import NotFound, Unavailable
from stack.feeds.apply import Applier
from stack.feeds.avro.codec import RecordEncoder
from stack.feeds.avro.schema import AvroSchema
from stack.feeds.catalogue import Catalogue, stored_topic
from stack.feeds.reader import FeedReader
from stack.feeds.registry.registry import SchemaRegistry
from stack.feeds.registry.state import Registered
from stack.feeds.writer import FeedWriter
from stack.kafka.admin import KafkaAdmin
from stack.kafka.config import KafkaAccess, Twin, kafka_access
from stack.kafka.ledger import KafkaLedger
from stack.model.feed import FeedSpec, KeyFormat, key_subject, value_subject
from stack.settings import Endpoints, Settings, load_settings, read_endpoints

if TYPE_CHECKING:
    from stack.offsets.groups import GroupOffsets


def catalogue_topic(stack: str) -> str:
    """The feed of a stack that holds its catalogue."""
    return f"_{stack}.catalog"


def schemas_topic(stack: str) -> str:
    """The feed of a stack that holds its schemas."""
    return f"_{stack}.schemas"


class Stack:
    """A connection to one stack. Clients are made when they are first needed.

    with Stack.connect() as stack, stack.reader("page-views") as reader:
        reader.seek(Oldest(), until=Latest())
        for record in reader.records():
            ...
    """

    def __init__(self, settings: Settings, endpoints: Endpoints, memory: Twin | None = None) -> None:
        self.settings = settings
        self.endpoints = endpoints
        self.access: KafkaAccess = kafka_access(settings, endpoints, memory)
        self._open = contextlib.ExitStack()

    @classmethod
    def connect(cls, settings: Settings | Path | None = None) -> Stack:
        """Connect by settings, by a settings file, or by the nearest stack.toml."""
        known = settings if isinstance(settings, Settings) else load_settings(settings)
        return cls(known, read_endpoints(known))

    @cached_property
    def admin(self) -> KafkaAdmin:
        return KafkaAdmin(self.access)

    @cached_property
    def catalogue(self) -> Catalogue:
        return Catalogue(self.ledger(catalogue_topic(self.settings.name)), self.topic_of)

    @cached_property
    def registry(self) -> SchemaRegistry:
        return SchemaRegistry(self.ledger(schemas_topic(self.settings.name)))

    def ledger(self, topic: str) -> KafkaLedger:
        """A table of the stack in a topic of its own."""
        ledger = KafkaLedger(self.access, topic)
        self._open.callback(ledger.close)
        return ledger

    def topic_of(self, feed: str, version: int = 1) -> str:
        """The topic that holds a version of a feed."""
        suffix = "" if version == 1 else f".v{version}"
        return f"{self.settings.topic_prefix}{feed}{suffix}"

    def feed(self, name: str) -> FeedSpec:
        """A feed of the catalogue, or NotFound with the nearest names."""
        return self.catalogue.feed(name)

    def schema(self, feed: str) -> Registered:
        """The newest schema of a feed's values, with its id."""
        try:
            return self.registry.latest(value_subject(feed))
        except NotFound:
            raise NotFound(
                f"feed {feed!r} has no schema in the registry",
                hint="Run `stack feeds apply`: it registers it.",
            ) from None

    def reader(
        self, feed: str, schema: AvroSchema | None = None, settings: Mapping[str, Any] | None = None
    ) -> FeedReader:
        """A reader of a feed; records come as `schema` says, else as the newest schema of the feed."""
        spec = self.feed(feed)
        wanted = schema or self.schema(feed).schema
        topic = self.topic_of(feed, spec.version)
        return FeedReader(
            self.access,
            self.admin,
            spec,
            topic=topic,
            schemas=self.registry,
            schema=wanted,
            settings=settings,
        )

    def writer(
        self, feed: str, transactional_id: str | None = None, settings: Mapping[str, Any] | None = None
    ) -> FeedWriter:
        """A writer of a feed, by its newest schema. With a transactional id it writes in transactions."""
        spec = self.feed(feed)
        registered = self.schema(feed)
        key = None
        if spec.key is not None and spec.key.format is KeyFormat.AVRO:
            of_key = self.registry.latest(key_subject(feed))
            key = RecordEncoder(of_key.schema, of_key.id)
        return FeedWriter(
            self.access,
            spec,
            topic=self.topic_of(feed, spec.version),
            schema=registered.schema,
            schema_id=registered.id,
            avro_keys=key,
            transactional_id=f"{self.settings.name}.{transactional_id}" if transactional_id else None,
            settings=settings,
        )

    def offsets(self, group: str) -> GroupOffsets:
        """Where a consumer outside the stack stands: commit offsets with annotations, and find them again."""
        from stack.offsets.groups import GroupOffsets

        offsets = GroupOffsets(self, group)
        self._open.callback(offsets.close)
        return offsets

    @cached_property
    def applier(self) -> Applier:
        """Makes feeds what the files declare."""
        return Applier(self.admin, self.catalogue, self.registry, self.topic_of, self._other_owner)

    def _other_owner(self, topic: str) -> str | None:
        """The other stack on this Kafka whose catalogue has a topic, as far as it can be told."""
        own = catalogue_topic(self.settings.name)
        for name in sorted(self.admin.topic_names()):
            if name == own or not (name.startswith("_") and name.endswith(".catalog")):
                continue
            ledger = KafkaLedger(self.access, name, timeout_s=5)
            try:
                feeds = ledger.entries()
            except Unavailable:
                continue
            finally:
                ledger.close()
            if any(stored_topic(text) == topic for text in feeds.values()):
                return name[1:].removesuffix(".catalog")
        return None

    def close(self) -> None:
        """Release every client that was opened through this connection."""
        self._open.close()

    def __enter__(self) -> Stack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
