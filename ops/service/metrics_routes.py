"""What Prometheus asks for: how jobs, containers, tasks and feeds are doing.

Jobs and runners come from ZooKeeper, what containers have measured from the metrics feed, lag and freshness
from Kafka. One place is scraped, wherever containers run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from ops.service.metric_names import METRICS
from stack.deploy.freshness import Looked
from stack.deploy.metrics import Measured
from stack.model.fleet import JobState, JobStatus
from stack.model.freshness import Freshness, FreshnessState
from stack.model.metrics import COMMIT_BOUNDS_S, PROCESSING_BOUNDS_S, ContainerMetrics, Histogram
from stack.model.plan import TaskState
from stack.zookeeper.fleet import FleetNodes

OpenFleet = Callable[[], AbstractContextManager[FleetNodes]]
Watched = Callable[[], tuple[Measured, Looked]]
_FAMILIES: dict[str, Callable[..., Any]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


@dataclass(frozen=True)
class JobView:
    """What ZooKeeper knows of one job."""

    name: str
    status: JobStatus | None
    containers: int


def metrics_router(open_fleet: OpenFleet, watched: Watched = lambda: (Measured(), Looked())) -> APIRouter:
    """The one route; Prometheus is answered anew every time it asks."""
    router = APIRouter(tags=["metrics"])

    @router.get("/metrics")
    def metrics() -> Response:
        with open_fleet() as nodes:
            views = [
                JobView(name, nodes.job(name).status(), len(nodes.job(name).reports()))
                for name in nodes.jobs()
            ]
            runners = len(nodes.runners())
        return Response(exposition(views, runners, *watched()), media_type=CONTENT_TYPE_LATEST)

    return router


def exposition(
    views: Iterable[JobView], runners: int, measured: Measured | None = None, looked: Looked | None = None
) -> bytes:
    """All of it in Prometheus' text format."""
    families = _Families()
    families.add("feedstack_runners", [], runners)
    for view in views:
        _add_job(families, view)
    # A task that has moved was told by both of its containers: the later one counts.
    containers = (measured or Measured()).containers.values()
    for one in sorted(containers, key=lambda told: told.time_ms):
        _add_container(families, one)
        _add_tasks(families, one)
    for job, lags in (looked or Looked()).lags.items():
        for lag in lags:
            families.add("feedstack_input_lag_records", [job, lag.feed, lag.partition], lag.records)
    for feed in (looked or Looked()).feeds.values():
        _add_feed(families, feed)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(families)
    return generate_latest(registry)


class _Families:
    """Collects the metrics of one answer, each under its name. Of the same labels only the last counts."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[tuple[str, ...], tuple[Any, ...]]] = {one.name: {} for one in METRICS}

    def add(self, name: str, labels: Sequence[object], value: float | None) -> None:
        """One sample; what is not known is not told."""
        if value is not None:
            self._samples[name][tuple(map(str, labels))] = (value,)

    def add_histogram(
        self, name: str, labels: Sequence[object], one: Histogram, bounds_s: Sequence[float]
    ) -> None:
        """One histogram, in Prometheus' way: each bucket holds those before it, too."""
        ends = [*map(floatToGoString, bounds_s), "+Inf"]
        buckets = list(zip(ends, accumulate(one.counts), strict=True))
        self._samples[name][tuple(map(str, labels))] = buckets, one.sum_s

    def collect(self) -> Iterator[Metric]:
        for one in METRICS:
            family = _FAMILIES[one.kind](one.name.removesuffix("_total"), one.text, labels=one.labels)
            for labels, sample in self._samples[one.name].items():
                family.add_metric(list(labels), *sample)
            yield family


def _add_job(families: _Families, view: JobView) -> None:
    for state in JobState:
        is_it = view.status is not None and view.status.state is state
        families.add("feedstack_job_state", [view.name, state], float(is_it))
    wanted = view.status.slots_wanted if view.status else 0
    families.add("feedstack_job_containers_wanted", [view.name], wanted)
    families.add("feedstack_job_containers_ready", [view.name], view.containers)


def _add_container(families: _Families, one: ContainerMetrics) -> None:
    head, place = "feedstack_container", [one.job, one.slot]
    families.add(f"{head}_start_time_seconds", place, one.began_ms / 1000)
    families.add(f"{head}_memory_bytes", place, one.memory_bytes)
    for feed, count in one.records_in.items():
        families.add(f"{head}_records_in_total", [*place, feed], count)
    for feed, count in one.records_out.items():
        families.add(f"{head}_records_out_total", [*place, feed], count)
    families.add_histogram(f"{head}_processing_seconds", place, one.processing, PROCESSING_BOUNDS_S)
    families.add_histogram(f"{head}_commit_seconds", place, one.commits.times, COMMIT_BOUNDS_S)
    families.add(f"{head}_commit_records_total", place, one.commits.records)
    families.add(f"{head}_commit_bytes_total", place, one.commits.size_bytes)
    for kind, count in one.errors.items():
        families.add(f"{head}_errors_total", [*place, kind], count)
    for name, count in one.counters.items():
        families.add("feedstack_job_counter_total", [*place, name], count)


def _add_tasks(families: _Families, one: ContainerMetrics) -> None:
    for task, about in one.tasks.items():
        place = [one.job, task]
        families.add("feedstack_task_running", place, float(about.state is TaskState.RUNNING))
        families.add("feedstack_task_lag_records", place, about.lag)
        if about.delay_ms is not None:
            families.add("feedstack_task_event_delay_seconds", place, about.delay_ms / 1000)
        if about.restore is not None:
            of_store = [*place, about.restore.store]
            families.add("feedstack_task_restore_ratio", of_store, about.restore.share)
            families.add("feedstack_task_restore_records", of_store, about.restore.records)
            families.add("feedstack_task_restore_remaining_seconds", of_store, about.restore.left_s)
        for store, size in about.stores.items():
            families.add("feedstack_store_keys", [*place, store], size.keys)
            families.add("feedstack_store_bytes", [*place, store], size.size_bytes)


def _add_feed(families: _Families, one: Freshness) -> None:
    if one.staleness_ms is not None:
        families.add("feedstack_feed_staleness_seconds", [one.feed], one.staleness_ms / 1000)
    families.add("feedstack_feed_freshness_objective_seconds", [one.feed], one.objective_ms / 1000)
    families.add("feedstack_feed_stale_ratio", [one.feed], one.share)
    families.add("feedstack_feed_alarm", [one.feed], float(one.state is FreshnessState.ALARM))
