"""Finds where a job goes back to that reads what another one has undone: the last commits that have not."""

from __future__ import annotations

from stack.engine.cascade import Cuts, is_before, last_before
from stack.errors import NotFound
from stack.model.checkpoint import Checkpoint
from stack.model.job import JobSpec
from stack.model.plan import TaskId, job_tasks
from stack.model.startpoint import AtAnnotation
from stack.offsets.index import CheckpointIndex
from stack.offsets.points import Point, find_point

# So many points of a job of several stages are looked at.
_MOST_ALIGNED = 200


def matching_point(index: CheckpointIndex, spec: JobSpec, cuts: Cuts, leader: str) -> Point:
    """The last point at which a job had read nothing that stands behind the cuts of its inputs."""
    if len(spec.stages) > 1:
        return _aligned(index, spec, cuts)
    words = f"the last commits that had read nothing of what {leader} undoes"
    return Point(words, {task: _of_task(index, spec.name, task, cuts) for task in job_tasks(spec)})


def _aligned(index: CheckpointIndex, spec: JobSpec, cuts: Cuts) -> Point:
    for name in index.aligned(spec.name, limit=_MOST_ALIGNED):
        point = find_point(index, spec, AtAnnotation(name))
        if all(one is None or is_before(one, cuts) for one in point.checkpoints.values()):
            return point
    raise NotFound(
        f"job {spec.name!r} has several stages, and no point is known at which all of them stood still "
        "before it had read what is undone",
        hint=f"Leave --cascade out: {spec.name} then sees corrections as updates. Or choose a later point.",
    )


def _of_task(index: CheckpointIndex, job: str, task: TaskId, cuts: Cuts) -> Checkpoint | None:
    first, last = index.first(job, task), index.last(job, task)
    if first is None or last is None:
        return None

    def fits(number: int) -> bool | None:
        row = index.numbered(job, task, number)
        return None if row is None else is_before(index.checkpoint(row), cuts)

    number = last_before((first.number, last.number), fits)
    if number is not None:
        row = index.numbered(job, task, number)
        return None if row is None else index.checkpoint(row)
    if first.number > 1:
        raise NotFound(
            f"task {task} of job {job!r} had read what is undone before the first commit of it that is known",
            hint=f"Leave --cascade out: {job} then sees corrections as updates. Or choose a later point.",
        )
    return None
