"""Small files that other processes read: written whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stack.errors import CorruptState


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that a reader, or a crash, sees the old or the new text, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def make_empty(folder: Path) -> None:
    """A folder with nothing in it, whatever was there before."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2) + "\n")


class KeptFile:
    """A JSON file that one process keeps: written when its content changes, and again when somebody else
    changed or removed it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._value: Any = None
        self._print: tuple[int, ...] | None = None

    def keep(self, value: Any) -> None:
        """Make the file hold this; costs one look at the file where it does already."""
        if value != self._value or self._print is None or self._print != self._look():
            write_json(self._path, value)
            self._value, self._print = value, self._look()

    def _look(self) -> tuple[int, ...] | None:
        try:
            about = self._path.stat()
        except OSError:
            return None
        return about.st_ino, about.st_mtime_ns, about.st_size


def read_json(path: Path) -> Any:
    """The JSON in a file, or None if there is no such file; CorruptState if it is broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CorruptState(
            f"{path} cannot be read: {error.strerror}", hint="Check its permissions."
        ) from None
    except ValueError as error:
        raise CorruptState(
            f"{path} is broken: {error}",
            hint=f"Move it aside (mv {path} {path}.broken) and run `stack up` again.",
        ) from None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` for the block; the system releases it if the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
