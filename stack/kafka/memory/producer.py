"""A producer on a Kafka in memory: queues, lingers, delivers, and keeps the rules of transactions."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from stack.kafka.memory.client import MemoryClient
from stack.kafka.memory.log import Headers, Queued
from stack.model import partitioner
from stack.model.place import Place

if TYPE_CHECKING:
    from stack.kafka.memory.broker import MemoryProcess

_FENCED = {
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError._FENCED,
}
_RETRY_S = 0.1
_NOWHERE = -1

# Hashing in Python takes longer than everything else that happens to a record here.
partition_of = functools.lru_cache(1 << 16)(partitioner.partition_of)


class MemoryProducer(MemoryClient):
    """The part of confluent_kafka's Producer that the adapters use."""

    def __init__(self, process: MemoryProcess, settings: Mapping[str, Any]) -> None:
        super().__init__(process, settings)
        self._id: str | None = settings.get("transactional.id")
        self._on_delivery: Callable[[KafkaError | None, Message], None] | None = settings.get("on_delivery")
        self._error_cb: Callable[[KafkaError], None] | None = settings.get("error_cb")
        self._only_errors = bool(settings.get("delivery.report.only.error"))
        self._linger_s = float(settings.get("linger.ms", 5)) / 1000
        self._delivery_limit_s = float(settings.get("delivery.timeout.ms", 300_000)) / 1000
        self._transaction_limit_s = float(settings.get("transaction.timeout.ms", 60_000)) / 1000
        self._most_bytes = int(settings.get("message.max.bytes", 1_000_000))
        self._producer, self._epoch = 0, -1
        self._begun = False
        # The call that ends the transaction or adds to it, while it is under way in some thread.
        self._calling: str | None = None
        # Whether offsets are part of the transaction; `written` are the partitions that are.
        self._has_offsets = False
        self._queue: dict[Place, list[Queued]] = {}
        self._count = 0
        self._queued_at_s = 0.0
        self._lingers = False
        self._turn = 0
        self._failed: list[tuple[KafkaError, Message]] = []
        self._fatal: KafkaError | None = None
        self._abortable: KafkaError | None = None
        self._untold: KafkaError | None = None
        self._closed = False

    def __len__(self) -> int:
        return self._count + len(self._failed)

    # Producing

    def produce(  # noqa: PLR0917 - as the real one has it
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        on_delivery: Callable[..., None] | None = None,  # noqa: ARG002
        timestamp: int = 0,
        headers: Headers = None,
    ) -> None:
        """Queue one record."""
        error = self._refusal(value)
        if error is not None:
            raise KafkaException(error)
        self._put(topic, partition, (_bytes(key), _bytes(value), timestamp, headers or None))

    def produce_batch(self, topic: str, messages: Sequence[dict[str, Any]], partition: int = -1) -> int:
        """Queue records; what cannot be queued is marked, not raised. Answers how many were."""
        if any("timestamp" in message for message in messages):
            raise NotImplementedError("Message timestamps are not currently supported in batch mode")
        queued = 0
        refusal = self._refusal(None)
        for message in messages:
            value = message.get("value")
            error = refusal or self._too_large(value)
            if error is None:
                self._put(topic, partition, (_bytes(message.get("key")), _bytes(value), 0, None))
                queued += 1
            else:
                message["_error"] = error
        return queued

    def _refusal(self, value: bytes | str | None) -> KafkaError | None:
        if self._fatal is not None:
            return KafkaError(KafkaError._FATAL, f"Fatal error: {self._fatal.str()}")
        if self._id is not None and (not self._begun or self._calling == "abort"):
            return KafkaError(KafkaError._STATE, "Unable to produce message: Local: Erroneous state")
        return self._too_large(value)

    def _too_large(self, value: bytes | str | None) -> KafkaError | None:
        if value is not None and len(value) > self._most_bytes:
            return KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "Broker: Message size too large")
        return None

    def _put(self, topic: str, partition: int, record: Queued) -> None:
        if partition < 0:
            partition = self._choose(topic, record[0])
        waiting = self._queue.get((topic, partition))
        if waiting is None:
            waiting = self._queue[topic, partition] = []
        waiting.append(record)
        self._count += 1
        if not self._lingers:
            self._lingers = True
            self._queued_at_s = self.kafka.hooks.now_s()
            self.kafka.later(self._linger_s, self._send_by_itself)

    def _choose(self, topic: str, key: bytes | None) -> int:
        known = self.kafka.topics.get(topic)
        if known is None:
            return _NOWHERE
        partitions = len(known.logs)
        if partitions == 1:
            return 0
        if key is not None:
            return partition_of(key, partitions)
        # Where the real one chooses at random, so that runs are alike.
        self._turn += 1
        return self._turn % partitions

    # Delivering

    def _send_by_itself(self) -> None:
        """As librdkafka's own thread does when records have lingered."""
        if self.alive and not self._closed and self._lingers:
            for place in list(self._queue):
                self._settle(place, partial(self._append, place))

    def _send(self) -> None:
        """Everything queued, one request for each partition."""
        for place in list(self._queue):
            if place in self._queue:
                self.place = place
                self._settle(place, partial(self._ask, "produce", partial(self._append, place)))

    def _append(self, place: Place) -> None:
        """What the broker does with a request. Its answer may get lost: the next try would find it done."""
        records = self._queue.get(place)
        if not records:
            return
        if self._id is not None:
            coordinator = self.kafka.coordinator
            self.kafka.log(place)
            if place not in self.written:
                coordinator.add(self._id, self._epoch, place)
                self.written.add(place)
            coordinator.require_part(self._id, self._epoch, place)
        self.kafka.append(place, records, self._producer if self._id is not None else None)
        self._take(place)

    def _take(self, place: Place) -> list[Queued]:
        records = self._queue.pop(place, [])
        self._count -= len(records)
        self._lingers = bool(self._queue)
        return records

    def _settle(self, place: Place, attempt: Callable[[], None]) -> None:
        """Try to deliver; what cannot ever be delivered fails, what may be is kept."""
        try:
            attempt()
        except KafkaException as raised:
            error = raised.args[0]
            if error.code() in _FENCED:
                self._set_fatal(error)
            elif error.retriable():
                self._tell(error)
            elif place in self._queue:
                self._fail(place, error)

    def _fail(self, place: Place, error: KafkaError) -> None:
        for key, value, _, _ in self._take(place):
            message = Message(topic=place[0], partition=place[1], key=key, value=value, error=error)
            if self._on_delivery is not None:
                self._failed.append((error, message))
        if self._id is not None and self._abortable is None:
            self._abortable = KafkaError(error.code(), error.str(), txn_requires_abort=True)

    def _set_fatal(self, error: KafkaError) -> None:
        self._queue.clear()
        self._count, self._lingers = 0, False
        self._fatal = KafkaError(KafkaError._FENCED, error.str(), fatal=True)
        self._untold = self._fatal

    def _tell(self, error: KafkaError) -> None:
        if self._error_cb is not None:
            self._error_cb(error)

    def _report(self) -> None:
        """Call back; a fatal error that nobody wants to be told of is raised."""
        failed, self._failed = self._failed, []
        for error, message in failed:
            if self._on_delivery is not None:
                self._on_delivery(error, message)
        untold, self._untold = self._untold, None
        if untold is not None:
            if self._error_cb is None:
                raise KafkaException(untold)
            self._error_cb(untold)

    def poll(self, timeout: float = -1) -> int:
        """Report. Whoever gives it time lets it deliver."""
        if not self.alive:
            return 0
        if self._count and (timeout or self.kafka.hooks.sends_at_once):
            self._send()
        reported = len(self._failed)
        self._report()
        return reported

    def flush(self, timeout: float = -1) -> int:
        """Deliver everything; answers how many records could not be within the time."""
        if not self.alive:
            return 0
        left = self._deliver(timeout)
        self._report()
        return left

    def _deliver(self, timeout_s: float) -> int:
        hooks = self.kafka.hooks
        began = hooks.now_s()
        while True:
            self._send()
            now = hooks.now_s()
            if self._count and now - self._queued_at_s > self._delivery_limit_s:
                for place in list(self._queue):
                    self._fail(place, KafkaError(KafkaError._MSG_TIMED_OUT, "Local: Message timed out"))
            if not self._count or (timeout_s >= 0 and now - began >= timeout_s):
                return self._count
            self.process.sleep(_RETRY_S)

    def purge(self) -> None:
        """Forget what is queued."""
        self._queue.clear()
        self._count, self._lingers = 0, False

    # Transactions

    def init_transactions(self, timeout: float = -1) -> None:  # noqa: ARG002
        self._require_no_fatal()
        if self._id is None:
            self._wrong_state("The Transactional API requires transactional.id to be configured")
        coordinator, name = self.kafka.coordinator, self._id
        # The hooks may let the answer get lost: then the next try initialises once more, as it really does.
        answer = self._ask("init", lambda: coordinator.initialise(str(name), self._transaction_limit_s))
        self._producer, self._epoch = answer

    def begin_transaction(self) -> None:
        self._require_no_fatal()
        if self._epoch < 0 or self._begun:
            self._wrong_state(f"Operation not valid in state {'InTransaction' if self._begun else 'Init'}")
        self._begun = True
        self.written = set()
        self._has_offsets = False
        self._abortable = None

    def send_offsets_to_transaction(
        self,
        positions: Sequence[TopicPartition],
        group: Any,
        timeout: float = -1,  # noqa: ARG002
    ) -> None:
        self._require_transaction()
        self._require_not_abortable()
        offsets = {(one.topic, one.partition): one.offset for one in positions}

        def act() -> None:
            self.kafka.coordinator.add_offsets(str(self._id), self._epoch, group.group_id, offsets)

        with self._call("offsets"):
            self._ask_or_fence("offsets", act)
        self._has_offsets = True

    def commit_transaction(self, timeout: float = -1) -> None:
        self._require_transaction()
        self._require_not_abortable()
        with self._call("commit"):
            if self._deliver(timeout):
                raise KafkaException(
                    KafkaError(
                        KafkaError._TIMED_OUT, "Local: Timed out: retry call to resume", retriable=True
                    )
                )
            self._require_no_fatal()
            self._require_not_abortable()
            self._end(commit=True)

    def abort_transaction(self, timeout: float = -1) -> None:  # noqa: ARG002
        if not self.alive:
            return
        self._require_transaction()
        with self._call("abort"):
            self.purge()
            self._end(commit=False)

    @contextlib.contextmanager
    def _call(self, operation: str) -> Iterator[None]:
        """One such call at a time: librdkafka refuses a second one, whichever thread it comes from."""
        if self._calling is not None:
            raise KafkaException(
                KafkaError(KafkaError._CONFLICT, "Conflicting transactional API call already in progress")
            )
        self._calling = operation
        try:
            yield
        finally:
            self._calling = None

    def _end(self, *, commit: bool) -> None:
        if self.written or self._has_offsets:
            name, epoch, coordinator = str(self._id), self._epoch, self.kafka.coordinator
            operation = "commit" if commit else "abort"
            self._ask_or_fence(operation, lambda: coordinator.end(name, epoch, commit=commit))
        self._begun = False
        self._abortable = None

    def _ask_or_fence(self, operation: str, act: Callable[[], None]) -> None:
        try:
            self._ask(operation, act)
        except KafkaException as raised:
            error = raised.args[0]
            if error.code() in _FENCED:
                self._set_fatal(error)
                raise KafkaException(self._fatal) from None
            raise

    def _require_transaction(self) -> None:
        self.process.require_alive()
        self._require_no_fatal()
        if not self._begun:
            self._wrong_state("Operation not valid in state Ready")

    def _require_no_fatal(self) -> None:
        if self._fatal is not None:
            raise KafkaException(self._fatal)

    def _require_not_abortable(self) -> None:
        if self._abortable is not None:
            raise KafkaException(self._abortable)

    @staticmethod
    def _wrong_state(reason: str) -> NoReturn:
        raise KafkaException(KafkaError(KafkaError._STATE, reason))

    def close(self, timeout: float = -1) -> None:
        """Deliver what is queued and go; an open transaction is aborted. Nothing of it after a kill."""
        if self._closed or not self.alive:
            return
        try:
            if self._begun and self._fatal is None:
                self.abort_transaction(timeout)
            elif self._count:
                self.flush(timeout)
        finally:
            self._closed = True


def _bytes(text: bytes | str | None) -> bytes | None:
    return text.encode() if type(text) is str else text  # type: ignore[return-value]
