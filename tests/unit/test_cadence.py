"""When a container commits, and how long it works at a stretch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stack.engine.cadence import Cadence, next_chunk


def test_long_while_behind_short_when_caught_up() -> None:
    cadence = Cadence(20, 500)
    assert cadence.interval_s(True, 0.001) == 0.5
    assert cadence.interval_s(False, 0.001) == 0.02
    # A slow commit is not repeated at once.
    assert 0.05 < cadence.interval_s(False, 0.1) < 0.1
    assert cadence.interval_s(False, 9.0) == 0.5


def test_without_waiting_outputs_there_is_no_hurry() -> None:
    assert Cadence(20, 500, eager=False).interval_s(False, 0.001) == 0.5


@given(st.integers(1, 4096), st.floats(0, 100))
def test_stretches_stay_within_bounds(records: int, took_s: float) -> None:
    following = next_chunk(records, took_s)
    assert 1 <= following <= 4096
    assert following <= records * 4


def test_stretches_find_their_length() -> None:
    chunk = 16
    for _ in range(20):
        chunk = next_chunk(chunk, chunk * 10e-6)
    assert 900 <= chunk <= 1100
    for _ in range(20):
        chunk = next_chunk(chunk, chunk * 1.0)
    assert chunk == 1
