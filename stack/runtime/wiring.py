"""The one place where the runtime meets the room that keeps state."""

from __future__ import annotations

from changelog.budget import Budget
from changelog.manifest import StoreIdentity
from changelog.opening import open_store
from changelog.overlay import Deltas, Overlay
from changelog.plan import Bounds, Standing, plan_restore
from changelog.restore import BulkLoad, begin
from changelog.store import RocksStore

__all__ = [
    "Bounds",
    "Budget",
    "BulkLoad",
    "Deltas",
    "Overlay",
    "RocksStore",
    "Standing",
    "StoreIdentity",
    "begin",
    "open_store",
    "plan_restore",
]
