"""Stores without a disk: the same promises as RocksStore, and the same losses when their process is killed.

What was applied since the last flush is lost together, batch by batch from the end, each batch with its
position. A store that a process left open is free for others once that process is known to be dead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from changelog import folders
from changelog.folders import Snapshot
from changelog.manifest import StoreIdentity, misfit_of
from changelog.opening import Opened
from changelog.plan import Standing
from changelog.store import KEPT_SNAPSHOTS, RESERVED, reserved
from stack.errors import Unavailable

Changes = Mapping[bytes, bytes | None]
Point = Callable[[str, str, Path], None]
"""Called before a step with the process, the step and the folder; may raise what the disk would raise."""


def _all_goes_well(_process: str, _step: str, _folder: Path) -> None:
    pass


@dataclass
class _State:
    """The content of a store at one position."""

    content: dict[bytes, bytes] = field(default_factory=dict)
    position: int | None = None
    time_ms: int | None = None

    def take(self, changes: Changes, position: int, time_ms: int) -> None:
        for key, value in changes.items():
            if value is None:
                self.content.pop(key, None)
            else:
                self.content[key] = value
        self.position, self.time_ms = position, time_ms

    def copy(self) -> _State:
        return _State(dict(self.content), self.position, self.time_ms)


@dataclass
class _Folder:
    """What stands on the disk, and what only the process that has the store open knows."""

    identity: StoreIdentity
    durable: _State = field(default_factory=_State)
    batches: list[tuple[Changes, int, int]] = field(default_factory=list)
    snapshots: dict[Snapshot, _State] = field(default_factory=dict)
    owner: str | None = None

    def flush(self, count: int | None = None) -> None:
        """Bring the first batches to the disk, all of them unless told."""
        count = len(self.batches) if count is None else count
        for batch in self.batches[:count]:
            self.durable.take(*batch)
        del self.batches[:count]


class MemoryDisk:
    """The disk of one machine. Whatever opens stores on it does so as a process with a name."""

    def __init__(self, point: Point = _all_goes_well) -> None:
        self.point = point
        self._folders: dict[Path, _Folder] = {}
        self._aside: dict[Path, _Folder] = {}

    def of(self, process: str) -> Callable[[int, int], Callable[[Path, StoreIdentity, int], Opened]]:
        """The disk as one process sees it, for `gather`."""
        return lambda _cache_bytes, _stores: (
            lambda folder, identity, now_ms: self.open_store(folder, identity, now_ms, process)
        )

    def open_store(self, folder: Path, identity: StoreIdentity, now_ms: int, process: str = "") -> Opened:
        """As `changelog.opening.open_store`."""
        self.point(process, "open", folder)
        found = self._folders.get(folder)
        if found is not None and found.owner is not None:
            raise Unavailable(f"the store in {folder} is in use by process {found.owner}")
        aside = None
        note = "a new store was made" if found is None else f"the store stands at {found.durable.position}"
        misfit = None
        if found is not None and found.identity != identity:
            misfit = misfit_of(found.identity, identity)
        if found is not None and misfit is not None:
            aside = folders.aside_path(folder, misfit.reason, now_ms, self._aside.__contains__)
            self._aside[aside] = self._folders.pop(folder)
            note = f"{misfit.sentence}; the store was moved aside to {aside.name} and a new one was made"
        held = self._folders.setdefault(folder, _Folder(identity))
        held.identity, held.owner = identity, process
        return Opened(MemoryStore(self, folder, held, process), note, aside)

    def crash(self, process: str, kept: Callable[[int], int] = lambda _: 0) -> None:
        """The process is dead: of its unflushed batches of each store the first `kept(count)` stay."""
        for held in self._folders.values():
            if held.owner == process:
                held.flush(kept(len(held.batches)))
                held.batches.clear()
                held.owner = None

    def durable(self) -> list[tuple[StoreIdentity, dict[bytes, bytes], int]]:
        """Per store that holds anything: whose it is, what a crash of everything would leave, and where."""
        return [
            (held.identity, held.durable.content, held.durable.position)
            for held in self._folders.values()
            if held.durable.position is not None
        ]


class MemoryStore:
    """Made by `MemoryDisk.open_store`."""

    def __init__(self, disk: MemoryDisk, folder: Path, held: _Folder, process: str) -> None:
        self.folder = folder
        self.identity = held.identity
        self._disk = disk
        self._held = held
        self._process = process
        self._is_open = True
        self._live = held.durable.copy()

    @property
    def position(self) -> int | None:
        return self._live.position

    @property
    def position_time_ms(self) -> int | None:
        return self._live.time_ms

    def get(self, key: bytes) -> bytes | None:
        self._check(key)
        return self._live.content.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        self._check(max(keys, default=b""))
        return [self._live.content.get(key) for key in keys]

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        content = dict(self._live.content)
        for key in sorted(content, reverse=reverse):
            if (start is None or key >= start) and (end is None or key < end):
                yield key, content[key]

    def approximate_keys(self) -> int:
        return len(self._live.content)

    def size_bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self._live.content.items())

    def standing(self) -> Standing | None:
        if self._live.position is None or self._live.time_ms is None:
            return None
        return Standing(self._live.position, self._live.time_ms, self.identity.topic_id)

    def apply(self, changes: Changes, position: int, time_ms: int) -> None:
        self._check(max(changes, default=b""))
        if self._live.position is not None and position < self._live.position:
            raise ValueError(
                f"the store is at {self._live.position}, it cannot go back to {position} by a write"
            )
        self._disk.point(self._process, "apply", self.folder)
        batch = (dict(changes), position, time_ms)
        self._held.batches.append(batch)
        self._live.take(*batch)

    def flush(self, wait: bool = True) -> None:
        self._check()
        if wait:
            self._disk.point(self._process, "flush", self.folder)
            self._held.flush()

    def sst_writer(self, _file: Path) -> dict[bytes, bytes | None]:
        return _Writer()

    def is_crowded(self) -> bool:
        return False

    def ingest(self, writer: Changes, _file: Path, position: int, time_ms: int) -> None:
        self.apply(writer, position, time_ms)
        self._held.flush()

    def snapshot(self) -> Snapshot | None:
        if self._live.position is None or self._live.time_ms is None:
            return None
        _, path = folders.snapshot_paths(self.folder, self._live.position, self._live.time_ms)
        place = Snapshot(self._live.position, self._live.time_ms, path)
        if place not in self._held.snapshots:
            self.flush()
            self._held.snapshots[place] = self._live.copy()
            for old in self.snapshots()[KEPT_SNAPSHOTS:]:
                del self._held.snapshots[old]
        return place

    def snapshots(self) -> tuple[Snapshot, ...]:
        return tuple(sorted(self._held.snapshots, key=lambda one: one.position, reverse=True))

    def revert(self, to: Snapshot) -> None:
        self._swap(self._held.snapshots[to])

    def clear(self) -> None:
        self._swap(_State())

    def _swap(self, state: _State) -> None:
        self._disk.point(self._process, "swap", self.folder)
        self._held.batches.clear()
        self._held.durable, self._live = state.copy(), state.copy()

    def close(self) -> None:
        if self._is_open:
            self._disk.point(self._process, "close", self.folder)
            self._is_open = False
            if self._held.owner == self._process:
                self._held.flush()
                self._held.owner = None

    def _check(self, key: bytes = b"") -> None:
        if not self._is_open:
            raise Unavailable(f"the store in {self.folder} is closed")
        if key >= RESERVED:
            raise reserved()


class _Writer(dict[bytes, "bytes | None"]):
    """Collects what `ingest` takes; deleting a key is a change, too."""

    def __delitem__(self, key: bytes) -> None:
        self[key] = None
