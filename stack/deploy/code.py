"""The code feed: the packed code of jobs, cut into records, by the hash of its bytes.

Records are keyed `<sha256>/<number>`, in a compacted topic of one partition. Writers take turns by fencing,
as those of a ledger do: sweeping what no job needs any more can then never hit what somebody is storing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stack.connection import Stack
from stack.deploy.unpack import unpacked
from stack.errors import CorruptState, FeedstackError, LostOwnership, NotDelivered, NotFound, Unavailable
from stack.kafka.admin import KafkaAdmin, TopicPlan
from stack.kafka.config import KafkaAccess
from stack.kafka.reader import LogReader, RawBatch
from stack.kafka.writer import LogWriter
from stack.machine import monotonic
from stack.model.job import CodePlace, code_name

PIECE_BYTES = 512 << 10
# Code that is younger may belong to a deploy that has not written its entry yet.
SWEEP_AGE_MS = 3_600_000
_PARTITION = 0
_TURN_LIMIT_S = 30.0
_TRIES = 5
_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(64 << 20), "segment.ms": "86400000"}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class CodeFeed:
    """Stores, reads and sweeps packed code."""

    def __init__(
        self,
        access: KafkaAccess,
        admin: KafkaAdmin,
        topic: str,
        timeout_s: float = 60.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._access = access
        self._admin = admin
        self._topic = topic
        self._timeout_s = timeout_s
        self._clock = clock

    def store(self, data: bytes) -> CodePlace:
        """Write packed code and answer where it stands."""
        sha256 = hashlib.sha256(data).hexdigest()
        self._ensure()
        for tries_left in reversed(range(_TRIES)):
            first = self._end()
            try:
                with self._turn() as writer:
                    for index, start in enumerate(range(0, len(data), PIECE_BYTES)):
                        writer.write_one(self._topic, data[start : start + PIECE_BYTES], _key(sha256, index))
                break
            except (LostOwnership, NotDelivered):
                # Somebody else took the turn, or the answer was lost: a second copy does no harm.
                if not tries_left:
                    raise
        return CodePlace(sha256, first, self._end() - 1, len(data))

    def read(self, place: CodePlace) -> bytes:
        """The code that stands at a place; NotFound if it is not there, CorruptState if it is broken."""
        if self._topic not in self._admin.describe([self._topic]):
            raise _gone(place)
        low, high = self._bounds()
        data = self._assembled(place, max(low, place.first_offset), min(high, place.last_offset + 1))
        if data is None:
            # The same code may have been stored again since: compaction then keeps the later copy only.
            data = self._assembled(place, low, high)
        if data is None:
            raise _gone(place)
        if hashlib.sha256(data).hexdigest() != place.sha256:
            raise CorruptState(
                f"the code {place.sha256[:12]} in {self._topic} is not what was stored there",
                hint="Deploy the job again: it stores its code anew.",
            )
        return data

    def still_holds(self, place: CodePlace) -> bool:
        """Whether the code stands there, for as long as the caller's entry names it.

        Whoever is sweeping now is fenced; whoever sweeps later sees the entry.
        """
        with self._turn():
            pass
        # To the end of the feed: a deletion stands behind what it deletes.
        low, high = self._bounds()
        return self._assembled(place, max(low, place.first_offset), high) is not None

    def sweep(self, needed: Callable[[], Collection[CodePlace]], age_ms: int = SWEEP_AGE_MS) -> int:
        """Delete code that no job needs and that is older than `age_ms`; answers how many packages.

        If somebody stores code meanwhile, nothing is deleted: there will be another deploy.
        """
        try:
            with self._turn() as writer:
                old = self._old_keys(now_ms() - age_ms)
                kept = {place.sha256 for place in needed()}
                stale = [keys for sha256, keys in old.items() if sha256 not in kept]
                for keys in stale:
                    for key in keys:
                        writer.write_one(self._topic, None, key)
        except (LostOwnership, NotDelivered, Unavailable):
            return 0
        return len(stale)

    def record_count(self) -> int:
        """How many records the feed holds at most, old ones and deletions included."""
        low, high = self._bounds()
        return high - low

    def _old_keys(self, until_ms: int) -> dict[str, set[bytes]]:
        """Keys that stand there with a value, by hash, of those whose every record is old."""
        found: dict[str, set[bytes]] = {}
        young = set()
        for batch in self._batches(*self._bounds()):
            for key, value, stamp_ms in zip(batch.keys, batch.values, batch.timestamps_ms, strict=True):
                sha256 = (key or b"").partition(b"/")[0].decode("ascii", "replace")
                keys = found.setdefault(sha256, set())
                keys.discard(key or b"")
                if value is not None and key is not None:
                    keys.add(key)
                    if stamp_ms > until_ms:
                        young.add(sha256)
        return {sha256: keys for sha256, keys in found.items() if keys and sha256 not in young}

    def _assembled(self, place: CodePlace, first: int, end: int) -> bytes | None:
        """The pieces of a package within a range of offsets; None unless all are there."""
        count = max(1, -(-place.size_bytes // PIECE_BYTES))
        wanted = {_key(place.sha256, index): index for index in range(count)}
        pieces: dict[int, bytes | None] = {}
        for batch in self._batches(first, end):
            for key, value in zip(batch.keys, batch.values, strict=True):
                if key in wanted:
                    pieces[wanted[key]] = value
        found = [piece for index in range(count) if (piece := pieces.get(index)) is not None]
        return b"".join(found) if len(found) == count else None

    def _batches(self, first: int, end: int) -> Iterator[RawBatch]:
        if first >= end:
            return
        deadline = self._clock() + self._timeout_s
        with LogReader(self._access, self._topic) as reader:
            reader.assign({_PARTITION: first}, {_PARTITION: end})
            while not reader.done:
                batch = reader.read(timeout_s=0.5)
                if len(batch):
                    yield batch
                elif self._clock() > deadline:
                    raise Unavailable(
                        f"{self._topic} could not be read within {self._timeout_s:.0f} s",
                        hint="Somebody may have died while storing code; try again in a minute.",
                    )

    @contextmanager
    def _turn(self) -> Iterator[LogWriter]:
        """A transaction under the feed's own id: whoever was writing is fenced and writes nothing."""
        writer = LogWriter(
            self._access,
            transactional_id=f"feedstack.code.{self._topic}",
            settings={"linger.ms": 0},
            timeout_s=_TURN_LIMIT_S,
        )
        try:
            writer.init_transactions()
            writer.begin()
            try:
                yield writer
            except BaseException:
                with suppress(FeedstackError):
                    writer.abort()
                raise
            writer.commit()
        finally:
            writer.close()

    def _ensure(self) -> None:
        if self._topic not in self._admin.describe([self._topic]):
            self._admin.create([TopicPlan(self._topic, 1, _SETTINGS)])

    def _bounds(self) -> tuple[int, int]:
        bounds = self._admin.bounds(self._topic, [_PARTITION])[_PARTITION]
        return bounds.low, bounds.high

    def _end(self) -> int:
        return self._admin.ends(self._topic, [_PARTITION])[_PARTITION]


def code_feed(stack: Stack) -> CodeFeed:
    """The code feed of a stack."""
    return CodeFeed(stack.access, stack.admin, code_name(stack.settings.name))


def code_folder(stack: Stack, place: CodePlace) -> Path:
    """The folder on this machine that holds a job's code, unpacked; fetched if it is not there yet."""
    return unpacked(stack.settings.data, place.sha256, lambda: code_feed(stack).read(place))


def _key(sha256: str, index: int) -> bytes:
    return f"{sha256}/{index}".encode()


def _gone(place: CodePlace) -> NotFound:
    return NotFound(
        f"the code {place.sha256[:12]} is not in the code feed any more",
        hint="Deploy the job again: it stores its code anew.",
    )
