"""What it takes to bring a compacted log back to an offset: for each key changed since, its value then.

The log is only added to. So it can be read up to any offset again, later ones included, and a second undo
after one that was cut off finds whatever is still missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from stack.connection import Stack
from stack.errors import Unavailable
from stack.kafka.reader import LogReader, RawBatch
from stack.machine import monotonic

_READ_RECORDS = 20_000
_READ_S = 0.25
_QUIET_LIMIT_S = 60.0
# More keys than these are undone in several passes, each with a share of them: memory stays bounded.
_MOST_KEYS = 2_000_000

Changes = dict[bytes, bytes | None]


@dataclass(frozen=True)
class Change:
    """Keys of one partition and what they are to become; None deletes."""

    topic: str
    partition: int
    keys: list[bytes]
    values: list[bytes | None]


@dataclass
class Undo:
    """The changes for one partition, and how many records had to be read for them."""

    topic: str
    partition: int
    changes: Changes = field(default_factory=dict)
    read: int = 0


class LogUndo:
    """Finds the changes that undo what stands behind an offset of one topic."""

    def __init__(self, stack: Stack, topic: str, clock: Callable[[], float] = monotonic) -> None:
        self._stack = stack
        self._topic = topic
        self._clock = clock

    def passes(self, partition: int, cut: int, *, empty: bool = False) -> Iterator[Undo]:
        """Portions of what brings a partition back to what it held before `cut`, or to nothing if `empty`."""
        bounds = self._stack.admin.bounds(self._topic, [partition])[partition]
        first = bounds.low if empty else max(cut, bounds.low)
        if first >= bounds.high:
            return
        shares = (bounds.high - first) // _MOST_KEYS + 1
        for share in range(shares):
            yield self._pass(partition, (bounds.low, first, bounds.high), (share, shares), empty)

    def changes(self, partition: int, cut: int, most: int, *, empty: bool = False) -> Iterator[Change]:
        """The same in pieces of at most so many keys."""
        for one in self.passes(partition, cut, empty=empty):
            keys, values = list(one.changes), list(one.changes.values())
            for start in range(0, len(keys), most):
                part = slice(start, start + most)
                yield Change(one.topic, one.partition, keys[part], values[part])

    def _pass(
        self, partition: int, offsets: tuple[int, int, int], part: tuple[int, int], empty: bool
    ) -> Undo:
        low, first, high = offsets
        share, shares = part
        found = Undo(self._topic, partition)
        now: Changes = {}
        for batch in self._read(partition, first, high):
            found.read += len(batch)
            pairs = zip(batch.keys, batch.values, strict=True)
            now.update({key: value for key, value in pairs if key is not None and _is_of(key, share, shares)})
        then: Changes = {}
        if not empty and low < first:
            for batch in self._read(partition, low, first):
                found.read += len(batch)
                pairs = zip(batch.keys, batch.values, strict=True)
                then.update({key: value for key, value in pairs if key in now})
        found.changes = {key: then.get(key) for key, value in now.items() if then.get(key) != value}
        return found

    def _read(self, partition: int, start: int, end: int) -> Iterator[RawBatch]:
        heard = self._clock()
        with LogReader(self._stack.access, self._topic) as reader:
            reader.assign({partition: start}, {partition: end})
            while not reader.done:
                batch = reader.read(_READ_RECORDS, _READ_S)
                if len(batch):
                    heard = self._clock()
                    yield batch
                elif self._clock() - heard > _QUIET_LIMIT_S:
                    raise Unavailable(
                        f"{self._topic} could not be read to its end",
                        hint="A transaction may be open, or Kafka away. Repeat the command: it goes on.",
                    )


def _is_of(key: bytes, share: int, shares: int) -> bool:
    # `hash` differs from process to process, but all shares of an undo are taken by one.
    return shares == 1 or hash(key) % shares == share
