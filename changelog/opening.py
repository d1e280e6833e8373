"""Open a store: use what is on disk if it can be trusted, else move it aside and begin with an empty one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from changelog import folders
from changelog.budget import Budget
from changelog.faults import is_damaged, translate
from changelog.lock import FolderLock
from changelog.manifest import NAME, Misfit, StoreIdentity, judge_manifest, write_manifest
from changelog.port import Store
from changelog.store import RocksStore


@dataclass(frozen=True, slots=True)
class Opened:
    """An open store, and one sentence on what was found; `aside` is where a bad one was moved to."""

    store: Store
    note: str
    aside: Path | None = None


def open_store(folder: Path, identity: StoreIdentity, budget: Budget, now_ms: int) -> Opened:
    """Open the store of `identity` in `folder`, `<state>/<store>/<partition>`.

    Unavailable if another process has it, naming that one, or if the disk is full: try again later.
    """
    lock = FolderLock(folder)
    try:
        return _open(folder, identity, budget, lock, now_ms)
    except Exception as error:
        lock.release()
        fault = translate(error, folder)
        if fault is error:
            raise
        raise fault from error
    except BaseException:
        lock.release()
        raise


def _open(folder: Path, identity: StoreIdentity, budget: Budget, lock: FolderLock, now_ms: int) -> Opened:
    misfit, snapshots_too = _examine(folder, identity)
    if misfit is None and folders.is_made(folder):
        held = folders.holds_data(folder)
        try:
            store = RocksStore(folder, identity, budget, lock)
            return Opened(store, _found(store, held))
        except Exception as error:
            if not is_damaged(error):
                raise
            misfit = Misfit("damaged", f"RocksDB cannot open it: {error}")
    if misfit is None:
        aside, note = None, "a new store was made"
        if folder.exists():
            folders.empty(folder)
    else:
        aside = folders.set_aside(folder, misfit.reason, now_ms, keep_snapshots=not snapshots_too)
        note = f"{misfit.sentence}; the store was moved aside to {aside.name} and a new one was made"
    folder.mkdir(parents=True, exist_ok=True)
    # The manifest first: files of a database that nobody vouches for are moved aside.
    write_manifest(folder, identity, now_ms)
    return Opened(RocksStore(folder, identity, budget, lock), note, aside)


def _found(store: RocksStore, held: bool) -> str:
    if store.position is not None:
        return f"the store on disk stands at offset {store.position}"
    # RocksDB forgets files that its cut-off list of files does not name; a kill in its first flush does it.
    return "the store on disk had no whole state and begins empty" if held else "the store on disk is empty"


def _examine(folder: Path, identity: StoreIdentity) -> tuple[Misfit | None, bool]:
    """Why the folder cannot be used, if so, and whether its snapshots cannot either."""
    if not folder.exists():
        return None, False
    folders.tidy(folder)
    if (folder / NAME).exists():
        misfit = judge_manifest(folder, identity)
        if misfit is not None:
            return misfit, True
    elif folders.holds_data(folder) or folders.snapshots_of(folder):
        return Misfit("no-manifest", "it has no manifest"), True
    if (folder / folders.DAMAGED).exists():
        # Snapshots share their files with the database.
        return Misfit("damaged", "reading it found damage"), True
    if folders.holds_data(folder) and not folders.is_made(folder):
        return Misfit("damaged", "a file that names all others is missing"), False
    return None, False
