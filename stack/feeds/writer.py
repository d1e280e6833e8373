"""Writes a feed: values are checked and encoded by its schema, keyed as its catalogue entry says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stack.errors import BadInput, FeedstackError
from stack.feeds.avro.codec import RecordEncoder
from stack.feeds.avro.columns import ColumnEncoder
from stack.feeds.avro.schema import AvroSchema
from stack.feeds.encoder import FeedEncoder
from stack.feeds.keys import text_key
from stack.kafka.config import KafkaAccess
from stack.kafka.writer import LogWriter, WriteRecord
from stack.machine import time_ms
from stack.model.feed import FeedSpec, KeyFormat

if TYPE_CHECKING:
    import pyarrow as pa

_BUFFERED_RECORDS = 1_000


class FeedWriter:
    """Writes records to one feed, each exactly once however often the network fails.

        with stack.writer("page-views") as writer:
            writer.write({"user": "ada", "page": "/", "ms": 1700000000000, "load": 12.5})

    Key and event time come from the fields that the catalogue names. Records are sent in the background;
    `flush`, and the end of the block, return when all of them stand in the log, or raise.
    """

    def __init__(
        self,
        access: KafkaAccess,
        spec: FeedSpec,
        *,
        topic: str,
        schema: AvroSchema,
        schema_id: int,
        avro_keys: RecordEncoder | None = None,
        transactional_id: str | None = None,
        settings: Mapping[str, Any] | None = None,
        clock_ms: Callable[[], int] = time_ms,
    ) -> None:
        self.spec = spec
        self._topic = topic
        self._encoder = FeedEncoder(spec, schema, schema_id, avro_keys, clock_ms)
        self._columns = ColumnEncoder(schema, schema_id)
        self._pending: list[WriteRecord] = []
        self.written = 0
        self._transactional = transactional_id is not None
        self._in_transaction = False
        self._log = LogWriter(access, transactional_id, settings)
        if transactional_id is not None:
            self._log.init_transactions()

    def encode(self, value: Any, key: Any = None, timestamp_ms: int | None = None) -> WriteRecord:
        """Check and encode one record without writing it; BadRecord says what is wrong with it."""
        return self._encoder.encode(value, key, timestamp_ms)

    def encode_key(self, key: Any) -> bytes | None:
        """The bytes of a key."""
        return None if key is None else self._encoder.key(key)

    def write(self, value: Any, key: Any = None, timestamp_ms: int | None = None) -> None:
        """Write one record. Without `key` and `timestamp_ms` the declared fields of the value are taken."""
        self.write_encoded([self.encode(value, key, timestamp_ms)])

    def write_many(self, values: Iterable[Any]) -> None:
        """Write values in order; a bad one raises BadRecord and neither it nor what follows is written."""
        for value in values:
            self.write(value)

    def write_encoded(self, records: Sequence[WriteRecord]) -> None:
        """Write what `encode` made."""
        self._refuse_outside_transaction()
        self._pending.extend(records)
        if len(self._pending) >= _BUFFERED_RECORDS:
            self.send()

    def write_payloads(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> None:
        """Write values that are encoded already: the quick way from feed to feed."""
        self._refuse_outside_transaction()
        self.send()
        records: list[WriteRecord]
        if keys is None and timestamps_ms is None:
            records = [{"value": payload} for payload in payloads]
        elif timestamps_ms is None:
            records = [
                {"value": payload, "key": key} for payload, key in zip(payloads, keys or (), strict=True)
            ]
        else:
            if timestamps_ms:
                self._encoder.refuse_unkept(min(timestamps_ms), max(timestamps_ms))
            records = [
                {"value": payload, "key": key, "timestamp": stamp}
                for payload, key, stamp in zip(
                    payloads, keys or [None] * len(payloads), timestamps_ms, strict=True
                )
            ]
        self._log.write(self._topic, records)
        self.written += len(records)

    def write_arrow(self, batch: pa.RecordBatch) -> None:
        """Write a batch of columns; keys and times come from the declared columns."""
        payloads = self._columns.encode(batch)
        keys = stamps = None
        if self.spec.key is not None:
            encode = self._encoder.key if self.spec.key.format is KeyFormat.AVRO else text_key
            keys = [encode(value) for value in batch.column(self.spec.key.field).to_pylist()]
        time_ms = self._encoder.time_ms
        if self.spec.event_time is not None and time_ms is not None:
            name = self.spec.event_time
            stamps = [time_ms({name: value}) for value in batch.column(name).to_pylist()]
        self.write_payloads(payloads, keys, stamps)

    def delete(self, key: Any) -> None:
        """Write a tombstone: the key's record goes from a table feed."""
        self.write_encoded([self._encoder.deletion(key)])

    def send(self) -> None:
        """Hand what is buffered to the sender now instead of waiting for a full batch."""
        if self._pending:
            records, self._pending = self._pending, []
            self._log.write(self._topic, records)
            self.written += len(records)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything written in the block becomes visible together, or not at all if the block raises."""
        if not self._transactional:
            raise BadInput(
                "this writer has no transactions",
                hint='Open it with an id of its own: stack.writer(feed, transactional_id="loader").',
            )
        self._log.begin()
        self._in_transaction = True
        try:
            yield
            self.send()
        except BaseException:
            self._pending.clear()
            with contextlib.suppress(FeedstackError):  # what went wrong first is the news
                self._log.abort()
            raise
        finally:
            self._in_transaction = False
        self._log.commit()

    def _refuse_outside_transaction(self) -> None:
        if self._transactional and not self._in_transaction:
            raise BadInput(
                "a transactional writer writes inside a transaction only",
                hint="Put the writing into `with writer.transaction():`.",
            )

    def flush(self) -> None:
        """Wait until everything written so far stands in the log; NotDelivered if it does not."""
        self.send()
        self._log.flush()

    def close(self) -> None:
        """Release the connection; what is pending is sent first."""
        try:
            self.send()
        finally:
            self._log.close()

    def __enter__(self) -> FeedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
            else:
                self._pending.clear()
        finally:
            self._log.close()
