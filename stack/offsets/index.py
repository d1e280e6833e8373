"""A local index of the checkpoints feed: finds a commit among a million in milliseconds.

It is a copy. A file that is broken, of another format or of a feed that was made anew is built again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stack.connection import Stack
from stack.errors import NotFound, Unavailable
from stack.kafka.reader import LogReader
from stack.machine import monotonic, time_ms
from stack.model.annotation import Annotated, annotation_name
from stack.model.checkpoint import Checkpoint, is_checkpoint_key
from stack.model.plan import TaskId
from stack.offsets.checkpoints import checkpoint_partition, checkpoints_since, checkpoints_topic
from stack.offsets.codec import AnnotatedDecoder, CheckpointDecoder, CheckpointHeads
from stack.offsets.local import LIMIT_S, READ_S, LocalIndex, Taken

_LAG = "min.compaction.lag.ms"
_TABLES = """
create table points (
  job text not null, task text not null, number integer not null, time_ms integer not null,
  event_ms integer, version text not null, slot integer not null, attempt integer not null,
  at integer not null, primary key (job, task, number)
) without rowid;
create index by_time on points (job, task, time_ms);
create index by_version on points (job, version, time_ms);
create table names (
  job text not null, name text not null, at integer not null, time_ms integer not null,
  aligned integer not null, primary key (job, name)
);
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One commit as the index knows it; `at` is its offset in the checkpoints feed."""

    job: str
    task: TaskId
    number: int
    time_ms: int
    event_time_ms: int | None
    version: str
    slot: int
    attempt: int
    at: int


_Name = tuple[str, str, int, Annotated | None]


class CheckpointIndex(LocalIndex):
    """Answers questions about the commits of jobs. `refresh` first; it reads what is new in the feed."""

    tables = _TABLES
    format = 2

    def __init__(
        self, stack: Stack, clock: Callable[[], float] = monotonic, *, in_memory: bool = False
    ) -> None:
        topic, folder = checkpoints_topic(stack.settings.name), stack.settings.data / "offsets"
        super().__init__(stack, topic, folder, clock=clock, in_memory=in_memory)
        self._heads = CheckpointHeads(stack.registry)
        self._decode = CheckpointDecoder(stack.registry)
        self._decode_annotated = AnnotatedDecoder(stack.registry)

    def _no_feed(self) -> NotFound:
        return NotFound(
            "no job has run on this stack yet: there are no checkpoints",
            hint="`stack jobs deploy PATH` deploys a job.",
        )

    # Keeping up

    def _add(self, records: Taken) -> None:
        points: list[tuple[object, ...]] = []
        names: list[_Name] = []
        for key, value, at in records:
            if key is None:
                continue
            if not is_checkpoint_key(key):
                job, name = annotation_name(key)
                point = None if value is None else self._decode_annotated(value)
                names.append((job, name, at, point))
            elif value is None:
                self._insert(points, names)
                points.clear()
                names.clear()
                self._forget(key, at)
            else:
                points.append((*self._heads(value), at))
        self._insert(points, names)

    def _insert(self, points: list[tuple[object, ...]], names: list[_Name]) -> None:
        self._store.executemany("insert or replace into points values (?, ?, ?, ?, ?, ?, ?, ?, ?)", points)
        for job, name, at, point in names:
            self._store.execute("delete from names where job = ? and name = ? and at <= ?", (job, name, at))
            if point is not None:
                row = (job, name, at, point.time_ms, int(point.aligned))
                self._store.execute("insert or ignore into names values (?, ?, ?, ?, ?)", row)

    def _forget(self, key: bytes, at: int) -> None:
        """A task that was removed: what stands before belongs to another life of it, names included.

        Another process may be further: what stands behind stays.
        """
        job, _, task = key.decode().partition("/")
        self._store.execute("delete from points where job = ? and task = ? and at < ?", (job, task, at))
        self._store.execute("delete from names where job = ? and at < ?", (job, at))

    def _drop_old(self) -> None:
        """What the feed does not keep any more, but for the last commit of each task."""
        lag_ms = int(self._stack.admin.settings([self._topic])[self._topic].get(_LAG) or 0)
        self._store.execute(
            "delete from points where time_ms < ? and number < (select max(number) from points as newer "
            "where newer.job = points.job and newer.task = points.task)",
            (time_ms() - 2 * lag_ms,),
        )

    # Questions

    def last(self, job: str, task: TaskId) -> Row | None:
        """The newest commit of a task."""
        return self._one("job = ? and task = ? order by number desc", job, str(task))

    def first(self, job: str, task: TaskId) -> Row | None:
        """The oldest commit of a task that is known."""
        return self._one("job = ? and task = ? order by number", job, str(task))

    def at_time(self, job: str, task: TaskId, moment_ms: int) -> Row | None:
        """The last commit of a task at a moment."""
        order = "order by time_ms desc, number desc"
        return self._one(f"job = ? and task = ? and time_ms <= ? {order}", job, str(task), moment_ms)

    def after_time(self, job: str, task: TaskId, moment_ms: int) -> Row | None:
        """The first commit of a task after a moment."""
        return self._one(
            "job = ? and task = ? and time_ms > ? order by time_ms, number", job, str(task), moment_ms
        )

    def numbered(self, job: str, task: TaskId, number: int) -> Row | None:
        """One commit by its number."""
        return self._one("job = ? and task = ? and number = ?", job, str(task), number)

    def next_of(self, job: str, task: TaskId, number: int) -> Row | None:
        """The first commit of a task with a higher number."""
        return self._one("job = ? and task = ? and number > ? order by number", job, str(task), number)

    def first_of_version(self, job: str, version: str) -> Row | None:
        """The first commit of a version, whichever task made it."""
        return self._one("job = ? and version = ? order by time_ms, number", job, version)

    def before(self, job: str, task: TaskId, at: int, moment_ms: int = 1 << 62) -> Row | None:
        """The last commit of a task that stands before an offset of the feed, and was made by a moment."""
        order = "order by number desc"
        return self._one(
            f"job = ? and task = ? and at < ? and time_ms <= ? {order}", job, str(task), at, moment_ms
        )

    def before_version(self, job: str, task: TaskId, first: Row) -> Row | None:
        """The last commit of a task before its first one of a version, of which `first` is the first of any
        task; if it made none of it, the last before that."""
        own = self._one("job = ? and task = ? and version = ? order by number", job, str(task), first.version)
        if own is None:
            return self.before(job, task, first.at)
        return self._one(
            "job = ? and task = ? and number < ? order by number desc", job, str(task), own.number
        )

    def versions(self, job: str) -> list[tuple[str, int, int, int]]:
        """Each version with its first and last time and its commits, in the order of their beginnings."""
        found = self._store.execute(
            "select version, min(time_ms), max(time_ms), count(*) from points where job = ? "
            "group by version order by min(time_ms)",
            (job,),
        )
        return [(version, first, last, count) for version, first, last, count in found]

    def newest(self, job: str, limit: int, before_ms: int | None = None) -> list[Row]:
        """The newest commits of all tasks of a job, the newest first."""
        bound = (1 << 62) if before_ms is None else before_ms
        where = "job = ? and task = ? and time_ms <= ? order by time_ms desc, number desc limit ?"
        # Task by task, along an index: to sort all commits of a job takes a tenth of a second.
        found = [row for task in self.tasks(job) for row in self._rows(where, job, str(task), bound, limit)]
        return sorted(found, key=lambda row: (-row.time_ms, str(row.task), -row.number))[:limit]

    def count(self, job: str) -> int:
        """How many commits of a job are known."""
        return int(self._store.execute("select count(*) from points where job = ?", (job,)).fetchone()[0])

    def tasks(self, job: str) -> list[TaskId]:
        """The tasks that have committed."""
        following = "select task from points where job = ? and task > ? order by task limit 1"
        found: list[TaskId] = []
        last = ""
        while (row := self._store.execute(following, (job, last)).fetchone()) is not None:
            last = row[0]
            found.append(TaskId.parse(last))
        return sorted(found)

    def names(self, job: str) -> dict[str, int]:
        """The names that were given to points of a job, with their offsets in the feed."""
        return dict(self._store.execute("select name, at from names where job = ? order by at", (job,)))

    def aligned(self, job: str, until_ms: int = 1 << 62, limit: int = 1) -> list[str]:
        """The newest points up to a moment at which all tasks stood still, the newest first."""
        found = self._store.execute(
            "select name from names where job = ? and aligned and time_ms <= ? order by time_ms desc limit ?",
            (job, until_ms, limit),
        )
        return [name for (name,) in found]

    # Whole records, from the feed

    def checkpoint(self, row: Row) -> Checkpoint:
        """The whole record of a commit; NotFound if compaction has removed it."""
        return self._decode(self._record(row.job, row.at))

    def checkpoints(self, rows: Sequence[Row]) -> list[Checkpoint]:
        """The same for several."""
        return [self.checkpoint(row) for row in rows]

    def following(self, job: str, at: int) -> Iterator[Checkpoint]:
        """The checkpoints of a job from an offset of the feed on, up to its end as of now."""
        return checkpoints_since(self._stack, self._decode, job, at, clock=self._clock)

    def offset_of(self, one: Checkpoint) -> int | None:
        """Where a checkpoint stands in the feed."""
        row = self.numbered(one.job, one.task, one.number)
        return None if row is None else row.at

    def annotated(self, job: str, name: str) -> Annotated | None:
        """The point that somebody named so."""
        at = self.names(job).get(name)
        return None if at is None else self._decode_annotated(self._record(job, at))

    def _record(self, job: str, at: int) -> bytes:
        partition = checkpoint_partition(job)
        deadline = self._clock() + LIMIT_S
        with LogReader(self._stack.access, self._topic) as reader:
            reader.assign({partition: at}, {partition: at + 1})
            while not reader.done:
                batch = reader.read(1, READ_S)
                if len(batch):
                    value = batch.values[0]
                    if batch.offsets[0] == at and value is not None:
                        return value
                    break
                if self._clock() > deadline:
                    raise Unavailable(f"{self._topic} cannot be read")
        raise NotFound(
            f"the commit at offset {at} of {self._topic} is no longer there",
            hint="It is older than the horizon of every job.",
        )

    def _one(self, where: str, *values: object) -> Row | None:
        found = self._rows(f"{where} limit 1", *values)
        return found[0] if found else None

    def _rows(self, where: str, *values: object) -> list[Row]:
        found = self._ask("select * from points where " + where, *values)  # noqa: S608
        return [Row(job, TaskId.parse(task), *rest) for job, task, *rest in found]
