"""Bugs on purpose in rewinds: each takes away one guard that going back rests on."""

from __future__ import annotations

import itertools
from typing import Any
from unittest.mock import patch

import stack.deploy.rewinding
import stack.runtime.loop
from stack.deploy.rewind_changes import RewindChanges, append
from stack.deploy.rewind_intent import Intent
from stack.deploy.rewinding import Newest, Rewinding
from stack.kafka.transactions import TransactionWriter
from stack.model.job import JobSpec, rewind_id
from stack.runtime.loop import Container


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
        append(writer, rest)
        writer.deliver_or_abort()
        writer.commit_delivered()

    return patch.object(Rewinding, "_land", land)


def leave_tables() -> Any:
    return patch.object(RewindChanges, "of_tables", lambda *_: iter(()))


def intend_once() -> Any:
    """Whoever commits over an intent is not heard of."""

    def write(
        self: Rewinding, writer: TransactionWriter, specs: dict[str, JobSpec], intents: dict[str, Intent]
    ) -> Newest:
        points = {
            job: list(self._intent_points(specs[job], intent, self._newest(specs[job])))
            for job, intent in intents.items()
        }
        self._commit_points(writer, itertools.chain.from_iterable(points.values()))
        return {job: {one.task: one for one in own} for job, own in points.items()}

    return patch.object(Rewinding, "_write_intents", write)


def renew_without_a_look() -> Any:
    """A container that a rewind has fenced has the id of its slot again, and goes on."""
    return patch.object(Container, "_refuse_overtaken", lambda _: None)


def ids_of_their_own() -> Any:
    """Two rewinds of a job at once do not hear of each other."""
    numbers = itertools.count()
    return patch.object(
        stack.deploy.rewinding, "rewind_id", lambda *names: f"{rewind_id(*names)}.{next(numbers)}"
    )
