"""Records of one input partition on their way through a handler: decoded as a whole, details on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
from stack.model.checkpoint import Gap
from stack.model.dead import DeadLetter, Headers, attempt_of, letter_of
from stack.model.feed import FeedSpec

# Below this many payloads a batch costs more than its records one by one.
_FEW = 24
# Where some payloads cannot be decoded, those of so many are looked at one by one.
_AROUND = 512


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
        self.one = RecordDecoder(schemas, schema).decode
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
                decoded.append(self.one(payload))  # type: ignore[arg-type]
            except BadRecord as error:
                raise BadPlace(index, error) from None
        return decoded

    def rows_or_faults(self, payloads: list[bytes | None]) -> list[Any]:
        """The same, with a BadRecord in the place of each payload that cannot be decoded."""
        try:
            return self.rows(payloads)
        except BadPlace:
            if len(payloads) <= _AROUND:
                return [self._row_or_fault(payload) for payload in payloads]
        parts = (payloads[start : start + _AROUND] for start in range(0, len(payloads), _AROUND))
        return [row for part in parts for row in self.rows_or_faults(part)]

    def _row_or_fault(self, payload: bytes | None) -> Any:
        try:
            return None if payload is None else self.one(payload)
        except BadRecord as error:
            return error

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
        return self.log_offset(index)

    def log_offset(self, index: int) -> int:
        """Where the record stands in the log that it is read from."""
        return int(self.batch.messages[index].offset())

    def timestamp_ms(self, index: int) -> int:
        return int(self.batch.messages[index].timestamp()[1])

    def headers(self, index: int) -> Headers:
        return tuple(self.batch.messages[index].headers() or ())

    def attempt(self, index: int) -> int:
        """How often the record has died before."""
        return attempt_of(self.headers(index))

    def taken(self, indices: list[int]) -> Records:
        """Some of the records, as a portion of their own."""
        batch = RawBatch([self.batch.messages[index] for index in indices])
        return Records(batch, self._decoder, self.partition)

    def without(self, gaps: Iterable[Gap]) -> Records:
        """What is left of the records when those in the gaps are passed over."""
        offsets = self.batch.offsets
        left = [
            index
            for index, offset in enumerate(offsets)
            if not any(gap.first <= offset < gap.end for gap in gaps)
        ]
        return self if len(left) == len(offsets) else self.taken(left)

    def place(self, index: int) -> str:
        """Where a record stands, for people."""
        return f"{self.feed}, partition {self.partition}, offset {self.offset(index)}"


class Redriven(Records):
    """Records that come back from the dead letters of a job; they tell the place that they once came from."""

    __slots__ = ("letters",)

    def __init__(self, batch: RawBatch, decoder: InputDecoder, partition: int, feed: str) -> None:
        super().__init__(batch, decoder, partition)
        self.feed = feed
        self.letters = [self._letter(message) for message in batch.messages]

    @staticmethod
    def _letter(message: Any) -> DeadLetter:
        return letter_of(message.key(), message.value(), message.headers() or ())

    @classmethod
    def whence(cls, message: Any) -> tuple[str, int]:
        """The feed and partition that a record once came from."""
        letter = cls._letter(message)
        return letter.feed, letter.partition

    def offset(self, index: int) -> int:
        return self.letters[index].offset

    def timestamp_ms(self, index: int) -> int:
        return self.letters[index].timestamp_ms

    def headers(self, index: int) -> Headers:
        return self.letters[index].headers

    def attempt(self, index: int) -> int:
        return self.letters[index].attempt

    def taken(self, indices: list[int]) -> Records:
        batch = RawBatch([self.batch.messages[index] for index in indices])
        return Redriven(batch, self._decoder, self.partition, self.feed)
