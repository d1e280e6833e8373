"""What is asked of the points of a job, by command or over HTTP: all of them, one, or a name for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stack.connection import Stack
from stack.deploy.aligning import stand_of
from stack.deploy.jobs import jobs_feed
from stack.deploy.operate import watch_jobs
from stack.errors import NotFound
from stack.machine import time_ms
from stack.model.annotation import ALIGNED_PREFIX, Annotated
from stack.model.group import refuse_bad_words
from stack.model.startpoint import parse_job_startpoint
from stack.offsets.audit import AuditEntry, write_audit
from stack.offsets.codec import checkpoint_tree
from stack.offsets.index import CheckpointIndex
from stack.offsets.naming import name_point
from stack.offsets.points import Point, find_point
from stack.offsets.timeline import Event, timeline


def job_timeline(stack: Stack, job: str, limit: int) -> tuple[list[Event], int]:
    """Named points, versions, rewinds and the newest commits; and how many commits are known."""
    entry = jobs_feed(stack).get(job)
    with CheckpointIndex(stack) as index:
        index.refresh()
        events = timeline(index, job, limit, entry.spec.settings.horizon_ms, time_ms())
        return events, index.count(job)


def find_job_point(stack: Stack, job: str, word: str | None, said: Mapping[str, str]) -> Point:
    """The point that a startpoint means, or the newest named one of which something was said."""
    spec = jobs_feed(stack).get(job).spec
    with CheckpointIndex(stack) as index:
        index.refresh()
        if word is None:
            word = f"@{_said(index, job, said)}"
        return find_point(index, spec, parse_job_startpoint(word, time_ms()))


def _said(index: CheckpointIndex, job: str, wanted: Mapping[str, str]) -> str:
    """The newest named point of which all of this was said."""
    names = [name for name in index.names(job) if not name.startswith(ALIGNED_PREFIX)]
    for name in reversed(names):
        point = index.annotated(job, name)
        if point is not None and wanted.items() <= dict(point.values).items():
            return name
    told = " ".join(f"{key}={value}" for key, value in wanted.items())
    known = ", ".join("@" + name for name in names[-10:]) or "none"
    raise NotFound(f"of no point of job {job!r} was said {told}", hint=f"Named points: {known}.")


def annotate_job(
    stack: Stack, job: str, name: str, values: Mapping[str, str], *, reason: str, by: str
) -> Annotated:
    """Give the point where a job stands now a name, and note that in the audit feed."""
    refuse_bad_words(name, values)
    with watch_jobs(stack) as watch:
        spec = watch.jobs.get(job).spec
        stand = stand_of(stack, watch.nodes.job(job), spec)
        point = name_point(stack, spec, stand, name, values, by=by)
    said = {"name": name, **point.values}
    write_audit(stack, AuditEntry("annotate", job, by, point.time_ms, reason, after=said))
    return point


def point_json(job: str, point: Point) -> dict[str, Any]:
    """A point as plain JSON values."""
    return {
        "job": job,
        "point": point.words,
        "aligned": point.aligned,
        "time_ms": point.time_ms,
        "checkpoints": {
            str(task): None if one is None else checkpoint_tree(one)
            for task, one in sorted(point.checkpoints.items())
        },
    }


def annotated_json(point: Annotated) -> dict[str, Any]:
    """What a name stands for now, as plain JSON values."""
    return {
        "job": point.job,
        "name": point.name,
        "aligned": point.aligned,
        "commits": {str(task): one.number for task, one in sorted(point.checkpoints.items())},
    }
