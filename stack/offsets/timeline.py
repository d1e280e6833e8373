"""The life of a job as a person reads it: named points, versions, rewinds and commits in one order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stack.model.annotation import ALIGNED_PREFIX
from stack.model.startpoint import format_time
from stack.offsets.index import CheckpointIndex, Row


@dataclass(frozen=True, slots=True)
class Event:
    """One line: `point` is what one types after --to."""

    time_ms: int
    point: str
    version: str
    what: str
    state: str

    def as_row(self) -> list[str]:
        return [format_time(self.time_ms), self.point, self.version, self.what, self.state]

    def as_json(self) -> dict[str, Any]:
        return {
            "time_ms": self.time_ms,
            "point": self.point,
            "version": self.version,
            "what": self.what,
            "state": self.state,
        }


def timeline(index: CheckpointIndex, job: str, limit: int, horizon_ms: int, now_ms: int) -> list[Event]:
    """All of it, the oldest first; of plain commits only the newest."""
    edge_ms = now_ms - horizon_ms

    def state(time_ms: int) -> str:
        return "exact" if time_ms > edge_ms else "beyond the horizon"

    events = [
        Event(first, f"v:{version[:12]}", version, f"version took over, {count:,} commits", state(first))
        for version, first, _, count in index.versions(job)
    ]
    for name in _told_names(index, job, limit):
        point = index.annotated(job, name)
        if point is not None:
            said = " ".join(f"{key}={value}" for key, value in point.values.items())
            versions = sorted({one.version for one in point.checkpoints.values()})
            still = ", all tasks still" if point.aligned else ""
            what = f"named by {point.by}{still}" + (f": {said}" if said else "")
            last = max((one.time_ms for one in point.checkpoints.values()), default=point.time_ms)
            events.append(Event(point.time_ms, f"@{name}", ", ".join(versions), what, state(last)))
    rows = index.newest(job, limit)
    events += [_commit(index, row, state(row.time_ms)) for row in rows]
    return sorted(events, key=lambda one: (one.time_ms, one.point))


def _told_names(index: CheckpointIndex, job: str, limit: int) -> list[str]:
    """All names that people gave, and the newest of those that nobody asked for."""
    names = list(index.names(job))
    by_itself = [name for name in names if name.startswith(ALIGNED_PREFIX)]
    left_out = set(by_itself[: -limit or None])
    return [name for name in names if name not in left_out]


def _commit(index: CheckpointIndex, row: Row, state: str) -> Event:
    what = f"commit {row.number} of {row.task}"
    if row.slot < 0:
        said = index.checkpoint(row).annotations
        what = f"went back to {said['rewound-to']}" if "rewound-to" in said else "a rewind began"
    return Event(row.time_ms, f"{row.task}#{row.number}", row.version, what, state)
