"""A whole stack in memory: write records, run jobs, look at what came of it, let them crash.

The jobs are deployed by the checks of a real deploy and run by the container of a real one, on a Kafka and
stores in memory that keep the same promises. All of it happens in the thread of the test, in the same order
every time.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from stack.connection import Stack
from stack.deploy.aligning import stand_at_rest
from stack.deploy.dead import DeadFeed, filter_letters
from stack.deploy.deploy import next_entry
from stack.deploy.jobs import jobs_feed
from stack.deploy.redrive import Redrive, To
from stack.engine.rewind import OutputsChoice, StateChoice
from stack.errors import BadInput, NotFound
from stack.feeds.declare import Declaration
from stack.feeds.fixture import Line, read_fixture, renamed, values_as
from stack.feeds.plan import Allowed
from stack.feeds.writer import FeedWriter
from stack.kafka.memory.broker import MemoryKafka
from stack.kafka.writer import LogWriter, WriteRecord
from stack.machine import steered_by
from stack.model.dead import DeadLetter
from stack.model.feed import FeedSpec
from stack.model.record import Record
from stack.offsets.naming import name_point
from stack.settings import Endpoints, Settings
from stack.tasks.declare import Feed, Job
from stack.testing.clock import START_MS, Clock, MachineInHand
from stack.testing.feeds import Declared, catalogue_of, declared_here, only_fields
from stack.testing.jobs import Code, JobFailed, JobInHand, unknown_job
from stack.testing.points import KitHooks, known_point
from stack.testing.rewinds import PERSON, RewindInHand

_NAME = "test"
_NOWHERE = Path("/memory")
# Jobs that feed each other in a circle may never come to an end.
_MOST_ROUNDS = 1_000
_SELDOM = (200_000, 20, 50)
P = ParamSpec("P")
T = TypeVar("T")


def _in_hand(method: Callable[P, T]) -> Callable[P, T]:
    """Everything inside goes by the clock in hand; what the test does besides, by its own."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        kit: Any = args[0]
        # Batches of dicts look like leaks to the collector, and are none: it would take half of the time.
        often = gc.get_threshold()
        gc.set_threshold(*_SELDOM)
        try:
            with steered_by(kit._machine):
                return method(*args, **kwargs)
        finally:
            gc.set_threshold(*often)

    return call


class MemoryStack:
    """Feeds and jobs of one test.

    with MemoryStack("schemas/catalog.toml", jobs=["jobs/count-views"]) as stack:
        stack.write("page-views", {"user": "ada", "page": "/", "ms": 1700000000000, "load": 0.5})
        stack.run()
        assert stack.values("views-per-user") == [{"user": "ada", "views": 1}]
    """

    def __init__(
        self,
        catalogue: Path | str | None = None,
        jobs: Sequence[Job | Path | str] = (),
        *,
        feeds: Declared | None = None,
        start_ms: int = START_MS,
    ) -> None:
        self.clock = Clock(start_ms)
        self._machine = MachineInHand(self.clock)
        self.hooks = KitHooks(self.clock)
        self.kafka = MemoryKafka(self.hooks)
        self.jobs: dict[str, JobInHand] = {}
        self._writers: dict[str, FeedWriter] = {}
        # Feeds of which only the fields were given: the name of their record is of our making.
        self._unnamed = {name for name, one in (feeds or {}).items() if only_fields(one)}
        self._set_up(catalogue, feeds or {}, jobs)

    @_in_hand
    def _set_up(
        self, catalogue: Path | str | None, feeds: Declared, jobs: Sequence[Job | Path | str]
    ) -> None:
        settings = Settings(root=_NOWHERE, name=_NAME, data=_NOWHERE, schemas=_NOWHERE)
        self.connection = Stack(settings, Endpoints("memory", "memory", None), self.kafka.process("test"))
        declared: tuple[Declaration, ...] = () if catalogue is None else catalogue_of(catalogue)
        declared += declared_here(feeds, [one.spec.name for one in declared])
        steps = self.connection.applier.plan(declared, Allowed())
        self.connection.applier.apply(declared, steps, lambda _: None)
        for one in jobs:
            self.deploy(one)

    @_in_hand
    def deploy(self, job: Job | Path | str, settings: Mapping[str, Any] | None = None) -> None:
        """Deploy a job, from its folder or as it is; `settings` stand for its job.toml.

        One of the same name is stopped first, and the new one goes on with its state.
        """
        code = Code(job)
        made = JobInHand(self, code, settings)
        before = self.jobs.get(made.name)
        if before is not None:
            before.stop()
            made.attempt = before.attempt
        self.jobs[made.name] = made

    # Feeds

    @_in_hand
    def write(self, feed: Feed | str, *values: Any, key: Any = None, timestamp_ms: int | None = None) -> None:
        """Write records; BadRecord tells what the schema refuses, and then none of them is written."""
        writer = self._writer(feed)
        writer.write_encoded([writer.encode(value, key, timestamp_ms) for value in values])
        writer.flush()

    @_in_hand
    def delete(self, feed: Feed | str, key: Any) -> None:
        """Write a tombstone: the key goes from a table feed."""
        writer = self._writer(feed)
        writer.delete(key)
        writer.flush()

    @_in_hand
    def play(self, file: Path | str, feed: Feed | str | None = None) -> int:
        """Write the records of a fixture, to its own feed or to another one; returns how many.

        The clock goes to the time of the last one, if it is behind. Incompatible if the feed's schema cannot
        read what was recorded.
        """
        fixture, lines = read_fixture(Path(file))
        spec = self._known_feed(feed or fixture.feed)
        registered = self.connection.schema(spec.name)
        if spec.name in self._unnamed:
            fixture = renamed(fixture, registered.schema)
        values = values_as(fixture, lines, registered.schema, registered.version)
        latest_ms = max((line.timestamp_ms for line in lines), default=0)
        self.clock.advance(max(0, latest_ms - self.clock.now_ms) / 1000)
        writer, topic = self._writer(spec.name), self.connection.topic_of(spec.name, spec.version)
        records = [_encoded(writer, line, value) for line, value in zip(lines, values, strict=True)]
        with LogWriter(self.connection.access) as log:
            for line, record in zip(lines, records, strict=True):
                log.write_one(
                    topic,
                    record["value"],
                    record["key"],
                    timestamp_ms=line.timestamp_ms,
                    headers=line.headers,
                )
        return len(lines)

    def _writer(self, feed: Feed | str) -> FeedWriter:
        name = self._known_feed(feed).name
        if name not in self._writers:
            self._writers[name] = self.connection.writer(name)
        return self._writers[name]

    def _known_feed(self, feed: Feed | str) -> FeedSpec:
        """What a feed is declared as, or NotFound with the nearest names."""
        return self.connection.feed(feed.name if isinstance(feed, Feed) else feed)

    @_in_hand
    def records(self, feed: Feed | str) -> list[Record]:
        """All committed records of a feed, partition by partition in their order."""
        spec = self._known_feed(feed)
        logs = self.kafka.topic(self.connection.topic_of(spec.name, spec.version)).logs
        with self.connection.reader(spec.name) as reader:
            # Not to the high watermark: nobody ends the open transaction of a job that crashed.
            reader.assign(
                {log.partition: log.low for log in logs}, {log.partition: log.stable for log in logs}
            )
            found = list(reader.records())
        return sorted(found, key=lambda one: (one.partition, one.offset))

    def values(self, feed: Feed | str) -> list[Any]:
        """The values of these records."""
        return [one.value for one in self.records(feed)]

    def table(self, feed: Feed | str) -> dict[Any, Any]:
        """The last value of each key; deleted ones are not there."""
        found = {one.key: one.value for one in self.records(feed)}
        return {key: value for key, value in found.items() if value is not None}

    # Jobs

    @_in_hand
    def run(self) -> None:
        """Run all jobs until each has handled and committed everything, also what the others wrote.

        JobFailed if the code of one fails, as its container would end; the next run begins at the last
        commit.
        """
        for _ in range(_MOST_ROUNDS):
            before = self._written()
            for job in self.jobs.values():
                job.settle()
            if self._written() == before:
                return
        raise JobFailed(
            f"after {_MOST_ROUNDS:,} rounds the jobs still write for each other",
            hint="Do they feed each other in a circle?",
        )

    def _written(self) -> int:
        """How much stands in all feeds."""
        feeds = self.connection.catalogue.feeds()
        names = [self.connection.topic_of(name, spec.version) for name, spec in feeds.items()]
        return sum(log.high for name in names for log in self.kafka.topic(name).logs)

    @_in_hand
    def crash(self, job: str, at: str | None = None, *, lose_disk: bool = False) -> None:
        """Kill a job as by `kill -9`: at once, or when it comes to a point, until which it runs.

        The next run begins as after a real crash: it fences, restores, and does again what was not committed.
        With `lose_disk` it begins on another machine.
        """
        victim = self._job(job)
        if at is not None:
            self._crash_at(victim, at)
        victim.crash(lose_disk)

    def _crash_at(self, victim: JobInHand, at: str) -> None:
        if known_point(at).startswith("open."):
            victim.crash()
        if not victim.settle(crash_at=at):
            raise BadInput(
                f"job {victim.name!r} came to rest without passing {at!r}",
                hint="Write records that lead there; a store is only restored after a crash.",
            )

    def abort(self, job: str) -> None:
        """Let Kafka refuse the next commit of a job: it goes back to the last one and does it again."""
        self.hooks.abort_next(self._job(job).name)

    @_in_hand
    def stop(self, job: str) -> None:
        """Let a job commit, run its close hook and end; the next run begins it anew."""
        self._job(job).stop()

    @_in_hand
    def state(self, job: str, store: str) -> dict[Any, Any]:
        """What a store of a job holds, of all its tasks, as of the last commit."""
        parts = self._job(job).parts
        if store not in parts.stores:
            known = ", ".join(parts.stores) or "none"
            raise NotFound(f"job {job!r} has no store {store!r}", hint=f"It has: {known}.")
        part = parts.stores[store]
        found: dict[bytes, bytes | None] = {}
        for log in self.kafka.topic(part.topic.name).logs:
            messages, _ = log.read(log.low, log.high + 1, committed=True)
            found.update({one.key(): one.value() for one in messages})
        keys, values = part.codec.keys.decode, part.codec.values.decode
        return {keys(key): values(value) for key, value in sorted(found.items()) if value is not None}

    @_in_hand
    def lag(self, job: str) -> int:
        """How many records of its inputs a job has not committed yet."""
        return self._job(job).lag()

    @_in_hand
    def dead(self, job: str) -> list[DeadLetter]:
        """The dead letters of a job as of the last commit: the record as it came, its place, the cause."""
        letters = self._job(job).parts.dead
        if letters is None:
            raise NotFound(
                f"job {job!r} keeps no dead letters",
                hint='Write on_error = "dead-letter" in its job.toml, or in `settings` of deploy.',
            )
        return [found.letter for found in DeadFeed(self.connection, job).letters()]

    @_in_hand
    def redrive(self, job: str, where: str | None = None, to: str = "job") -> int:
        """Bring dead letters back, to the job or to their `source`, as `stack dead redrive` does.

        Those that fit `where`, each once; returns how many. The next run handles them.
        """
        if to not in tuple(To):
            raise BadInput(f"to={to!r} is no way back", hint=f"There are: {', '.join(To)}.")
        spec = self._job(job).spec
        jobs_feed(self.connection).update(job, lambda before: next_entry(before, spec))
        one = Redrive(self.connection, job, To(to), filter_letters(where))
        return one.run(one.plan())

    @_in_hand
    def annotate(self, job: str, name: str, **values: str) -> None:
        """Give the point where a job stands a name, as `stack offsets annotate` does."""
        spec = self._job(job).spec
        name_point(self.connection, spec, stand_at_rest(self.connection, spec), name, values, by=PERSON)

    @_in_hand
    def rewind(
        self,
        job: str,
        to: str | None = None,
        *,
        state: str = "then",
        outputs: str = "restore",
        cascade: bool = False,
        crash_at: str | int | None = None,
    ) -> bool:
        """Bring a job back to a point, as `stack rewind` does; the next run goes on from there.

        With `cascade` the jobs that read its outputs go back, too.

        With `crash_at` the command is killed when it comes to that point, or at that many beginnings and ends
        of requests that it makes of Kafka. Asked for again, with or without `to`, it goes on. Returns whether
        it came to its end.
        """
        one = RewindInHand(self, self._job(job))
        return one.run(to, StateChoice(state), OutputsChoice(outputs), crash_at, cascade=cascade)

    def counters(self, job: str) -> dict[str, int]:
        """What the code has counted with `ctx.count` since the job last began."""
        return self._job(job).counters

    def _job(self, name: str) -> JobInHand:
        try:
            return self.jobs[name]
        except KeyError:
            raise unknown_job(name, self.jobs) from None

    def close(self) -> None:
        """Forget everything."""
        self.jobs.clear()
        self._writers.clear()

    def __enter__(self) -> MemoryStack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _encoded(writer: FeedWriter, line: Line, value: Any) -> WriteRecord:
    """The bytes of a record of a fixture."""
    if value is not None:
        return writer.encode(value, line.key, line.timestamp_ms)
    return {"value": line.payload, "key": writer.encode_key(line.key)}
