"""What keeps a job from being deployed: pure decisions over what the code says and what exists."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from stack.deploy.inspect import Declared
from stack.feeds.avro.schema import parse_avro
from stack.feeds.registry.compatibility import Break, find_breaks
from stack.model.feed import FeedSpec
from stack.model.job import JobSettings, JobSpec, StoreSpec, ValueCodec

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

    @property
    def own_inputs(self) -> tuple[str, ...]:
        """The inputs of which a task reads its own partition only."""
        return tuple(one.feed for one in self.job.inputs if not one.broadcast)

    @property
    def task_count(self) -> int | None:
        """The partitions of the inputs, if they agree."""
        counts = {self.partitions[name] for name in self.own_inputs if name in self.partitions}
        return counts.pop() if len(counts) == 1 else None


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
    if not facts.own_inputs:
        yield (
            "all inputs are broadcast: at least one must not be, for its partitions are the job's tasks; "
            "take .broadcast() off one of them"
        )
    counts = {name: facts.partitions[name] for name in facts.own_inputs if name in facts.partitions}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} has {count}" for name, count in counts.items())
        yield (
            f"inputs must have the same number of partitions, but {told}; "
            "declare them alike, or read a small one as .broadcast()"
        )
    tasks = facts.task_count
    if tasks is not None and facts.settings.containers > tasks:
        yield (
            f"containers = {facts.settings.containers}, but the inputs have {tasks} partitions and the job "
            f"so many tasks; write {tasks} at most"
        )


def _output_faults(facts: Facts) -> Iterator[str]:
    """A derived feed has one writer, and nobody reads what he writes himself."""
    inputs = {one.feed for one in facts.job.inputs}
    for name in facts.outputs:
        if name in inputs:
            yield f"feed {name!r} is an input and an output of the job; write to another feed"
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
    tasks, name = facts.task_count, facts.job.name
    if tasks is None:
        return
    away = f"deploy under another name, or begin without state: `stack jobs remove {name} --state`"
    if facts.running is not None and facts.running.partitions != tasks:
        told = ", ".join(facts.own_inputs)
        yield (
            f"{told}: now {tasks} partitions, but the job's state was made for {facts.running.partitions}: "
            f"keys have moved to others; {away}"
        )
        return
    for store in facts.stores:
        count = facts.changelogs.get(store.name, tasks)
        if count != tasks:
            yield f"store {store.name!r}: its changelog has {count} partitions, the job {tasks} tasks; {away}"


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
