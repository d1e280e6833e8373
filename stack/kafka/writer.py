"""Writes records in large batches: idempotent always, transactional if asked; undelivered is an error.

`produce_batch` queues what it can and marks the rest without raising, and it goes on after a failure, so
that a retry of the marked ones would break their order. Hence the writer never offers more than the queue
has room for, by count and by bytes, and treats any mark as fatal.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import setitem
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from stack.errors import BadRecord, FeedstackError, NotDelivered
from stack.kafka.bulk import bulk_of
from stack.kafka.config import KafkaAccess, make_client
from stack.kafka.errors import translate, translated
from stack.machine import monotonic
from stack.model.packed import Packed, pack

QUEUE_RECORDS = 200_000
QUEUE_BYTES = 128 << 20
MAX_RECORD_BYTES = 1_000_000
_RECORD_OVERHEAD_BYTES = 70
MAX_VALUE_BYTES = MAX_RECORD_BYTES - _RECORD_OVERHEAD_BYTES
_CHUNK_RECORDS = 10_000
# So many pairs at a time; the dicts of a portion are kept for the next one if its largest record is no more.
_PAIRS, _KEPT_BYTES = 4_000, 4 << 10
_LIBRDKAFKA_QUEUE_KBYTES = 1 << 20
_LAST_WAIT_S = 2.0
_TRANSACTIONS = "__transaction_state"
_REACH_S = 3.0

# A fenced producer cannot abort what is no longer its own, and warns about it. Once and for all, since
# filters for the time of a call are not safe where other threads have theirs.
warnings.filterwarnings("ignore", "Producer abort_transaction failed during close", RuntimeWarning)

SMALLER = "Keep large things elsewhere and write their address, or split the record."

WRITER_SETTINGS: Mapping[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    # As the Java client spreads keys, so that feeds written by either have a key in one partition.
    "partitioner": "murmur2_random",
    "linger.ms": 5,
    "batch.size": 1 << 20,
    "compression.type": "lz4",
    "queue.buffering.max.messages": QUEUE_RECORDS,
    # Topics exist before anybody writes to them: one that is unknown for this long was deleted.
    "topic.metadata.propagation.max.ms": 5_000,
    # Ours is the tighter bound: this one must never be hit (see the module's first lines).
    "queue.buffering.max.kbytes": _LIBRDKAFKA_QUEUE_KBYTES,
    "message.max.bytes": MAX_RECORD_BYTES,
    # A call into Python for every record that went well would cost as much as writing it.
    "delivery.report.only.error": True,
    "request.timeout.ms": 10_000,
    "allow.auto.create.topics": False,
}

WriteRecord = dict[str, Any]
"""value, key: bytes or None; timestamp: milliseconds, where given. `produce_batch` takes a partition in
each record, too, but does not heed it."""


class LogWriter:
    """A producer whose every failure reaches the caller, at the latest at `flush` or `commit`."""

    def __init__(
        self,
        access: KafkaAccess,
        transactional_id: str | None = None,
        settings: Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        own: dict[str, Any] = {
            **WRITER_SETTINGS,
            "delivery.timeout.ms": int(timeout_s * 1000),
        }
        if transactional_id is None:
            own["on_delivery"] = self._on_delivery
        else:
            # A commit fails if any record did. And the client raises a fatal error (fenced) out of `flush`,
            # but goes on to call delivery callbacks with that exception set, which ends in a SystemError.
            own["transactional.id"] = transactional_id
            own["transaction.timeout.ms"] = min(int(timeout_s * 1000), 60_000)
        self._producer = make_client(Producer, access, {**own, **(settings or {})})
        self._timeout_s = timeout_s
        self._clock = clock
        self._queued_bytes = 0
        # Everything that was ever queued: records, and their bytes before compression.
        self.taken_records = self.taken_bytes = 0
        self._failure: FeedstackError | None = None
        self._failed = 0
        self._given_up = False
        self._closed = False
        self._reached = False
        self._pairs: list[WriteRecord] = []
        # Without delivery reports: where a commit tells whether all records arrived.
        self._bulk = None if transactional_id is None else bulk_of(self._producer)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        self._failed += 1
        if self._failure is None:
            size = len(message.value() or b"")
            self._failure = translate(error, f"writing a record of {size:,} bytes to {message.topic()}")

    def write(self, topic: str, records: Sequence[WriteRecord], partition: int = -1) -> None:
        """Queue records in order; waits while the queue is full. Raises if an earlier one failed.

        They go where their keys belong, or all to `partition` if it is given.
        """
        for start in range(0, len(records), _CHUNK_RECORDS):
            chunk = list(records[start : start + _CHUNK_RECORDS])
            sizes = list(map(_size, chunk))
            if max(sizes) > MAX_RECORD_BYTES:
                raise _too_large(topic, start + sizes.index(max(sizes)), max(sizes))
            self._make_room(len(chunk), sum(sizes))
            if any("timestamp" in record for record in chunk):
                self._queue_one_by_one(topic, chunk, partition)
            else:
                self._queue(topic, chunk, partition, start)
            self._poll(0)

    def write_pairs(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        partition: int = -1,
    ) -> None:
        """The same for keys and values that stand in two lists, with no look at single records."""
        if self._bulk is not None:
            self.write_packed(topic, pack(keys), pack(values), partition)
            return
        if len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys for {len(values)} values")
        sizes = [0 if value is None else len(value) for value in values]
        largest = max(sizes, default=0) + _RECORD_OVERHEAD_BYTES
        if largest > MAX_RECORD_BYTES:
            raise _too_large(topic, sizes.index(max(sizes)), largest)
        for start in range(0, len(values), _PAIRS):
            part = slice(start, start + _PAIRS)
            own = values[part]
            self._make_room(len(own), sum(sizes[part]) + _RECORD_OVERHEAD_BYTES * len(own))
            self._queue_pairs(topic, keys[part], own, partition, start, largest)
        self._poll(0)

    def write_packed(self, topic: str, keys: Packed, values: Packed, partition: int = -1) -> None:
        """The same for those that lie packed."""
        if len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys for {len(values)} values")
        largest = values.largest + _RECORD_OVERHEAD_BYTES
        if largest > MAX_RECORD_BYTES:
            raise _too_large(topic, int(values.sizes.argmax()), largest)
        for start in range(0, len(values), _PAIRS):
            own_keys, own = keys[start : start + _PAIRS], values[start : start + _PAIRS]
            self._make_room(len(own), own.total + _RECORD_OVERHEAD_BYTES * len(own))
            if self._bulk is not None:
                fault = self._bulk.put(topic, own_keys, own, partition)
                if fault is not None:
                    raise _not_queued(topic, start + fault[0], fault[1])
            else:
                self._queue_pairs(topic, own_keys.items(), own.items(), partition, start, largest)
        self._poll(0)

    def _queue_pairs(  # noqa: PLR0917
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        partition: int,
        start: int,
        largest: int,
    ) -> None:
        self._queue(topic, self._as_dicts(keys, values), partition, start)
        if largest > _KEPT_BYTES:
            self._pairs.clear()

    def _as_dicts(self, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> list[WriteRecord]:
        """The same dicts again and again: new ones would cost a third of the whole call."""
        pool = self._pairs
        pool.extend({} for _ in range(len(values) - len(pool)))
        pairs = pool[: len(values)]
        _fill(pairs, "key", keys)
        _fill(pairs, "value", values)
        return pairs

    def _queue(self, topic: str, chunk: list[WriteRecord], partition: int, start: int) -> None:
        with translated(f"writing to {topic}"):
            queued = self._producer.produce_batch(topic, chunk, partition=partition)
        if queued < len(chunk):
            self._raise_marked(topic, chunk, start)

    def _queue_one_by_one(self, topic: str, records: Sequence[WriteRecord], partition: int) -> None:
        """The slower way, for records with a time of their own: `produce_batch` refuses timestamps."""
        produce = self._producer.produce
        with translated(f"writing to {topic}"):
            for record in records:
                stamp = record.get("timestamp", 0)
                produce(topic, record["value"], record.get("key"), partition=partition, timestamp=stamp)

    def write_one(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        timestamp_ms: int = 0,
        *,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        partition: int = -1,
    ) -> None:
        """One record, with headers, which a batch cannot carry."""
        self._make_room(1, len(value or b"") + len(key or b""))
        with translated(f"writing to {topic}"):
            self._producer.produce(
                topic, value, key, partition=partition, timestamp=timestamp_ms, headers=list(headers or ())
            )
        self._poll(0)

    def _poll(self, timeout_s: float) -> None:
        """Let the client report; raises what it reports."""
        with translated("writing"):
            self._producer.poll(timeout_s)
        self._raise_failure()

    def _make_room(self, records: int, size_bytes: int) -> None:
        """Wait until the queue can take this much."""
        deadline = self._clock() + self._timeout_s
        while True:
            waiting = len(self._producer)
            if waiting == 0:
                self._queued_bytes = 0
                if not self._reached:
                    self._reach_a_broker()
            room = waiting + records <= QUEUE_RECORDS and self._queued_bytes + size_bytes <= QUEUE_BYTES
            if room or waiting == 0:
                break
            if self._clock() > deadline:
                self._given_up = True
                raise NotDelivered(
                    f"{waiting:,} records wait in the queue for more than {self._timeout_s:.0f} s",
                    hint="Kafka takes none of them: `stack status` and `stack doctor` tell more.",
                )
            self._poll(0.01)
        self._queued_bytes += size_bytes
        self.taken_records += records
        self.taken_bytes += size_bytes

    def _raise_marked(self, topic: str, chunk: Sequence[WriteRecord], start: int) -> None:
        self._pairs = []
        for index, record in enumerate(chunk):
            mark = record.get("_error")
            if mark is not None:
                raise _not_queued(topic, start + index, mark)
        raise NotDelivered(f"writing to {topic}: the client queued fewer records than it was given")

    def _raise_failure(self) -> None:
        if self._failure is None:
            return
        failure, self._failure = self._failure, None
        count, self._failed = self._failed, 0
        self._given_up = self._given_up or not isinstance(failure, BadRecord)
        if isinstance(failure, BadRecord) or count <= 1:
            raise failure
        raise NotDelivered(
            f"{count:,} records were not written; the first: {failure.message}", hint=failure.hint
        )

    def flush(self) -> None:
        """Wait until every queued record stands in the log; NotDelivered if one does not."""
        with translated("writing"):
            left = self._producer.flush(self._timeout_s)
        self._raise_failure()
        if left:
            self._given_up = True
            raise NotDelivered(
                f"{left:,} records could not be written within {self._timeout_s:.0f} s",
                hint="Kafka cannot be reached, or has too few replicas in sync: see `stack doctor`.",
            )
        self._queued_bytes = 0

    def init_transactions(self) -> None:
        """Take the transactional id over: whoever had it is fenced, what it left open is aborted."""
        self._reach_a_broker()
        with translated("taking over a transactional id"):
            self._producer.init_transactions(self._timeout_s)

    def _reach_a_broker(self) -> None:
        """The client asks for its producer id, or its coordinator, at once and then only every half second.
        Its first try mostly comes too early: it knows the bootstrap servers, and leaves them for the real
        ones with the first answer. After the second answer it is there.
        """
        self._reached = True
        with contextlib.suppress(KafkaException):  # what is wrong, if anything, the next call tells
            for _ in range(2):
                self._producer.list_topics(topic=_TRANSACTIONS, timeout=min(self._timeout_s, _REACH_S))

    def begin(self) -> None:
        with translated("beginning a transaction"):
            self._producer.begin_transaction()

    def commit(self) -> None:
        """Make everything since `begin` visible at once. On any failure the transaction is aborted."""
        try:
            self.flush()
            self._commit_with_retries()
        except FeedstackError as error:
            try:
                self.abort()
            except FeedstackError:
                raise NotDelivered(
                    f"{error.message}; whether it was committed is not known",
                    hint="Open the writer anew, which ends what is open, and look at what is there.",
                ) from error
            raise

    def _commit_with_retries(self) -> None:
        deadline = self._clock() + self._timeout_s
        while True:
            try:
                self._producer.commit_transaction(max(0.1, deadline - self._clock()))
                return
            except KafkaException as error:
                cause = error.args[0]
                if not cause.retriable() or self._clock() > deadline:
                    raise translate(cause, "committing a transaction") from error

    def abort(self) -> None:
        """Drop everything since `begin`; a producer that was fenced has nothing left to drop."""
        self._failure, self._failed = None, 0
        try:
            self._producer.abort_transaction(self._timeout_s)
        except KafkaException as error:
            if not error.args[0].fatal() and error.args[0].code() != KafkaError._STATE:
                raise translate(error.args[0], "aborting a transaction") from error

    def close(self) -> None:
        """Write what is queued and release the connection; a second time does nothing.

        Does not raise: `flush` is there to know.
        """
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(KafkaException, SystemError):
            if self._given_up:  # the caller knows and has waited once: what is left is not waited for again
                self._producer.purge()
            self._producer.close(_LAST_WAIT_S if self._given_up else self._timeout_s)

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()


def _not_queued(topic: str, index: int, reason: object) -> FeedstackError:
    doing = f"writing record {index + 1} of the batch to {topic}"
    return translate(reason, doing) if isinstance(reason, KafkaError) else NotDelivered(f"{doing}: {reason}")


def _fill(records: list[WriteRecord], name: str, values: Sequence[bytes | None]) -> None:
    """Set one entry of many records, without a step of Python for each."""
    deque(map(setitem, records, repeat(name), values), maxlen=0)


def _size(record: WriteRecord) -> int:
    value = record.get("value")
    return len(value) + _RECORD_OVERHEAD_BYTES if value is not None else _RECORD_OVERHEAD_BYTES


def _too_large(topic: str, index: int, size_bytes: int) -> BadRecord:
    return BadRecord(
        f"record {index + 1} of the batch for {topic} has {size_bytes - _RECORD_OVERHEAD_BYTES:,} bytes; "
        f"Kafka takes {MAX_VALUE_BYTES:,}",
        hint=SMALLER,
    )
