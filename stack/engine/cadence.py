"""When a container commits: seldom while it is behind, often once it has caught up."""

from __future__ import annotations

from dataclasses import dataclass

# A commit may take this part of the time at most; else short intervals would leave no time for work.
_MOST_SPENT = 0.65


@dataclass(frozen=True, slots=True)
class Cadence:
    """The bounds of the commit interval. Without `eager` outputs do not wait for commits: no hurry then."""

    min_ms: int
    max_ms: int
    eager: bool = True

    def interval_s(self, behind: bool, last_commit_s: float) -> float:
        """How long after the first uncommitted record a commit is due."""
        if behind or not self.eager:
            return self.max_ms / 1000
        return min(self.max_ms / 1000, max(self.min_ms / 1000, last_commit_s * (1 / _MOST_SPENT - 1)))


# How long a chunk of records may keep the loop busy before it looks at the clock.
_CHUNK_S = 0.010
_LEAST, _MOST = 1, 4_096


def next_chunk(records: int, took_s: float) -> int:
    """How many records to handle at a stretch, after a stretch of `records` took that long."""
    fitting = int(records * _CHUNK_S / max(took_s, 1e-6))
    return max(_LEAST, min(_MOST, fitting, records * 4))
