"""Bugs on purpose in rewinds: each takes away one guard that going back rests on."""

from __future__ import annotations

import itertools
from typing import Any
from unittest.mock import patch

import stack.deploy.rewinding
import stack.runtime.loop
from stack.deploy.rewind_intent import Intent
from stack.deploy.rewinding import Rewinding
from stack.kafka.transactions import TransactionWriter
from stack.model.checkpoint import Checkpoint
from stack.model.job import JobSpec, rewind_id
from stack.model.plan import TaskId


def fence_no_slot() -> Any:
    return patch.object(Rewinding, "_fence", lambda *_: None)


def open_at_an_intent() -> Any:
    return patch.object(stack.runtime.loop, "refuse_rewinding", lambda *_: None)


def land_first() -> Any:
    """The tasks stand at the point before their state does."""
    real: Any = Rewinding._land

    def land(self: Rewinding, writer: TransactionWriter, *words: Any) -> None:
        *words_before, rest = words
        real(self, writer, *words_before, [])
        self._append(writer, rest)
        writer.deliver_or_abort()
        writer.commit_delivered()

    return patch.object(Rewinding, "_land", land)


def leave_tables() -> Any:
    return patch.object(Rewinding, "_output_changes", lambda *_: iter(()))


def intend_once() -> Any:
    """Whoever commits over an intent is not heard of."""

    def write(
        self: Rewinding, writer: TransactionWriter, spec: JobSpec, intent: Intent
    ) -> dict[TaskId, Checkpoint]:
        newest = self._newest(spec)
        ends = self._outputs_now(newest)
        points = [self._intent_point(spec, intent, task, newest.get(task), ends) for task in intent.targets]
        self._commit_points(writer, spec.name, points)
        return {one.task: one for one in points}

    return patch.object(Rewinding, "_write_intent", write)


def ids_of_their_own() -> Any:
    """Two rewinds of a job at once do not hear of each other."""
    numbers = itertools.count()
    return patch.object(
        stack.deploy.rewinding, "rewind_id", lambda *names: f"{rewind_id(*names)}.{next(numbers)}"
    )
