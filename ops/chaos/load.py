"""The load: a writer that goes on at a steady rate through every fault, and knows what was acknowledged."""

from __future__ import annotations

import io
import random
import threading
import time
from collections import Counter
from typing import Any

import fastavro
from confluent_kafka import KafkaError, Message, Producer

from stack.errors import NotDelivered

_TICK_S = 0.02
_FLUSH_S = 90.0
_MOST_QUEUED = 500_000


class Load:
    """Writes records of random keys from a thread of its own until it is told to stop."""

    def __init__(
        self, bootstrap: str, topic: str, schema: Any, schema_id: int, *, keys: int, rate: int, seed: int
    ) -> None:
        self._topic = topic
        self._schema = fastavro.parse_schema(schema)
        self._header = b"\0" + schema_id.to_bytes(4, "big")
        self._keys = keys
        self._rate = rate
        self._chance = random.Random(seed)
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

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._stop.wait(_TICK_S):
            # What a full queue held back is not made up for: the rate is a rate, not a debt.
            due = int((time.monotonic() - begun) * self._rate) - self.written
            if due > self._rate:
                begun = time.monotonic() - self.written / self._rate
                due = self._rate
            for _ in range(due):
                if len(self._producer) >= _MOST_QUEUED // 2:
                    break
                self._write()
            self._producer.poll(0)

    def _write(self) -> None:
        key = f"user-{int(self._keys * self._chance.random() ** 2)}"
        body = io.BytesIO()
        self.written += 1
        fastavro.schemaless_writer(body, self._schema, {"user": key, "count": self.written})
        self._producer.produce(
            self._topic, self._header + body.getvalue(), key, on_delivery=self._on_delivery
        )

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        with self._lock:
            if error is not None:
                self._failure = error.str()
                return
            self._acknowledged[message.key().decode()] += 1
            self._by_partition[message.partition()] += 1
