"""A portion of records on its way through one task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stack.errors import BadRecord
from stack.kafka.inputs import Portion
from stack.kafka.reader import RawBatch
from stack.model.place import Place
from stack.runtime.parts import InputPart
from stack.runtime.portions import Records, Redriven
from stack.runtime.task import Task

if TYPE_CHECKING:
    from stack.runtime.guard import Fault


@dataclass(slots=True)
class Run:
    """What is to be handled, and how far it is."""

    task: Task
    part: InputPart
    place: Place
    records: Records
    next_offset: int
    values: Any = None
    at: int = 0
    # Tombstones within a batch are told apart from its rows: (first, end, whether rows).
    spans: list[tuple[int, int, bool]] = field(default_factory=list)
    # What the guard knows: records that are known to fail, how far the next stretch may go, and which
    # record must be tried alone; how often the one at hand was tried again, since when, and when next.
    known_bad: dict[int, Fault] = field(default_factory=dict)
    stop_at: int = 0
    alone: int = -1
    retries: int = 0
    failed_at: float = 0.0
    retry_at: float = 0.0

    @property
    def is_lost(self) -> bool:
        """Whether the records come back from the dead letters of a feed that is no input any more."""
        return self.records.feed != self.part.feed.name

    @property
    def lost_error(self) -> BadRecord:
        """What such a record fails with."""
        return BadRecord(
            f"the job does not read feed {self.records.feed!r} any more",
            hint="Deploy a version that does, and redrive the record again.",
        )


def spans_of(payloads: list[bytes | None]) -> list[tuple[int, int, bool]]:
    """Stretches of rows and of deletions, in their order."""
    if None not in payloads:
        return [(0, len(payloads), True)]
    spans: list[tuple[int, int, bool]] = []
    for index, payload in enumerate(payloads):
        is_row = payload is not None
        if spans and spans[-1][2] == is_row:
            spans[-1] = (spans[-1][0], index + 1, is_row)
        else:
            spans.append((index, index + 1, is_row))
    return spans


def redriven_runs(portion: Portion, task: Task, inputs: dict[str, InputPart]) -> Iterator[Run]:
    """Records that come back from the dead letters: each goes to the handler of the feed that it came from.

    One of a feed that this version does not read any more has no handler: it fails with that as its cause,
    under the policy of the first input of the task.
    """
    messages = [one for one in portion.batch.messages if one.offset() >= task.positions[portion.place]]
    first = next(iter(inputs.values()))
    start = 0
    whence = [Redriven.whence(message) for message in messages]
    for end in range(1, len(messages) + 1):
        if end < len(messages) and whence[end] == whence[start]:
            continue
        feed, partition = whence[start]
        part = inputs.get(feed, first)
        records = Redriven(RawBatch(messages[start:end]), part.decoder, partition, feed)
        yield Run(task, part, portion.place, records, records.log_offset(len(records) - 1) + 1)
        start = end
