"""One partition in memory: records and markers in their order, and what a reader may see of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import compress

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message

Headers = Sequence[tuple[str, bytes | None]] | None
# Key, value, time in milliseconds or 0, headers.
Queued = tuple[bytes | None, bytes | None, int, Headers]


class PartitionLog:
    """Offsets grow by one for each record and each marker; compaction and retention leave gaps."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.low = 0
        # The high watermark: one broker is all there is, so everything that was written counts.
        self.high = 0
        self._offsets: list[int] = []
        # None stands for a marker: it takes an offset and is never handed out.
        self._messages: list[Message | None] = []
        # Per producer with an open transaction: where its records stand.
        self._open: dict[int, list[int]] = {}
        self._aborted: set[int] = set()
        # Since when deletions may be forgotten: set when a cleaner first meets one.
        self._forget_at_ms: dict[int, int] = {}

    @property
    def stable(self) -> int:
        """The last stable offset: nothing before it belongs to an open transaction."""
        if not self._open:
            return self.high
        return min(offsets[0] for offsets in self._open.values())

    def append(
        self, records: Sequence[Queued], now_ms: int, *, by_append: bool, producer: int | None = None
    ) -> int:
        """Add records, of a producer's open transaction if one is named; returns the first offset."""
        first, topic, partition = self.high, self.topic, self.partition
        kind = TIMESTAMP_LOG_APPEND_TIME if by_append else TIMESTAMP_CREATE_TIME
        add = self._messages.append
        for offset, (key, value, time_ms, headers) in enumerate(records, first):
            stamp = (kind, now_ms if by_append or not time_ms else time_ms)
            add(
                Message(
                    topic=topic,
                    partition=partition,
                    offset=offset,
                    key=key,
                    value=value,
                    headers=headers,
                    timestamp=stamp,
                )
            )
        self.high = first + len(records)
        offsets = range(first, self.high)
        self._offsets.extend(offsets)
        if producer is not None:
            self._open.setdefault(producer, []).extend(offsets)
        return first

    def end_transaction(self, producer: int, *, commit: bool) -> None:
        """Write the marker that ends a producer's transaction here."""
        offsets = self._open.pop(producer, ())
        if not commit:
            self._aborted.update(offsets)
        self._offsets.append(self.high)
        self._messages.append(None)
        self.high += 1

    def read(self, position: int, limit: int, *, committed: bool) -> tuple[list[Message], int]:
        """At most so many records from a position on, and the position after them.

        There may be none although the position moves: markers and aborted records are invisible.
        """
        end = self.stable if committed else self.high
        first = bisect_left(self._offsets, position)
        last = bisect_left(self._offsets, end, lo=first)
        if last - first > limit:
            last = first + limit
            end = self._offsets[last - 1] + 1
        found = [one for one in self._messages[first:last] if one is not None]
        if committed and self._aborted:
            found = [one for one in found if one.offset() not in self._aborted]
        return found, max(position, end)

    def offset_at(self, time_ms: int) -> int:
        """The first offset of a record of that time or later; -1 if there is none."""
        for one in self._messages:
            if one is not None and one.timestamp()[1] >= time_ms:
                return one.offset()
        return -1

    def delete_before(self, offset: int) -> None:
        """Forget what stands before an offset."""
        self.low = max(self.low, min(offset, self.high))
        gone = bisect_left(self._offsets, self.low)
        del self._offsets[:gone], self._messages[:gone]
        self._aborted = {one for one in self._aborted if one >= self.low}

    def compact(self, now_ms: int, lag_ms: int, delete_retention_ms: int) -> int:
        """Clean what is older than the lag, as Kafka's cleaner would; returns how many records are gone.

        Records without a later one for their key stay. Deletions stay for a while after the first cleaning.
        """
        bound = self._cleanable(now_ms - lag_ms)
        newest: dict[bytes | None, int] = {}
        for one in self._messages[:bound]:
            if one is not None and one.offset() not in self._aborted:
                newest[one.key()] = one.offset()
        stays = [
            one is None or (newest.get(one.key()) == one.offset() and not self._forgets(one, now_ms))
            for one in self._messages[:bound]
        ]
        for one in compress(self._messages[:bound], stays):
            if one is not None and one.value() is None:
                self._forget_at_ms.setdefault(one.offset(), now_ms + delete_retention_ms)
        gone = bound - sum(stays)
        self._offsets[:bound] = compress(self._offsets[:bound], stays)
        self._messages[:bound] = compress(self._messages[:bound], stays)
        return gone

    def _cleanable(self, before_ms: int) -> int:
        """How many entries a cleaner looks at: up to the first that is too young or not yet decided."""
        bound = bisect_left(self._offsets, self.stable)
        for place, one in enumerate(self._messages[:bound]):
            if one is not None and one.timestamp()[1] > before_ms:
                return place
        return bound

    def _forgets(self, one: Message, now_ms: int) -> bool:
        """Whether this is a deletion that everybody has had the time to see."""
        return one.value() is None and self._forget_at_ms.get(one.offset(), now_ms + 1) <= now_ms
