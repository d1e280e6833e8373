"""What `stack feeds apply` would do, feed by feed, and what it refuses: pure decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from stack.feeds.declare import Declaration
from stack.model.duration import format_duration
from stack.model.feed import Events, FeedSpec, Table

DAY_MS = 86_400_000


class Action(StrEnum):
    CREATE = "create"
    CHANGE = "change"
    KEEP = "keep"
    REMOVE = "remove"
    REFUSE = "refuse"


@dataclass(frozen=True)
class Existing:
    """What Kafka has under a feed's topic name."""

    partitions: int
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Allowed:
    """What the user said may happen beyond the harmless."""

    destroy: bool = False
    grow: bool = False
    adopt: bool = False


@dataclass(frozen=True)
class Step:
    """One feed's part of the plan. The flags say what carrying it out means for the topic."""

    action: Action
    feed: str
    reasons: tuple[str, ...] = ()
    hint: str = ""
    settings: Mapping[str, str] | None = None
    make_anew: bool = False
    grow_to: int | None = None


def topic_settings(spec: FeedSpec) -> dict[str, str]:
    """The topic settings that a feed's declaration stands for."""
    match spec.storage:
        case Events(retention_ms):
            return {
                "cleanup.policy": "delete",
                "retention.bytes": "-1",
                "retention.ms": str(-1 if retention_ms is None else retention_ms),
                "message.timestamp.type": "CreateTime",
            }
        case Table(horizon_ms):
            return table_settings(horizon_ms)


def table_settings(horizon_ms: int) -> dict[str, str]:
    """The settings of a topic that keeps the last record of each key, and all records of a horizon.

    The cleaner judges by record time: with the time of arrival, everything of the last horizon stays, also
    what a backfill writes with old event times. Tombstones stay as long, or deleted keys would come back.
    """
    return {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(horizon_ms),
        "delete.retention.ms": str(max(horizon_ms, DAY_MS)),
        "message.timestamp.type": "LogAppendTime",
    }


def plan_feed(
    declared: Declaration,
    stored: FeedSpec | None,
    existing: Existing | None,
    *,
    schema_breaks: Sequence[str],
    schema_is_new: bool,
    owner_stack: str | None,
    allowed: Allowed,
) -> Step:
    """The step for one declared feed. `owner_stack` names another stack that has this topic."""
    spec = declared.spec
    if schema_breaks:
        return Step(
            Action.REFUSE,
            spec.name,
            tuple(schema_breaks),
            hint="Give new fields a default and keep what readers need, or declare another compatibility.",
        )
    if existing is None:
        gone = ("its topic was deleted by someone: it is made anew, empty",) if stored else ()
        about = f"{spec.partitions} partition(s), {describe_storage(spec)}"
        return Step(Action.CREATE, spec.name, (*gone, about), settings=topic_settings(spec))
    if stored is None and not allowed.adopt:
        whose = f"stack {owner_stack!r} has it" if owner_stack else "no stack has it in its catalogue"
        return Step(
            Action.REFUSE,
            spec.name,
            (f"a topic of this name exists already and {whose}",),
            hint="Take it over with --adopt, or give this stack its own topics: kafka.topic_prefix.",
        )
    return _plan_existing(spec, stored, existing, schema_is_new, allowed)


def _plan_existing(
    spec: FeedSpec,
    stored: FeedSpec | None,
    existing: Existing,
    schema_is_new: bool,
    allowed: Allowed,
) -> Step:
    wanted = topic_settings(spec)
    losses = _losses(spec, stored, existing)
    if losses and not allowed.destroy:
        return Step(
            Action.REFUSE, spec.name, tuple(losses), hint="If records may go, say so with --allow-destroy."
        )
    shrinks = spec.partitions < existing.partitions or _key_changes(spec, stored)
    grows = spec.partitions > existing.partitions
    if grows and spec.key is not None and not allowed.grow and not shrinks:
        return Step(
            Action.REFUSE,
            spec.name,
            (
                f"{existing.partitions} partitions become {spec.partitions}: keys would move to other "
                "partitions while their old records stay",
            ),
            hint="If readers can bear that, say so with --allow-grow.",
        )
    different = {key: value for key, value in wanted.items() if existing.settings.get(key) != value}
    reasons = [*losses, *_setting_reasons(spec, different, existing)]
    if grows:
        reasons.append(f"{existing.partitions} partitions become {spec.partitions}")
    if stored is None:
        reasons.append("an existing topic is taken into the catalogue")
    elif stored != spec:
        reasons += _described_changes(stored, spec)
    if schema_is_new:
        reasons.append(f"{spec.schema} becomes a new version of the schema")
    if not reasons and stored is not None and replace(stored, version=spec.version) != spec:
        # The topic is as declared already: changed by hand, or by a run that fell before this.
        reasons.append("the catalogue's entry is brought up to date")
    if not reasons:
        return Step(Action.KEEP, spec.name)
    return Step(
        Action.CHANGE,
        spec.name,
        tuple(dict.fromkeys(reasons)),
        settings=wanted if shrinks else different,
        make_anew=shrinks,
        grow_to=spec.partitions if grows and not shrinks else None,
    )


def _key_changes(spec: FeedSpec, stored: FeedSpec | None) -> bool:
    return stored is not None and stored.key != spec.key


def _losses(spec: FeedSpec, stored: FeedSpec | None, existing: Existing) -> list[str]:
    """What records or history would be lost by making the topic what is declared."""
    losses = []
    if spec.partitions < existing.partitions:
        losses.append(
            f"{existing.partitions} partitions become {spec.partitions}: Kafka cannot do that, "
            "the topic would be deleted with all records and made anew"
        )
    if stored is not None and stored.key != spec.key:
        losses.append("its key changes: the topic would be deleted with all records and made anew")
    before, was_table = existing.settings, "compact" in existing.settings.get("cleanup.policy", "delete")
    match spec.storage:
        case Events(retention_ms):
            if was_table:
                losses.append("a table feed becomes an event feed: keys not written lately would be deleted")
            elif retention_ms is not None and _longer(before.get("retention.ms"), retention_ms):
                old = int(before["retention.ms"])
                losses.append(
                    f"retention shrinks from {_span(old)} to {_span(retention_ms)}: older records would go"
                )
        case Table(horizon_ms):
            if not was_table:
                losses.append(
                    "an event feed becomes a table feed: all but the last record of each key would go"
                )
            elif _longer(before.get("min.compaction.lag.ms"), horizon_ms):
                old = int(before["min.compaction.lag.ms"])
                losses.append(
                    f"horizon shrinks from {_span(old)} to {_span(horizon_ms)}: history in between would go"
                )
    return losses


def _longer(before: str | None, now_ms: int) -> bool:
    return before is not None and (int(before) < 0 or int(before) > now_ms)


def _setting_reasons(spec: FeedSpec, different: Mapping[str, str], existing: Existing) -> list[str]:
    told = "retention.ms" if isinstance(spec.storage, Events) else "min.compaction.lag.ms"
    reasons = []
    for key, value in different.items():
        before = existing.settings.get(key, "unset")
        if key == told and before.lstrip("-").isdecimal():
            word = "retention" if isinstance(spec.storage, Events) else "horizon"
            reasons.append(f"{word} {_span(int(before))} becomes {_span(int(value))}")
        else:
            reasons.append(f"{key} {before} becomes {value}")
    return reasons


def _described_changes(stored: FeedSpec, spec: FeedSpec) -> list[str]:
    pairs = (
        ("kind", stored.kind, spec.kind),
        ("for", stored.purpose, spec.purpose),
        ("owner", stored.owner, spec.owner),
        ("schema file", stored.schema, spec.schema),
        ("event_time", stored.event_time, spec.event_time),
        ("freshness", _optional_span(stored.freshness_ms), _optional_span(spec.freshness_ms)),
        ("freshness_window", _window(stored), _window(spec)),
        ("freshness_of", stored.freshness_of, spec.freshness_of),
        ("by", stored.by, spec.by),
        ("inputs", ", ".join(stored.inputs), ", ".join(spec.inputs)),
        ("compatibility", stored.compatibility, spec.compatibility),
    )
    return [
        f"{word} {before or 'none'} becomes {now or 'none'}" for word, before, now in pairs if before != now
    ]


def plan_undeclared(stored: FeedSpec, allowed: Allowed) -> Step:
    """The step for a feed of the catalogue that the files no longer declare."""
    if allowed.destroy:
        return Step(Action.REMOVE, stored.name, ("no longer declared: deleted with all its records",))
    return Step(
        Action.KEEP,
        stored.name,
        ("no longer declared",),
        hint="It stays; --allow-destroy would delete it with all its records.",
    )


def describe_storage(spec: FeedSpec) -> str:
    """How records are kept, for people: 'events kept 7d', 'table with a horizon of 1d'."""
    match spec.storage:
        case Events(retention_ms):
            return f"events kept {_span(-1 if retention_ms is None else retention_ms)}"
        case Table(horizon_ms):
            return f"table with a horizon of {format_duration(horizon_ms)}"


def _window(spec: FeedSpec) -> str:
    return format_duration(spec.freshness_window_ms)


def _span(duration_ms: int) -> str:
    return "for ever" if duration_ms < 0 else format_duration(duration_ms)


def _optional_span(duration_ms: int | None) -> str | None:
    return None if duration_ms is None else format_duration(duration_ms)
