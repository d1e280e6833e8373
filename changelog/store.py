"""One store of one task in RocksDB: its bytes, and the position in its changelog up to which they are true.

Every write puts the position into the same batch as the changes, and there is no log beside the changelog:
after a crash the store stands at some earlier commit, whole, and says at which.
"""

from __future__ import annotations

import shutil
import struct
import weakref
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

from rocksdict import (
    Checkpoint,
    IngestExternalFileOptions,
    Rdict,
    ReadOptions,
    SstFileWriter,
    WriteBatch,
    WriteOptions,
)

from changelog import folders
from changelog.budget import CROWDED_FILES, Budget
from changelog.faults import is_damaged, translate
from changelog.folders import Snapshot, log
from changelog.lock import FolderLock
from changelog.manifest import StoreIdentity
from changelog.plan import Standing
from stack.errors import BadInput, CorruptState, FeedstackError, Unavailable

# Sorts after every key that is allowed: whatever is not smaller begins with these bytes.
RESERVED = b"\xff" * 16
POSITION_KEY = RESERVED + b"feedstack.position"
_POSITION = struct.Struct(">qq")
KEPT_SNAPSHOTS = 2


class RocksStore:
    """Made by `open_store`. One thread uses it at a time.

    rocksdict holds the GIL in single reads, writes, ingests and checkpoints, and lets go of it in `flush`
    and `close` (measured). So a long flush may run in another thread; a long batch stops all threads.
    """

    def __init__(self, folder: Path, identity: StoreIdentity, budget: Budget, lock: FolderLock) -> None:
        self.folder = folder
        self.identity = identity
        # The changelog offset to read on from, and when that was the end; None while nothing was written.
        self.position: int | None = None
        self.position_time_ms: int | None = None
        self._budget = budget
        self._lock = lock
        self._scans: weakref.WeakSet[Generator[tuple[bytes, bytes], None, None]] = weakref.WeakSet()
        self._is_open = False
        self._failed: FeedstackError | None = None
        self._open_db()

    # Reading

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        if key >= RESERVED:
            raise reserved()
        try:
            return self._db.get(key)
        except Exception as error:
            raise self._fault(error) from error

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of many keys, in their order."""
        if not keys:
            return []
        if max(keys) >= RESERVED:
            raise reserved()
        try:
            return self._db.get(keys)
        except Exception as error:
            raise self._fault(error) from error

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `start` up to, but not with, `end`, with values, in key order, as of the first step."""
        stop = RESERVED if end is None or end > RESERVED else end
        steps = self._scan(start, stop, reverse)
        # A living iterator would keep RocksDB open behind `close`.
        self._scans.add(steps)
        return steps

    def _scan(
        self, start: bytes | None, stop: bytes, reverse: bool
    ) -> Generator[tuple[bytes, bytes], None, None]:
        # Not rocksdict's `items()`: it takes damage for the end. And no lower bound: rocksdict would set the
        # upper one by it.
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(stop)
        try:
            steps = self._db.iter(bounds)
        except Exception as error:
            raise self._fault(error) from error
        move = steps.prev if reverse else steps.next
        try:
            if reverse:
                steps.seek_to_last()
            elif start is None:
                steps.seek_to_first()
            else:
                steps.seek(start)
            while steps.valid():
                key = steps.key()
                if reverse and start is not None and key < start:
                    return
                yield key, steps.value()
                move()
            steps.status()
        except Exception as error:
            raise self._fault(error) from error
        finally:
            # Whoever keeps the error, keeps this frame; the iterator in it would keep RocksDB open.
            del steps, move

    def approximate_keys(self) -> int:
        """About how many keys there are; those overwritten or deleted lately count more than once."""
        return self._number("rocksdb.estimate-num-keys")

    def size_bytes(self) -> int:
        """Bytes on disk, without snapshots, and in write buffers."""
        return self._number("rocksdb.total-sst-files-size") + self._number("rocksdb.cur-size-all-mem-tables")

    def standing(self) -> Standing | None:
        """How far the store reaches, as the restore planner asks; None if it is empty."""
        if self.position is None or self.position_time_ms is None:
            return None
        return Standing(self.position, self.position_time_ms, self.identity.topic_id)

    # Writing

    def apply(self, changes: Mapping[bytes, bytes | None], position: int, time_ms: int) -> None:
        """Write changes (None deletes) together with the position that they lead to.

        Once that failed the store takes no more, until it is opened again: a later batch would hide the gap.
        """
        self._check_may_write(position)
        batch = WriteBatch(raw_mode=True)
        for key, value in changes.items():
            if key >= RESERVED:
                raise reserved()
            if value is None:
                del batch[key]
            else:
                batch[key] = value
        batch[POSITION_KEY] = _POSITION.pack(position, time_ms)
        try:
            self._db.write(batch)
        except Exception as error:
            self._failed = self._fault(error)
            raise self._failed from error
        self.position, self.position_time_ms = position, time_ms

    def flush(self, wait: bool = True) -> None:
        """Bring all that was applied to the disk; without `wait` only begin to. Lets go of the GIL."""
        try:
            self._db.flush(wait)
        except Exception as error:
            raise self._fault(error) from error

    def sst_writer(self, file: Path) -> SstFileWriter:
        """A writer of a file that `ingest` takes; keys must come in order."""
        try:
            file.parent.mkdir(exist_ok=True)
            writer = SstFileWriter(self._budget.options)
            writer.open(str(file))
        except Exception as error:
            raise translate(error, self.folder) from error
        return writer

    def is_crowded(self) -> bool:
        """Whether so many files were ingested that compaction should come first."""
        return int(self._db.property_value("rocksdb.num-files-at-level0") or 0) >= CROWDED_FILES

    def ingest(self, writer: SstFileWriter, file: Path, position: int, time_ms: int) -> None:
        """Take the file over as one change that leads to `position`, as if it had been applied."""
        self._check_may_write(position)
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        try:
            # The position sorts last. With it in the file, content and position arrive together, and
            # RocksDB flushes what was applied before, which overlaps with it at least there.
            writer[POSITION_KEY] = _POSITION.pack(position, time_ms)
            writer.finish()
            self._db.ingest_external_file([str(file)], options)
        except Exception as error:
            self._failed = translate(error, self.folder)
            raise self._failed from error
        self.position, self.position_time_ms = position, time_ms

    # The folder

    def snapshot(self) -> Snapshot | None:
        """Keep the store as it is now beside it, by hard links; None if it is empty."""
        if self.position is None or self.position_time_ms is None:
            return None
        partial, whole = folders.snapshot_paths(self.folder, self.position, self.position_time_ms)
        place = Snapshot(self.position, self.position_time_ms, whole)
        if whole.exists():
            return place
        # First, because it lets go of the GIL; the checkpoint itself would flush without.
        self.flush()
        try:
            partial.parent.mkdir(exist_ok=True)
            shutil.rmtree(partial, ignore_errors=True)
            Checkpoint(self._db).create_checkpoint(str(partial))
            partial.rename(whole)
        except Exception as error:
            raise self._fault(error) from error
        folders.prune_snapshots(self.folder, KEPT_SNAPSHOTS)
        return place

    def snapshots(self) -> tuple[Snapshot, ...]:
        """The snapshots on disk, the newest first."""
        return folders.snapshots_of(self.folder)

    def revert(self, to: Snapshot) -> None:
        """Go back to a snapshot. Unavailable if it is damaged: then it is removed, and the restore must be
        planned anew."""
        self._swap(to)

    def clear(self) -> None:
        """Become empty, before a rebuild. Snapshots stay."""
        self._swap(None)

    def _swap(self, source: Snapshot | None) -> None:
        self._close_db()
        try:
            if source is None:
                folders.empty(self.folder)
            else:
                folders.swap_in(self.folder, source.path)
            self._open_db()
        except Exception as error:
            if source is None or not is_damaged(error):
                raise translate(error, self.folder) from error
            folders.drop_snapshot(source)
            folders.empty(self.folder)
            self._open_db()
            raise Unavailable(
                f"the snapshot at {source.position} of the store in {self.folder} is damaged and was removed",
                hint="Open the task again: it is restored without it.",
            ) from error

    def close(self) -> None:
        """Flush and let go of the folder; calling it twice is fine.

        A flush that fails loses nothing, since the changelog has it all: it is logged, not raised.
        """
        if self._is_open:
            self._close_db()
        self._lock.release()

    def _open_db(self) -> None:
        options = self._budget.options
        # Named, because rocksdict would else open the family with the options on disk, which know nothing
        # of the shared cache.
        self._db = Rdict(str(self.folder / folders.DB), options, column_families={"default": options})
        self._is_open = True
        self._failed = None
        no_log = WriteOptions()
        no_log.disable_wal = True
        self._db.set_write_options(no_log)
        try:
            self.position, self.position_time_ms = self._read_position()
        except Exception:
            self._close_db()
            raise

    def _read_position(self) -> tuple[int, int] | tuple[None, None]:
        stored = self._db.get(POSITION_KEY)
        if stored is not None and len(stored) == _POSITION.size:
            position, time_ms = _POSITION.unpack(stored)
            return position, time_ms
        if stored is None and next(self._scan(None, RESERVED, False), None) is None:
            return None, None
        raise CorruptState(f"the store in {self.folder} holds keys, but no position that could be read")

    def _close_db(self) -> None:
        self._is_open = False
        for steps in list(self._scans):
            steps.close()
        try:
            self._db.close()
        except Exception as error:
            log.warning("%s could not be flushed when it was closed: %s", self.folder, error)

    def _check_may_write(self, position: int) -> None:
        if self._failed is not None:
            raise self._failed
        if self.position is not None and position < self.position:
            raise ValueError(f"the store is at {self.position}, it cannot go back to {position} by a write")

    def _number(self, name: str) -> int:
        return int(self._db.property_int_value(name) or 0)

    def _fault(self, error: Exception) -> FeedstackError:
        fault = translate(error, self.folder)
        if isinstance(fault, CorruptState):
            folders.mark_damaged(self.folder, str(error))
        return fault


def reserved() -> BadInput:
    return BadInput(
        "a key of a store cannot begin with sixteen bytes of 255",
        hint="These keys are kept for the store itself. Put any other byte in front.",
    )
