"""How fresh a feed is: the values that judges, commands and the alarms feed share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from stack.model.metrics import FORMAT


class FreshnessState(StrEnum):
    """How a feed stands to its objective."""

    FRESH = "fresh"
    STALE = "stale"  # staler than it should be, but not for long enough to alarm anybody
    ALARM = "alarm"
    UNKNOWN = "unknown"  # nobody can tell; `why` says the reason


@dataclass(frozen=True, slots=True)
class Freshness:
    """One feed as it was judged. `share` is the part of the window in which it was too stale."""

    feed: str
    time_ms: int
    state: FreshnessState
    objective_ms: int
    window_ms: int
    staleness_ms: int | None = None
    share: float = 0.0
    since_ms: int = 0
    why: str = ""


def alarms_name(stack: str) -> str:
    """The topic of the alarms feed."""
    return f"_{stack}.alarms"


def freshness_key(feed: str) -> bytes:
    """The key of a feed's records, in the metrics feed and in the alarms feed."""
    return f"feed/{feed}".encode()


def freshness_to_json(one: Freshness) -> dict[str, Any]:
    """The freshness as plain JSON values."""
    return {"format": FORMAT, "kind": "freshness", **asdict(one)}


def freshness_to_bytes(one: Freshness) -> bytes:
    """The value of a record that tells of it."""
    return json.dumps(freshness_to_json(one), separators=(",", ":"), ensure_ascii=False).encode()


def freshness_from_json(tree: Mapping[str, Any]) -> Freshness | None:
    """The freshness that `freshness_to_json` made; None if it is something else."""
    try:
        if tree["format"] != FORMAT or tree["kind"] != "freshness":
            return None
        plain = {name: tree[name] for name in Freshness.__slots__}
        return Freshness(**{**plain, "state": FreshnessState(plain["state"])})
    except (KeyError, TypeError, ValueError):
        return None
