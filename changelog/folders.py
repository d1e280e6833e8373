"""The folder of one store: its layout, moving it aside, swapping its database by steps that survive a kill.

Below `<state>/<store>/`:

- `<partition>/manifest.json`: whose it is
- `<partition>/db/`: RocksDB
- `<partition>/snapshots/<position>-<time_ms>/`: RocksDB checkpoints, made of hard links
- `<partition>/damaged`: there if reading found damage; the next opening moves all aside
- `<partition>.lock`: held by the process that has the store open
- `<partition>.aside-<reason>-<time>/`: what could not be used; kept until a person removes it
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from changelog.manifest import sync_folder

log = logging.getLogger("feedstack.changelog")

DB = "db"
SNAPSHOTS = "snapshots"
SCRATCH = "load"
DAMAGED = "damaged"
_NEXT = "db.next"
_OLD = "db.old"
_PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot on disk: where the changelog stood, and when."""

    position: int
    time_ms: int
    path: Path


def holds_data(folder: Path) -> bool:
    """Whether there is anything to lose: without a log of its own, all that RocksDB keeps is in SST files."""
    return any((folder / DB).glob("*.sst")) or any((folder / _NEXT).glob("*.sst"))


def is_made(folder: Path) -> bool:
    """Whether a database was made in the folder to the end."""
    return (folder / DB / "CURRENT").exists()


def set_aside(folder: Path, reason: str, now_ms: int, *, keep_snapshots: bool = False) -> Path:
    """Move the folder out of the way; nothing in it is deleted."""
    target = aside_path(folder, reason, now_ms, Path.exists)
    folder.rename(target)
    if keep_snapshots and (target / SNAPSHOTS).exists():
        folder.mkdir()
        (target / SNAPSHOTS).rename(folder / SNAPSHOTS)
    sync_folder(folder.parent)
    log.warning("%s was moved aside to %s and is kept there until someone removes it", folder, target.name)
    return target


def aside_path(folder: Path, reason: str, now_ms: int, is_taken: Callable[[Path], bool]) -> Path:
    """Where a folder that is moved aside goes."""
    stamp = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    base = f"{folder.name}.aside-{reason}-{stamp}"
    target = folder.with_name(base)
    number = 1
    while is_taken(target):
        number += 1
        target = folder.with_name(f"{base}-{number}")
    return target


def mark_damaged(folder: Path, message: str) -> None:
    """Remember for the next opening that reading found damage: opening alone would not see it."""
    with suppress(OSError):
        (folder / DAMAGED).write_text(message, encoding="utf-8")


def snapshots_of(folder: Path) -> tuple[Snapshot, ...]:
    """The snapshots of a store, the newest first."""
    found = []
    for path in (folder / SNAPSHOTS).glob("*-*"):
        position, _, time_ms = path.name.partition("-")
        if position.isdigit() and time_ms.isdigit():
            found.append(Snapshot(int(position), int(time_ms), path))
    return tuple(sorted(found, key=lambda one: one.position, reverse=True))


def snapshot_paths(folder: Path, position: int, time_ms: int) -> tuple[Path, Path]:
    """Where a snapshot is made, and where it goes once it is whole."""
    whole = folder / SNAPSHOTS / f"{position}-{time_ms}"
    return whole.with_name(whole.name + _PARTIAL), whole


def prune_snapshots(folder: Path, keep: int) -> None:
    """Remove all but the newest snapshots."""
    for one in snapshots_of(folder)[keep:]:
        drop_snapshot(one)


def drop_snapshot(one: Snapshot) -> None:
    """Remove a snapshot; it is a copy of what the changelog has."""
    _remove(one.path)


def swap_in(folder: Path, source: Path) -> None:
    """Let a copy of `source` take the place of the database. RocksDB must be closed.

    A kill at any point leaves either the old or the new database for `tidy` to find, never a mixture:
    the copy is whole before the old one is renamed, and `db.next` counts only where there is no `db`.
    """
    staged = folder / _NEXT
    _remove(staged)
    staged.mkdir()
    # CURRENT last: RocksDB finds no database in a copy that is not whole.
    for file in sorted(source.iterdir(), key=lambda path: path.name == "CURRENT"):
        if file.suffix == ".sst":
            os.link(file, staged / file.name)
        else:
            shutil.copyfile(file, staged / file.name)
            _sync_file(staged / file.name)
    sync_folder(staged)
    _retire(folder)
    staged.rename(folder / DB)
    sync_folder(folder)
    _remove(folder / _OLD)


def empty(folder: Path) -> None:
    """Remove the database, so that the next opening makes a new one. RocksDB must be closed."""
    _remove(folder / _NEXT)
    _retire(folder)
    _remove(folder / _OLD)


def tidy(folder: Path) -> None:
    """Finish or undo what a killed process had begun."""
    if (folder / _NEXT).exists() and not (folder / DB).exists():
        (folder / _NEXT).rename(folder / DB)
    partial = folder.glob(f"{SNAPSHOTS}/*{_PARTIAL}*")
    for leftover in (folder / _NEXT, folder / _OLD, folder / SCRATCH, *partial):
        _remove(leftover)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _retire(folder: Path) -> None:
    _remove(folder / _OLD)
    if (folder / DB).exists():
        (folder / DB).rename(folder / _OLD)
        sync_folder(folder)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
