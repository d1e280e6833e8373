"""A job of the user's as a chaos run needs it: found and checked before anything is started."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ops.chaos.invariant import examine
from ops.chaos.schedule import Size
from ops.chaos.synthetic import refuse_ungenerated
from stack.deploy.checks import Facts, find_faults
from stack.deploy.deploy import declared_by, packed_code
from stack.deploy.inspect import Declared
from stack.deploy.pack import INVARIANT_FILE
from stack.deploy.settings import JobFile, read_job_file, stores_of
from stack.errors import BadCatalogue, BadConfig, NotFound
from stack.feeds.declare import Declaration, read_declarations
from stack.model.feed import FeedSpec, Kind
from stack.model.job import MAIN_STAGE, Guarantee
from stack.model.tables import refuse_faults
from stack.settings import Settings
from stack.tasks.load import JOB_FILE

JOBS = "jobs"
_HINT = "Nothing was started. Correct them and try again; docs/jobs.md tells more."


@dataclass(frozen=True)
class Member:
    """One job that runs: its folder, what its code declares and its settings say, what it writes."""

    folder: Path
    declared: Declared
    file: JobFile
    outputs: tuple[str, ...]
    tasks: int

    @property
    def name(self) -> str:
        return self.declared.name

    @property
    def inputs(self) -> dict[str, bool]:
        """The feeds that it reads, and whether each of its tasks reads all of their partitions."""
        return {one.feed: one.broadcast for one in self.declared.inputs}

    @property
    def size(self) -> Size:
        return Size(self.file.settings.containers, self.tasks)


@dataclass(frozen=True)
class Candidate:
    """The job to be put to the test. `jobs` are those that write what it reads, and it itself as the last."""

    jobs: tuple[Member, ...]
    feeds: Mapping[str, Declaration]
    schemas: Path
    check: Path | None = None

    @property
    def job(self) -> Member:
        return self.jobs[-1]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.jobs)

    @property
    def sources(self) -> tuple[Declaration, ...]:
        """The source feeds that its jobs read: they get the load."""
        read = dict.fromkeys(feed for one in self.jobs for feed in one.inputs)
        return tuple(self.feeds[name] for name in read if self.feeds[name].spec.kind is Kind.SOURCE)


def find_candidate(settings: Settings, word: str, check: Path | None = None) -> Candidate:
    """The job that a word names, a folder or a name, with everything that a run of it needs.

    BadInput tells what speaks against a run.
    """
    if check is not None and not check.is_file():
        raise NotFound(
            f"there is no file {check}", hint="Name the Python file that holds `check(outputs, inputs)`."
        )
    declarations = {one.spec.name: one for one in read_declarations(settings.schemas)}
    search = _Search(settings, declarations)
    jobs = search.with_writers(search.named(word))
    own = jobs[-1].folder / INVARIANT_FILE
    check = check or (own if own.is_file() else None)
    candidate = Candidate(jobs, declarations, settings.schemas, check)
    for source in candidate.sources:
        refuse_ungenerated(source)
    if candidate.check is not None:
        examine(candidate.check, candidate.job.folder)
    return candidate


def refuse_repeats(candidate: Candidate) -> None:
    """Outputs that may come twice cannot be compared with those of another run."""
    for one in candidate.jobs:
        if one.file.settings.guarantee is not Guarantee.EXACTLY_ONCE:
            raise BadConfig(
                f"job {one.name!r} is {one.file.settings.guarantee}: after a failure it may repeat outputs, "
                "and differ from a calm run in that",
                hint="Leave --against-calm out and write an invariant that allows repeats.",
            )


class _Search:
    """Finds jobs in their folders; a folder is looked at once."""

    def __init__(self, settings: Settings, feeds: Mapping[str, Declaration]) -> None:
        self._settings = settings
        self._specs: dict[str, FeedSpec] = {name: one.spec for name, one in feeds.items()}
        self._seen: dict[Path, tuple[JobFile, Declared]] = {}

    def named(self, word: str) -> Member:
        """The job in the folder of that path, or of that name below jobs/."""
        for folder in (Path(word), self._jobs / word):
            if folder.is_dir():
                return self._member(folder.resolve())
        found = self._by_name(word, [self._jobs])
        if found is None:
            names = [one.name for one in self._folders(self._jobs)]
            near = difflib.get_close_matches(Path(word).name, names, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names) or 'none'}."
            raise NotFound(
                f"there is no folder {word}, and no job {word!r} in {self._jobs}",
                hint=f"Name the folder of a job, or a job below {JOBS}/. {hint}",
            )
        return found

    def with_writers(self, member: Member) -> tuple[Member, ...]:
        """A job behind those that write the derived feeds which it reads."""
        return tuple(self._ordered(member, ()))

    def _ordered(self, member: Member, above: tuple[str, ...]) -> Iterator[Member]:
        given: set[str] = set()
        for feed in member.inputs:
            spec = self._specs[feed]
            if spec.kind is Kind.SOURCE:
                continue
            writer = self._writer(member, spec)
            if writer.name in (*above, member.name):
                circle = " -> ".join((*above, member.name, writer.name))
                raise BadCatalogue(
                    f"jobs read each other's feeds in a circle: {circle}",
                    hint="Correct by and inputs in schemas/catalog.toml, or what the jobs read.",
                )
            for one in self._ordered(writer, (*above, member.name)):
                if one.name not in given:
                    given.add(one.name)
                    yield one
        yield member

    def _writer(self, reader: Member, feed: FeedSpec) -> Member:
        if feed.by is None:
            raise BadCatalogue(
                f"job {reader.name!r} reads {feed.name!r}, a derived feed, and the catalogue does not say "
                "who writes it",
                hint=f"Add by to [feeds.{feed.name}] in schemas/catalog.toml.",
            )
        places = list(dict.fromkeys([reader.folder.parent, self._jobs]))
        found = self._by_name(feed.by, places)
        if found is None:
            looked = " and ".join(map(str, places))
            raise NotFound(
                f"job {reader.name!r} reads {feed.name!r}, which job {feed.by!r} writes; that is not there "
                f"(looked in {looked})",
                hint=f"Put its folder below {JOBS}/: a run needs every job on the way from the sources.",
            )
        return found

    def _by_name(self, name: str, places: list[Path]) -> Member | None:
        """The job of that name; its folder mostly has it, too, and is looked at first."""
        folders = [one for place in places for one in self._folders(place)]
        for folder in sorted(folders, key=lambda one: one.name != name):
            try:
                if self._declared(folder)[1].name == name:
                    return self._member(folder)
            except BadConfig:
                # What is wrong with other jobs is no matter here.
                if folder.name == name:
                    raise
        return None

    @property
    def _jobs(self) -> Path:
        return self._settings.root / JOBS

    def _folders(self, place: Path) -> list[Path]:
        return sorted(file.parent.resolve() for file in place.glob(f"*/{JOB_FILE}"))

    def _declared(self, folder: Path) -> tuple[JobFile, Declared]:
        if folder not in self._seen:
            file = read_job_file(folder)
            self._seen[folder] = (file, declared_by(packed_code(folder, self._settings.data)))
        return self._seen[folder]

    def _member(self, folder: Path) -> Member:
        """The job in a folder; BadConfig with everything that would keep it from being deployed."""
        file, declared = self._declared(folder)
        stores, faults = stores_of(file, declared.store_names)
        facts = Facts(
            job=declared,
            settings=file.settings,
            stores=stores,
            feeds=self._specs,
            partitions={name: spec.partitions for name, spec in self._specs.items()},
            schemas=set(self._specs),
        )
        if len(declared.stages) > 1:
            faults.append("it has several stages; a chaos run examines jobs with one")
        refuse_faults(f"job {declared.name!r}", [*faults, *find_faults(facts)], _HINT)
        return Member(folder, declared, file, facts.outputs, facts.task_counts.get(MAIN_STAGE, 0))
