"""What `stack feeds apply` would do: every step, every refusal, and what each permission changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stack.feeds.avro.schema import parse_avro
from stack.feeds.declare import Declaration
from stack.feeds.plan import (
    DAY_MS,
    Action,
    Allowed,
    Existing,
    Step,
    describe_storage,
    plan_feed,
    plan_undeclared,
    topic_settings,
)
from stack.model.feed import Events, FeedSpec, Key, KeyFormat, Kind, Table

SCHEMA = parse_avro('{"type": "record", "name": "V", "fields": [{"name": "user", "type": "string"}]}')
NOTHING = Allowed()
EVERYTHING = Allowed(destroy=True, grow=True, adopt=True)
EVENTS = FeedSpec(
    name="views",
    kind=Kind.SOURCE,
    purpose="page views",
    owner="web",
    schema="view.avsc",
    partitions=4,
    storage=Events(7 * DAY_MS),
    key=Key("user"),
)
KEYLESS = replace(EVENTS, key=None)
TABLE = replace(EVENTS, storage=Table(2 * DAY_MS))


def topic_of(spec: FeedSpec, **more: str) -> Existing:
    """The topic as this feed makes it, among the other settings that Kafka tells."""
    return Existing(spec.partitions, {"segment.bytes": "1073741824", **topic_settings(spec), **more})


def plan(
    spec: FeedSpec,
    stored: FeedSpec | None,
    existing: Existing | None,
    allowed: Allowed = NOTHING,
    *,
    breaks: Sequence[str] = (),
    new_schema: bool = False,
    owner: str | None = None,
) -> Step:
    return plan_feed(
        Declaration(spec, SCHEMA),
        stored,
        existing,
        schema_breaks=breaks,
        schema_is_new=new_schema,
        owner_stack=owner,
        allowed=allowed,
    )


def change(before: FeedSpec, now: FeedSpec, allowed: Allowed = NOTHING) -> Step:
    """The step from one declaration, carried out, to another."""
    return plan(now, before, topic_of(before), allowed)


# What a declaration means for the topic.


def test_an_event_feed_keeps_records_by_age() -> None:
    assert topic_settings(EVENTS) == {
        "cleanup.policy": "delete",
        "retention.bytes": "-1",
        "retention.ms": "604800000",
        "message.timestamp.type": "CreateTime",
    }
    assert topic_settings(replace(EVENTS, storage=Events(None)))["retention.ms"] == "-1"


def test_a_table_feed_keeps_last_records_and_all_of_its_horizon_by_arrival() -> None:
    assert topic_settings(TABLE) == {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(2 * DAY_MS),
        "delete.retention.ms": str(2 * DAY_MS),
        "message.timestamp.type": "LogAppendTime",
    }


def test_tombstones_stay_a_day_even_with_a_short_horizon() -> None:
    found = topic_settings(replace(EVENTS, storage=Table(1000)))
    assert (found["min.compaction.lag.ms"], found["delete.retention.ms"]) == ("1000", str(DAY_MS))


@pytest.mark.parametrize(
    ("storage", "text"),
    [
        (Events(7 * DAY_MS), "events kept 7d"),
        (Events(None), "events kept for ever"),
        (Table(DAY_MS), "table with a horizon of 1d"),
    ],
)
def test_storage_is_described_for_people(storage: Events | Table, text: str) -> None:
    assert describe_storage(replace(EVENTS, storage=storage)) == text


# Create and keep.


@pytest.mark.parametrize("spec", [EVENTS, KEYLESS, TABLE])
@pytest.mark.parametrize("allowed", [NOTHING, EVERYTHING])
def test_a_new_feed_is_created(spec: FeedSpec, allowed: Allowed) -> None:
    assert plan(spec, None, None, allowed, new_schema=True) == Step(
        Action.CREATE,
        "views",
        (f"4 partition(s), {describe_storage(spec)}",),
        settings=topic_settings(spec),
    )


def test_a_feed_whose_topic_was_deleted_is_created_again_and_says_so() -> None:
    step = plan(EVENTS, EVENTS, None)
    assert step.action is Action.CREATE
    assert step.reasons[0] == "its topic was deleted by someone: it is made anew, empty"
    assert step.settings == topic_settings(EVENTS)


@pytest.mark.parametrize("spec", [EVENTS, KEYLESS, TABLE, replace(EVENTS, storage=Events(None))])
@pytest.mark.parametrize("allowed", [NOTHING, EVERYTHING])
def test_a_feed_that_is_as_declared_is_kept(spec: FeedSpec, allowed: Allowed) -> None:
    assert plan(spec, spec, topic_of(spec), allowed) == Step(Action.KEEP, "views")


def test_a_later_version_of_a_feed_is_no_change() -> None:
    assert plan(EVENTS, replace(EVENTS, version=3), topic_of(EVENTS)).action is Action.KEEP


# Harmless changes.

FOREVER = replace(EVENTS, storage=Events(None))


@pytest.mark.parametrize(
    ("before", "now", "reason", "changed"),
    [
        (
            EVENTS,
            replace(EVENTS, storage=Events(14 * DAY_MS)),
            "retention 7d becomes 14d",
            {"retention.ms": str(14 * DAY_MS)},
        ),
        (EVENTS, FOREVER, "retention 7d becomes for ever", {"retention.ms": "-1"}),
        (
            TABLE,
            replace(TABLE, storage=Table(3 * DAY_MS)),
            "horizon 2d becomes 3d",
            {"min.compaction.lag.ms": str(3 * DAY_MS), "delete.retention.ms": str(3 * DAY_MS)},
        ),
        (EVENTS, replace(EVENTS, freshness_ms=10_000), "freshness none becomes 10s", {}),
        (replace(EVENTS, freshness_ms=1), EVENTS, "freshness 1ms becomes none", {}),
        (EVENTS, replace(EVENTS, freshness_window_ms=60_000), "freshness_window 5m becomes 1m", {}),
        (EVENTS, replace(EVENTS, owner="shop"), "owner web becomes shop", {}),
        (EVENTS, replace(EVENTS, purpose="other"), "for page views becomes other", {}),
        (EVENTS, replace(EVENTS, kind=Kind.DERIVED), "kind source becomes derived", {}),
        (EVENTS, replace(EVENTS, schema="b.avsc"), "schema file view.avsc becomes b.avsc", {}),
        (EVENTS, replace(EVENTS, event_time="ms"), "event_time none becomes ms", {}),
        (EVENTS, replace(EVENTS, by="count"), "by none becomes count", {}),
        (EVENTS, replace(EVENTS, inputs=("a", "b")), "inputs none becomes a, b", {}),
        (EVENTS, replace(EVENTS, compatibility="FULL"), "compatibility none becomes FULL", {}),
    ],
)
def test_a_harmless_change_needs_no_permission(
    before: FeedSpec, now: FeedSpec, reason: str, changed: dict[str, str]
) -> None:
    step = change(before, now)
    assert (step.action, step.settings, step.make_anew, step.grow_to) == (Action.CHANGE, changed, False, None)
    assert reason in step.reasons
    assert plan(now, now, topic_of(now)).action is Action.KEEP


def test_a_setting_changed_by_hand_is_put_right() -> None:
    step = plan(EVENTS, EVENTS, topic_of(EVENTS, **{"message.timestamp.type": "LogAppendTime"}))
    assert step == Step(
        Action.CHANGE,
        "views",
        ("message.timestamp.type LogAppendTime becomes CreateTime",),
        settings={"message.timestamp.type": "CreateTime"},
    )


def test_retention_shortened_by_hand_becomes_as_declared() -> None:
    step = plan(EVENTS, EVENTS, topic_of(EVENTS, **{"retention.ms": "1000"}))
    assert (step.reasons, step.settings) == (("retention 1s becomes 7d",), {"retention.ms": "604800000"})


def test_settings_that_the_feed_does_not_declare_stay_as_they_are() -> None:
    assert plan(EVENTS, EVENTS, topic_of(EVENTS, **{"segment.bytes": "5"})).action is Action.KEEP


def test_a_new_schema_is_a_change_of_the_registry_only() -> None:
    step = plan(EVENTS, EVENTS, topic_of(EVENTS), new_schema=True)
    assert step == Step(
        Action.CHANGE, "views", ("view.avsc becomes a new version of the schema",), settings={}
    )


@pytest.mark.parametrize(
    "stored",
    [
        replace(EVENTS, storage=Events(1000)),
        replace(EVENTS, storage=Table(1000)),
        replace(EVENTS, partitions=2),
    ],
)
def test_a_run_that_fell_before_it_wrote_the_catalogue_is_mended(stored: FeedSpec) -> None:
    """The topic is as declared already, the catalogue is not: it must not stay behind for ever."""
    assert plan(EVENTS, stored, topic_of(EVENTS)) == Step(
        Action.CHANGE, "views", ("the catalogue's entry is brought up to date",), settings={}
    )


# Changes that lose records.


@pytest.mark.parametrize(
    ("before", "now", "reason", "anew"),
    [
        (EVENTS, replace(EVENTS, partitions=2), "4 partitions become 2: Kafka cannot do that", True),
        (KEYLESS, replace(KEYLESS, partitions=2), "4 partitions become 2: Kafka cannot do that", True),
        (EVENTS, replace(EVENTS, key=Key("page")), "its key changes: the topic would be deleted", True),
        (EVENTS, replace(EVENTS, key=Key("user", KeyFormat.AVRO)), "its key changes", True),
        (EVENTS, KEYLESS, "its key changes", True),
        (KEYLESS, EVENTS, "its key changes", True),
        (EVENTS, replace(EVENTS, storage=Events(DAY_MS)), "retention shrinks from 7d to 1d", False),
        (FOREVER, EVENTS, "retention shrinks from for ever to 7d", False),
        (EVENTS, TABLE, "an event feed becomes a table feed", False),
        (TABLE, EVENTS, "a table feed becomes an event feed", False),
        (TABLE, FOREVER, "a table feed becomes an event feed", False),
        (TABLE, replace(TABLE, storage=Table(DAY_MS)), "horizon shrinks from 2d to 1d", False),
    ],
)
def test_what_loses_records_is_refused_until_it_is_allowed(
    before: FeedSpec, now: FeedSpec, reason: str, anew: bool
) -> None:
    for allowed in (NOTHING, Allowed(grow=True, adopt=True)):
        refused = change(before, now, allowed)
        assert refused.action is Action.REFUSE
        assert reason in refused.reasons[0]
        assert "--allow-destroy" in refused.hint
        assert (refused.settings, refused.make_anew, refused.grow_to) == (None, False, None)
    step = change(before, now, Allowed(destroy=True))
    assert (step.action, step.make_anew, step.grow_to) == (Action.CHANGE, anew, None)
    assert reason in step.reasons[0]
    changed = topic_settings(now).items() - (set() if anew else topic_settings(before).items())
    assert step.settings == dict(changed)


def test_every_loss_is_told_at_once() -> None:
    step = change(EVENTS, replace(EVENTS, partitions=1, key=None, storage=Events(1000)))
    assert [reason.partition(":")[0] for reason in step.reasons] == [
        "4 partitions become 1",
        "its key changes",
        "retention shrinks from 7d to 1s",
    ]


@pytest.mark.parametrize("policy", ["compact,delete", "delete,compact"])
def test_a_topic_that_compacts_and_deletes_counts_as_a_table(policy: str) -> None:
    existing = topic_of(TABLE, **{"cleanup.policy": policy})
    assert plan(EVENTS, None, existing, Allowed(adopt=True)).action is Action.REFUSE
    step = plan(TABLE, TABLE, existing)
    assert (step.action, step.settings) == (Action.CHANGE, {"cleanup.policy": "compact"})


# Growth.


def test_a_feed_without_a_key_grows() -> None:
    step = change(KEYLESS, replace(KEYLESS, partitions=6))
    assert step == Step(Action.CHANGE, "views", ("4 partitions become 6",), settings={}, grow_to=6)


@pytest.mark.parametrize("spec", [EVENTS, TABLE])
def test_a_keyed_feed_grows_only_if_that_is_allowed(spec: FeedSpec) -> None:
    now = replace(spec, partitions=6)
    for allowed in (NOTHING, Allowed(destroy=True, adopt=True)):
        refused = change(spec, now, allowed)
        assert (refused.action, refused.grow_to) == (Action.REFUSE, None)
        assert refused.reasons[0].startswith("4 partitions become 6: keys would move")
        assert "--allow-grow" in refused.hint
    step = change(spec, now, Allowed(grow=True))
    assert (step.action, step.grow_to, step.make_anew) == (Action.CHANGE, 6, False)


def test_growth_with_another_key_makes_the_topic_anew_at_its_new_size() -> None:
    step = change(EVENTS, replace(EVENTS, partitions=6, key=Key("page")), Allowed(destroy=True))
    assert (step.action, step.make_anew, step.grow_to) == (Action.CHANGE, True, None)
    assert step.settings == topic_settings(EVENTS)


# Schemas and owners.


@pytest.mark.parametrize("existing", [None, topic_of(EVENTS)])
@pytest.mark.parametrize("allowed", [NOTHING, EVERYTHING])
def test_a_schema_that_breaks_its_readers_is_refused_whatever_is_allowed(
    existing: Existing | None, allowed: Allowed
) -> None:
    step = plan(EVENTS, EVENTS, existing, allowed, breaks=["load: gone", "ms: is text now"], new_schema=True)
    assert (step.action, step.reasons) == (Action.REFUSE, ("load: gone", "ms: is text now"))
    assert "compatibility" in step.hint


@pytest.mark.parametrize(
    ("owner", "whose"), [(None, "no stack has it in its catalogue"), ("shop", "stack 'shop' has it")]
)
def test_a_topic_that_is_not_ours_is_left_alone_until_it_is_adopted(owner: str | None, whose: str) -> None:
    for allowed in (NOTHING, Allowed(destroy=True, grow=True)):
        refused = plan(EVENTS, None, topic_of(EVENTS), allowed, owner=owner)
        assert refused.action is Action.REFUSE
        assert refused.reasons == (f"a topic of this name exists already and {whose}",)
        assert "--adopt" in refused.hint
    step = plan(EVENTS, None, topic_of(EVENTS), Allowed(adopt=True), owner=owner)
    assert step == Step(
        Action.CHANGE, "views", ("an existing topic is taken into the catalogue",), settings={}
    )


def test_adopting_loses_nothing_by_itself() -> None:
    for existing in (topic_of(FOREVER), topic_of(replace(EVENTS, partitions=9)), topic_of(TABLE)):
        step = plan(EVENTS, None, existing, Allowed(adopt=True))
        assert step.action is Action.REFUSE
        assert "--allow-destroy" in step.hint
    grown = plan(EVENTS, None, topic_of(replace(EVENTS, partitions=2)), Allowed(adopt=True))
    assert "--allow-grow" in grown.hint


def test_a_feed_that_is_no_longer_declared_stays_until_it_may_go() -> None:
    for allowed in (NOTHING, Allowed(grow=True, adopt=True)):
        kept = plan_undeclared(EVENTS, allowed)
        assert (kept.action, kept.reasons) == (Action.KEEP, ("no longer declared",))
        assert "--allow-destroy" in kept.hint
    gone = plan_undeclared(EVENTS, Allowed(destroy=True))
    assert (gone.action, gone.feed) == (Action.REMOVE, "views")


# Whatever is declared, stored and there.

DURATIONS = st.sampled_from([1, 1000, DAY_MS, 2 * DAY_MS, 7 * DAY_MS, (1 << 63) - 1])
STORAGES = st.builds(Events, st.none() | DURATIONS) | st.builds(Table, DURATIONS)
KEYS = st.sampled_from([None, Key("user"), Key("page"), Key("user", KeyFormat.AVRO)])


@st.composite
def specs(draw: st.DrawFn) -> FeedSpec:
    storage = draw(STORAGES)
    key = draw(KEYS)
    return replace(
        EVENTS,
        storage=storage,
        key=key or Key("user") if isinstance(storage, Table) else key,
        partitions=draw(st.integers(1, 4)),
        freshness_ms=draw(st.none() | st.just(5)),
        version=draw(st.sampled_from([1, 2])),
    )


def settings_values(draw: st.DrawFn) -> dict[str, str]:
    """Any settings a topic may have, as Kafka tells them: all of them, whatever the policy."""
    times = st.sampled_from(["-1", "0", "1", "1000", str(DAY_MS), str(7 * DAY_MS), str((1 << 63) - 1)])
    return {
        "cleanup.policy": draw(st.sampled_from(["delete", "compact", "compact,delete"])),
        "retention.ms": draw(times),
        "min.compaction.lag.ms": draw(times.filter(lambda value: value != "-1")),
        "delete.retention.ms": draw(times.filter(lambda value: value != "-1")),
        "message.timestamp.type": draw(st.sampled_from(["CreateTime", "LogAppendTime"])),
    }


@st.composite
def situations(draw: st.DrawFn) -> tuple[FeedSpec, FeedSpec | None, Existing | None, dict[str, Any]]:
    declared = replace(draw(specs()), version=1)
    stored = draw(st.none() | specs() | st.just(declared))
    of_feed = (stored or declared) if draw(st.booleans()) else None
    existing = draw(
        st.none()
        | st.just(topic_of(of_feed) if of_feed else Existing(draw(st.integers(1, 4)), settings_values(draw)))
    )
    more = {
        "breaks": draw(st.sampled_from([(), ("a: gone",)])),
        "new_schema": draw(st.booleans()),
        "owner": draw(st.sampled_from([None, "shop"])),
    }
    return declared, stored, existing, more


def kept_longer(before: str | None, now: str | None) -> bool:
    """Whether a span in milliseconds, -1 for ever, is not shorter than it was."""
    if before is None or now is None:
        return True
    return int(now) < 0 or (int(before) >= 0 and int(now) >= int(before))


@given(situations())
@settings(max_examples=200)
def test_without_permission_no_step_can_lose_a_record(
    situation: tuple[FeedSpec, FeedSpec | None, Existing | None, dict[str, Any]],
) -> None:
    declared, stored, existing, more = situation
    step = plan(declared, stored, existing, NOTHING, **more)
    assert not step.make_anew
    assert step.action is not Action.REMOVE
    if existing is None or step.settings is None:
        return
    was_table = "compact" in existing.settings["cleanup.policy"]
    policy = step.settings.get("cleanup.policy")
    assert policy is None or (policy == "compact") == was_table
    told = "min.compaction.lag.ms" if was_table else "retention.ms"
    assert kept_longer(existing.settings.get(told), step.settings.get(told))
    assert step.grow_to is None or (step.grow_to > existing.partitions and declared.key is None)


@given(situations(), st.builds(Allowed, st.booleans(), st.booleans(), st.booleans()))
@settings(max_examples=200)
def test_a_step_that_is_carried_out_leaves_nothing_to_do(
    situation: tuple[FeedSpec, FeedSpec | None, Existing | None, dict[str, Any]], allowed: Allowed
) -> None:
    declared, stored, existing, more = situation
    step = plan(declared, stored, existing, allowed, **more)
    assume(step.action is not Action.REFUSE)
    if existing is None or step.make_anew:
        after = Existing(declared.partitions, dict(step.settings or {}))
    else:
        after = Existing(step.grow_to or existing.partitions, {**existing.settings, **(step.settings or {})})
    catalogue = stored if step.action is Action.KEEP else declared
    assert catalogue is not None
    assert replace(catalogue, version=1) == declared
    assert plan(declared, catalogue, after, NOTHING) == Step(Action.KEEP, "views")


@given(situations(), st.builds(Allowed, st.booleans(), st.booleans(), st.booleans()))
def test_a_refusal_carries_nothing_to_do_and_says_why_and_how_on(
    situation: tuple[FeedSpec, FeedSpec | None, Existing | None, dict[str, Any]], allowed: Allowed
) -> None:
    declared, stored, existing, more = situation
    step = plan(declared, stored, existing, allowed, **more)
    if step.action is Action.REFUSE:
        assert step.reasons
        assert step.hint
        assert (step.settings, step.make_anew, step.grow_to) == (None, False, None)
    else:
        assert step.action in (Action.CREATE, Action.CHANGE, Action.KEEP)
        assert bool(step.reasons) == (step.action is not Action.KEEP)
