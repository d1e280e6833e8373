"""Deploys a job: looks at its folder and at what exists, refuses or makes it so.

Everything before the entry in the jobs feed is harmless if it stays: topics, schemas and code that nobody
uses yet. The entry is written last and is what makes the job run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stack.connection import Stack
from stack.deploy.checks import Facts, find_faults
from stack.deploy.code import PIECE_BYTES, CodeFeed, code_feed, now_ms
from stack.deploy.inspect import Declared, inspect
from stack.deploy.jobs import JobsFeed, jobs_feed
from stack.deploy.pack import Packed, pack, read_files
from stack.deploy.requirements import install
from stack.deploy.settings import JobFile, input_faults, read_job_file, stores_of
from stack.deploy.topics import (
    changelog_plan,
    checkpoints_plan,
    dead_plans,
    ensure_topics,
    logs_plan,
    metrics_plan,
)
from stack.deploy.unpack import unpack
from stack.errors import LostOwnership
from stack.feeds.avro.schema import parse_avro
from stack.feeds.produce import dead_feed
from stack.feeds.registry.compatibility import Level
from stack.feeds.registry.decisions import find_subject_breaks
from stack.model.feed import value_subject
from stack.model.job import (
    MAIN_STAGE,
    CodePlace,
    Desired,
    JobEntry,
    JobSpec,
    StoreSpec,
    changelog_name,
    dead_name,
    redrive_name,
)
from stack.model.plan import job_tasks
from stack.model.tables import refuse_faults
from stack.offsets.checkpoints import checkpoints_topic
from stack.offsets.codec import registered_id
from stack.offsets.schemas import ANNOTATED_SCHEMA, CHECKPOINT_SCHEMA

_HINT = "Nothing was changed. Correct them and deploy again; docs/jobs.md tells more."
_NOWHERE = CodePlace("", 0, 0, 0)
_SPARE_RECORDS = 64
Note = Callable[[str], None]


@dataclass(frozen=True)
class Deployed:
    """What a deploy came to: the entry that was written, and the one that stood there."""

    entry: JobEntry
    before: JobEntry | None

    @property
    def is_same(self) -> bool:
        """Whether version and settings are those that stood there already."""
        return self.before is not None and _is_same(self.before.spec, self.entry.spec)


def deploy(stack: Stack, folder: Path, note: Note = lambda _: None) -> Deployed:
    """Check the job in a folder and put it into the jobs feed; a runner does the rest.

    BadConfig tells everything that speaks against it, and nothing was changed then.
    """
    file = read_job_file(folder)
    packed = packed_code(folder, stack.settings.data, note)
    note("importing the code in a process of its own")
    declared = declared_by(packed)
    jobs = jobs_feed(stack)
    spec = _checked(stack, jobs, declared, file, packed)
    note("making changelogs and storing the code")
    prepare(stack, spec, jobs.look()[0].values())
    deployed = _write(jobs, code_feed(stack), spec, packed)
    # Only now every entry is there to be seen: of two deploys at a time, the later sees both.
    entries = jobs.look()[0]
    ensure_topics(stack.admin, [checkpoints_plan(stack.settings.name, _horizons(entries.values()))])
    _sweep(jobs, code_feed(stack))
    return deployed


def packed_code(folder: Path, data: Path, note: Note = lambda _: None) -> Packed:
    """The code of a job with the packages that it needs; those are installed below the data folder."""
    files = read_files(folder)
    return pack(files, install(files, data / "packages", note))


def declared_by(packed: Packed) -> Declared:
    """What the code declares. It is looked at as it will be shipped, not in the folder that it came from."""
    with tempfile.TemporaryDirectory(prefix="feedstack-job-") as folder:
        unpack(packed.data, Path(folder))
        return inspect(Path(folder))


def _checked(stack: Stack, jobs: JobsFeed, declared: Declared, file: JobFile, packed: Packed) -> JobSpec:
    """The spec, all but the place of its code; BadConfig with everything that speaks against it."""
    others = {name: one.spec for name, one in jobs.look()[0].items() if name != declared.name}
    running = jobs.confirmed(declared.name)
    return checked_spec(stack, declared, file, packed.version, others=others, running=running)


def checked_spec(
    stack: Stack,
    declared: Declared,
    file: JobFile,
    version: str,
    *,
    others: Mapping[str, JobSpec],
    running: JobSpec | None,
) -> JobSpec:
    """The same for a job beside others, of which `running` is the version that has run so far."""
    stores, faults = stores_of(file, declared.store_names)
    stores = tuple(replace(one, stage=declared.stage_of(one.name)) for one in stores)
    faults += [
        *input_faults(file, [one.feed for one in declared.inputs]),
        *_dead_faults(stack, declared, file),
    ]
    facts = gather_facts(stack, declared, file, stores, others=others, running=running)
    refuse_faults(f"job {declared.name!r}", [*faults, *find_faults(facts)], _HINT)
    counts = facts.task_counts
    return JobSpec(
        name=declared.name,
        version=version,
        inputs=declared.inputs,
        outputs=facts.outputs,
        stores=stores,
        settings=file.settings,
        partitions=counts.get(MAIN_STAGE, 0),
        code=_NOWHERE,
        deployed_at_ms=now_ms(),
        later_stages=tuple((stage, counts.get(stage, 0)) for stage in declared.stages[1:]),
    )


def _dead_faults(stack: Stack, declared: Declared, file: JobFile) -> list[str]:
    """Dead letters must not meet the bad rows of a feed, which may have the same topic by an odd prefix."""
    rows = {stack.topic_of(dead_feed(feed)): feed for feed in stack.catalogue.feeds()}
    feed = rows.get(dead_name(stack.settings.name, declared.name))
    if feed is None or not file.settings.keeps_dead_letters:
        return []
    return [
        f"on_error: dead letters of the job would stand among the bad rows of feed {feed!r}, since topics of "
        "feeds begin with the name of the stack; name the job otherwise"
    ]


def gather_facts(
    stack: Stack,
    declared: Declared,
    file: JobFile,
    stores: tuple[StoreSpec, ...],
    *,
    others: Mapping[str, JobSpec],
    running: JobSpec | None,
) -> Facts:
    """Look at everything that a deploy of this job depends on."""
    feeds = stack.catalogue.feeds()
    state = stack.registry.state()
    topics = {stack.topic_of(name, spec.version): name for name, spec in feeds.items()}
    changelogs = {changelog_name(stack.settings.name, declared.name, one.name): one.name for one in stores}
    found = stack.admin.describe([*topics, *changelogs])
    return Facts(
        job=declared,
        settings=file.settings,
        stores=stores,
        feeds=feeds,
        partitions={topics[name]: about.partitions for name, about in found.items() if name in topics},
        schemas={name for name in feeds if state.versions_of(value_subject(name))},
        others=others,
        running=running,
        changelogs={
            changelogs[name]: about.partitions for name, about in found.items() if name in changelogs
        },
        breaks={
            changelogs[topic]: find_subject_breaks(
                state, value_subject(topic), parse_avro(store.schema), Level.BACKWARD_TRANSITIVE
            )
            for topic, store in zip(changelogs, stores, strict=True)
            if store.schema is not None
        },
    )


def prepare(stack: Stack, spec: JobSpec, others: Iterable[JobEntry] = ()) -> None:
    """Make what the job needs to run; all of it may be made twice."""
    name = stack.settings.name
    horizons = [spec.settings.horizon_ms, *_horizons(others)]
    changelogs = [changelog_plan(name, spec, one) for one in spec.stores]
    ensure_topics(stack.admin, [*changelogs, logs_plan(name), metrics_plan(name), *dead_plans(name, spec)])
    _grow_way_back(stack, spec)
    ensure_topics(stack.admin, [checkpoints_plan(name, horizons)], only_longer=True)
    for schema in (CHECKPOINT_SCHEMA, ANNOTATED_SCHEMA):
        registered_id(stack.registry, checkpoints_topic(name), schema)
    for store in spec.stores:
        if store.schema is not None:
            subject = value_subject(changelog_name(name, spec.name, store.name))
            stack.registry.set_level(subject, Level.BACKWARD_TRANSITIVE)
            stack.registry.register(subject, parse_avro(store.schema))


def _grow_way_back(stack: Stack, spec: JobSpec) -> None:
    """Every task reads its own partition of what is redriven, whatever number of them there was before."""
    topic = redrive_name(stack.settings.name, spec.name)
    found = stack.admin.describe([topic]).get(topic)
    tasks = len(job_tasks(spec))
    if found is not None and found.partitions < tasks:
        stack.admin.grow(topic, tasks)


def _write(jobs: JobsFeed, codes: CodeFeed, spec: JobSpec, packed: Packed) -> Deployed:
    """Store the code, unless an entry names the same, and write the entry."""
    entries = jobs.look()[0]
    jobs.note_stores(spec)
    known = _place_of(packed.sha256, entries.values())
    entry = _put(jobs, replace(spec, code=known or codes.store(packed.data)))
    if known is not None and not codes.still_holds(known):
        # Somebody dropped the last entry that named it, and swept it, before ours was there.
        entry = _put(jobs, replace(spec, code=codes.store(packed.data)))
    return Deployed(entry, entries.get(spec.name))


def _put(jobs: JobsFeed, spec: JobSpec) -> JobEntry:
    entry = jobs.update(spec.name, lambda before: next_entry(before, spec))
    if entry is None:
        raise LostOwnership(f"job {spec.name!r} was removed by someone while it was deployed")
    return entry


def next_entry(before: JobEntry | None, spec: JobSpec) -> JobEntry:
    """The entry that makes a version run. What comes back if it fails is the last one that has committed."""
    if before is None:
        return JobEntry(spec, try_number=1)
    tries = before.try_number + 1
    if _is_same(before.spec, spec):
        same = replace(before.spec, code=spec.code)
        return replace(before, spec=same, desired=Desired.RUNNING, rolled_back=None, try_number=tries)
    previous = before.spec if before.confirmed else before.previous
    return JobEntry(spec, previous=previous, try_number=tries, rewind=before.rewind)


def _is_same(one: JobSpec, other: JobSpec) -> bool:
    return replace(one, code=other.code, deployed_at_ms=other.deployed_at_ms) == other


def _place_of(sha256: str, entries: Iterable[JobEntry]) -> CodePlace | None:
    return next((place for place in _places(entries) if place.sha256 == sha256), None)


def _places(entries: Iterable[JobEntry]) -> list[CodePlace]:
    specs = (spec for one in entries for spec in (one.spec, one.previous) if spec is not None)
    return [spec.code for spec in specs]


def _horizons(entries: Iterable[JobEntry]) -> list[int]:
    specs = (spec for one in entries for spec in (one.spec, one.previous) if spec is not None)
    return [spec.settings.horizon_ms for spec in specs]


def _sweep(jobs: JobsFeed, codes: CodeFeed) -> None:
    """Drop code that no job names. Reading all of it has a price: only where much of it must be old."""
    entries, unreadable = jobs.look()
    pieces = sum(-(-place.size_bytes // PIECE_BYTES) for place in _places(entries.values()))
    if not unreadable and codes.record_count() > 2 * pieces + _SPARE_RECORDS:
        codes.sweep(lambda: _places(jobs.look()[0].values()))
