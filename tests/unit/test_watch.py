"""The watch beside a container's loop."""

from __future__ import annotations

import itertools
import logging
import queue
from types import SimpleNamespace
from typing import Any

import pytest

from stack.model.job import JobSettings
from stack.runtime.watch import STUCK_EXIT, Watch

STILL_S = 0.9


def watch_a_loop(turns: Any) -> tuple[Watch, queue.Queue[int]]:
    """A watch of a loop with these turns; the exits that it asks for come in the queue."""
    left: queue.Queue[int] = queue.Queue()
    membership: Any = SimpleNamespace(memory_bytes=0, verdict=None)
    watch = Watch(JobSettings(memory_bytes=1 << 40), membership, leave=left.put, standstill_s=STILL_S)
    watch.follow(SimpleNamespace(current=None), turns)  # type: ignore[arg-type]
    return watch, left


def test_a_loop_that_stands_still_is_told_where_and_then_ended(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "feedstack.container"):
        watch, left = watch_a_loop(lambda: 7)
        try:
            assert left.get(timeout=10) == STUCK_EXIT
        finally:
            watch.close()
    told, ended = caplog.messages[:2]
    assert told.startswith("the container has stood still")
    assert "MainThread:" in told
    assert "test_a_loop_that_stands_still" in told
    assert "its process ends" in ended


def test_a_loop_that_goes_round_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    watch, left = watch_a_loop(itertools.count().__next__)
    try:
        with pytest.raises(queue.Empty):
            left.get(timeout=3 * STILL_S)
    finally:
        watch.close()
    assert not caplog.messages
