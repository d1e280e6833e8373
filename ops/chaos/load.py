"""The load: a writer that goes on at a steady rate through every fault, and knows what was acknowledged."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, Producer

from ops.chaos.reading import text_of
from stack.errors import NotDelivered

_TICK_S = 0.02
_FLUSH_S = 90.0
_MOST_QUEUED = 500_000


@dataclass(frozen=True, slots=True)
class Made:
    """A record to write; a time of 0 is the time of writing."""

    key: bytes | None
    value: bytes
    time_ms: int = 0


class Load:
    """Writes what `make` makes, from a thread of its own, until it is told to stop."""

    def __init__(self, bootstrap: str, topic: str, make: Callable[[], Made], rate: float) -> None:
        self._topic = topic
        self._make = make
        self._rate = rate
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._acknowledged: Counter[str] = Counter()
        self._by_partition: Counter[int] = Counter()
        self._failure: str | None = None
        self.written = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                # However long the broker is away: a record that was begun is delivered.
                "message.timeout.ms": 0,
                "socket.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 1_000,
                "queue.buffering.max.messages": _MOST_QUEUED,
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write no more; NotDelivered unless everything that was written is acknowledged."""
        self._stop.set()
        self._thread.join(_FLUSH_S)
        left = self._producer.flush(_FLUSH_S)
        if left or self._failure:
            raise NotDelivered(
                f"{left:,} records of the load were not acknowledged within {_FLUSH_S:.0f} s"
                + (f": {self._failure}" if self._failure else "")
            )

    def abandon(self) -> None:
        """Write no more, and forget what is under way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_TICK_S * 50)
        self._producer.purge()

    @property
    def by_key(self) -> Counter[str]:
        """How many records of each key were acknowledged."""
        with self._lock:
            return self._acknowledged.copy()

    @property
    def by_partition(self) -> Counter[int]:
        """How many records of each partition were acknowledged."""
        with self._lock:
            return self._by_partition.copy()

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def refuse_failed(self) -> None:
        """NotDelivered if no more records will come."""
        if self.has_failed:
            raise NotDelivered(f"the load of {self._topic} has ended: {self._failure}")

    def _run(self) -> None:
        try:
            self._write_on()
        # Whoever waits for records must not wait for ever.
        except Exception as error:
            with self._lock:
                self._failure = str(error)

    def _write_on(self) -> None:
        begun = time.monotonic()
        while not self._stop.wait(_TICK_S):
            # What a full queue held back is not made up for: the rate is a rate, not a debt.
            due = int((time.monotonic() - begun) * self._rate) - self.written
            if due > self._rate:
                begun = time.monotonic() - self.written / self._rate
                due = int(self._rate)
            for _ in range(due):
                if len(self._producer) >= _MOST_QUEUED // 2:
                    break
                self._write()
            self._producer.poll(0)

    def _write(self) -> None:
        made = self._make()
        self.written += 1
        self._producer.produce(
            self._topic, made.value, made.key, timestamp=made.time_ms, on_delivery=self._on_delivery
        )

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        with self._lock:
            if error is not None:
                self._failure = error.str()
                return
            self._acknowledged[text_of(message.key())] += 1
            self._by_partition[message.partition()] += 1
