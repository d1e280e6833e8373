"""When a container commits: seldom while it is behind, often once it has caught up."""

from __future__ import annotations

from dataclasses import dataclass

# After a commit Kafka writes its markers. Whoever begins the next one before they are written is sent away
# for 20 ms by the coordinator: better rest for a while, in proportion to what a commit takes here.
_REST_SHARE, _LONGEST_REST_S = 0.5, 0.006
# Records seldom come alone: the first one waits so long for others.
_COMPANY_S = 0.003
# A lead, as `runtime/commit` has it, pays if records come while it is on its way.
_LEAD_RECORDS = 3


@dataclass(frozen=True, slots=True)
class Cadence:
    """The bounds of the commit interval. Without `eager` outputs do not wait for commits: no hurry then."""

    min_ms: int
    max_ms: int
    eager: bool = True

    def due_at(self, behind: bool, since: float, finished: float, took_s: float) -> float:
        """When to commit what is uncommitted `since` then; the last commit was `finished` and had taken so
        long. All in seconds of one clock.
        """
        if behind or not self.eager:
            return since + self.max_ms / 1000
        rested = finished + min(_LONGEST_REST_S, took_s * _REST_SHARE)
        return max(since + _COMPANY_S, finished - took_s + self.min_ms / 1000, rested)

    def leads(self, behind: bool, records: int) -> bool:
        """Whether a commit has a lead, after so many records since the last one."""
        return self.eager and not behind and records >= _LEAD_RECORDS


# How long a chunk of records may keep the loop busy before it looks at the clock.
_CHUNK_S = 0.010
_LEAST, _MOST = 1, 4_096


def next_chunk(records: int, took_s: float) -> int:
    """How many records to handle at a stretch, after a stretch of `records` took that long."""
    fitting = int(records * _CHUNK_S / max(took_s, 1e-6))
    return max(_LEAST, min(_MOST, fitting, records * 4))
