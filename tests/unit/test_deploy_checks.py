"""What keeps a job from being deployed, each with what to do; and what the entry becomes if nothing does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stack.deploy.checks import Facts, find_faults
from stack.deploy.deploy import next_entry
from stack.deploy.inspect import Declared, DeclaredHandler
from stack.feeds.registry.compatibility import Break
from stack.model.feed import Events, FeedSpec, Kind
from stack.model.job import (
    CodePlace,
    Desired,
    InputSpec,
    JobEntry,
    JobSettings,
    JobSpec,
    KeyCodec,
    StoreSpec,
    ValueCodec,
)


def feed(name: str, by: str | None = None, inputs: tuple[str, ...] = ()) -> FeedSpec:
    kind = Kind.DERIVED if by else Kind.SOURCE
    return FeedSpec(name, kind, "x", "x", "x.avsc", 4, Events(1), by=by, inputs=inputs)


def declared(*inputs: InputSpec) -> Declared:
    return Declared("count", (DeclaredHandler("count", inputs, ("counts",), False),))


FEEDS = {
    one.name: one
    for one in (feed("views"), feed("clicks"), feed("rates"), feed("counts", "count", ("views",)))
}
FACTS = Facts(
    job=declared(InputSpec("views")),
    settings=JobSettings(),
    stores=(StoreSpec("counts"),),
    feeds=FEEDS,
    partitions={"views": 4, "clicks": 4, "rates": 1, "counts": 4},
    schemas=set(FEEDS),
)
SPEC = JobSpec(
    name="count",
    version="one",
    inputs=(InputSpec("views"),),
    outputs=("counts",),
    stores=(StoreSpec("counts"),),
    settings=JobSettings(),
    partitions=4,
    code=CodePlace("a" * 64, 0, 1, 10),
)


def test_a_sound_job_has_no_faults() -> None:
    assert find_faults(FACTS) == []
    assert FACTS.outputs == ("counts",)
    assert FACTS.task_counts == {"main": 4}
    assert find_faults(replace(FACTS, running=SPEC, changelogs={"counts": 4})) == []


@pytest.mark.parametrize(
    ("change", "says", "to_do"),
    [
        ({"job": declared(InputSpec("vews"))}, "input 'vews': the catalogue has no such feed", "mean views?"),
        (
            {"job": declared(InputSpec("views"), InputSpec("zzz"))},
            "input 'zzz': the catalogue has no such feed",
            "stack feeds apply",
        ),
        ({"partitions": {"counts": 4}}, "feed 'views': its topic was deleted", "stack feeds apply"),
        ({"schemas": {"views"}}, "feed 'counts': it has no schema", "stack feeds apply"),
        (
            {"settings": JobSettings(containers=5)},
            "containers = 5, but the inputs have 4 partitions",
            "write 4 at most",
        ),
        (
            {"others": {"other": replace(SPEC, name="other")}},
            "feed 'counts' is written by job 'other', which is deployed",
            "stack jobs remove other",
        ),
        (
            {"running": replace(SPEC, partitions=2)},
            "views: now 4 partitions, but the job's state was made for 2",
            "stack jobs remove count --state",
        ),
        ({"changelogs": {"counts": 2}}, "store 'counts': its changelog has 2 partitions", "another name"),
        (
            {"running": replace(SPEC, stores=(StoreSpec("counts", key=KeyCodec.INT),))},
            "store 'counts': its keys were int, now str",
            "rename the store",
        ),
        (
            {"running": replace(SPEC, stores=(StoreSpec("counts", value=ValueCodec.INT),))},
            "store 'counts': its values were int, now json",
            "rename the store",
        ),
    ],
)
def test_a_fault_says_what_and_what_to_do(change: dict[str, Any], says: str, to_do: str) -> None:
    faults = find_faults(replace(FACTS, **change))
    (fault,) = [one for one in faults if says in one]
    assert to_do in fault


def test_inputs_of_different_counts_are_named_with_them() -> None:
    facts = replace(FACTS, job=declared(InputSpec("views"), InputSpec("clicks"), InputSpec("rates")))
    assert any("but views has 4, clicks has 4, rates has 1" in fault for fault in find_faults(facts))
    assert facts.task_counts == {}


def test_a_broadcast_input_may_have_any_count() -> None:
    inputs = (InputSpec("views"), InputSpec("rates", broadcast=True))
    feeds = {**FEEDS, "counts": feed("counts", "count", ("views", "rates"))}
    assert find_faults(replace(FACTS, job=declared(*inputs), feeds=feeds)) == []
    only = find_faults(replace(FACTS, job=declared(InputSpec("views", broadcast=True))))
    assert ["all inputs are broadcast" in fault for fault in only] == [True]


def test_a_job_that_reads_what_it_writes_is_refused() -> None:
    faults = find_faults(replace(FACTS, job=declared(InputSpec("views"), InputSpec("counts"))))
    assert any("'counts' is an input and an output of the job" in fault for fault in faults)


def test_the_catalogue_must_tell_what_a_feed_is_made_of() -> None:
    faults = find_faults(replace(FACTS, job=declared(InputSpec("clicks"))))
    assert any(
        "'counts' is declared as made of 'views', which the code does not read" in one for one in faults
    )
    assert any(
        "input 'clicks': no feed that the job writes is declared as made of it" in one for one in faults
    )
    silent = {**FEEDS, "counts": feed("counts", "count")}
    assert find_faults(replace(FACTS, job=declared(InputSpec("clicks")), feeds=silent)) == []


def schema(*fields: str) -> str:
    return f'{{"type":"record","name":"C","fields":[{",".join(fields)}]}}'


def test_a_schema_must_read_what_the_running_version_wrote() -> None:
    old = StoreSpec("counts", value=ValueCodec.AVRO, schema=schema('{"name":"n","type":"long"}'))
    new = replace(old, schema=schema('{"name":"n","type":"long"}', '{"name":"m","type":"long"}'))
    facts = replace(FACTS, stores=(new,), running=replace(SPEC, stores=(old,)))
    (fault,) = find_faults(facts)
    assert "store 'counts': C.m: " in fault
    assert "rename the store" in fault
    added = schema('{"name":"n","type":"long"}', '{"name":"m","type":"long","default":0}')
    assert find_faults(replace(facts, stores=(replace(new, schema=added),))) == []


def test_a_schema_must_read_what_any_earlier_version_wrote() -> None:
    store = StoreSpec("counts", value=ValueCodec.AVRO, schema=schema('{"name":"n","type":"long"}'))
    breaks = {"counts": (Break("C.n", "rule", "cannot be read"),)}
    (fault,) = find_faults(replace(FACTS, stores=(store,), breaks=breaks))
    assert "C.n: cannot be read" in fault


def test_all_faults_come_at_once() -> None:
    facts = replace(
        FACTS,
        job=declared(InputSpec("vews"), InputSpec("clicks")),
        settings=JobSettings(containers=9),
        others={"other": SPEC},
    )
    assert len(find_faults(facts)) == 5


# What the entry becomes


def test_a_first_version_has_nothing_to_go_back_to() -> None:
    assert next_entry(None, SPEC) == JobEntry(SPEC, try_number=1)


def test_a_new_version_goes_back_to_the_last_that_committed() -> None:
    two, three = replace(SPEC, version="two"), replace(SPEC, version="three")
    confirmed = JobEntry(SPEC, confirmed=True, desired=Desired.PAUSED, try_number=3, rolled_back="x")
    second = next_entry(confirmed, two)
    assert second == JobEntry(two, previous=SPEC, try_number=4)
    third = next_entry(second, three)
    assert (third.previous, third.confirmed) == (SPEC, False)


def test_new_settings_can_be_taken_back_as_a_new_version_can() -> None:
    slower = replace(SPEC, settings=JobSettings(commit_max_ms=5_000))
    entry = next_entry(JobEntry(SPEC, confirmed=True), slower)
    assert (entry.previous, entry.confirmed) == (SPEC, False)


def test_the_same_again_is_only_tried_again() -> None:
    again = replace(SPEC, deployed_at_ms=99, code=CodePlace("b" * 64, 5, 6, 10))
    entry = next_entry(JobEntry(SPEC, confirmed=True, desired=Desired.DRAINED, try_number=1), again)
    assert entry == JobEntry(replace(SPEC, code=again.code), confirmed=True, try_number=2)
