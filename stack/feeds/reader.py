"""Reads a feed: from any startpoint, to an exact end or for ever, as records or as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stack.errors import BadInput, BadRecord, NotFound
from stack.feeds.avro.codec import RecordDecoder
from stack.feeds.avro.columns import ColumnDecoder
from stack.feeds.avro.schema import AvroSchema, SchemaSource
from stack.feeds.keys import key_decoder
from stack.kafka.admin import Bounds, KafkaAdmin
from stack.kafka.config import KafkaAccess
from stack.kafka.reader import BATCH_RECORDS, LogReader, RawBatch
from stack.machine import monotonic, time_ms
from stack.model.feed import FeedSpec
from stack.model.record import Record
from stack.model.startpoint import AtOffset, AtOffsets, AtTime, Latest, Oldest, Startpoint

if TYPE_CHECKING:
    import pyarrow as pa

# An open transaction may hold a bounded read up, so silence alone is no fault.
QUIET_LIMIT_S = 30.0


class FeedReader:
    """Reads committed records of one feed. Takes no part in any consumer group and stores no offsets.

    with stack.reader("page-views") as reader:
        reader.seek(Oldest(), until=Latest())
        for record in reader.records():
            ...
    """

    def __init__(
        self,
        access: KafkaAccess,
        admin: KafkaAdmin,
        spec: FeedSpec,
        *,
        topic: str,
        schemas: SchemaSource,
        schema: AvroSchema | None,
        settings: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._clock = clock
        self._log = LogReader(access, topic, settings)
        self._admin = admin
        self._topic = topic
        self.spec = spec
        self.schema = schema
        self._decoding = _Decoding(spec, schemas, schema)
        self._assigned = False

    def bounds(self) -> dict[int, Bounds]:
        """First offset and end of every partition, now."""
        return self._admin.bounds(self._topic, range(self._partitions))

    @cached_property
    def _partitions(self) -> int:
        found = self._admin.describe([self._topic])
        if self._topic not in found:
            raise NotFound(
                f"feed {self.spec.name!r} has no topic {self._topic!r}",
                hint="Run `stack feeds apply` to make it.",
            )
        return found[self._topic].partitions

    def seek(
        self, start: Startpoint, until: Startpoint | None = None, partitions: list[int] | None = None
    ) -> None:
        """Go to a startpoint. With `until`, reading ends exactly there; without, it goes on for ever."""
        bounds = self.bounds()
        at = lambda ms: self._admin.offsets_at(self._topic, self._partitions, ms)  # noqa: E731
        begin = resolve(start, bounds, at)
        for number, offset in begin.items():
            low, high = bounds[number].low, bounds[number].high
            if not low <= offset <= high and isinstance(start, AtOffset | AtOffsets):
                raise NotFound(
                    f"feed {self.spec.name!r}, partition {number}: there is no offset {offset}; "
                    f"it holds {low} to {high}",
                    hint="Start at oldest, latest, a time, or an offset within.",
                )
        end = None if until is None else resolve(until, bounds, at)
        chosen = set(range(self._partitions) if partitions is None else partitions)
        unknown = chosen - set(bounds)
        if unknown:
            raise NotFound(
                f"feed {self.spec.name!r} has no partition {min(unknown)}; it has {self._partitions}"
            )
        self.assign(
            {number: offset for number, offset in begin.items() if number in chosen},
            None if end is None else {number: offset for number, offset in end.items() if number in chosen},
        )

    def assign(self, offsets: Mapping[int, int], until: Mapping[int, int] | None = None) -> None:
        """Read exactly these partitions from these offsets, up to but not including `until`."""
        self._log.assign(offsets, until)
        self._assigned = True

    @property
    def positions(self) -> Mapping[int, int]:
        """Where each partition continues."""
        return self._log.positions

    @property
    def done(self) -> bool:
        """Whether a bounded read has given everything."""
        return self._log.done

    @property
    def caught_up(self) -> bool:
        """Whether every partition was at its end when last looked at."""
        return self._log.caught_up

    def read(self, max_records: int = BATCH_RECORDS, timeout_s: float = 1.0) -> FeedBatch:
        """The next records, at most `max_records`; empty if none came in time. Decodes when asked to."""
        if not self._assigned:
            raise BadInput(
                "the reader was not told where to start", hint="Call seek(Oldest()) or assign first."
            )
        return FeedBatch(self._log.read(max_records, timeout_s), self._decoding)

    def batches(self, max_records: int = BATCH_RECORDS) -> Iterator[FeedBatch]:
        """Batches until the end of a bounded read, or for ever.

        A bounded read that gets nothing for a while asks whether Kafka is there; Unavailable if it is not.
        """
        heard = self._clock()
        while not self.done:
            batch = self.read(max_records)
            if len(batch):
                yield batch
                heard = self._clock()
            elif self._log.bounded and self._clock() - heard >= QUIET_LIMIT_S:
                self.bounds()
                heard = self._clock()

    def records(self) -> Iterator[Record]:
        """Record by record, until the end of a bounded read, or for ever."""
        for batch in self.batches():
            yield from batch.records()

    def read_schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        from stack.feeds.avro.columns import arrow_schema

        if self.schema is None:
            raise BadInput("a reader without a schema has no Arrow schema")
        return arrow_schema(self.schema)

    def close(self) -> None:
        """Release the connection and its threads."""
        self._log.close()

    def __enter__(self) -> FeedReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Decoding:
    """The decoders of one feed; made when first used, since many readers want only bytes."""

    def __init__(self, spec: FeedSpec, schemas: SchemaSource, schema: AvroSchema | None) -> None:
        self._spec = spec
        self._schemas = schemas
        self._schema = schema
        self.feed = spec.name

    @cached_property
    def value(self) -> Callable[[bytes], Any]:
        return RecordDecoder(self._schemas, self._schema).decode

    @cached_property
    def columns(self) -> ColumnDecoder:
        return ColumnDecoder(self._schemas, self._schema)

    @cached_property
    def key(self) -> Callable[[bytes | None], Any]:
        return key_decoder(self._spec.key, self._schemas)


class FeedBatch:
    """Records that came together. Bytes are decoded when asked for, at once or one by one."""

    __slots__ = ("_decoding", "raw")

    def __init__(self, raw: RawBatch, decoding: _Decoding) -> None:
        self.raw = raw
        self._decoding = decoding

    def __len__(self) -> int:
        return len(self.raw)

    def records(self) -> Iterator[Record]:
        """Decoded records; BadRecord, with its place, at the first that cannot be decoded."""
        for record in self.records_or_faults():
            if isinstance(record.value, BadRecord):
                raise record.value
            yield record

    def records_or_faults(self) -> Iterator[Record]:
        """Decoded records; one that cannot be decoded has its BadRecord as its value."""
        decode, decode_key, feed = self._decoding.value, self._decoding.key, self._decoding.feed
        for message in self.raw.messages:
            payload = message.value()
            value: Any = None
            if payload is not None:
                try:
                    value = decode(payload)
                except BadRecord as fault:
                    place = f"{feed}, partition {message.partition()}, offset {message.offset()}"
                    value = BadRecord(f"{place}: {fault.message}", hint=fault.hint, field=fault.field)
            yield Record(
                feed,
                message.partition(),
                message.offset(),
                message.timestamp()[1],
                decode_key(message.key()),
                value,
                tuple(message.headers() or ()),
            )

    def arrow(self, metadata: bool = False) -> pa.RecordBatch:
        """The values as one Arrow batch; tombstones are left out. With `metadata`, columns _key (bytes),
        _partition, _offset and _timestamp (ms) stand behind them."""
        import pyarrow as pa

        payloads = self.raw.values
        present = None
        if None in payloads:
            present = [index for index, payload in enumerate(payloads) if payload is not None]
            payloads = [payloads[index] for index in present]
        values = self._decoding.columns.decode(payloads)  # type: ignore[arg-type]
        if not metadata:
            return values
        extra = {
            "_key": pa.array(self.raw.keys, pa.binary()),
            "_partition": pa.array(self.raw.partitions, pa.int32()),
            "_offset": pa.array(self.raw.offsets, pa.int64()),
            "_timestamp": pa.array(self.raw.timestamps_ms, pa.int64()),
        }
        for name, column in extra.items():
            values = values.append_column(name, column if present is None else column.take(present))
        return values


def resolve(
    point: Startpoint, bounds: Mapping[int, Bounds], offsets_at: Callable[[int], Mapping[int, int]]
) -> dict[int, int]:
    """The offset of each partition that a startpoint means."""
    match point:
        case Oldest():
            return {number: bound.low for number, bound in bounds.items()}
        case Latest():
            return {number: bound.high for number, bound in bounds.items()}
        case AtOffset(offset):
            return dict.fromkeys(bounds, offset)
        case AtOffsets(offsets):
            missing = set(offsets) - set(bounds)
            if missing:
                raise NotFound(
                    f"there is no partition {min(missing)}; there are {len(bounds)}, counted from 0"
                )
            return {number: offsets.get(number, bound.low) for number, bound in bounds.items()}
        case AtTime(timestamp_ms):
            found = offsets_at(timestamp_ms)
            return {number: found[number] for number in bounds}
    raise AssertionError(point)


def now_ms() -> int:
    """The wall clock, for callers that have none in hand."""
    return time_ms()
