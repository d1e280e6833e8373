"""How far jobs have come: read from their checkpoints as these are written, from outside."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ops.chaos.stage import Stage, patiently
from stack.errors import ClusterFault, FeedstackError
from stack.kafka.reader import LogReader
from stack.model.checkpoint import is_checkpoint_key
from stack.model.plan import TaskId, tasks_of
from stack.offsets.checkpoints import checkpoint_partition, checkpoints_topic
from stack.offsets.codec import CheckpointDecoder

_READ_S = 0.05
# While ZooKeeper is away nobody answers for seconds: not asked where a job recovers quickly.
_ASK_S = 10.0

Ends = Mapping[str, Mapping[int, int]]
"""Where the partitions of feeds end, or how far they were read, by feed."""


class Followed(Protocol):
    """A job that is followed: what it reads, with whether every task reads all of it, and what it writes."""

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> Mapping[str, bool]: ...
    @property
    def outputs(self) -> Sequence[str]: ...
    @property
    def tasks(self) -> int: ...


class Progress:
    """Follows the checkpoints of the jobs on a stage."""

    def __init__(self, stage: Stage, jobs: Sequence[Followed], limit_s: float) -> None:
        self._stage = stage
        self._jobs = jobs
        self._derived = frozenset(name for one in jobs for name in one.outputs)
        self._limit_s = limit_s
        self._read: dict[tuple[str, TaskId], Ends] = {}
        self._decode = CheckpointDecoder(stage.stack.registry)
        settings = {"fetch.wait.max.ms": 50, "reconnect.backoff.max.ms": 500}
        topic = checkpoints_topic(stage.settings.name)
        self._reader = LogReader(stage.stack.access, topic, settings)
        self._reader.assign(dict.fromkeys({checkpoint_partition(one.name) for one in jobs}, 0))

    def await_handled(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Wait until the jobs, one after the other, have committed what stands in their inputs now.

        ClusterFault if that takes too long; BadInput if a job fails.
        """
        deadline = clock() + self._limit_s
        for job in self._jobs:
            self._await(job, deadline, clock)

    def _await(self, job: Followed, deadline: float, clock: Callable[[], float]) -> None:
        ends, asked = patiently(lambda: self._ends(job)), clock()
        while not self._has_passed(job, ends):
            if clock() > asked + _ASK_S:
                self._stage.refuse_failed(job.name)
                asked = clock()
            if clock() > deadline:
                late = f"after {self._limit_s:.0f} s job {job.name!r}"
                raise ClusterFault(f"{late} has not committed all that it was given")
            self._follow()

    def _has_passed(self, job: Followed, ends: Ends) -> bool:
        return all(
            has_passed(
                self._read.get((job.name, task), {}),
                {
                    feed: places if job.inputs[feed] else {task.partition: places.get(task.partition, 0)}
                    for feed, places in ends.items()
                },
                self._derived,
            )
            for task in tasks_of(job.tasks)
        )

    def _follow(self) -> None:
        # The broker may be away, as it should be.
        with contextlib.suppress(FeedstackError):
            batch = self._reader.read(timeout_s=_READ_S)
            for key, value in zip(batch.keys, batch.values, strict=True):
                if value is not None and is_checkpoint_key(key):
                    point = self._decode(value)
                    inputs = {feed: one.offsets for feed, one in point.inputs.items()}
                    self._read[point.job, point.task] = inputs

    def _ends(self, job: Followed) -> Ends:
        stack = self._stage.stack
        found = {}
        for name in job.inputs:
            spec = stack.feed(name)
            found[name] = stack.admin.ends(stack.topic_of(name, spec.version), range(spec.partitions))
        return found

    def close(self) -> None:
        """Follow no longer."""
        self._reader.close()


def has_passed(read: Ends, ends: Ends, derived: frozenset[str]) -> bool:
    """Whether a task has read to these ends. A derived feed ends in the mark of a commit, not in a record."""
    return all(
        end == 0 or read.get(feed, {}).get(number, 0) >= end - (feed in derived)
        for feed, places in ends.items()
        for number, end in places.items()
    )
