"""The topics that jobs need beside their feeds: changelogs, checkpoints, logs, metrics, dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stack.feeds.plan import DAY_MS, table_settings
from stack.feeds.produce import DEAD_RETENTION_MS
from stack.kafka.admin import KafkaAdmin, TopicPlan
from stack.model.freshness import alarms_name
from stack.model.job import (
    JobSpec,
    StoreSpec,
    changelog_name,
    dead_name,
    logs_name,
    redrive_name,
    redriven_name,
)
from stack.model.metrics import metrics_name
from stack.model.plan import job_tasks
from stack.offsets.checkpoints import PARTITIONS, checkpoints_topic

LOGS_RETENTION_MS = 7 * DAY_MS
METRICS_RETENTION_MS = DAY_MS
ALARMS_RETENTION_MS = 90 * DAY_MS
# Longer than any dead letter stays, its last segment included: what was redriven is never redriven again.
_MARKS_RETENTION_MS = 3 * DEAD_RETENTION_MS
_SHORTEST_SEGMENT_MS = 600_000
_SEGMENT_BYTES = 256 << 20
_LAG = "min.compaction.lag.ms"


def changelog_plan(stack: str, spec: JobSpec, store: StoreSpec) -> TopicPlan:
    """The changelog of a store: one partition per task of its stage."""
    settings = _kept_for(spec.settings.horizon_ms)
    return TopicPlan(changelog_name(stack, spec.name, store.name), spec.stages[store.stage], settings)


def checkpoints_plan(stack: str, horizons_ms: Iterable[int]) -> TopicPlan:
    """The checkpoints of all jobs: kept for the longest horizon of any."""
    return TopicPlan(checkpoints_topic(stack), PARTITIONS, _kept_for(max(horizons_ms, default=0)))


def logs_plan(stack: str) -> TopicPlan:
    """What the code of jobs says, for a week."""
    return TopicPlan(logs_name(stack), 1, _kept_whole(LOGS_RETENTION_MS))


def metrics_plan(stack: str) -> TopicPlan:
    """What containers measure, for a day."""
    return TopicPlan(metrics_name(stack), 1, _kept_whole(METRICS_RETENTION_MS))


def alarms_plan(stack: str) -> TopicPlan:
    """Alarms that began and ended, for three months."""
    return TopicPlan(alarms_name(stack), 1, _kept_whole(ALARMS_RETENTION_MS))


def _kept_whole(retention_ms: int) -> dict[str, str]:
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        "retention.bytes": str(1 << 30),
        "segment.bytes": str(64 << 20),
        # Only whole segments are deleted.
        "segment.ms": str(min(retention_ms // 8, DAY_MS)),
    }


def dead_plans(stack: str, spec: JobSpec) -> list[TopicPlan]:
    """Dead letters, the way by which they come back, and marks of those that did; none if there are none."""
    if not spec.settings.keeps_dead_letters:
        return []
    arrival = {"message.timestamp.type": "LogAppendTime"}
    letters = {**arrival, "cleanup.policy": "delete", "retention.ms": str(DEAD_RETENTION_MS)}
    # Tasks remember their place in it, as in any input: nothing may be taken away before that place.
    back = {"cleanup.policy": "delete", "retention.ms": "-1"}
    marks = {**arrival, "cleanup.policy": "compact,delete", "retention.ms": str(_MARKS_RETENTION_MS)}
    return [
        TopicPlan(dead_name(stack, spec.name), spec.partitions, letters),
        TopicPlan(redrive_name(stack, spec.name), len(job_tasks(spec)), back),
        TopicPlan(redriven_name(stack, spec.name), 1, marks),
    ]


def _kept_for(horizon_ms: int) -> dict[str, str]:
    # The cleaner leaves the last segment alone: one that is never full must end by time.
    segment_ms = min(max(horizon_ms, _SHORTEST_SEGMENT_MS), DAY_MS)
    return {
        **table_settings(horizon_ms),
        "segment.ms": str(segment_ms),
        "segment.bytes": str(_SEGMENT_BYTES),
    }


def ensure_topics(admin: KafkaAdmin, plans: Sequence[TopicPlan], only_longer: bool = False) -> None:
    """Make topics that are not there, and set what is set otherwise; partitions stay as they are.

    With `only_longer` a lag that is longer than planned stays, too.
    """
    there = admin.describe([plan.name for plan in plans])
    admin.create([plan for plan in plans if plan.name not in there])
    settings = admin.settings(list(there))
    for plan in plans:
        if plan.name not in there:
            continue
        now = settings[plan.name]
        if only_longer and int(now.get(_LAG, 0)) >= int(plan.settings.get(_LAG, 0)):
            continue
        different = {key: value for key, value in plan.settings.items() if now.get(key) != value}
        if different:
            admin.change_settings(plan.name, different)
