"""Metrics as tables: what containers have measured, and how fresh feeds are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ops.cli.output import table_lines

if TYPE_CHECKING:
    from stack.deploy.lag import InputLag
    from stack.model.freshness import Freshness
    from stack.model.metrics import ContainerMetrics, Histogram, TaskMetrics
    from stack.model.plan import ContainerReport, TaskId


def cell(value: Any) -> str:
    """A value of a table; nothing for what is not known."""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def span(seconds: float | None) -> str:
    """A time for people, with the digits that matter: '12 µs', '3.4 ms', '2.0 s'."""
    if not seconds:
        return "" if seconds is None else "0 s"
    for unit, size_s in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size_s or unit == "µs":
            value = seconds / size_s
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return ""


def task_lines(
    tasks: Iterable[TaskId],
    slots: Mapping[TaskId, int],
    reports: Sequence[ContainerReport],
    measured: Sequence[ContainerMetrics],
    lags: Sequence[InputLag],
) -> list[str]:
    """One line per task. Of a task that does not run Kafka tells how far behind it is."""
    from stack.model.duration import format_size

    told = {task: one for report in reports for task, one in report.tasks.items()}
    found = {task: one for container in measured for task, one in container.tasks.items()}
    rows = []
    for task in tasks:
        one, metrics = told.get(task), found.get(task)
        behind = [lag.records for lag in lags if lag.partition == task.partition and lag.records is not None]
        lag = one.lag if one else sum(behind) if behind else None
        stores = metrics.stores.values() if metrics else ()
        rows.append(
            [
                str(task),
                slots.get(task),
                str(one.state) if one else "not running",
                cell(lag),
                _delay(metrics),
                cell(sum(store.keys for store in stores)) if stores else "",
                format_size(sum(store.size_bytes for store in stores)) if stores else "",
                one.note if one else "",
            ]
        )
    heads = ["task", "container", "state", "lag", "delay", "keys", "state size", "note"]
    return table_lines(heads, rows, right=["container", "lag", "delay", "keys", "state size"])


def _delay(metrics: TaskMetrics | None) -> str:
    return "" if metrics is None or metrics.delay_ms is None else span(max(0, metrics.delay_ms) / 1000)


def container_lines(reports: Sequence[ContainerReport], measured: Sequence[ContainerMetrics]) -> list[str]:
    """One line per container: as it reports itself, and what it has measured."""
    from stack.model.duration import format_size

    found = {(one.slot, one.attempt): one for one in measured}
    rows = []
    for one in reports:
        metrics = found.get((one.slot, one.attempt))
        rows.append(
            [
                one.slot,
                one.attempt,
                one.pid,
                one.host,
                format_size(one.memory_bytes),
                f"{metrics.in_per_s if metrics else one.records_per_s:,.0f}",
                f"{metrics.out_per_s:,.0f}" if metrics else "",
                f"{one.records:,}",
                f"{one.commits:,}",
                *(_measured_cells(metrics) if metrics else [""] * 4),
            ]
        )
    heads = ["container", "attempt", "pid", "host", "memory", "in/s", "out/s", "records", "commits"]
    heads += ["commit p50", "commit size", "record p50", "record p99"]
    return table_lines(heads, rows, right=[head for head in heads if head != "host"])


def _measured_cells(one: ContainerMetrics) -> list[str]:
    from stack.model.duration import format_size
    from stack.model.metrics import COMMIT_BOUNDS_S, PROCESSING_BOUNDS_S

    def quantile(times: Histogram, bounds_s: Sequence[float], share: float) -> str:
        return span(times.quantile_s(bounds_s, share))

    size = f"{one.commits.last_records:,} in {format_size(one.commits.last_bytes)}"
    return [
        quantile(one.commits.times, COMMIT_BOUNDS_S, 0.5),
        size if one.commits.last_records else "",
        quantile(one.processing, PROCESSING_BOUNDS_S, 0.5),
        quantile(one.processing, PROCESSING_BOUNDS_S, 0.99),
    ]


def freshness_lines(feeds: Mapping[str, Freshness]) -> list[str]:
    """One line per feed with an objective."""
    rows = [[name, *_freshness_cells(one)] for name, one in sorted(feeds.items())]
    heads = ["feed", "freshness", "behind", "objective", "too stale", "since"]
    return table_lines(heads, rows, right=["behind", "objective", "too stale"])


def _freshness_cells(one: Freshness) -> list[str]:
    from stack.model.duration import format_duration
    from stack.model.startpoint import format_time

    return [
        f"{one.state}: {one.why}" if one.why else str(one.state),
        "" if one.staleness_ms is None else span(one.staleness_ms / 1000),
        format_duration(one.objective_ms),
        f"{one.share:.0%} of {format_duration(one.window_ms)}",
        format_time(one.since_ms),
    ]


def freshness_text(one: Freshness | None) -> str:
    """How fresh a feed is, behind its objective."""
    if one is None:
        return "not judged now: the HTTP service of the stack does that"
    state, behind, _, share, since = _freshness_cells(one)
    return f"{state} since {since}" + (f", {behind} behind" if behind else "") + f", too stale for {share}"
