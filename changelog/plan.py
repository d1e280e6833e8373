"""Where a restore begins: the choice among the local store, its snapshots and the whole changelog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack.errors import CorruptState
from stack.model.checkpoint import StorePoint


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a store or a snapshot reaches: the offset to read on from, and when that was the end."""

    position: int
    time_ms: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """The changelog partition as it is now: offsets from `first` up to, but not with, `end`."""

    topic: str
    topic_id: str
    partition: int
    first: int
    end: int

    def __str__(self) -> str:
        return f"partition {self.partition} of changelog {self.topic}"


@dataclass(frozen=True, slots=True)
class Reuse:
    """The local store is at the end already."""

    position: int
    records: int
    why: str


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The local store stays; read from its position on."""

    position: int
    records: int
    why: str


@dataclass(frozen=True, slots=True)
class FromSnapshot:
    """The snapshot at `position` takes the place of the local store; read from there on."""

    position: int
    records: int
    why: str


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Empty the local store and read the whole changelog."""

    position: int
    records: int
    why: str


RestorePlan = Reuse | CatchUp | FromSnapshot | Rebuild


def plan_restore(
    local: Standing | None,
    snapshots: Sequence[Standing],
    bounds: Bounds,
    checkpoint: StorePoint | None,
    *,
    horizon_ms: int,
    now_ms: int,
) -> RestorePlan:
    """Whichever reads least. `records` counts offsets: compaction may have left fewer.

    CorruptState if the changelog lacks what the checkpoint or a copy on disk proves to have been there.
    """
    _check_whole(local, snapshots, bounds, checkpoint)
    refused = None if local is None else _refusal(local, bounds, horizon_ms, now_ms)
    good = [one for one in snapshots if _refusal(one, bounds, horizon_ms, now_ms) is None]
    best = max(good, key=lambda one: one.position, default=None)
    if local is not None and refused is None and (best is None or best.position <= local.position):
        missing = bounds.end - local.position
        if missing == 0:
            return Reuse(local.position, 0, "the local store is up to date")
        return CatchUp(local.position, missing, f"the local store lacks {missing} of {bounds.end} offsets")
    lost = "there is no local store" if local is None else f"the local store does not count: {refused}"
    if refused is None and local is not None:
        lost = "the local store is further behind"
    if best is not None:
        missing = bounds.end - best.position
        return FromSnapshot(
            best.position, missing, f"{lost}; the snapshot at {best.position} lacks {missing} offsets"
        )
    # An emptied changelog of a job that never committed holds nothing that could be missed.
    if bounds.first > 0 and not (checkpoint is None and bounds.first == bounds.end):
        raise CorruptState(
            f"the records of {bounds} before offset {bounds.first} were deleted, and {lost}",
            hint="A changelog must be compacted, never deleted from: check its cleanup.policy. The state can "
            "come back from a copy of the store folder, or by processing the inputs again.",
        )
    missing = bounds.end - bounds.first
    return Rebuild(bounds.first, missing, f"{lost}; the whole changelog is read")


def _refusal(one: Standing, bounds: Bounds, horizon_ms: int, now_ms: int) -> str | None:
    """Why a copy cannot be the beginning, or None if it can."""
    if one.topic_id != bounds.topic_id:
        return f"it belongs to another changelog (topic id {one.topic_id}, now {bounds.topic_id})"
    if one.position == bounds.end:
        return None  # nothing was written since, however long that is ago
    if one.position < bounds.first:
        return f"it ends at offset {one.position}, the changelog begins at {bounds.first}"
    # Older than the horizon: a tombstone after its position may be gone, and the deleted key would come
    # back. A time in the future is as little proof of youth as one long ago.
    if abs(now_ms - one.time_ms) >= horizon_ms:
        return f"it is from {abs(now_ms - one.time_ms) // 1000} s ago, the horizon is {horizon_ms // 1000} s"
    return None


def _check_whole(
    local: Standing | None, snapshots: Sequence[Standing], bounds: Bounds, checkpoint: StorePoint | None
) -> None:
    if checkpoint is not None:
        if checkpoint.topic_id != bounds.topic_id:
            raise CorruptState(
                f"changelog {bounds.topic} was deleted and made anew: its topic id is {bounds.topic_id}, "
                f"the last commit wrote to {checkpoint.topic_id}",
                hint="Its state is gone with it. Bring the old topic back, or remove the job and deploy it "
                "anew to process its inputs again.",
            )
        if bounds.end < checkpoint.end:
            raise _truncated(bounds, "the last commit", checkpoint.end)
    for one in (local, *snapshots):
        if one is not None and one.topic_id == bounds.topic_id and one.position > bounds.end:
            raise _truncated(bounds, "the store on disk", one.position)


def _truncated(bounds: Bounds, who: str, position: int) -> CorruptState:
    return CorruptState(
        f"{bounds} ends at offset {bounds.end}, but {who} reaches to {position}: the changelog was truncated",
        hint="Someone cut it, or a broker lost acknowledged records. Bring the records back, or remove the "
        "job and deploy it anew to process its inputs again.",
    )
