"""From a value to a record of a feed: bytes by the schema, the key and the time by the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from stack.errors import BadRecord
from stack.feeds.avro.codec import RecordEncoder
from stack.feeds.avro.schema import AvroSchema
from stack.feeds.keys import key_encoder
from stack.kafka.writer import MAX_VALUE_BYTES, SMALLER, WriteRecord
from stack.machine import time_ms
from stack.model.duration import format_duration
from stack.model.feed import Events, FeedSpec
from stack.model.startpoint import format_time

# The default of Kafka's message.timestamp.after.max.ms.
MOST_AHEAD_MS = 3_600_000


class FeedEncoder:
    """Checks and encodes values of one feed, without writing them."""

    def __init__(
        self,
        spec: FeedSpec,
        schema: AvroSchema,
        schema_id: int,
        avro_keys: RecordEncoder | None = None,
        clock_ms: Callable[[], int] = time_ms,
    ) -> None:
        self.spec = spec
        self.payload = RecordEncoder(schema, schema_id).encode
        self.key = key_encoder(spec.key, avro_keys)
        self.time_ms = _time_reader(spec, schema)
        self._clock_ms = clock_ms

    def encode(self, value: Any, key: Any = None, timestamp_ms: int | None = None) -> WriteRecord:
        """One record; BadRecord says what is wrong with it.

        Without `key` and `timestamp_ms` the declared fields of the value are taken.
        """
        payload = self.payload(value)
        if len(payload) > MAX_VALUE_BYTES:
            raise BadRecord(
                f"the record has {len(payload):,} bytes; Kafka takes {MAX_VALUE_BYTES:,}", hint=SMALLER
            )
        if key is None and self.spec.key is not None:
            key = value[self.spec.key.field]
        if timestamp_ms is None and self.time_ms is not None:
            timestamp_ms = self.time_ms(value)
        record: WriteRecord = {"value": payload, "key": self.key(key)}
        if timestamp_ms is not None:
            self.refuse_unkept(timestamp_ms, timestamp_ms)
            record["timestamp"] = timestamp_ms
        return record

    def deletion(self, key: Any) -> WriteRecord:
        """The tombstone of a key of a table feed."""
        if not self.spec.is_table:
            raise BadRecord(
                f"feed {self.spec.name!r} is an event feed: its records are not deleted by key",
                hint="Only a table feed (table = true in the catalogue) has deletions.",
            )
        if key is None:
            raise BadRecord("a deletion needs a key")
        return {"value": None, "key": self.key(key)}

    def refuse_unkept(self, oldest_ms: int, newest_ms: int) -> None:
        """Refuse times that Kafka would not keep: it deletes by record time at its next retention check,
        and it refuses a time far ahead together with all records that were sent beside it."""
        storage = self.spec.storage
        if not isinstance(storage, Events):
            return  # a table feed has the time of arrival
        now_ms = self._clock_ms()
        if storage.retention_ms is not None and oldest_ms < now_ms - storage.retention_ms:
            kept = format_duration(storage.retention_ms)
            raise BadRecord(
                f"its time {format_time(oldest_ms)} is older than the {kept} that feed "
                f"{self.spec.name!r} keeps: Kafka would delete it",
                hint='Declare a longer retention (or "forever") before a backfill.',
                field=self.spec.event_time,
            )
        if newest_ms > now_ms + MOST_AHEAD_MS:
            raise BadRecord(
                f"its time {format_time(newest_ms)} is more than an hour ahead: Kafka refuses it",
                hint="Correct the event time, or the clock of this machine.",
                field=self.spec.event_time,
            )


def _time_reader(spec: FeedSpec, schema: AvroSchema) -> Callable[[Any], int] | None:
    """How to get milliseconds out of the event-time field, by its logical type."""
    if spec.event_time is None:
        return None
    name = spec.event_time
    types = {field["name"]: field["type"] for field in schema.tree["fields"]}
    declared = types.get(name)
    divisor = 1000 if isinstance(declared, dict) and "micros" in str(declared.get("logicalType")) else 1

    def read(value: Any) -> int:
        moment = value[name]
        if isinstance(moment, datetime):
            aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            return int(aware.timestamp() * 1000)
        return int(moment) // divisor

    return read
