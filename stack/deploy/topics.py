"""The topics that jobs need beside their feeds: changelogs, checkpoints, logs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stack.feeds.plan import DAY_MS, table_settings
from stack.kafka.admin import KafkaAdmin, TopicPlan
from stack.model.job import JobSpec, changelog_name, logs_name
from stack.offsets.checkpoints import PARTITIONS, checkpoints_topic

LOGS_RETENTION_MS = 7 * DAY_MS
_SHORTEST_SEGMENT_MS = 600_000
_SEGMENT_BYTES = 256 << 20
_LAG = "min.compaction.lag.ms"


def changelog_plan(stack: str, spec: JobSpec, store: str) -> TopicPlan:
    """The changelog of a store: one partition per task."""
    settings = _kept_for(spec.settings.horizon_ms)
    return TopicPlan(changelog_name(stack, spec.name, store), spec.partitions, settings)


def checkpoints_plan(stack: str, horizons_ms: Iterable[int]) -> TopicPlan:
    """The checkpoints of all jobs: kept for the longest horizon of any."""
    return TopicPlan(checkpoints_topic(stack), PARTITIONS, _kept_for(max(horizons_ms, default=0)))


def logs_plan(stack: str) -> TopicPlan:
    """What the code of jobs says, for a week."""
    settings = {
        "cleanup.policy": "delete",
        "retention.ms": str(LOGS_RETENTION_MS),
        "retention.bytes": str(1 << 30),
        "segment.bytes": str(64 << 20),
    }
    return TopicPlan(logs_name(stack), 1, settings)


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
