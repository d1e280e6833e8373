"""Unpacks the code of a job into the data folder, once per machine, whoever comes first."""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from stack.deploy.unused import mark_used, remove_unused
from stack.errors import CorruptState, Unavailable

CODE_FOLDER = "code"
# Written last into an unpacked folder: every file with its size.
_LIST_NAME = ".files.json"
_TRIES = 3


def code_place(data_folder: Path, sha256: str) -> Path:
    """Where the code of a job is unpacked."""
    return data_folder / CODE_FOLDER / sha256


def unpacked(data_folder: Path, sha256: str, read: Callable[[], bytes]) -> Path:
    """The folder with a job's code. `read` is only asked for the packed code if the folder is not there.

    Several processes may come at once. A folder that is not whole is replaced, one that nobody has used for
    a week is removed when another one is unpacked.
    """
    place = code_place(data_folder, sha256)
    if _is_whole(place):
        mark_used(place)
        return place
    remove_unused(place.parent)
    data = read()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_TRIES):
            draft = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{sha256[:12]}-"))
            try:
                unpack(data, draft)
                _put(draft, place)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
            if _is_whole(place):
                return place
    except OSError as error:
        raise Unavailable(
            f"the code cannot be unpacked into {place.parent}: {error.strerror or error}",
            hint="Is there room on the disk, and may this user write there?",
        ) from None
    raise CorruptState(f"{place} does not stay as it was unpacked", hint="Does something else clean it up?")


def unpack(data: bytes, folder: Path) -> None:
    """Unpack into a folder that is there, and list what it then holds."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            archive.extractall(folder)
            sizes = {one.filename: one.file_size for one in archive.infolist() if not one.is_dir()}
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise CorruptState(
            f"the packed code of a job cannot be unpacked: {error}", hint="Deploy the job again."
        ) from None
    with (folder / _LIST_NAME).open("w", encoding="utf-8") as file:
        json.dump(sizes, file)
        file.flush()
        os.fsync(file.fileno())


def _put(draft: Path, place: Path) -> None:
    """Move a folder to its place; one that is there and not whole goes away, one that is whole stays."""
    for _ in range(_TRIES):
        try:
            draft.rename(place)
        except OSError:
            if _is_whole(place):
                return
            aside = draft.with_name(f"{draft.name}.broken")
            try:
                place.rename(aside)
            except FileNotFoundError:  # another process has just moved it
                continue
            shutil.rmtree(aside, ignore_errors=True)
        else:
            return


def _is_whole(place: Path) -> bool:
    try:
        sizes = json.loads((place / _LIST_NAME).read_text(encoding="utf-8"))
        return all((place / name).stat().st_size == size_bytes for name, size_bytes in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False
