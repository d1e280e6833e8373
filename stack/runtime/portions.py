"""Records of one input partition on their way through a handler: decoded as a whole, details on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from stack.errors import BadRecord
from stack.feeds.avro.batch_checks import BadPayload
from stack.feeds.avro.batch_rows import rows
from stack.feeds.avro.codec import RecordDecoder
from stack.feeds.avro.columns import ColumnDecoder, arrow_schema
from stack.feeds.avro.schema import AvroSchema, SchemaSource
from stack.feeds.keys import key_decoder
from stack.kafka.reader import RawBatch
from stack.model.feed import FeedSpec

# Below this many payloads a batch costs more than its records one by one.
_FEW = 24


class BadPlace(Exception):
    """A record that cannot be decoded; `index` is its place in the portion."""

    def __init__(self, index: int, error: BadRecord) -> None:
        super().__init__(error.message)
        self.index = index
        self.error = error


class InputDecoder:
    """Decodes payloads of one feed, as its newest schema says."""

    def __init__(self, spec: FeedSpec, schemas: SchemaSource, schema: AvroSchema) -> None:
        self.feed = spec.name
        self._one = RecordDecoder(schemas, schema).decode
        self._many = ColumnDecoder(schemas, schema)
        self.key: Callable[[bytes | None], Any] = key_decoder(spec.key, schemas)
        self.arrow_schema = arrow_schema(schema)

    def rows(self, payloads: list[bytes | None]) -> list[Any]:
        """One value per payload, None for a tombstone."""
        if None in payloads:
            present = [index for index, payload in enumerate(payloads) if payload is not None]
            values: list[Any] = [None] * len(payloads)
            try:
                decoded = self.rows([payloads[index] for index in present])
            except BadPlace as fault:
                raise BadPlace(present[fault.index], fault.error) from None
            for index, value in zip(present, decoded, strict=True):
                values[index] = value
            return values
        if len(payloads) >= _FEW:
            return rows(self.arrow(payloads))  # type: ignore[arg-type]
        decoded = []
        for index, payload in enumerate(payloads):
            try:
                decoded.append(self._one(payload))  # type: ignore[arg-type]
            except BadRecord as error:
                raise BadPlace(index, error) from None
        return decoded

    def arrow(self, payloads: list[bytes]) -> pa.RecordBatch:
        """The payloads as one batch; there must be no tombstone among them."""
        if not payloads:
            return pa.RecordBatch.from_pylist([], schema=self.arrow_schema)
        try:
            return self._many.decode(payloads)
        except BadPayload as fault:
            message = fault.message.removeprefix(f"payload {fault.index}: ")
            raise BadPlace(fault.index, BadRecord(message, fault.hint, fault.field)) from None


class Records:
    """A portion: what a context answers about the records at hand."""

    __slots__ = ("_decoder", "batch", "feed", "partition")

    def __init__(self, batch: RawBatch, decoder: InputDecoder, partition: int) -> None:
        self.batch = batch
        self.feed = decoder.feed
        self.partition = partition
        self._decoder = decoder

    def __len__(self) -> int:
        return len(self.batch)

    def key(self, index: int) -> Any:
        return self._decoder.key(self.batch.messages[index].key())

    def keys(self) -> list[Any]:
        return list(map(self._decoder.key, self.batch.keys))

    def offset(self, index: int) -> int:
        return int(self.batch.messages[index].offset())

    def timestamp_ms(self, index: int) -> int:
        return int(self.batch.messages[index].timestamp()[1])

    def headers(self, index: int) -> tuple[tuple[str, bytes | None], ...]:
        return tuple(self.batch.messages[index].headers() or ())

    def place(self, index: int) -> str:
        """Where a record stands, for people."""
        return f"{self.feed}, partition {self.partition}, offset {self.offset(index)}"
