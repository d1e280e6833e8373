"""What Prometheus is told: the exposition of jobs, containers and tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from ops.service.app import create_app
from ops.service.metrics_routes import JobView, exposition, metrics_router
from stack.errors import Unavailable
from stack.feeds.registry.registry import SchemaRegistry
from stack.model.fleet import JobState, JobStatus
from stack.model.ledger import MemoryLedger
from stack.model.plan import ContainerReport, TaskId, TaskReport, TaskState

LABELS = ("job", "container", "task", "state", "name")


def report(slot: int, *tasks: tuple[str, TaskState, int | None], **counters: int) -> ContainerReport:
    told = {TaskId.parse(name): TaskReport(state, lag) for name, state, lag in tasks}
    return ContainerReport(
        slot,
        1,
        1,
        "v1",
        "r",
        "host",
        7,
        commits=3,
        records=100 + slot,
        memory_bytes=1 << 20,
        tasks=told,
        counters=counters,
    )


def samples(text: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sample.labels[one] for one in LABELS if one in sample.labels)): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_jobs_containers_and_tasks_are_told() -> None:
    reports = (
        report(0, ("count-0", TaskState.RUNNING, 5), seen=2),
        report(1, ("count-1", TaskState.RESTORING, None), seen=3),
    )
    view = JobView("shop", JobStatus(JobState.RUNNING, slots_wanted=3), reports)
    found = samples(exposition([view], runners=2))
    assert found["feedstack_runners", ()] == 2
    assert found["feedstack_job_state", ("shop", "running")] == 1
    assert found["feedstack_job_state", ("shop", "failed")] == 0
    assert found["feedstack_job_containers_wanted", ("shop",)] == 3
    assert found["feedstack_job_containers_ready", ("shop",)] == 2
    assert found["feedstack_job_counter_total", ("shop", "seen")] == 5
    assert found["feedstack_container_records_total", ("shop", "1")] == 101
    assert found["feedstack_container_commits_total", ("shop", "0")] == 3
    assert found["feedstack_container_memory_bytes", ("shop", "0")] == 1 << 20
    assert found["feedstack_task_lag_records", ("shop", "count-0")] == 5
    assert ("feedstack_task_lag_records", ("shop", "count-1")) not in found
    assert found["feedstack_task_running", ("shop", "count-1")] == 0


def test_a_job_that_nobody_tells_of_has_no_state() -> None:
    found = samples(exposition([JobView("shop", None, ())], runners=0))
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
