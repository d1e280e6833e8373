"""The real ledger: a table of the stack in a compacted topic of one partition.

Reading: every call reads up to the high watermark of that moment, so that a change which somebody was
told about is seen. Writing: a writer initialises the ledger's transactional id, which fences every other
writer, then reads to the end, decides, and commits. Whoever was fenced in between fails to commit, reads
again and decides again. So decisions are taken one after the other without any lock. Every update marks its
records with a token: if the answer to a commit was lost, the next look tells whether it happened.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from types import MappingProxyType

from stack.errors import LostOwnership, NotDelivered, Unavailable
from stack.kafka.admin import KafkaAdmin, TopicPlan
from stack.kafka.config import KafkaAccess
from stack.kafka.reader import LogReader, RawBatch
from stack.kafka.writer import LogWriter
from stack.machine import lock, monotonic, sleep
from stack.model.ledger import Changes, Decide, Entries, apply_changes

_PARTITION = 0
_UPDATE_HEADER = "update"
# A writer that died holds everybody up for no longer than this.
_TRANSACTION_LIMIT_S = 10.0
# How long somebody who is about to take over waits for a change under way.
_PATIENCE_S = 0.5
_SETTINGS = {"cleanup.policy": "compact", "min.compaction.lag.ms": "0", "segment.ms": "86400000"}


class KafkaLedger:
    """One ledger, shared by the threads of a process."""

    def __init__(
        self,
        access: KafkaAccess,
        topic: str,
        timeout_s: float = 20.0,
        sleep: Callable[[float], None] = sleep,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._access = access
        self._topic = topic
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._clock = clock
        self._lock = lock()
        self._admin = KafkaAdmin(access, timeout_s)
        self._reader: LogReader | None = None
        self._writer: LogWriter | None = None
        self._entries: Entries = MappingProxyType({})
        self._committed: set[bytes] = set()

    def entries(self) -> Entries:
        """Everything written so far; the same object as before if nothing was written since."""
        with self._lock:
            self._catch_up()
            return self._entries

    def update(self, decide: Decide) -> Entries:
        """See `stack.model.ledger.Ledger.update`."""
        with self._lock:
            if not self._needs_turn(decide):
                return self._entries
            deadline = self._clock() + self._timeout_s
            token = secrets.token_bytes(16)
            while True:
                try:
                    self._take_turn()
                    if token in self._committed:
                        return self._entries
                    changes = decide(self._entries)
                    if changes:
                        self._write(changes, token)
                        self._catch_up()
                    return self._entries
                except (LostOwnership, NotDelivered) as error:
                    # Whether it was committed may be unknown: the token tells after the next turn began.
                    self._drop_writer()
                    if self._clock() > deadline:
                        raise Unavailable(
                            f"{self._topic} could not be changed in {self._timeout_s:.0f} s: {error.message}",
                            hint="Other writers may have kept taking over. Run the command again.",
                        ) from error
                    self._sleep(random.uniform(0.01, 0.2))  # noqa: S311
                finally:
                    self._committed.clear()

    def _needs_turn(self, decide: Decide) -> bool:
        """Most updates repeat what is there already: they need not fence anybody.

        A change under way, perhaps of a writer that died, is not waited for: that takes a turn, too.
        """
        try:
            self._catch_up(_PATIENCE_S)
        except Unavailable:
            return True
        return bool(decide(self._entries))

    def _take_turn(self) -> None:
        """Fence all other writers, end what they left open, and read everything they wrote.

        A writer that had the last turn still has it: if somebody took over since, its commit will fail.
        """
        if self._writer is not None:
            try:
                self._catch_up(_PATIENCE_S)
                return
            except Unavailable:
                self._drop_writer()
        self._writer = LogWriter(
            self._access,
            transactional_id=f"feedstack.ledger.{self._topic}",
            settings={"linger.ms": 0},
            timeout_s=_TRANSACTION_LIMIT_S,
        )
        self._writer.init_transactions()
        self._catch_up()

    def _write(self, changes: Changes, token: bytes) -> None:
        if self._writer is None:
            raise LostOwnership(f"{self._topic}: it is not this writer's turn")
        self._writer.begin()
        for key, value in changes.items():
            payload = None if value is None else value.encode()
            self._writer.write_one(self._topic, payload, key.encode(), headers=[(_UPDATE_HEADER, token)])
        self._writer.commit()

    def _catch_up(self, patience_s: float | None = None) -> None:
        """Read committed records up to the high watermark of now."""
        reader = self._reader or self._open()
        end = self._admin.ends(self._topic, [_PARTITION])[_PARTITION]
        patience_s = self._timeout_s if patience_s is None else patience_s
        deadline = self._clock() + patience_s
        entries: dict[str, str] | None = None
        try:
            while reader.positions[_PARTITION] < end:
                batch = reader.read(timeout_s=0.25)
                if len(batch):
                    entries = dict(self._entries) if entries is None else entries
                    apply_changes(entries, _decoded(batch))
                    self._committed.update(_tokens(batch))
                elif self._clock() > deadline:
                    raise Unavailable(
                        f"{self._topic} could not be read to its end within {patience_s:.0f} s",
                        hint="A writer may have died in the middle of a change; try again in a minute.",
                    )
        finally:
            if entries is not None:
                self._entries = MappingProxyType(entries)

    def _open(self) -> LogReader:
        if self._topic not in self._admin.describe([self._topic]):
            self._admin.create([TopicPlan(self._topic, 1, _SETTINGS)])
        reader = LogReader(self._access, self._topic)
        low = self._admin.bounds(self._topic, [_PARTITION])[_PARTITION].low
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


def _decoded(batch: RawBatch) -> dict[str, str | None]:
    return {
        key.decode("utf-8", "replace"): None if value is None else value.decode("utf-8", "replace")
        for key, value in zip(batch.keys, batch.values, strict=True)
        if key is not None
    }


def _tokens(batch: RawBatch) -> set[bytes]:
    """The updates that wrote these records."""
    return {
        token
        for headers in batch.headers
        for name, token in headers or ()
        if name == _UPDATE_HEADER and token
    }
