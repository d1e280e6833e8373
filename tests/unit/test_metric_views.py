"""Metrics as people see them: tables, also where little is known, and views that redraw themselves."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import sys
from collections.abc import Callable

import pytest

from ops.cli.fleet_views import FleetSeen, fleet_lines
from ops.cli.live import watch
from ops.cli.metric_views import container_lines, freshness_lines, freshness_text, span, task_lines
from ops.cluster.control import ServiceStatus
from stack.deploy.lag import InputLag
from stack.errors import Unavailable
from stack.model.freshness import Freshness, FreshnessState
from stack.model.plan import ContainerReport, TaskReport, TaskState, tasks_of
from stack.settings import Settings
from tests.unit.metrics_world import measured

ONE = ContainerReport(1, 1, 1, "v1", "r", "here", 7, 3, 100, 50.4, 1 << 20, {}, {})
STALE = Freshness("users", 7_000, FreshnessState.ALARM, 30_000, 300_000, 90_500, 0.62, 3_000)


def cells(lines: list[str], row: int) -> list[str]:
    return [cell.strip() for cell in lines[row].split("  ") if cell.strip()]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0, "0 s"),
        (4e-7, "0.4 µs"),
        (12e-6, "12 µs"),
        (0.0034, "3.4 ms"),
        (0.999, "999 ms"),
        (2, "2.0 s"),
        (75, "75 s"),
    ],
)
def test_a_span_has_the_digits_that_matter(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


def test_tasks_are_shown_with_what_is_known_of_them() -> None:
    tasks = tasks_of(3)
    told = {
        tasks[0]: TaskReport(TaskState.RUNNING, 5),
        tasks[1]: TaskReport(TaskState.RESTORING),
    }
    report = ContainerReport(1, 1, 1, "v1", "r", "here", 7, tasks=told)
    lags = [InputLag("views", 2, 10, 17), InputLag("views", 0, 10, 17)]
    lines = task_lines(tasks, {tasks[0]: 1}, [report], [measured()], lags)
    assert cells(lines, 1) == ["main-0", "1", "running", "5", "250 ms", "10", "999 B"]
    assert cells(lines, 2) == ["main-1", "restoring"]
    # Of one that does not run Kafka knows how far behind it is.
    assert cells(lines, 3) == ["main-2", "not running", "7"]


def test_a_container_is_shown_with_and_without_its_metrics() -> None:
    bare = container_lines([ONE], [])
    assert cells(bare, 1) == ["1", "1", "7", "here", "1.0 MB", "50", "100", "3"]
    full = container_lines([ONE], [measured()])
    assert cells(full, 1)[5:] == ["50", "45", "100", "3", "7.5 ms", "66 in 1.6 KB", "18 µs", "25 µs"]
    # Of another attempt they would mislead.
    other = ContainerReport(1, 2, 1, "v1", "r", "here", 7, 3, 100, 50.4, 1 << 20, {}, {})
    assert cells(container_lines([other], [measured()]), 1)[5:] == ["50", "100", "3"]


def test_freshness_is_a_line() -> None:
    lines = freshness_lines({"users": STALE})
    since = "1970-01-01T00:00:03.000Z"
    assert cells(lines, 1) == ["users", "alarm", "90 s", "30s", "62% of 5m", since]
    assert freshness_text(STALE) == f"alarm since {since}, 90 s behind, too stale for 62% of 5m"
    assert "HTTP service" in freshness_text(None)


def test_status_tells_jobs_and_feeds_where_they_can_be_told(tmp_path: object) -> None:
    settings = Settings(root=tmp_path)  # type: ignore[arg-type]
    service = ServiceStatus("http", "ready", 7, 80, 61.0, 1 << 20, 0, "", "")
    row = {"job": "count", "version": "v1", "state": "failed", "lag": 1_234, "message": "it fell"}
    seen = FleetSeen(settings, [service], [row], {"users": STALE})
    text = "\n".join(fleet_lines(seen))
    assert "http     ready" in text
    assert "1,234" in text
    assert "count: it fell" in text
    assert "62% of 5m" in text
    assert seen.as_json()["feeds"]["users"]["state"] == "alarm"
    away = FleetSeen(settings, [service], fault="Kafka is away")
    assert "jobs and feeds cannot be told: Kafka is away" in fleet_lines(away)[-1]
    assert "jobs" not in away.as_json()


def counting(limit: int) -> tuple[Callable[[], int], Callable[[float], None]]:
    """What is looked at, and a sleep during which somebody presses Ctrl-C after so many looks."""
    seen = [0]

    def look() -> int:
        seen[0] += 1
        if seen[0] == 2:
            raise Unavailable("Kafka is away")
        return seen[0]

    def sleep(_seconds: float) -> None:
        if seen[0] == limit:
            raise KeyboardInterrupt

    return look, sleep


def test_a_watch_goes_on_through_faults_and_ends_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    look, sleep = counting(3)
    watch(look, lambda number: [f"look {number}"], sleep=sleep)
    assert capsys.readouterr().out == "look 1\n\nstack: Kafka is away\nlook 3\n\n"


def test_a_watch_as_json_is_a_line_for_each_look(capsys: pytest.CaptureFixture[str]) -> None:
    look, sleep = counting(3)
    watch(look, lambda _: [], lambda number: {"look": number}, sleep)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"look": 1}, {"error": "Kafka is away"}, {"look": 3}]


def test_on_a_terminal_a_watch_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    parent, child = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "10")
    look, sleep = counting(3)
    with os.fdopen(child, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", terminal)
        watch(look, lambda number: [f"look {number} [bold]" + "x" * 60], sleep=sleep)
    drawn = ""
    # Once the other end is closed, what is left is read, and then an error.
    with contextlib.suppress(OSError):
        while part := os.read(parent, 100_000):
            drawn += part.decode()
    os.close(parent)
    # The other screen is entered and left again, the cursor is back, lines are cut and not wrapped.
    assert drawn.index("\x1b[?1049h") < drawn.index("look 1 [bold]xxx") < drawn.rindex("\x1b[?1049l")
    assert drawn.rindex("\x1b[?25h") > drawn.index("look 3")
    assert "x" * 41 not in drawn
