"""One owner per store folder: a lock that the kernel lets go of when its process ends, and that names it.

RocksDB has a lock of its own, but it lies inside the folder: it cannot guard moving the folder aside.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from changelog.faults import translate
from stack.errors import Unavailable

# A POSIX lock does not exclude its own process, and closing any descriptor of the file would drop it.
_held: set[Path] = set()


class FolderLock:
    """Held from its making until `release`. Unavailable, naming the owner, if someone else holds it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder.with_name(folder.name + ".lock")
        if self._path in _held:
            raise _taken(folder, os.getpid())
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            # Not flock: a child that the process forked would go on holding it after the process is gone.
            self._file: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise translate(error, folder) from error
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(self._file, 32, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise _taken(folder, int(owner) if owner.isdigit() else None) from None
        _held.add(self._path)
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, str(os.getpid()).encode(), 0)
        except OSError:
            pass  # the name of the owner is a courtesy; a full disk must not stop the opening

    def release(self) -> None:
        """Let go; calling it twice is fine."""
        if self._file is not None:
            _held.discard(self._path)
            os.close(self._file)
            self._file = None


def _taken(folder: Path, pid: int | None) -> Unavailable:
    owner = f"process {pid}" if pid is not None else "another process"
    return Unavailable(
        f"the store in {folder} is in use by {owner}",
        hint="Wait until it has ended, or end it; a killed process needs a moment to let go.",
    )
