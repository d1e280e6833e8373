"""Gives points in the life of a job names: one record with the newest checkpoint of every task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stack.connection import Stack
from stack.errors import NotFound
from stack.kafka.writer import LogWriter
from stack.machine import time_ms
from stack.model.annotation import Annotated, annotation_key
from stack.model.checkpoint import Checkpoint, OutputPoint
from stack.model.group import refuse_bad_words
from stack.model.job import JobSpec
from stack.model.plan import TaskId, job_tasks
from stack.offsets.checkpoints import (
    checkpoint_partition,
    checkpoints_topic,
    last_checkpoints,
    refuse_rewinding,
)
from stack.offsets.codec import AnnotatedEncoder, CheckpointDecoder, registered_id
from stack.offsets.schemas import ANNOTATED_SCHEMA


@dataclass(frozen=True)
class Stand:
    """Where a job stands. `aligned`: all its tasks stand still; then `outputs` tell where outputs end."""

    checkpoints: Mapping[TaskId, Checkpoint]
    aligned: bool
    outputs: Mapping[str, OutputPoint] = field(default_factory=dict)


def where_it_stands(stack: Stack, spec: JobSpec, *, is_still: bool) -> Stand:
    """The newest commits of a job. `is_still`: no task of it works, nor has anything left to read that its
    other stages wrote. Otherwise tasks of several containers may be some commits apart."""
    found = last_checkpoints(stack, CheckpointDecoder(stack.registry), spec.name, job_tasks(spec))
    refuse_rewinding(spec.name, found.values())
    if is_still:
        return Stand(found, True, outputs_now(stack, spec.outputs))
    one_by_one = len(spec.stages) == 1 and len({point.slot for point in found.values()}) == 1
    return Stand(found, one_by_one)


def outputs_now(stack: Stack, feeds: Iterable[str]) -> dict[str, OutputPoint]:
    """Where outputs end now."""
    topics = {feed: stack.topic_of(feed, stack.feed(feed).version) for feed in feeds}
    about = stack.admin.describe(list(topics.values()))
    found = {}
    for feed, topic in topics.items():
        ends = stack.admin.ends(topic, range(about[topic].partitions))
        ordered = tuple(ends[number] for number in sorted(ends))
        found[feed] = OutputPoint(topic, about[topic].id, ordered, frozenset())
    return found


def name_point(
    stack: Stack, spec: JobSpec, stand: Stand, name: str, values: Mapping[str, str], *, by: str
) -> Annotated:
    """Name the point where a job stands; the same name again moves it."""
    refuse_bad_words(name, values)
    if not stand.checkpoints:
        raise NotFound(
            f"job {spec.name!r} has not committed anything yet: there is no point to name",
            hint="Every running job commits within its first second.",
        )
    point = Annotated(spec.name, name, time_ms(), by, stand.checkpoints, values, stand.aligned, stand.outputs)
    topic = checkpoints_topic(stack.settings.name)
    encode = AnnotatedEncoder(registered_id(stack.registry, topic, ANNOTATED_SCHEMA))
    _write(stack, spec.name, annotation_key(spec.name, name), encode(point))
    return point


def forget_point(stack: Stack, job: str, name: str) -> None:
    """Take a name away."""
    _write(stack, job, annotation_key(job, name), None)


def _write(stack: Stack, job: str, key: bytes, value: bytes | None) -> None:
    with LogWriter(stack.access) as writer:
        record = {"key": key, "value": value}
        writer.write(checkpoints_topic(stack.settings.name), [record], checkpoint_partition(job))
        writer.flush()
