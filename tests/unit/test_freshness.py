"""How stale a feed is, and when that becomes an alarm and ends being one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stack.engine.freshness import ALARM_SHARE, CLEAR_SHARE, Arrivals, Objective, Sample, judge, within
from stack.model.freshness import (
    Freshness,
    FreshnessState,
    freshness_from_json,
    freshness_to_json,
)
from stack.model.metrics import FORMAT
from stack.model.place import Place

GOAL = Objective(limit_ms=1_000, window_ms=10_000)
A: Place = ("views", 0)
B: Place = ("views", 1)


def never(place: Place, offset: int) -> int:
    raise AssertionError(f"nobody should ask for the time of {place} at {offset}")


def stale_for(begin_ms: int, end_ms: int) -> list[Sample]:
    return [Sample(0, 0), Sample(begin_ms, 5_000), Sample(end_ms, 0)]


def test_a_short_spell_is_no_alarm() -> None:
    verdict = judge(GOAL, stale_for(92_000, 96_000), False, 100_000)
    assert (verdict.state, verdict.share) == (FreshnessState.FRESH, 0.4)


def test_half_of_the_window_is_an_alarm_also_after_the_spell() -> None:
    assert judge(GOAL, stale_for(92_000, 97_000), False, 100_000).alarmed


def test_what_is_stale_now_is_told_before_it_is_an_alarm() -> None:
    assert judge(GOAL, [Sample(99_000, 1_001)], False, 100_000).state is FreshnessState.STALE
    assert judge(GOAL, [Sample(99_000, 1_000)], False, 100_000).state is FreshnessState.FRESH


def test_an_alarm_stays_until_nearly_all_of_the_window_was_fresh() -> None:
    samples = stale_for(80_000, 92_000)
    assert judge(GOAL, samples, True, 100_000).alarmed
    assert not judge(GOAL, samples, False, 100_000).alarmed
    assert judge(GOAL, samples, True, 101_000).state is FreshnessState.FRESH


def test_without_a_look_nothing_is_said() -> None:
    assert judge(GOAL, [], False, 100_000).state is FreshnessState.FRESH
    # A judge who has just begun has seen too little, however stale it is.
    assert judge(GOAL, [Sample(99_999, 1 << 40)], False, 100_000).state is FreshnessState.STALE


@given(
    st.lists(st.tuples(st.integers(0, 30_000), st.sampled_from([0, 5_000])), max_size=30),
    st.booleans(),
    st.integers(0, 30_000),
)
def test_samples_that_the_window_does_not_need_change_nothing(
    given: list[tuple[int, int]], alarmed: bool, now_ms: int
) -> None:
    samples = [Sample(*one) for one in sorted(given) if one[0] <= now_ms]
    verdict = judge(GOAL, samples, alarmed, now_ms)
    assert judge(GOAL, within(samples, GOAL, now_ms), alarmed, now_ms) == verdict
    assert 0 <= verdict.share <= 1
    assert verdict.alarmed == (verdict.share >= ALARM_SHARE or (alarmed and verdict.share > CLEAR_SHARE))


def test_a_quiet_source_is_not_stale() -> None:
    seen = Arrivals()
    for now_ms in (0, 10_000, 20_000):
        seen.note({A: 7}, now_ms)
        assert seen.waiting_ms({A: 7}, now_ms, never) == 0


def test_the_oldest_record_that_waits_counts() -> None:
    seen = Arrivals()
    for now_ms, end in ((0, 7), (1_000, 8), (2_000, 8), (3_000, 20)):
        seen.note({A: end, B: 3}, now_ms)
    assert seen.waiting_ms({A: 7, B: 3}, 3_500, never) == 2_500
    assert seen.waiting_ms({A: 8, B: 3}, 3_500, never) == 500
    assert seen.waiting_ms({A: 20, B: 3}, 3_500, never) == 0
    seen.note({A: 20, B: 4}, 4_000)
    assert seen.waiting_ms({A: 20, B: 3}, 9_000, never) == 5_000


def test_what_waited_before_anybody_looked_is_asked_for_once_per_offset() -> None:
    asked: list[int] = []

    def time_of(_place: Place, offset: int) -> int:
        asked.append(offset)
        return offset * 100

    seen = Arrivals()
    seen.note({A: 50}, 10_000)
    assert seen.waiting_ms({A: 10}, 10_000, time_of) == 9_000
    assert seen.waiting_ms({A: 10}, 11_000, time_of) == 10_000
    assert seen.waiting_ms({A: 20}, 11_000, time_of) == 9_000
    assert asked == [10, 20]
    # A time in the future is not believed.
    assert seen.waiting_ms({A: 49}, 11_000, lambda *_: 99_999) == 1_000


def test_a_feed_that_was_made_anew_begins_anew() -> None:
    seen = Arrivals()
    seen.note({A: 50}, 0)
    seen.note({A: 60}, 1_000)
    seen.note({A: 2}, 2_000)
    assert seen.waiting_ms({A: 2}, 3_000, never) == 0
    assert seen.last_ms() is None


@given(st.lists(st.integers(0, 5), min_size=1, max_size=2_000), st.integers(0, 20_000))
def test_however_many_looks_no_record_seems_younger_than_it_is(growth: list[int], committed: int) -> None:
    seen, end, came_ms = Arrivals(), 0, []
    seen.note({A: 0}, 0)
    for number, more in enumerate(growth, 1):
        end += more
        came_ms += [number * 1_000] * more
        seen.note({A: end}, number * 1_000)
    now_ms = len(growth) * 1_000
    waited_ms = seen.waiting_ms({A: committed}, now_ms, never)
    if committed >= end:
        assert waited_ms == 0
    else:
        assert now_ms - came_ms[committed] <= waited_ms <= now_ms


def test_the_last_record_is_when_the_feed_last_grew() -> None:
    seen = Arrivals()
    seen.note({A: 5, B: 5}, 0)
    assert seen.last_ms() is None
    seen.note({A: 6, B: 5}, 1_000)
    seen.note({A: 6, B: 9}, 2_000)
    seen.note({A: 6, B: 9}, 3_000)
    assert seen.last_ms() == 2_000


def test_freshness_comes_back_from_json() -> None:
    one = Freshness("users", 7, FreshnessState.ALARM, 1_000, 10_000, 4_000, 0.75, 3, "")
    assert freshness_from_json(freshness_to_json(one)) == one
    assert freshness_from_json({**freshness_to_json(one), "format": FORMAT + 1}) is None
    assert freshness_from_json({**freshness_to_json(one), "state": "rotten"}) is None
    assert freshness_from_json({}) is None
