"""The real ledger: a table of the stack in a compacted topic of one partition.

Reading: every call reads up to the high watermark of that moment, so that a change which somebody was
told about is seen. Writing: a writer initialises the ledger's transactional id, which fences every other
writer, then reads to the end, decides, and commits. Whoever was fenced in between fails to commit, reads
again and decides again. So decisions are taken one after the other without any lock.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from types import MappingProxyType

from stack.errors import LostOwnership, Unavailable
from stack.kafka.admin import KafkaAdmin, TopicPlan
from stack.kafka.config import KafkaAccess
from stack.kafka.reader import LogReader
from stack.kafka.writer import LogWriter
from stack.model.ledger import Decide, Entries, apply_changes

_PARTITION = 0
_SETTINGS = {"cleanup.policy": "compact", "min.compaction.lag.ms": "0", "segment.ms": "86400000"}


class KafkaLedger:
    """One ledger, shared by the threads of a process."""

    def __init__(
        self,
        access: KafkaAccess,
        topic: str,
        timeout_s: float = 20.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._topic = topic
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._clock = clock
        self._lock = threading.RLock()
        self._admin = KafkaAdmin(access, timeout_s)
        self._reader: LogReader | None = None
        self._writer: LogWriter | None = None
        self._entries: Entries = MappingProxyType({})

    def entries(self) -> Entries:
        """Everything written so far; the same object as before if nothing was written since."""
        with self._lock:
            self._catch_up()
            return self._entries

    def update(self, decide: Decide) -> Entries:
        """See `stack.model.ledger.Ledger.update`."""
        with self._lock:
            deadline = self._clock() + self._timeout_s
            while True:
                try:
                    return self._try_update(decide)
                except LostOwnership:
                    self._drop_writer()
                    if self._clock() > deadline:
                        raise Unavailable(
                            f"{self._topic}: other writers kept taking over for {self._timeout_s:.0f} s",
                            hint="Run the command again.",
                        ) from None
                    self._sleep(random.uniform(0.01, 0.2))  # noqa: S311

    def _try_update(self, decide: Decide) -> Entries:
        self._catch_up()
        if not decide(self._entries):
            return self._entries
        if self._writer is None:
            self._writer = LogWriter(
                self._access,
                transactional_id=f"feedstack.ledger.{self._topic}",
                settings={"linger.ms": 0},
                timeout_s=self._timeout_s,
            )
            self._writer.init_transactions()
        self._catch_up()
        changes = decide(self._entries)
        if not changes:
            return self._entries
        self._writer.begin()
        self._writer.write(
            self._topic,
            [
                {"key": key.encode(), "value": None if value is None else value.encode()}
                for key, value in changes.items()
            ],
        )
        self._writer.commit()
        self._catch_up()
        return self._entries

    def _catch_up(self) -> None:
        """Read committed records up to the high watermark of now."""
        reader = self._reader or self._open()
        end = self._admin.ends(self._topic, [_PARTITION])[_PARTITION]
        deadline = self._clock() + self._timeout_s
        entries: dict[str, str] | None = None
        while reader.positions[_PARTITION] < end:
            batch = reader.read(timeout_s=0.5)
            if len(batch):
                entries = dict(self._entries) if entries is None else entries
                apply_changes(entries, _decoded(batch.keys, batch.values))
            elif self._clock() > deadline:
                raise Unavailable(
                    f"{self._topic} could not be read to its end within {self._timeout_s:.0f} s",
                    hint="A writer may have died in the middle of a change; try again in a minute.",
                )
        if entries is not None:
            self._entries = MappingProxyType(entries)

    def _open(self) -> LogReader:
        if self._topic not in self._admin.describe([self._topic]):
            self._admin.create([TopicPlan(self._topic, 1, _SETTINGS)])
        reader = LogReader(self._access, self._topic)
        low = self._admin.bounds(self._topic, 1)[_PARTITION].low
        reader.assign({_PARTITION: low})
        self._reader = reader
        return reader

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def close(self) -> None:
        """Release the connections."""
        with self._lock:
            self._drop_writer()
            if self._reader is not None:
                self._reader.close()
                self._reader = None


def _decoded(keys: list[bytes | None], values: list[bytes | None]) -> dict[str, str | None]:
    return {
        key.decode("utf-8", "replace"): None if value is None else value.decode("utf-8", "replace")
        for key, value in zip(keys, values, strict=True)
        if key is not None
    }
