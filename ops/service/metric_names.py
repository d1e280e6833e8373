"""Every metric that `/metrics` tells: name, type, unit and labels. docs/metrics.md is held equal to this."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricName:
    """One metric. A counter's name ends in `_total`, as Prometheus wants it."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    text: str


_JOB = ("job",)
_CONTAINER = ("job", "container")
_TASK = ("job", "task")
_STORE = ("job", "task", "store")

METRICS = (
    MetricName("feedstack_runners", "gauge", "runners", (), "runners that are there"),
    MetricName("feedstack_job_state", "gauge", "0 or 1", ("job", "state"), "1 for the state of the job"),
    MetricName(
        "feedstack_job_containers_wanted", "gauge", "containers", _JOB, "containers that the job asks for"
    ),
    MetricName("feedstack_job_containers_ready", "gauge", "containers", _JOB, "containers that work"),
    MetricName(
        "feedstack_job_counter_total",
        "counter",
        "as counted",
        ("job", "container", "name"),
        "what the job's own code counts with `ctx.count`",
    ),
    MetricName(
        "feedstack_input_lag_records",
        "gauge",
        "records",
        ("job", "feed", "partition"),
        "end of the input's partition less what the job has committed, as Kafka's own tool prints it; also "
        "of a job that does not run",
    ),
    MetricName(
        "feedstack_container_start_time_seconds",
        "gauge",
        "seconds since 1970",
        _CONTAINER,
        "when the container told its first metrics",
    ),
    MetricName("feedstack_container_memory_bytes", "gauge", "bytes", _CONTAINER, "memory of its process"),
    MetricName(
        "feedstack_container_records_in_total",
        "counter",
        "records",
        ("job", "container", "feed"),
        "records handled; those that an aborted commit brings back count again",
    ),
    MetricName(
        "feedstack_container_records_out_total",
        "counter",
        "records",
        ("job", "container", "feed"),
        "records written to a feed; those of an aborted commit, too",
    ),
    MetricName(
        "feedstack_container_processing_seconds",
        "histogram",
        "seconds",
        _CONTAINER,
        "time per record: decoding, code, state, encoding. Records are handled in stretches of some ten "
        "milliseconds, and each counts with the average of its stretch",
    ),
    MetricName(
        "feedstack_container_commit_seconds",
        "histogram",
        "seconds",
        _CONTAINER,
        "time of a commit, from its edge until Kafka has confirmed it",
    ),
    MetricName(
        "feedstack_container_commit_records_total",
        "counter",
        "records",
        _CONTAINER,
        "records in committed transactions: outputs, changes of state, checkpoints",
    ),
    MetricName(
        "feedstack_container_commit_bytes_total",
        "counter",
        "bytes",
        _CONTAINER,
        "bytes of these records before compression, with 70 for each record's frame",
    ),
    MetricName(
        "feedstack_container_errors_total",
        "counter",
        "records",
        ("job", "container", "kind"),
        "records in trouble, by kind: `errors`, `dead`, `skipped`, `retried`",
    ),
    MetricName(
        "feedstack_task_running", "gauge", "0 or 1", _TASK, "1 if the task works, 0 while it is opened"
    ),
    MetricName(
        "feedstack_task_lag_records",
        "gauge",
        "records",
        _TASK,
        "records from the task's last commit to the end of its inputs, as its container knows it",
    ),
    MetricName(
        "feedstack_task_event_delay_seconds",
        "gauge",
        "seconds",
        _TASK,
        "how old the last record was, by its own time, when it was handled",
    ),
    MetricName(
        "feedstack_task_restore_ratio", "gauge", "0 to 1", _STORE, "how much of the store is restored"
    ),
    MetricName(
        "feedstack_task_restore_records", "gauge", "records", _STORE, "changes that were read to restore it"
    ),
    MetricName(
        "feedstack_task_restore_remaining_seconds",
        "gauge",
        "seconds",
        _STORE,
        "how long the restore will take yet, if it goes on as it has so far",
    ),
    MetricName(
        "feedstack_store_keys",
        "gauge",
        "keys",
        _STORE,
        "keys of the store, as RocksDB estimates: those overwritten lately count more than once",
    ),
    MetricName(
        "feedstack_store_bytes", "gauge", "bytes", _STORE, "bytes of the store, on disk and in buffers"
    ),
    MetricName(
        "feedstack_feed_staleness_seconds",
        "gauge",
        "seconds",
        ("feed",),
        "how stale a feed with a freshness objective is",
    ),
    MetricName(
        "feedstack_feed_freshness_objective_seconds",
        "gauge",
        "seconds",
        ("feed",),
        "how stale it may be",
    ),
    MetricName(
        "feedstack_feed_stale_ratio",
        "gauge",
        "0 to 1",
        ("feed",),
        "part of its window in which it was staler than that",
    ),
    MetricName("feedstack_feed_alarm", "gauge", "0 or 1", ("feed",), "1 while its alarm is on"),
)
BY_NAME = {one.name: one for one in METRICS}
