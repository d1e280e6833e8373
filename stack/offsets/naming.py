"""Gives points in the life of a job names: one record with the newest checkpoint of every task."""

from __future__ import annotations

from collections.abc import Mapping

from stack.connection import Stack
from stack.errors import BadInput, NotFound
from stack.kafka.writer import LogWriter
from stack.machine import time_ms
from stack.model.annotation import Annotated, annotation_key
from stack.model.job import JobSpec
from stack.model.plan import job_tasks
from stack.model.startpoint import refuse_bad_annotation
from stack.offsets.checkpoints import (
    checkpoint_partition,
    checkpoints_topic,
    last_checkpoints,
    refuse_rewinding,
)
from stack.offsets.codec import AnnotatedEncoder, CheckpointDecoder, registered_id
from stack.offsets.schemas import ANNOTATED_SCHEMA

_MOST_VALUES, _MOST_LENGTH = 50, 1_000


def name_point(
    stack: Stack, spec: JobSpec, name: str, values: Mapping[str, str], by: str, *, is_still: bool
) -> Annotated:
    """Name the point where a job stands now; the same name again moves it.

    `is_still`: no container of it works. Otherwise tasks of several containers may be some commits apart.
    """
    refuse_bad_annotation(name)
    _refuse_values(values)
    found = last_checkpoints(stack, CheckpointDecoder(stack.registry), spec.name, job_tasks(spec))
    if not found:
        raise NotFound(
            f"job {spec.name!r} has not committed anything yet: there is no point to name",
            hint="Every running job commits within its first second.",
        )
    refuse_rewinding(spec.name, found.values())
    aligned = is_still or len({point.slot for point in found.values()}) == 1
    point = Annotated(spec.name, name, time_ms(), by, found, values, aligned)
    topic = checkpoints_topic(stack.settings.name)
    encode = AnnotatedEncoder(registered_id(stack.registry, topic, ANNOTATED_SCHEMA))
    with LogWriter(stack.access) as writer:
        record = {"key": annotation_key(spec.name, name), "value": encode(point)}
        writer.write(topic, [record], checkpoint_partition(spec.name))
        writer.flush()
    return point


def _refuse_values(values: Mapping[str, str]) -> None:
    if len(values) > _MOST_VALUES:
        raise BadInput(f"{len(values)} values are too many", hint=f"A point takes {_MOST_VALUES}.")
    for key, value in values.items():
        if not key or len(key) + len(value) > _MOST_LENGTH:
            raise BadInput(
                f"{key[:60]}={value[:60]} cannot be kept",
                hint=f"Write key=value, both together up to {_MOST_LENGTH} characters.",
            )
