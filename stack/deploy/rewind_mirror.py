"""Lets Kafka's own group of a job follow a rewind, for whoever looks before the job runs again."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from stack.connection import Stack
from stack.errors import FeedstackError
from stack.model.checkpoint import Checkpoint
from stack.model.job import JobSpec, group_name
from stack.model.place import Place

log = logging.getLogger("feedstack.rewind")


def mirror_landing(stack: Stack, spec: JobSpec, points: Sequence[Checkpoint]) -> None:
    """Move the group to where the tasks go on. It is a copy that nobody works with, and a container that
    runs lets it follow within a second: a fault here is none of the rewind."""
    try:
        moved: dict[Place, int] = {}
        for one in spec.inputs:
            if one.broadcast:
                continue
            topic = stack.topic_of(one.feed, stack.feed(one.feed).version)
            own = {point.task.partition: point for point in points if point.task.stage == one.stage}
            for number, bound in stack.admin.bounds(topic, sorted(own)).items():
                # Before its first commit a task has no place: it begins at the oldest record.
                known = own[number].inputs.get(one.feed)
                moved[topic, number] = bound.low if known is None else known.offsets.get(number, bound.low)
        stack.admin.move_group(group_name(stack.settings.name, spec.name), moved)
    except FeedstackError as error:
        log.warning("the group of job %s follows when it runs again: %s", spec.name, error.message)
