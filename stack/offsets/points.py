"""From what a person typed to commits of a job: the checkpoint of each task at a startpoint."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stack.errors import BadInput, NotFound
from stack.model.checkpoint import Checkpoint, OutputPoint
from stack.model.job import JobSpec
from stack.model.plan import TaskId, job_tasks
from stack.model.startpoint import (
    AtAnnotation,
    AtCheckpoint,
    AtOffset,
    AtOffsets,
    AtTime,
    AtVersion,
    JobStartpoint,
    Latest,
    Oldest,
    format_time,
)
from stack.offsets.index import CheckpointIndex, Row

_NEAREST = 3


@dataclass(frozen=True, slots=True)
class Point:
    """A point in the life of a job: the last commit of each task then, None before its first.

    If it is `aligned`, all tasks stood still there, and `outputs` tell where outputs ended.
    """

    words: str
    checkpoints: Mapping[TaskId, Checkpoint | None]
    aligned: bool = False
    outputs: Mapping[str, OutputPoint] = field(default_factory=dict)

    @property
    def time_ms(self) -> int | None:
        """When the last of these commits was made."""
        times = [one.time_ms for one in self.checkpoints.values() if one is not None]
        return max(times, default=None)


def find_point(index: CheckpointIndex, spec: JobSpec, startpoint: JobStartpoint) -> Point:
    """The point that a startpoint means; NotFound with the nearest there are.

    What stages have on the way between them belongs to no commit: a job of several stages has points only
    where all of them stood still, and the last one before what is meant is taken.
    """
    point = _found(index, spec, startpoint)
    if len(spec.stages) == 1 or point.aligned or isinstance(startpoint, Oldest):
        return point
    moment_ms = startpoint.timestamp_ms if isinstance(startpoint, AtTime) else point.time_ms
    names = [] if moment_ms is None else index.aligned(spec.name, moment_ms)
    if not names:
        known = ", ".join(f"@{name}" for name in index.aligned(spec.name, limit=_NEAREST)) or "none so far"
        raise NotFound(
            f"job {spec.name!r} has several stages, and none of its points up to {point.words} is one at "
            "which all of them stood still",
            hint=f"The newest of those: {known}. `stack offsets annotate {spec.name} NAME` makes one, "
            "and its runner every few minutes; --to oldest is before everything.",
        )
    found = _named(index, spec.name, job_tasks(spec), names[0])
    return replace(found, words=f"@{names[0]}, where all stages stood still last before {point.words}")


def _found(index: CheckpointIndex, spec: JobSpec, startpoint: JobStartpoint) -> Point:
    job, tasks, feed = spec.name, job_tasks(spec), _divided_input(spec)
    match startpoint:
        case Oldest():
            return Point("before the first commit", dict.fromkeys(tasks))
        case Latest():
            return _whole(index, "the last commit", tasks, lambda task: index.last(job, task))
        case AtTime(timestamp_ms=moment):
            return _at_time(index, job, tasks, moment)
        case AtAnnotation(name=name):
            return _named(index, job, tasks, name)
        case AtVersion(prefix=prefix):
            return _at_version(index, job, tasks, prefix)
        case AtCheckpoint(task=task, number=number):
            return _at_number(index, job, tasks, (task, number))
        case AtOffset(offset=offset):
            return _at_offsets(index, job, tasks, dict.fromkeys(range(len(tasks)), offset), feed)
        case AtOffsets(offsets=offsets):
            return _at_offsets(index, job, tasks, offsets, feed)


def _divided_input(spec: JobSpec) -> str | None:
    """What offsets are of: the only input that is divided among the tasks, None if there are several."""
    divided = [one.feed for one in spec.inputs if not one.broadcast]
    return divided[0] if len(divided) == 1 else None


def _whole(
    index: CheckpointIndex, words: str, tasks: Sequence[TaskId], row_of: Callable[[TaskId], Row | None]
) -> Point:
    found: dict[TaskId, Checkpoint | None] = {}
    for task in tasks:
        row = row_of(task)
        found[task] = None if row is None else index.checkpoint(row)
    return Point(words, found)


def _at_time(index: CheckpointIndex, job: str, tasks: Sequence[TaskId], moment_ms: int) -> Point:
    point = _whole(index, format_time(moment_ms), tasks, lambda task: index.at_time(job, task, moment_ms))
    if point.time_ms is None:
        first = min((row.time_ms for row in _ends(index.first, job, tasks)), default=None)
        known = "" if first is None else f"its first commit that is still known is of {format_time(first)}"
        raise NotFound(
            f"job {job!r} had no commit at {format_time(moment_ms)}",
            hint=f"{known or 'it has none at all'}; --to oldest is before everything.",
        )
    return point


def _ends(look: Callable[[str, TaskId], Row | None], job: str, tasks: Sequence[TaskId]) -> list[Row]:
    return [row for task in tasks if (row := look(job, task)) is not None]


def _named(index: CheckpointIndex, job: str, tasks: Sequence[TaskId], name: str) -> Point:
    found = index.annotated(job, name)
    if found is None:
        names = index.names(job)
        near = difflib.get_close_matches(name, names, n=_NEAREST, cutoff=0.4)
        if near:
            hint = f"Did you mean {' or '.join('@' + one for one in near)}?"
        elif names:
            hint = f"There are: {', '.join('@' + one for one in list(names)[-10:])}."
        else:
            hint = f"No point of it has a name yet: `stack offsets annotate {job} NAME` gives one."
        raise NotFound(f"no point of job {job!r} is named {name!r}", hint=hint)
    points = {task: found.checkpoints.get(task) for task in tasks}
    return Point(f"@{name}", points, found.aligned, found.outputs)


def _at_version(index: CheckpointIndex, job: str, tasks: Sequence[TaskId], prefix: str) -> Point:
    versions = index.versions(job)
    matching = [one for one, *_ in versions if one.startswith(prefix)]
    if len(matching) != 1:
        told = ", ".join(f"{one} (from {format_time(first)})" for one, first, *_ in versions[-5:]) or "none"
        what = "no version" if not matching else f"{len(matching)} versions"
        raise NotFound(
            f"{what} of job {job!r} begins with {prefix!r}", hint=f"Versions whose commits are known: {told}."
        )
    first = index.first_of_version(job, matching[0])
    if first is None:
        raise NotFound(f"version {matching[0]} of job {job!r} has made no commit")
    words = f"where version {matching[0]} took over"
    # Whatever another version had committed before: the tasks of a version begin within moments.
    return _whole(index, words, tasks, lambda task: index.before_version(job, task, first))


def _at_number(index: CheckpointIndex, job: str, tasks: Sequence[TaskId], which: tuple[str, int]) -> Point:
    name, number = which
    task = next((one for one in tasks if str(one) == name), None)
    if task is None:
        raise NotFound(f"job {job!r} has no task {name!r}", hint=f"It has {', '.join(map(str, tasks))}.")
    row = index.numbered(job, task, number)
    if row is None:
        first, last = index.first(job, task), index.last(job, task)
        known = f"{first.number} to {last.number}" if first is not None and last is not None else "none"
        raise NotFound(f"task {name} of job {job!r} has no commit {number}", hint=f"Known are {known}.")
    moment_ms, after = row.time_ms, index.numbered(job, task, number + 1)
    # Several commits may have been made within one millisecond: those before the next one of this task.
    end = (1 << 62) if after is None else after.at

    def row_of(one: TaskId) -> Row | None:
        return row if one == task else index.before(job, one, end, moment_ms)

    return _whole(index, f"commit {number} of {name}", tasks, row_of)


def _at_offsets(
    index: CheckpointIndex,
    job: str,
    tasks: Sequence[TaskId],
    offsets: Mapping[int, int],
    feed: str | None,
) -> Point:
    if feed is None:
        raise BadInput(
            f"job {job!r} has several inputs: an offset does not tell which is meant",
            hint="Give a time, a commit (main-0#17), a version or a named point.",
        )
    numbers = {task.partition for task in tasks}
    strange = sorted(set(offsets) - numbers)
    if strange:
        raise BadInput(f"feed {feed!r} has no partition {strange[0]}", hint=f"It has {len(numbers)}.")
    words = ",".join(f"p{number}={offset}" for number, offset in sorted(offsets.items()))

    def row_of(task: TaskId) -> Row | None:
        wanted = offsets.get(task.partition)
        last = index.last(job, task)
        return last if wanted is None else _last_not_after(index, job, task, (feed, wanted))

    return _whole(index, words, tasks, row_of)


def _last_not_after(index: CheckpointIndex, job: str, task: TaskId, wanted: tuple[str, int]) -> Row | None:
    """The last commit that had read no further; offsets grow with the numbers, but for rewinds."""
    first, last = index.first(job, task), index.last(job, task)
    if first is None or last is None:
        return None
    feed, offset = wanted
    low, high, found = first.number, last.number, None
    while low <= high:
        middle = (low + high) // 2
        row = index.numbered(job, task, middle)
        if row is None:
            low = middle + 1
            continue
        point = index.checkpoint(row).inputs.get(feed)
        if point is None or point.offsets.get(task.partition, 0) <= offset:
            found, low = row, middle + 1
        else:
            high = middle - 1
    return found
