"""Folders of the data folder that are kept for as long as somebody uses them."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

UNUSED_S = 7 * 24 * 3600.0


def mark_used(folder: Path) -> None:
    """Say that a folder is in use; to be repeated by whoever goes on using it."""
    with contextlib.suppress(OSError):
        os.utime(folder)


def remove_unused(parent: Path, age_s: float = UNUSED_S) -> None:
    """Remove the folders in `parent` that nobody has used for so long, drafts of a killed process, too."""
    now = time.time()
    with contextlib.suppress(OSError):
        for folder in list(parent.iterdir()):
            if folder.is_dir() and now - folder.stat().st_mtime > age_s:
                shutil.rmtree(folder, ignore_errors=True)
