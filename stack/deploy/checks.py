"""What keeps a job from being deployed: pure decisions over what the code says and what exists."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from stack.deploy.inspect import Declared
from stack.feeds.avro.schema import parse_avro
from stack.feeds.registry.compatibility import Break, find_breaks
from stack.model.feed import FeedSpec
from stack.model.job import MAIN_STAGE, JobSettings, JobSpec, StoreSpec, ValueCodec

_APPLY = "and run `stack feeds apply`"


@dataclass(frozen=True)
class Facts:
    """What a deploy looks at. `partitions` holds the feeds that have a topic, `schemas` those with a schema.

    `running` is the version whose state there is; `changelogs` are the partition counts of those that exist,
    by store; `breaks` is what the schemas of stores break of what is registered.
    """

    job: Declared
    settings: JobSettings
    stores: tuple[StoreSpec, ...]
    feeds: Mapping[str, FeedSpec]
    partitions: Mapping[str, int]
    schemas: Collection[str]
    others: Mapping[str, JobSpec] = field(default_factory=dict)
    running: JobSpec | None = None
    changelogs: Mapping[str, int] = field(default_factory=dict)
    breaks: Mapping[str, tuple[Break, ...]] = field(default_factory=dict)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The feeds that the catalogue says this job writes."""
        return tuple(name for name, spec in self.feeds.items() if spec.by == self.job.name)

    def own_inputs(self, stage: str) -> tuple[str, ...]:
        """The inputs of which a task of a stage reads its own partition only."""
        return tuple(one.feed for one in self.job.inputs if one.stage == stage and not one.broadcast)

    def own_counts(self, stage: str) -> dict[str, int]:
        """The partitions of those that have a topic."""
        own = self.own_inputs(stage)
        return {name: self.partitions[name] for name in own if name in self.partitions}

    @property
    def task_counts(self) -> dict[str, int]:
        """By stage the partitions of its inputs, where they agree."""
        counts = {stage: set(self.own_counts(stage).values()) for stage in self.job.stages}
        return {stage: found.pop() for stage, found in counts.items() if len(found) == 1}


def find_faults(facts: Facts) -> list[str]:
    """Everything that speaks against the deploy, each with what to do about it."""
    return [
        *_feed_faults(facts),
        *_partition_faults(facts),
        *_output_faults(facts),
        *_lineage_faults(facts),
        *_state_faults(facts),
        *_store_faults(facts),
    ]


def _feed_faults(facts: Facts) -> Iterator[str]:
    """Feeds must be in the catalogue, with a topic and a schema."""
    for name in dict.fromkeys([*(one.feed for one in facts.job.inputs), *facts.outputs]):
        if name not in facts.feeds:
            near = difflib.get_close_matches(name, facts.feeds, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"declare it in schemas/catalog.toml {_APPLY}"
            yield f"input {name!r}: the catalogue has no such feed; {hint}"
        elif name not in facts.partitions:
            yield f"feed {name!r}: its topic was deleted by someone; `stack feeds apply` makes it anew, empty"
        elif name not in facts.schemas:
            yield f"feed {name!r}: it has no schema in the registry; `stack feeds apply` registers it"


def _partition_faults(facts: Facts) -> Iterator[str]:
    """Task n reads partition n of every input: a key must lie in the same one of each."""
    for stage in facts.job.stages:
        where = f"stage {stage!r}: " if len(facts.job.stages) > 1 else ""
        if not any(one.stage == stage for one in facts.job.inputs):
            yield (
                f"no task is of the first stage: at least one must read what others write; leave "
                f"stage={facts.job.stages[-1]!r} out where it does"
            )
        elif not facts.own_inputs(stage):
            yield (
                f"{where}all inputs are broadcast: at least one must not be, for its partitions are the "
                "job's tasks; take .broadcast() off one of them"
            )
        counts = facts.own_counts(stage)
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{name} has {count}" for name, count in counts.items())
            yield (
                f"{where}inputs must have the same number of partitions, but {told}; "
                "declare them alike, or read a small one as .broadcast()"
            )
    tasks = sum(facts.task_counts.values())
    if len(facts.task_counts) == len(facts.job.stages) and facts.settings.containers > tasks:
        yield (
            f"containers = {facts.settings.containers}, but the inputs have {tasks} partitions and the job "
            f"so many tasks; write {tasks} at most"
        )


def _output_faults(facts: Facts) -> Iterator[str]:
    """A derived feed has one writer, and no task reads what it writes itself: a later stage may."""
    inputs = {one.feed: one for one in facts.job.inputs}
    for stage in facts.job.stages[1:]:
        if not any(one.stage == stage and one.feed in facts.outputs for one in facts.job.inputs):
            yield (
                f"stage {stage!r} reads no feed that the job writes, so nothing comes before it; leave "
                f"stage={stage!r} out, or read such a feed"
            )
    for name in facts.outputs:
        if name in inputs and inputs[name].stage == MAIN_STAGE:
            yield (
                f"feed {name!r} is an input and an output of the job; write to another feed, or read it in a "
                'later stage: @job.task(..., stage="…")'
            )
        if name in inputs and inputs[name].broadcast:
            yield f"feed {name!r} is written by the job itself: it cannot be read as .broadcast()"
        if name in inputs and inputs[name].bootstrap:
            yield f"feed {name!r} is written by the job itself: it cannot be read as .bootstrap()"
        for other, spec in facts.others.items():
            if name in spec.outputs:
                yield (
                    f"feed {name!r} is written by job {other!r}, which is deployed; a feed has one writer: "
                    f"`stack jobs remove {other}` first"
                )


def _lineage_faults(facts: Facts) -> Iterator[str]:
    """The catalogue says what a derived feed is made of: it must be what the code reads."""
    inputs = list(dict.fromkeys(one.feed for one in facts.job.inputs))
    named: set[str] = set()
    for name in facts.outputs:
        declared = facts.feeds[name].inputs
        named.update(declared)
        for one in declared:
            if one not in inputs:
                yield (
                    f"feed {name!r} is declared as made of {one!r}, which the code does not read; "
                    f"read it, or correct inputs of [feeds.{name}] in schemas/catalog.toml {_APPLY}"
                )
    if facts.outputs and all(facts.feeds[name].inputs for name in facts.outputs):
        for one in inputs:
            if one not in named and one in facts.feeds:
                yield (
                    f"input {one!r}: no feed that the job writes is declared as made of it; add it to "
                    f"inputs of [feeds.{facts.outputs[0]}] in schemas/catalog.toml {_APPLY}"
                )


def _state_faults(facts: Facts) -> Iterator[str]:
    """State belongs to partitions: with another number of them, keys would be looked for in the wrong one."""
    name, before = facts.job.name, facts.running.stages if facts.running is not None else {}
    away = f"deploy under another name, or begin without state: `stack jobs remove {name} --state`"
    for stage, tasks in facts.task_counts.items():
        if before.get(stage, tasks) != tasks:
            told = ", ".join(facts.own_inputs(stage))
            yield (
                f"{told}: now {tasks} partitions, but the job's state was made for {before[stage]}: "
                f"keys have moved to others; {away}"
            )
            continue
        for store in facts.stores:
            count = facts.changelogs.get(store.name, tasks)
            if store.stage == stage and count != tasks:
                yield (
                    f"store {store.name!r}: its changelog has {count} partitions, the job {tasks} tasks; "
                    f"{away}"
                )


def _store_faults(facts: Facts) -> Iterator[str]:
    """What the running version wrote into a store, the new one must be able to read."""
    before = {one.name: one for one in facts.running.stores} if facts.running else {}
    for store in facts.stores:
        old = before.get(store.name)
        if old is not None:
            for word, was, now in (("keys", old.key, store.key), ("values", old.value, store.value)):
                if was != now:
                    yield (
                        f"store {store.name!r}: its {word} were {was}, now {now}: what it holds could not "
                        "be read; rename the store, which then begins empty, or keep them as they were"
                    )
            if old.stage != store.stage:
                yield (
                    f"store {store.name!r}: it belonged to stage {old.stage!r}, now to {store.stage!r}, "
                    "whose tasks have other keys; rename the store, which then begins empty"
                )
        breaks = _schema_breaks(store, old, facts.breaks.get(store.name, ()))
        # The same field may break what several earlier versions wrote: once is enough.
        for one in {(one.path, one.rule): one for one in breaks}.values():
            yield (
                f"store {store.name!r}: {one.path}: {one.message}; make a schema that reads old values "
                "(new fields have a default), or rename the store, which then begins empty"
            )


def _schema_breaks(
    store: StoreSpec, old: StoreSpec | None, registered: tuple[Break, ...]
) -> tuple[Break, ...]:
    if store.value is not ValueCodec.AVRO or store.schema is None:
        return ()
    if registered or old is None or old.schema is None or old.schema == store.schema:
        return registered
    new, running = parse_avro(store.schema), parse_avro(old.schema)
    return find_breaks(new, running, "the new schema", "the running version")
