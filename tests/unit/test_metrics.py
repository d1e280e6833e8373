"""Metrics: how a container adds them up, how they are stored, and what Prometheus is told."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from ops.service.app import create_app
from ops.service.metric_names import METRICS
from ops.service.metrics_routes import JobView, exposition, metrics_router
from stack.deploy.freshness import Looked
from stack.deploy.lag import InputLag, total_lag
from stack.deploy.metrics import Measured
from stack.errors import BadConfig, Unavailable
from stack.feeds.registry.registry import SchemaRegistry
from stack.model.fleet import JobState, JobStatus
from stack.model.freshness import Freshness, FreshnessState
from stack.model.ledger import MemoryLedger
from stack.model.metrics import (
    COMMIT_BOUNDS_S,
    ERROR_KINDS,
    PROCESSING_BOUNDS_S,
    Histogram,
    TaskMetrics,
    Times,
    counter_fault,
    merged,
    metrics_from_json,
    metrics_to_json,
)
from stack.model.plan import TaskId, TaskState
from stack.tasks.context import Context
from tests.unit.metrics_world import LABELS, measured, samples

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
DASHBOARD = PAGE.parents[1] / "ops" / "compose" / "metrics" / "jobs.json"


def test_a_time_falls_into_the_first_bucket_that_holds_it() -> None:
    times = Times((1.0, 2.0))
    for each_s, count in ((0.5, 3), (1.0, 1), (1.5, 2), (9.0, 4)):
        times.add(each_s, count)
    assert times.taken() == Histogram((4, 2, 4), 0.5 * 3 + 1 + 3 + 36)


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 50)), min_size=1), st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(given: list[tuple[float, int]], share: float) -> None:
    times = Times(PROCESSING_BOUNDS_S)
    for each_s, count in given:
        times.add(each_s, count)
    every = sorted(each_s for each_s, count in given for _ in range(count))
    wanted = share * len(every)
    true_s = next(one for place, one in enumerate(every, 1) if place >= wanted)
    found_s = times.taken().quantile_s(PROCESSING_BOUNDS_S, share)
    assert found_s is not None
    low = max((bound for bound in PROCESSING_BOUNDS_S if bound < true_s), default=0.0)
    high = min((bound for bound in PROCESSING_BOUNDS_S if bound >= true_s), default=10.0)
    assert min(low, 5.0) <= found_s <= high


def test_without_times_there_is_no_quantile() -> None:
    assert Times(COMMIT_BOUNDS_S).taken().quantile_s(COMMIT_BOUNDS_S, 0.5) is None
    assert merged([]) is None
    assert merged([Histogram((1, 2), 3.0), Histogram((0, 5), 1.0)]) == Histogram((1, 7), 4.0)


def test_metrics_come_back_from_json() -> None:
    one = measured()
    assert metrics_from_json(metrics_to_json(one)) == one
    tree = metrics_to_json(one)
    for wrong in (
        {},
        {**tree, "format": 2},
        {**tree, "kind": "freshness"},
        {**tree, "processing": {"counts": [1], "sum_s": 1}},
        {**tree, "tasks": {"main-0": {"state": "asleep"}}},
        {key: value for key, value in tree.items() if key != "commits"},
    ):
        assert metrics_from_json(wrong) is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "must be letters"),
        ("late views", "must be letters"),
        ("9lives", "must be letters"),
        ("late-", "must be letters"),
        ("x" * 61, "must be letters"),
        (7, "must be letters"),
        ("late.views", "same metric as 'late-views'"),
        ("Late_Views", "same metric as 'late-views'"),
        *((kind, "the stack itself counts") for kind in ERROR_KINDS),
    ],
)
def test_a_counter_that_cannot_be_told_apart_is_refused(name: Any, says: str) -> None:
    context = Context("count", "v1", TaskId("main", 0), {}, None)  # type: ignore[arg-type]
    context.count("late-views")
    with pytest.raises(BadConfig, match="job 'count' cannot count") as caught:
        context.count(name)
    assert says in caught.value.message
    assert context.counters == {"late-views": 1}


def test_a_counter_counts() -> None:
    context = Context("count", "v1", TaskId("main", 0), {}, None)  # type: ignore[arg-type]
    context.count("late-views")
    context.count("late-views", 4)
    context.count("early", 0)
    context.count("early", 2)
    assert context.counters == {"late-views": 5, "early": 2}
    assert counter_fault("late-views", context.counters) is None


def test_lag_is_told_before_and_after_the_first_commit() -> None:
    assert InputLag("views", 0, None, 7).records is None
    assert InputLag("views", 0, 5, 7).records == 2
    assert InputLag("views", 0, 9, 7).records == 0
    assert total_lag([InputLag("views", 0, None, 7), InputLag("views", 1, 5, 7)]) == 2
    assert total_lag([InputLag("views", 0, None, 7)]) is None


def test_prometheus_is_told_everything() -> None:
    view = JobView("shop", JobStatus(JobState.RUNNING, slots_wanted=3), 2)
    lags = {"shop": (InputLag("views", 0, 5, 7), InputLag("views", 1, None, 7))}
    feeds = {"users": Freshness("users", 7, FreshnessState.ALARM, 30_000, 300_000, 45_000, 0.75, 3)}
    told = Measured({("shop", 1): measured()})
    found = samples(exposition([view], 2, told, Looked(feeds, lags)))
    assert found["feedstack_runners", ()] == 2
    assert found["feedstack_job_state", ("shop", "running")] == 1
    assert found["feedstack_job_state", ("shop", "failed")] == 0
    assert found["feedstack_job_containers_wanted", ("shop",)] == 3
    assert found["feedstack_job_containers_ready", ("shop",)] == 2
    assert found["feedstack_job_counter_total", ("shop", "1", "late")] == 2
    assert found["feedstack_input_lag_records", ("shop", "views", "0")] == 2
    assert ("feedstack_input_lag_records", ("shop", "views", "1")) not in found
    assert found["feedstack_container_start_time_seconds", ("shop", "1")] == 5
    assert found["feedstack_container_memory_bytes", ("shop", "1")] == 1 << 20
    assert found["feedstack_container_records_in_total", ("shop", "1", "views")] == 100
    assert found["feedstack_container_records_out_total", ("shop", "1", "users")] == 90
    assert found["feedstack_container_commit_records_total", ("shop", "1")] == 200
    assert found["feedstack_container_commit_bytes_total", ("shop", "1")] == 5_000
    assert found["feedstack_container_errors_total", ("shop", "1", "dead")] == 4
    assert found["feedstack_task_running", ("shop", "main-0")] == 1
    assert found["feedstack_task_running", ("shop", "main-1")] == 0
    assert found["feedstack_task_lag_records", ("shop", "main-0")] == 5
    assert ("feedstack_task_lag_records", ("shop", "main-1")) not in found
    assert found["feedstack_task_event_delay_seconds", ("shop", "main-0")] == 0.25
    assert found["feedstack_task_restore_ratio", ("shop", "main-1", "counts")] == 0.5
    assert found["feedstack_task_restore_records", ("shop", "main-1", "counts")] == 1_000
    assert found["feedstack_task_restore_remaining_seconds", ("shop", "main-1", "counts")] == 3.5
    assert found["feedstack_store_keys", ("shop", "main-0", "counts")] == 10
    assert found["feedstack_store_bytes", ("shop", "main-0", "counts")] == 999
    assert found["feedstack_feed_staleness_seconds", ("users",)] == 45
    assert found["feedstack_feed_freshness_objective_seconds", ("users",)] == 30
    assert found["feedstack_feed_stale_ratio", ("users",)] == 0.75
    assert found["feedstack_feed_alarm", ("users",)] == 1


def test_histograms_are_those_of_prometheus() -> None:
    found = samples(exposition([], 0, Measured({("shop", 1): measured()})))
    name, place = "feedstack_container_processing_seconds", ("shop", "1")
    assert found[f"{name}_count", place] == 100
    assert found[f"{name}_sum", place] == 0.002
    assert found[f"{name}_bucket", (*place, "+Inf")] == 100
    below = [found[f"{name}_bucket", (*place, str(bound))] for bound in PROCESSING_BOUNDS_S]
    assert below == sorted(below)
    assert found[f"{name}_bucket", (*place, "2.5e-05")] == 100
    assert found[f"{name}_bucket", (*place, "1e-05")] == 0
    assert found["feedstack_container_commit_seconds_bucket", (*place, "0.01")] == 3


def test_of_a_task_that_has_moved_only_the_later_word_counts() -> None:
    moved = replace(
        measured(), slot=2, time_ms=8, tasks={TaskId("main", 0): TaskMetrics(TaskState.RUNNING, 9)}
    )
    both = {("shop", 2): moved, ("shop", 1): measured()}
    text = exposition([], 0, Measured(both))
    assert text.count(b'feedstack_task_lag_records{job="shop",task="main-0"}') == 1
    assert samples(text)["feedstack_task_lag_records", ("shop", "main-0")] == 9


def test_a_job_that_nobody_tells_of_has_no_state() -> None:
    found = samples(exposition([JobView("shop", None, 0)], runners=0))
    assert {value for (name, _), value in found.items() if name == "feedstack_job_state"} == {0.0}
    assert found["feedstack_job_containers_ready", ("shop",)] == 0


def test_without_zookeeper_the_answer_is_an_error() -> None:
    @contextlib.contextmanager
    def away() -> Iterator[Any]:
        raise Unavailable("ZooKeeper is away")
        yield

    client = TestClient(create_app(SchemaRegistry(MemoryLedger()), metrics_router(away)))
    answer = client.get("/metrics")
    assert answer.status_code == 503
    assert "ZooKeeper is away" in answer.text


def test_the_page_lists_every_metric_as_it_is() -> None:
    rows = re.findall(r"^\| `(feedstack_\w+)` \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    told = {name: tuple(cell.strip() for cell in rest.split(" | ")) for name, rest in rows}
    known = {
        one.name: (one.kind, one.unit, ", ".join(f"`{label}`" for label in one.labels) or "none", one.text)
        for one in METRICS
    }
    assert told == known
    assert [name for name, _ in rows] == [one.name for one in METRICS]


def test_names_are_as_prometheus_wants_them() -> None:
    units = {"seconds": "_seconds", "bytes": "_bytes", "0 to 1": "_ratio"}
    for one in METRICS:
        assert re.fullmatch(r"feedstack_[a-z]+(_[a-z]+)*", one.name)
        assert one.name.endswith("_total") == (one.kind == "counter")
        if one.unit in units:
            assert one.name.removesuffix("_total").endswith(units[one.unit]), one.name
        assert set(one.labels) <= set(LABELS)


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    parts = {one.name for one in METRICS}
    for one in METRICS:
        if one.kind == "histogram":
            parts |= {f"{one.name}_{part}" for part in ("bucket", "count", "sum")}
    asked = set(re.findall(r"feedstack_[a-z_]+", DASHBOARD.read_text("utf-8")))
    assert asked
    assert asked <= parts
