"""Where the tasks of a job that went back read on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stack.connection import Stack
from stack.deploy.rewind_intent import Intent
from stack.engine.cascade import with_gap
from stack.kafka.admin import Topic
from stack.model.checkpoint import Checkpoint, Gap, InputPoint
from stack.model.job import InputSpec, JobSpec
from stack.model.plan import TaskId


class LandingInputs:
    """Asked once everything of a rewind has been written but for the checkpoints, and nobody else writes.

    Inputs continue where the target has them, but for two kinds. What other stages of the same job have
    written is done with, for they write it anew: reading goes on at its end. And a job that follows another
    passes over what that one has undone, and how: from the cut of the leader's output to its end.
    """

    def __init__(self, stack: Stack, spec: JobSpec, intent: Intent) -> None:
        self._spec = spec
        self._intent = intent
        concerned = [one for one in spec.inputs if one.feed in intent.gaps or one.feed in spec.outputs]
        names = {one.feed: stack.topic_of(one.feed, stack.feed(one.feed).version) for one in concerned}
        about = stack.admin.describe(list(names.values()))
        self._topics: dict[str, Topic] = {feed: about[name] for feed, name in names.items()}
        self._bounds = {
            feed: stack.admin.bounds(topic.name, range(topic.partitions))
            for feed, topic in self._topics.items()
        }

    def of(self, before: Checkpoint, target: Checkpoint | None) -> Mapping[str, InputPoint]:
        """The inputs of one task; `before` is the checkpoint that it had."""
        found = {} if target is None else dict(target.inputs)
        for one in self._spec.inputs_of(before.task.stage):
            if one.feed in self._spec.outputs:
                found[one.feed] = self._at_end(one.feed, before.task)
            elif one.feed in self._intent.gaps:
                found[one.feed] = self._with_gaps(one, before.task, found.get(one.feed))
        # What is redriven does not come a second time: dead letters are no part of the past of a feed.
        feeds = {one.feed for one in self._spec.inputs}
        return {**found, **{feed: point for feed, point in before.inputs.items() if feed not in feeds}}

    def _at_end(self, feed: str, task: TaskId) -> InputPoint:
        topic = self._topics[feed]
        end = self._bounds[feed][task.partition].high
        return InputPoint(topic.name, topic.id, topic.partitions, {task.partition: end})

    def _with_gaps(self, one: InputSpec, task: TaskId, then: InputPoint | None) -> InputPoint:
        topic, bounds, cuts = self._topics[one.feed], self._bounds[one.feed], self._intent.gaps[one.feed]
        numbers = range(topic.partitions) if one.broadcast else (task.partition,)
        offsets = {} if then is None else dict(then.offsets)
        gaps = {} if then is None else dict(then.gaps)
        for number in numbers:
            offsets.setdefault(number, bounds[number].low)
            cut = cuts[number] if number < len(cuts) else 0
            passed = with_gap(gaps.get(number, ()), Gap(cut, bounds[number].high))
            if passed:
                gaps[number] = passed
        point = then or InputPoint(topic.name, topic.id, topic.partitions, {})
        return replace(point, offsets=offsets, gaps=gaps)
