"""What a fault of RocksDB or of the disk means: one place that turns it into an error of the stack.

rocksdict raises a plain Exception with RocksDB's own sentence, so the sentence is all there is to judge by.
"""

from __future__ import annotations

from pathlib import Path

from stack.errors import CorruptState, FeedstackError, Unavailable

_FULL = ("No space left on device", "File too large", "Disk quota exceeded")
_LOCKED = ("While lock file", "lock hold by current process")
# RocksDB knows a file from its MANIFEST and it is not there; or it is, but does not hold what it should.
_DAMAGED = ("Corruption", "No such file or directory", "NotFound", "Invalid argument", "Not implemented")


def is_locked(error: Exception) -> bool:
    """Whether another process, or this one, has the database open already."""
    return any(words in str(error) for words in _LOCKED)


def is_full(error: Exception) -> bool:
    """Whether the disk had no room."""
    return any(words in str(error) for words in _FULL)


def is_damaged(error: Exception) -> bool:
    """Whether the files cannot be what was written: reading them again will not help."""
    if isinstance(error, CorruptState):
        return True
    text = str(error)
    return not is_full(error) and not is_locked(error) and any(words in text for words in _DAMAGED)


def translate(error: Exception, folder: Path) -> FeedstackError:
    """The error of the stack for a fault of the store in `folder`."""
    if isinstance(error, FeedstackError):
        return error
    if is_locked(error):
        owner = "this" if "current process" in str(error) else "another"
        return Unavailable(
            f"the store in {folder} is open in {owner} process",
            hint="Wait until it has ended, or end it; a killed process needs a moment to let go.",
        )
    if is_full(error):
        return Unavailable(
            f"the state disk is full: {folder} cannot be written ({error})",
            hint="Free space on that disk, or move the stack's data folder to a larger one. "
            "Nothing is lost: the store goes on from its changelog.",
        )
    if is_damaged(error):
        return CorruptState(
            f"the store in {folder} is damaged: {error}",
            hint="It is moved aside and rebuilt from its changelog when it is opened next. Check the disk.",
        )
    return Unavailable(
        f"the store in {folder} cannot be used now: {error}",
        hint="Check the folder's rights, the disk and the limit of open files.",
    )
