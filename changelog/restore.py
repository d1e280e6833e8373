"""Bring a store up to its changelog in bulk: collect deltas, sort them, let RocksDB take whole files over.

A container restores one task while its siblings work in the same thread. So all work is cut into pieces, and
`work` does as many of them as fit into the time that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count

from changelog import folders
from changelog.columns import column, order
from changelog.faults import translate
from changelog.plan import FromSnapshot, Rebuild, RestorePlan
from changelog.port import Store
from changelog.store import RESERVED
from stack.errors import CorruptState, Unavailable
from stack.machine import monotonic, sleep

# Sorting this many keys at once takes well under a tenth of a second; more of them mean fewer files.
CHUNK_ENTRIES = 200_000
CHUNK_BYTES = 64 << 20
# Below this a plain batch is quicker than a file, and leaves none behind.
_BATCH_ENTRIES = 5_000
_PIECE_ENTRIES = 20_000


def begin(store: Store, plan: RestorePlan) -> int:
    """Make the store ready for the plan; returns the offset from which deltas are to be read."""
    match plan:
        case FromSnapshot(position=position):
            for one in store.snapshots():
                if one.position == position:
                    store.revert(one)
                    return position
            raise Unavailable(
                f"the snapshot at {position} of the store in {store.folder} is gone",
                hint="Open the task again: it is restored without it.",
            )
        case Rebuild():
            if store.position is not None:
                store.clear()
    return plan.position


class BulkLoad:
    """Deltas in, files out. `began_ms` is the time at which reading began.

    At every moment the store on disk is whole at some position, so a killed load goes on where it was. What
    it holds until the end is only as fresh as its oldest part: that is its time, not the present.
    """

    def __init__(
        self,
        store: Store,
        began_ms: int,
        *,
        chunk_entries: int = CHUNK_ENTRIES,
        chunk_bytes: int = CHUNK_BYTES,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], None] = sleep,
    ) -> None:
        self._store = store
        self._time_ms = began_ms if store.position_time_ms is None else store.position_time_ms
        self._chunk_entries = chunk_entries
        self._chunk_bytes = chunk_bytes
        self._clock = clock
        self._sleep = sleep
        self._names = (store.folder / folders.SCRATCH / f"{number}.sst" for number in count())
        self._held: dict[bytes, bytes | None] = {}
        self._held_bytes = 0
        self._position = store.position or 0
        self._pending: Iterator[bool] | None = None
        self._failed: Exception | None = None
        # Ingesting would else flush it, and hold the GIL meanwhile.
        store.flush()

    @property
    def is_full(self) -> bool:
        """Whether `work` should be called before more is added; adding is allowed, but may take its time."""
        return self._pending is not None

    def add(self, keys: Sequence[bytes], values: Sequence[bytes | None], position: int) -> None:
        """Take deltas in the order of their offsets; None deletes. `position` is the offset after them."""
        self._held.update(zip(keys, values, strict=True))
        self._position = position
        self._held_bytes += _size(keys) + _size(values)
        if len(self._held) >= self._chunk_entries or self._is_large():
            self._cut(self._time_ms)

    def _is_large(self) -> bool:
        if self._held_bytes < self._chunk_bytes:
            return False
        # Values that were overwritten meanwhile were counted, too.
        self._held_bytes = _size(list(self._held)) + _size(list(self._held.values()))
        return self._held_bytes >= self._chunk_bytes // 2

    def work(self, until: float) -> bool:
        """Do pieces of work until the clock says `until`, at least one; True if none is left."""
        if self._failed is not None:
            raise self._failed  # going on would leave out a chunk
        while self._pending is not None:
            try:
                is_waiting = next(self._pending)
            except StopIteration:
                self._pending = None
            except Exception as error:
                self._failed = error
                raise
            else:
                if is_waiting or self._clock() >= until:
                    break
        return self._pending is None

    def seal(self, position: int, time_ms: int) -> None:
        """Nothing more will be added: the store will stand at `position`, which was the end at `time_ms`.
        Call `work` until it answers True."""
        self._position = position
        self._cut(time_ms)

    def finish(self, position: int, time_ms: int) -> None:
        """Seal, and do all that is left at once."""
        self.seal(position, time_ms)
        self._drain()

    def _drain(self) -> None:
        while not self.work(self._clock() + 1):
            self._sleep(0.01)

    def _cut(self, time_ms: int) -> None:
        self._drain()
        self._pending = self._write(self._held, self._position, time_ms)
        self._held, self._held_bytes = {}, 0

    def _write(self, held: dict[bytes, bytes | None], position: int, time_ms: int) -> Iterator[bool]:
        """Write one chunk, a piece at a time; True where it can only wait."""
        if None in held:
            raise self._foreign("a record without a key")
        if len(held) <= _BATCH_ENTRIES:
            if max(held, default=b"") >= RESERVED:
                raise self._foreign("a key that is kept for the store itself")
            self._store.apply(held, position, time_ms)
            return
        keys = column(held)
        yield False
        values = column(held.values())
        held.clear()
        yield False
        ranks = order(keys)
        yield False
        keys = keys.take(ranks)
        yield False
        values = values.take(ranks)
        yield False
        if keys[-1].as_py() >= RESERVED:
            raise self._foreign("a key that is kept for the store itself")
        file = next(self._names)
        writer = self._store.sst_writer(file)
        try:
            for first in range(0, len(keys), _PIECE_ENTRIES):
                piece = keys.slice(first, _PIECE_ENTRIES).to_pylist()
                for key, value in zip(piece, values.slice(first, _PIECE_ENTRIES).to_pylist(), strict=True):
                    if value is None:
                        del writer[key]
                    else:
                        writer[key] = value
                yield False
            while self._store.is_crowded():
                yield True
            self._store.ingest(writer, file, position, time_ms)
        except Exception as error:
            file.unlink(missing_ok=True)  # what is left of it may be what fills the disk
            fault = translate(error, self._store.folder)
            if fault is error:
                raise
            raise fault from error

    def _foreign(self, what: str) -> CorruptState:
        return CorruptState(
            f"changelog {self._store.identity.topic} holds {what}",
            hint="Something other than this job has written to it.",
        )


def _size(items: Sequence[bytes | None]) -> int:
    """About how many bytes they are, from a sample: asking each would take as long as a tenth of the load."""
    sample = items[:: max(1, len(items) // 64)]
    return sum(len(one) for one in sample if one is not None) * len(items) // max(1, len(sample))
