"""Whose store a folder holds: a small file beside the database that says so, with a checksum."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stack.model.job import KeyCodec, ValueCodec

FORMAT = 1
NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """What a store on disk must agree with to be used: it says what its bytes mean."""

    stack: str
    job: str
    store: str
    partition: int
    # The changelog; its id tells a topic that was deleted and made anew.
    topic: str
    topic_id: str
    key: KeyCodec
    value: ValueCodec


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a manifest does not let its store be used: a word for file names, and a sentence."""

    reason: str
    sentence: str


# What is compared, with the word for the folder that is moved aside; the first that differs names it.
_REASONS = {
    "stack": "other-stack",
    "job": "other-job",
    "store": "other-store",
    "partition": "other-partition",
    "topic": "other-topic",
    "topic_id": "other-topic",
    "key": "other-codec",
    "value": "other-codec",
}


def write_manifest(folder: Path, identity: StoreIdentity, created_ms: int) -> None:
    """Write the manifest whole or not at all, also if the machine stops in between."""
    tree: dict[str, Any] = {"format": FORMAT, **asdict(identity), "created_ms": created_ms}
    tree["checksum"] = _checksum(tree)
    scratch = folder / (NAME + ".tmp")
    with scratch.open("w", encoding="utf-8") as file:
        json.dump(tree, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(folder / NAME)
    sync_folder(folder)


def judge_manifest(folder: Path, identity: StoreIdentity) -> Misfit | None:
    """Why the store in `folder` cannot be used as `identity`, or None if it can. OSError if unreadable."""
    text = (folder / NAME).read_bytes()
    try:
        tree = json.loads(text)
        found_format = tree["format"]
    except (ValueError, KeyError, TypeError):
        return Misfit("unreadable", "its manifest cannot be read")
    # First of all: what another format's checksum covers is not known.
    if found_format != FORMAT:
        return Misfit("unknown-format", f"its format is {found_format!r}, known is {FORMAT}")
    if tree.pop("checksum", None) != _checksum(tree):
        return Misfit("unreadable", "the checksum of its manifest is wrong")
    return _difference(tree, identity)


def misfit_of(found: StoreIdentity, wanted: StoreIdentity) -> Misfit | None:
    """Why a store of one identity cannot be used as another's, or None if it can."""
    return _difference(asdict(found), wanted)


def _difference(tree: Mapping[str, Any], identity: StoreIdentity) -> Misfit | None:
    for name, wanted in asdict(identity).items():
        if tree.get(name) != wanted:
            label = name.replace("_", " ") if name not in {"key", "value"} else f"{name} codec"
            return Misfit(_REASONS[name], f"its {label} is {tree.get(name)}, not {wanted}")
    return None


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(tree: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
