"""The one place where the runtime meets the room that keeps state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from changelog.budget import Budget
from changelog.manifest import StoreIdentity
from changelog.memory import MemoryDisk
from changelog.opening import Opened, open_store
from changelog.overlay import Deltas, Overlay
from changelog.plan import Bounds, Standing, plan_restore
from changelog.port import Store
from changelog.restore import BulkLoad, begin

__all__ = [
    "Bounds",
    "BulkLoad",
    "Deltas",
    "Disk",
    "MemoryDisk",
    "OpenStore",
    "Opened",
    "Overlay",
    "Standing",
    "Store",
    "StoreIdentity",
    "begin",
    "plan_restore",
    "rocks_disk",
]

OpenStore = Callable[[Path, StoreIdentity, int], Opened]
"""Opens the store of an identity in a folder; the last argument is the time of day in milliseconds."""

Disk = Callable[[int, int], OpenStore]
"""Where the stores of a container live, by the bytes of cache that they may use and how many they will be."""


def rocks_disk(cache_bytes: int, stores: int) -> OpenStore:
    """RocksDB in folders of this machine."""
    budget = Budget(cache_bytes, stores)
    return lambda folder, identity, now_ms: open_store(folder, identity, budget, now_ms)
