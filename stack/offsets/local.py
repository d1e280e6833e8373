"""A local index of a feed of the stack: a SQLite file that takes in what is new each time it is asked to.

It is a copy. A file that is broken, of another format or of a feed that was made anew is built again.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from stack.connection import Stack
from stack.errors import CorruptState, NotFound, Unavailable
from stack.kafka.reader import LogReader
from stack.machine import monotonic

READ_S = 0.25
LIMIT_S = 120.0
# Every index has this table: where reading of each partition goes on.
_PLACES = "create table places (part integer primary key, next integer not null);"

Taken = Iterator[tuple[bytes | None, bytes | None, int]]
"""Key, value and offset of records, in their order."""

Self = TypeVar("Self", bound="LocalIndex")


class LocalIndex:
    """What all indexes share: the file, and keeping up with the feed."""

    # The tables of an index, and their number: another one is built anew.
    tables = ""
    format = 1

    def __init__(
        self,
        stack: Stack,
        topic: str,
        folder: Path,
        *,
        clock: Callable[[], float] = monotonic,
        in_memory: bool = False,
    ) -> None:
        self._stack = stack
        self._topic = topic
        self._clock = clock
        found = stack.admin.describe([topic]).get(topic)
        if found is None:
            raise self._no_feed()
        self._partitions = found.partitions
        self._file: Path | None = None if in_memory else folder / f"{found.id}.sqlite"
        self._store = self._opened()

    def _no_feed(self) -> NotFound:
        """What to say where there is no feed yet."""
        return NotFound(f"there is no {self._topic}")

    def _opened(self) -> sqlite3.Connection:
        if self._file is None:
            return self._connected()
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            for old in self._file.parent.glob("*.sqlite*"):
                if not old.name.startswith(self._file.name):
                    old.unlink(missing_ok=True)  # of a feed that is gone
            try:
                return self._connected()
            except sqlite3.DatabaseError:
                self._forget_file()
                return self._connected()
        except (OSError, sqlite3.OperationalError):
            # Who may not write here has a copy in memory, and reads the whole feed at each start.
            self._file = None
            return self._connected()

    def _connected(self) -> sqlite3.Connection:
        name = ":memory:" if self._file is None else self._file
        store = sqlite3.connect(name, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            store.execute("pragma journal_mode=wal")
            store.execute("pragma synchronous=off")
            version = store.execute("pragma user_version").fetchone()[0]
            if version == self.format:
                store.execute("select count(*) from places").fetchone()
                return store
            if version != 0:
                raise sqlite3.DatabaseError("another format")
            with transaction(store):
                if store.execute("pragma user_version").fetchone()[0] == 0:
                    for statement in (_PLACES + self.tables).split(";"):
                        store.execute(statement)
                    store.execute(f"pragma user_version={self.format}")
        except BaseException:
            store.close()
            raise
        return store

    def _forget_file(self) -> None:
        if self._file is not None:
            for suffix in ("", "-wal", "-shm"):
                self._file.with_name(self._file.name + suffix).unlink(missing_ok=True)

    def refresh(self) -> None:
        """Take in what was committed since the last time, by anybody."""
        bounds = self._stack.admin.bounds(self._topic, range(self._partitions))
        known = dict(self._store.execute("select part, next from places"))
        starts = {number: max(known.get(number, 0), one.low) for number, one in bounds.items()}
        ends = {number: one.high for number, one in bounds.items()}
        new = {number: start for number, start in starts.items() if start < ends[number]}
        if new:
            self._take_in(new, {number: ends[number] for number in new})
            self._drop_old()

    def _take_in(self, starts: dict[int, int], ends: dict[int, int]) -> None:
        deadline = self._clock() + LIMIT_S
        with LogReader(self._stack.access, self._topic) as reader:
            reader.assign(starts, ends)
            while not reader.done:
                batch = reader.read(timeout_s=READ_S)
                if len(batch):
                    records = zip(batch.keys, batch.values, batch.offsets, strict=True)
                    with transaction(self._store):
                        self._add(records)
                        self._note(reader.positions)
                    deadline = self._clock() + LIMIT_S
                elif self._clock() > deadline:
                    raise self._unread()
            self._note(reader.positions)

    def _unread(self) -> Unavailable:
        return Unavailable(
            f"{self._topic} could not be read to its end within {LIMIT_S:.0f} s",
            hint="A transaction may be open: it ends by its time limit. Kafka may be away.",
        )

    def _note(self, positions: Mapping[int, int]) -> None:
        self._store.executemany("insert or replace into places values (?, ?)", list(positions.items()))

    def _add(self, records: Taken) -> None:
        raise NotImplementedError

    def _drop_old(self) -> None:
        """Forget what the feed does not keep any more."""

    def _ask(self, question: str, *values: object) -> list[Any]:
        """The rows of an answer; a broken file is removed, and told."""
        try:
            return self._store.execute(question, values).fetchall()
        except sqlite3.DatabaseError as error:
            self._forget_file()
            raise CorruptState(
                f"the index {self._file} is broken: {error}", hint="It was removed: ask again, it is rebuilt."
            ) from None

    def close(self) -> None:
        """Let go of the file."""
        self._store.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def transaction(store: sqlite3.Connection) -> Iterator[None]:
    """All or nothing; two processes take turns."""
    store.execute("begin immediate")
    try:
        yield
    except BaseException:
        store.execute("rollback")
        raise
    store.execute("commit")
