"""What Prometheus asks for: how jobs, their containers and their tasks are doing, as ZooKeeper has it.

The numbers are those of `stack jobs show`. Containers report them; this only passes them on, so that one
place is scraped, wherever containers run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from stack.model.fleet import JobState, JobStatus
from stack.model.plan import ContainerReport, TaskState
from stack.zookeeper.fleet import FleetNodes

OpenFleet = Callable[[], AbstractContextManager[FleetNodes]]


@dataclass(frozen=True)
class JobView:
    """What is known of one job."""

    name: str
    status: JobStatus | None
    reports: tuple[ContainerReport, ...]


def metrics_router(open_fleet: OpenFleet) -> APIRouter:
    """The one route; Prometheus is answered anew every time it asks."""
    router = APIRouter(tags=["metrics"])

    @router.get("/metrics")
    def metrics() -> Response:
        with open_fleet() as nodes:
            views = [
                JobView(name, nodes.job(name).status(), nodes.job(name).reports()) for name in nodes.jobs()
            ]
            runners = len(nodes.runners())
        return Response(exposition(views, runners), media_type=CONTENT_TYPE_LATEST)

    return router


def exposition(views: Iterable[JobView], runners: int) -> bytes:
    """The views in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Views(list(views), runners))
    return generate_latest(registry)


class _Views:
    """Collects the metrics of one answer."""

    def __init__(self, views: list[JobView], runners: int) -> None:
        self._views = views
        self._runners = runners

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("feedstack_runners", "Runners that are there.", value=self._runners)
        yield from self._jobs()
        yield from self._containers()
        yield from self._tasks()

    def _jobs(self) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "feedstack_job_state", "1 for the state that the job is in.", labels=["job", "state"]
        )
        wanted = GaugeMetricFamily(
            "feedstack_job_containers_wanted", "Containers that the job asks for.", labels=["job"]
        )
        ready = GaugeMetricFamily("feedstack_job_containers_ready", "Containers that work.", labels=["job"])
        counters = CounterMetricFamily(
            "feedstack_job_counter", "What the job's own code counts.", labels=["job", "name"]
        )
        for view in self._views:
            for state in JobState:
                is_it = view.status is not None and view.status.state is state
                states.add_metric([view.name, str(state)], float(is_it))
            wanted.add_metric([view.name], view.status.slots_wanted if view.status else 0)
            ready.add_metric([view.name], len(view.reports))
            sums: Counter[str] = Counter()
            for report in view.reports:
                sums.update(report.counters)
            for name, count in sorted(sums.items()):
                counters.add_metric([view.name, name], count)
        yield from (states, wanted, ready, counters)

    def _containers(self) -> Iterator[Metric]:
        labels = ["job", "container"]
        records = CounterMetricFamily(
            "feedstack_container_records", "Records handled since it started.", labels=labels
        )
        commits = CounterMetricFamily(
            "feedstack_container_commits", "Commits since it started.", labels=labels
        )
        memory = GaugeMetricFamily(
            "feedstack_container_memory_bytes", "Memory of its process.", labels=labels
        )
        for view in self._views:
            for report in view.reports:
                place = [view.name, str(report.slot)]
                records.add_metric(place, report.records)
                commits.add_metric(place, report.commits)
                memory.add_metric(place, report.memory_bytes)
        yield from (records, commits, memory)

    def _tasks(self) -> Iterator[Metric]:
        labels = ["job", "task"]
        lag = GaugeMetricFamily(
            "feedstack_task_lag_records", "Records that wait for the task.", labels=labels
        )
        running = GaugeMetricFamily(
            "feedstack_task_running", "1 if the task works, 0 if it is opened.", labels=labels
        )
        for view in self._views:
            for report in view.reports:
                for task, one in sorted(report.tasks.items()):
                    running.add_metric([view.name, str(task)], float(one.state is TaskState.RUNNING))
                    if one.lag is not None:
                        lag.add_metric([view.name, str(task)], one.lag)
        yield from (lag, running)
