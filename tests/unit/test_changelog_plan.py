"""The restore planner: it reads least, takes no copy that could be wrong, and never hides a loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.plan import Bounds, CatchUp, FromSnapshot, Rebuild, RestorePlan, Reuse, Standing, plan_restore
from stack.errors import CorruptState
from stack.model.checkpoint import StorePoint

NOW_MS = 1_800_000_000_000
HORIZON_MS = 3_600_000
YOUNG_MS = NOW_MS - 60_000
OLD_MS = NOW_MS - HORIZON_MS


def bounds(first: int = 0, end: int = 100, topic_id: str = "id-1") -> Bounds:
    return Bounds("main.count.counts.changelog", topic_id, 3, first, end)


def at(position: int, time_ms: int = YOUNG_MS, topic_id: str = "id-1") -> Standing:
    return Standing(position, time_ms, topic_id)


def point(end: int, topic_id: str = "id-1") -> StorePoint:
    return StorePoint("main.count.counts.changelog", topic_id, end)


def choose(
    local: Standing | None,
    *snapshots: Standing,
    log: Bounds | None = None,
    checkpoint: StorePoint | None = None,
) -> RestorePlan:
    return plan_restore(local, snapshots, log or bounds(), checkpoint, horizon_ms=HORIZON_MS, now_ms=NOW_MS)


def test_a_store_at_the_end_is_used_however_old() -> None:
    plan = choose(at(100, time_ms=0), checkpoint=point(99))
    assert plan == Reuse(100, 0, "the local store is up to date")


def test_a_young_store_catches_up() -> None:
    plan = choose(at(90), at(80), checkpoint=point(99))
    assert plan == CatchUp(90, 10, "the local store lacks 10 of 100 offsets")


def test_a_snapshot_stands_in_for_a_store_that_is_gone() -> None:
    plan = choose(None, at(70), at(80), at(85, OLD_MS), checkpoint=point(99))
    assert isinstance(plan, FromSnapshot)
    assert (plan.position, plan.records) == (80, 20)
    assert plan.why == "there is no local store; the snapshot at 80 lacks 20 offsets"


def test_a_snapshot_ahead_of_the_store_is_better() -> None:
    plan = choose(at(10), at(80))
    assert isinstance(plan, FromSnapshot)
    assert "further behind" in plan.why


@pytest.mark.parametrize(
    ("local", "why"),
    [
        (None, "there is no local store"),
        (at(90, OLD_MS), "it is from 3600 s ago, the horizon is 3600 s"),
        (at(90, NOW_MS + HORIZON_MS), "3600 s"),
        (at(90, topic_id="id-0"), "it belongs to another changelog (topic id id-0, now id-1)"),
        (at(900, topic_id="id-0"), "another changelog"),
    ],
)
def test_rebuilds_when_no_copy_counts(local: Standing | None, why: str) -> None:
    plan = choose(local, checkpoint=point(99))
    assert isinstance(plan, Rebuild)
    assert (plan.position, plan.records) == (0, 100)
    assert why in plan.why
    assert plan.why.endswith("the whole changelog is read")


def test_an_empty_changelog_is_rebuilt_from_nothing() -> None:
    plan = choose(None, log=bounds(0, 0))
    assert (type(plan), plan.records) == (Rebuild, 0)
    # Emptied by someone before the job ever committed: there is nothing that could be missed.
    plan = choose(None, log=bounds(50, 50))
    assert (type(plan), plan.position, plan.records) == (Rebuild, 50, 0)


def test_a_changelog_shorter_than_the_commit_is_refused() -> None:
    with pytest.raises(CorruptState) as caught:
        choose(at(100), checkpoint=point(120))
    assert caught.value.message == (
        "partition 3 of changelog main.count.counts.changelog ends at offset 100, but the last commit "
        "reaches to 120: the changelog was truncated"
    )
    assert "Bring the records back" in caught.value.hint


@pytest.mark.parametrize("copies", [(at(101), None), (None, at(101)), (at(50), at(101, OLD_MS))])
def test_a_changelog_shorter_than_a_copy_is_refused(
    copies: tuple[Standing | None, Standing | None],
) -> None:
    local, snapshot = copies
    with pytest.raises(CorruptState, match="ends at offset 100, but the store on disk reaches to 101"):
        choose(local, *([snapshot] if snapshot else []))


def test_a_changelog_made_anew_is_refused() -> None:
    with pytest.raises(CorruptState, match=r"deleted and made anew: its topic id is id-1, .* to id-0"):
        choose(None, checkpoint=point(5, "id-0"))


def test_deleted_records_are_never_passed_over() -> None:
    with pytest.raises(CorruptState, match="before offset 20 were deleted, and there is no local store"):
        choose(None, log=bounds(20), checkpoint=point(99))
    with pytest.raises(CorruptState, match="it ends at offset 10, the changelog begins at 20"):
        choose(at(10), at(19), log=bounds(20), checkpoint=point(99))
    assert isinstance(choose(at(20), log=bounds(20), checkpoint=point(99)), CatchUp)
    assert isinstance(choose(at(10), at(30), log=bounds(20), checkpoint=point(99)), FromSnapshot)
    assert isinstance(choose(at(100, OLD_MS), log=bounds(100), checkpoint=point(99)), Reuse)


OFFSETS = st.integers(0, 12)
STANDINGS = st.builds(
    Standing,
    OFFSETS,
    st.integers(NOW_MS - 2 * HORIZON_MS, NOW_MS + 2 * HORIZON_MS),
    st.sampled_from(["id-1", "id-1", "id-0"]),
)


@given(
    local=st.none() | STANDINGS,
    snapshots=st.lists(STANDINGS, max_size=3),
    span=st.tuples(OFFSETS, OFFSETS).map(sorted),
    checkpoint=st.none() | st.builds(point, OFFSETS, st.sampled_from(["id-1", "id-1", "id-0"])),
)
def test_the_choice(
    local: Standing | None, snapshots: list[Standing], span: list[int], checkpoint: StorePoint | None
) -> None:
    first, end = span

    def counts(one: Standing) -> bool:
        young = abs(NOW_MS - one.time_ms) < HORIZON_MS
        return one.topic_id == "id-1" and first <= one.position <= end and (young or one.position == end)

    copies = [one for one in (local, *snapshots) if one is not None]
    cut = any(one.topic_id == "id-1" and one.position > end for one in copies) or (
        checkpoint is not None and (checkpoint.end > end or checkpoint.topic_id != "id-1")
    )
    usable = [one.position for one in copies if counts(one)]
    whole = first == 0 or (checkpoint is None and first == end)
    if cut or not (usable or whole):
        with pytest.raises(CorruptState) as caught:
            choose(local, *snapshots, log=bounds(first, end), checkpoint=checkpoint)
        assert caught.value.hint
        return
    plan = choose(local, *snapshots, log=bounds(first, end), checkpoint=checkpoint)
    assert plan.why
    # From where it begins to the end, everything is there and read; and nothing else would read less.
    assert plan.position + plan.records == end
    assert plan.records == end - max(usable, default=first)
    match plan:
        case Reuse() | CatchUp():
            assert local is not None
            assert counts(local)
            assert plan.position == local.position
            assert (plan.records == 0) == isinstance(plan, Reuse)
        case FromSnapshot():
            assert any(counts(one) and one.position == plan.position for one in snapshots)
            assert local is None or not counts(local) or local.position < plan.position
        case Rebuild():
            assert not usable
            assert plan.position == first
