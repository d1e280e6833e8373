"""Metrics of a container for tests, and what an answer to Prometheus holds."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from stack.model.metrics import (
    COMMIT_BOUNDS_S,
    PROCESSING_BOUNDS_S,
    CommitMetrics,
    ContainerMetrics,
    RestoreMetrics,
    StoreMetrics,
    TaskMetrics,
    Times,
)
from stack.model.plan import TaskId, TaskState

LABELS = ("job", "container", "task", "state", "feed", "partition", "name", "kind", "store", "le")


def measured() -> ContainerMetrics:
    """A container with a task that works and one that restores."""
    processing, commits = Times(PROCESSING_BOUNDS_S), Times(COMMIT_BOUNDS_S)
    processing.add(0.00002, 100)
    commits.add(0.0075, 3)
    return ContainerMetrics(
        time_ms=7,
        job="shop",
        slot=1,
        attempt=1,
        version="v1",
        host="here",
        pid=7,
        began_ms=5_000,
        memory_bytes=1 << 20,
        records_in={"views": 100},
        records_out={"users": 90},
        in_per_s=50.0,
        out_per_s=45.0,
        commits=CommitMetrics(commits.taken(), 200, 5_000, 0.0075, 66, 1_600),
        processing=processing.taken(),
        tasks={
            TaskId("main", 0): TaskMetrics(
                TaskState.RUNNING, 5, 250, None, {"counts": StoreMetrics(10, 999)}
            ),
            TaskId("main", 1): TaskMetrics(
                TaskState.RESTORING, restore=RestoreMetrics("counts", 1_000, 0.5, 3.5)
            ),
        },
        errors={"dead": 4},
        counters={"late": 2},
    )


def samples(text: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample by its name and its labels."""
    return {
        (sample.name, tuple(sample.labels[one] for one in LABELS if one in sample.labels)): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
