"""When a container commits, and how long it works at a stretch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stack.engine.cadence import Cadence, next_chunk


def test_long_while_behind_short_when_caught_up() -> None:
    cadence = Cadence(20, 500)
    assert cadence.due_at(True, 100.0, 100.1, 0.02) == 100.5
    # Nobody waits for company for long.
    assert 100 < cadence.due_at(False, 100.0, 99.0, 0.02) < 100.005


def test_one_commit_does_not_follow_at_the_heels_of_another() -> None:
    cadence = Cadence(20, 500)
    # The shortest interval counts from the beginning of the last commit.
    assert cadence.due_at(False, 100.0, 100.005, 0.005) == 100.02
    # After its end there is a rest.
    assert 100.504 < cadence.due_at(False, 100.0, 100.5, 0.010) <= 100.51
    assert 100.504 < cadence.due_at(False, 100.0, 100.5, 0.030) < 100.51
    # But one that was slow for once is not waited for as long again.
    assert cadence.due_at(False, 100.0, 100.5, 9.0) == 100.506


def test_a_lead_is_for_steady_records_that_are_waited_for() -> None:
    assert Cadence(20, 500).leads(False, 10)
    assert not Cadence(20, 500).leads(False, 1)
    assert not Cadence(20, 500).leads(True, 10)
    assert not Cadence(20, 500, eager=False).leads(False, 10)


def test_without_waiting_outputs_there_is_no_hurry() -> None:
    assert Cadence(20, 500, eager=False).due_at(False, 100.0, 100.1, 0.001) == 100.5


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
