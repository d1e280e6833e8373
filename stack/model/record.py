"""One record of a feed, as a reader hands it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """Key, value, time and place of one record. `value` is None for a tombstone of a table feed."""

    feed: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...] = ()
