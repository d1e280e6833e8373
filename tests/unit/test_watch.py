"""The watch beside a container's loop."""

from __future__ import annotations

import itertools
import logging
import queue
from types import SimpleNamespace
from typing import Any

import pytest

from stack.model.job import JobSettings
from stack.runtime.faults import OverTime
from stack.runtime.watch import STUCK_EXIT, Watch
from tests.clusters import wait_for

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


def watch_a_record(limit_ms: int) -> tuple[Watch, Any, Any]:
    """A watch of a record that is at hand and stays there."""
    membership: Any = SimpleNamespace(memory_bytes=0, verdict=None)
    settings = JobSettings(memory_bytes=1 << 40, record_limit_ms=limit_ms)
    watch = Watch(settings, membership, leave=lambda _: None)
    run = SimpleNamespace(at=0, task=SimpleNamespace(context=SimpleNamespace(index=3)))
    work: Any = SimpleNamespace(current=run)
    watch.follow(work, itertools.count().__next__)
    return watch, work, membership


def test_a_record_that_takes_too_long_is_interrupted_and_the_container_may_go_on() -> None:
    watch, work, membership = watch_a_record(limit_ms=200)
    try:
        with pytest.raises(OverTime) as caught:
            wait_for(lambda: False, "the interruption", limit_s=10)
        work.current = None
        caught.value.lifted = True
        wait_for(lambda: membership.verdict is None, "the verdict to be lifted", limit_s=10)
    finally:
        watch.close()


def test_the_record_after_one_that_took_too_long_is_left_alone() -> None:
    watch, work, _ = watch_a_record(limit_ms=600_000)
    try:
        aimed = watch._at()
        watch._aim, watch._verdict = aimed, OverTime("too late")
        work.current.task.context.index = 4
        Watch._interrupt(watch, 0, None)
        work.current.task.context.index = 3
        with pytest.raises(OverTime, match="too late"):
            Watch._interrupt(watch, 0, None)
    finally:
        work.current = None
        watch.close()
