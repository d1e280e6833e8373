"""What `stack status` shows: the processes of this machine, and the jobs and feeds of the stack."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from ops.cli.job_views import job_lines, job_rows
from ops.cli.metric_views import freshness_lines
from ops.cli.output import table_lines
from ops.cluster import control
from ops.cluster.control import ServiceStatus
from stack.connection import Stack
from stack.deploy.metrics import MetricsFollower
from stack.deploy.operate import JobWatch, watch_jobs
from stack.errors import FeedstackError
from stack.kafka.admin import KafkaAdmin
from stack.model.duration import format_duration, format_size
from stack.model.freshness import Freshness, freshness_to_json
from stack.settings import Settings

# Where Kafka does not answer by then, only what runs on this machine is told.
_ANSWER_S = 3.0


@dataclass(frozen=True)
class FleetSeen:
    """All of it at a moment; without jobs and feeds where Kafka or ZooKeeper cannot be asked."""

    settings: Settings
    services: list[ServiceStatus]
    jobs: list[dict[str, Any]] | None = None
    feeds: dict[str, Freshness] | None = None
    fault: str = ""

    def as_json(self) -> dict[str, Any]:
        rows = [asdict(service) for service in self.services]
        about = {"name": self.settings.name, "data": str(self.settings.data), "running": bool(rows)}
        tree = {**about, "services": rows}
        if self.jobs is not None and self.feeds is not None:
            tree["jobs"] = self.jobs
            tree["feeds"] = {name: freshness_to_json(one) for name, one in self.feeds.items()}
        if self.fault:
            tree["fault"] = self.fault
        return tree


class FleetView:
    """Looks at a stack for as long as the block lasts; connects when there is something to connect to."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open = contextlib.ExitStack()
        self._reached: tuple[JobWatch, MetricsFollower] | None = None

    def look(self) -> FleetSeen:
        """Everything as of now."""
        services = control.status(self._settings)
        if not self._may_ask(services):
            return FleetSeen(self._settings, services)
        try:
            jobs, follower = self._reached or self._reach()
            return FleetSeen(self._settings, services, job_rows(jobs), dict(follower.look().feeds))
        except FeedstackError as error:
            self._let_go()
            return FleetSeen(self._settings, services, fault=error.message)

    def _may_ask(self, services: list[ServiceStatus]) -> bool:
        """Whether Kafka is likely to be there: a stack that is down is told at once."""
        if self._settings.kafka is not None:
            return True
        return any(one.name.startswith("kafka") and one.state == "ready" for one in services)

    def _reach(self) -> tuple[JobWatch, MetricsFollower]:
        stack = self._open.enter_context(Stack.connect(self._settings))
        KafkaAdmin(stack.access, timeout_s=_ANSWER_S).broker_ids()
        jobs = self._open.enter_context(watch_jobs(stack))
        self._reached = jobs, self._open.enter_context(MetricsFollower(stack))
        return self._reached

    def _let_go(self) -> None:
        self._reached = None
        with contextlib.suppress(FeedstackError):
            self._open.close()

    def __enter__(self) -> FleetView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go()


def fleet_lines(seen: FleetSeen) -> list[str]:
    """All of it for people."""
    lines = [f"stack {seen.settings.name!r}, data in {seen.settings.data}", *_service_lines(seen)]
    if seen.fault:
        lines += ["", f"jobs and feeds cannot be told: {seen.fault}"]
    if seen.jobs:
        lines += ["", *job_lines(seen.jobs)]
    if seen.feeds:
        lines += ["", *freshness_lines(seen.feeds)]
    return lines


def _service_lines(seen: FleetSeen) -> list[str]:
    if not seen.services:
        if seen.settings.kafka is None:
            return ["not running; start it with `stack up`"]
        return ["nothing of it runs on this machine; `stack doctor` asks its servers"]
    rows = [
        [
            service.name,
            service.state,
            service.pid,
            service.port or "",
            format_duration(int(service.uptime_s) * 1000) if service.uptime_s is not None else "",
            format_size(service.memory_bytes) if service.memory_bytes else "",
            service.restarts,
        ]
        for service in seen.services
    ]
    heads = ["service", "state", "pid", "port", "uptime", "memory", "restarts"]
    lines = table_lines(heads, rows, right=["pid", "port", "uptime", "memory", "restarts"])
    return lines + [f"{service.name}: {service.reason}" for service in seen.services if service.reason]
