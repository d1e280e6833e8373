"""What tasks emit, on its way to Kafka: kept as columns, encoded as a whole, sent when it may be.

A value is taken apart when it is emitted: user code may change its dict afterwards, and a missing field is
found while the record that emitted it is still at hand. Schemas of plain fields go by columns, all others
record by record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from stack.errors import BadConfig, BadRecord
from stack.feeds.avro.batch_checks import BadPayload
from stack.feeds.avro.batch_rows import packed_of
from stack.feeds.avro.codec import RecordEncoder
from stack.feeds.avro.column_encoder import ColumnEncoder
from stack.feeds.avro.plain_arrays import PLAIN, Build
from stack.feeds.avro.schema import AvroSchema
from stack.feeds.encoder import FeedEncoder
from stack.feeds.keys import text_key
from stack.kafka.writer import MAX_VALUE_BYTES, SMALLER, LogWriter
from stack.model.feed import FeedSpec, KeyFormat
from stack.model.packed import Packed, pack
from stack.model.partitions import partitions_of

if TYPE_CHECKING:
    from stack.tasks.declare import Feed

# Below this many values a batch costs more than its records one by one.
_FEW = 24
_Add = Callable[[int, Any, Any, int | None], None]


class Refused(Exception):
    """An emitted value that its feed refuses; `place` is the index of the record that emitted it."""

    def __init__(self, place: int, error: BadRecord) -> None:
        super().__init__(error.message)
        self.place = place
        self.error = error


class _Ready:
    """Encoded records, one after the other: all of them with a time of their own, or none."""

    def __init__(self) -> None:
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._times: list[int] = []

    def __len__(self) -> int:
        return len(self._values)

    @property
    def keys(self) -> Packed:
        return pack(self._keys)

    @property
    def timed(self) -> bool:
        return bool(self._times)

    def add(
        self, keys: Iterable[bytes | None], values: Iterable[bytes | None], times: Iterable[int] | None = None
    ) -> None:
        self._keys.extend(keys)
        self._values.extend(values)
        self._times.extend(times or ())

    def cut(self, length: int) -> None:
        """Forget what was added since it had this length, also if something was added half-way."""
        for one in (self._keys, self._values, self._times):
            del one[length:]

    def send(self, writer: LogWriter, topic: str) -> None:
        if not self._times:
            writer.write_pairs(topic, self._keys, self._values)
            return
        records = [
            {"key": key, "value": value, "timestamp": time_ms}
            for key, value, time_ms in zip(self._keys, self._values, self._times, strict=True)
        ]
        writer.write(topic, records)


class _Packed:
    """Encoded records of one batch."""

    def __init__(self, keys: Packed, values: Packed) -> None:
        self.keys = keys
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def send(self, writer: LogWriter, topic: str) -> None:
        writer.write_packed(topic, self.keys, self._values)


class Output:
    """Everything emitted to one feed and not yet sent."""

    def __init__(
        self,
        spec: FeedSpec,
        topic: str,
        schema: AvroSchema,
        schema_id: int,
        avro_keys: RecordEncoder | None = None,
    ) -> None:
        self.spec = spec
        self.topic = topic
        self._encoder = FeedEncoder(spec, schema, schema_id, avro_keys)
        self._columns_encoder = ColumnEncoder(schema, schema_id)
        self._text_keys = spec.key is None or spec.key.format is not KeyFormat.AVRO
        self._key_field = None if spec.key is None else spec.key.field
        self._names = schema.field_names
        self._kinds = _plain_kinds(schema) if spec.event_time is None else None
        self._columns: list[list[Any]] = [[] for _ in self._names]
        self._keys: list[Any] = []
        self._places: list[int] = []
        # Encoded, in their order: first what is closed, then what may still grow.
        self._closed: list[_Ready | _Packed] = []
        self._ready = _Ready()
        # Where everything stood when it was marked.
        self._mark: tuple[int, _Ready, int] = (0, self._ready, 0)
        self._refusal: Refused | None = None
        self.emitted = 0
        # Among how many partitions it is noted which were sent to; 0 if nobody asks.
        self.noted_partitions = 0
        self._sent_to: frozenset[int] = frozenset()
        self.add: _Add = self._adder() if self._kinds else self.add_slowly

    def __len__(self) -> int:
        return len(self._places) + sum(map(len, self._closed)) + len(self._ready)

    def _adder(self) -> _Add:
        """`add` for plain fields: straight into the columns, by code that is made for these fields."""
        fields = ", ".join(f"value[{name!r}]" for name in self._names)
        locals_ = ", ".join(f"field_{place}" for place in range(len(self._names)))
        appends = "; ".join(f"append_{place}(field_{place})" for place in range(len(self._names)))
        code = (
            "def add(place, value, key, timestamp):\n"
            "    try:\n"
            f"        if timestamp is not None or len(value) != {len(self._names)}:\n"
            "            return slowly(place, value, key, timestamp)\n"
            f"        {locals_}, = {fields},\n"
            "    except (KeyError, TypeError):\n"
            "        return slowly(place, value, key, timestamp)\n"
            f"    {appends}; append_key(key); append_place(place)\n"
        )
        scope: dict[str, Any] = {
            "slowly": self.add_slowly,
            "append_key": self._keys.append,
            "append_place": self._places.append,
            **{f"append_{place}": column.append for place, column in enumerate(self._columns)},
        }
        exec(code, scope)  # noqa: S102 - field names stand in it as literals
        add: _Add = scope["add"]
        return add

    def add_slowly(self, place: int, value: Any, key: Any, timestamp_ms: int | None) -> None:
        """One value, encoded at once."""
        self.encode()
        try:
            if value is None:
                record = self._encoder.deletion(key)
            else:
                record = self._encoder.encode(value, key, timestamp_ms)
        except BadRecord as error:
            raise Refused(place, error) from None
        except (TypeError, KeyError, IndexError, AttributeError) as error:
            raise Refused(place, BadRecord(f"the value has no field for the key: {error}")) from None
        times = None if record.get("timestamp") is None else [record["timestamp"]]
        self._growing(timed=times is not None).add([record["key"]], [record["value"]], times)

    def _growing(self, timed: bool) -> _Ready:
        """What records are added to; those with a time of their own stand apart from the others."""
        if len(self._ready) and self._ready.timed != timed:
            self._close()
        return self._ready

    def _close(self) -> None:
        if len(self._ready):
            self._closed.append(self._ready)
            self._ready = _Ready()

    def add_batch(self, batch: pa.RecordBatch, key: str | None) -> None:
        """A whole Arrow batch; keys come from the column `key`, by default the feed's key field."""
        self.encode()
        name = key or self._key_field
        try:
            payloads = self._columns_encoder.encode_packed(batch)
            keys = self._batch_keys(batch, name)
        except BadPayload as error:
            raise Refused(error.index, error) from None
        except (BadRecord, KeyError) as error:
            fault = error if isinstance(error, BadRecord) else BadRecord(f"the batch has no column {name!r}")
            raise Refused(0, fault) from None
        if payloads.largest > MAX_VALUE_BYTES:
            raise _too_large(payloads.sizes.tolist(), range(len(payloads)))
        if self.spec.event_time is None or self._encoder.time_ms is None:
            self._close()
            self._closed.append(_Packed(keys, payloads))
            return
        moments = batch.column(self.spec.event_time).to_pylist()
        times = [self._encoder.time_ms({self.spec.event_time: one}) for one in moments]
        if times:
            self._encoder.refuse_unkept(min(times), max(times))
            self._growing(timed=True).add(keys.items(), payloads.items(), times)

    def _batch_keys(self, batch: pa.RecordBatch, name: str | None) -> Packed:
        if name is None:
            return pack([None] * batch.num_rows)
        column = batch.column(name)
        if self._text_keys and pa.types.is_string(column.type) and not column.null_count:
            return packed_of(column)
        return pack(list(map(text_key if self._text_keys else self._encoder.key, column.to_pylist())))

    def encode(self) -> None:
        """Turn the columns into bytes; Refused names the first value that the schema does not take.

        It is raised until the values are taken back or dropped: the first time may be within the code of
        another record, which may catch whatever its own values lead to.
        """
        if self._refusal is not None:
            raise self._refusal
        if not self._places:
            return
        try:
            self._encode_places()
        except Refused as fault:
            self._refusal = fault
            raise

    def _encode_places(self) -> None:
        places, keys = self._places.copy(), self._keys.copy()
        columns = [column.copy() for column in self._columns]
        for one in (self._places, self._keys, *self._columns):
            one.clear()
        payloads = None if len(places) < _FEW else self._encode_columns(columns)
        if payloads is None:
            payloads = self._encode_rows(columns, places)
        if max(map(len, payloads)) > MAX_VALUE_BYTES:
            raise _too_large(map(len, payloads), places)
        if None in keys and self._key_field is not None:
            own = columns[self._names.index(self._key_field)]
            keys = [theirs if key is None else key for key, theirs in zip(keys, own, strict=True)]
        self._growing(timed=False).add(self._encode_keys(keys, places), payloads)

    def _encode_columns(self, columns: list[list[Any]]) -> list[bytes] | None:
        """All at once, or None where a value is not exactly of its field's type."""
        arrays = []
        for (kind, build), column in zip(self._kinds or (), columns, strict=True):
            if set(map(type, column)) != {kind}:
                return None
            try:
                arrays.append(build(column))
            except (OverflowError, UnicodeError):
                return None
        try:
            return self._columns_encoder.encode(pa.RecordBatch.from_arrays(arrays, names=list(self._names)))
        except BadRecord:
            return None

    def _encode_rows(self, columns: list[list[Any]], places: list[int]) -> list[bytes]:
        payloads = []
        names = self._names
        for place, row in zip(places, zip(*columns, strict=True), strict=True):
            try:
                payloads.append(self._encoder.payload(dict(zip(names, row, strict=True))))
            except BadRecord as error:
                raise Refused(place, error) from None
        return payloads

    def _encode_keys(self, keys: list[Any], places: list[int]) -> Iterable[bytes | None]:
        if self._text_keys and set(map(type, keys)) == {str}:
            return map(str.encode, keys)
        encoded = []
        for place, key in zip(places, keys, strict=True):
            try:
                encoded.append(self._encoder.key(key))
            except BadRecord as error:
                raise Refused(place, error) from None
        return encoded

    def send(self, writer: LogWriter) -> int:
        """Hand over everything that is encoded; returns how many records that were."""
        self._close()
        ready, self._closed = self._closed, []
        for one in ready:
            one.send(writer, self.topic)
            if len(self._sent_to) < self.noted_partitions:
                self._sent_to |= partitions_of(one.keys, self.noted_partitions)
        count = sum(map(len, ready))
        self.emitted += count
        return count

    def take_sent_to(self) -> frozenset[int] | None:
        """The partitions that were sent to since this was last asked; None if that is not noted."""
        sent_to, self._sent_to = self._sent_to, frozenset()
        return sent_to if self.noted_partitions else None

    def mark(self) -> None:
        """What is added from now on can be taken back by `undo`; everything before must be encoded."""
        self._mark = (len(self._closed), self._ready, len(self._ready))

    def undo(self) -> None:
        """Take back what was added since the mark."""
        self._refusal = None
        for one in (self._places, self._keys, *self._columns):
            one.clear()
        count, self._ready, length = self._mark
        del self._closed[count:]
        self._ready.cut(length)

    def drop(self) -> None:
        """Forget what was not sent."""
        self._refusal = None
        for one in (self._places, self._keys, *self._columns):
            one.clear()
        self._closed, self._ready = [], _Ready()
        self._sent_to = frozenset()


class Outputs:
    """The outputs of a job, by feed."""

    def __init__(self, job: str, outputs: Mapping[str, Output]) -> None:
        self._job = job
        self.by_name = dict(outputs)
        self._by_handle: dict[Any, Output] = dict(outputs)

    def find(self, feed: Feed | str) -> Output:
        """The output of a feed; BadConfig if the job may not write it."""
        found = self._by_handle.get(feed)
        if found is None:
            name = feed if isinstance(feed, str) else getattr(feed, "name", None)
            found = self.by_name.get(name) if isinstance(name, str) else None
            if found is None:
                raise BadConfig(
                    f"job {self._job!r} emits to {feed!r}, which the catalogue does not give it",
                    hint=f'Declare the feed with by = "{self._job}" in schemas/catalog.toml, '
                    "run `stack feeds apply`, and deploy again.",
                )
            self._by_handle[feed] = found
        return found

    def __len__(self) -> int:
        return sum(map(len, self.by_name.values()))

    def encode(self) -> None:
        """Encode whatever was emitted."""
        for output in self.by_name.values():
            output.encode()

    def send(self, writer: LogWriter) -> int:
        """Hand over whatever is encoded."""
        return sum(output.send(writer) for output in self.by_name.values())

    def take_sent_to(self) -> dict[str, frozenset[int] | None]:
        """Per feed the partitions that were sent to since this was last asked, where that is noted."""
        return {name: output.take_sent_to() for name, output in self.by_name.items()}

    def mark(self) -> None:
        """What is emitted from now on can be taken back by `undo`; everything before must be encoded."""
        for output in self.by_name.values():
            output.mark()

    def undo(self) -> None:
        """Take back whatever was emitted since the mark."""
        for output in self.by_name.values():
            output.undo()

    def drop(self) -> None:
        """Forget whatever was not sent."""
        for output in self.by_name.values():
            output.drop()


def _too_large(sizes: Iterable[int], places: Iterable[int]) -> Refused:
    """The first value that is too large, as an error."""
    place, size = next(pair for pair in zip(places, sizes, strict=True) if pair[1] > MAX_VALUE_BYTES)
    message = f"the value has {size:,} bytes; Kafka takes {MAX_VALUE_BYTES:,}"
    return Refused(place, BadRecord(message, hint=SMALLER))


def _plain_kinds(schema: AvroSchema) -> list[tuple[type, Build]] | None:
    """How a column of each field is made, if all fields are plain."""
    kinds = []
    for field in schema.tree.get("fields", ()) if isinstance(schema.tree, dict) else ():
        kind = field["type"]
        if not isinstance(kind, str) or kind not in PLAIN:
            return None
        kinds.append(PLAIN[kind])
    return kinds or None
