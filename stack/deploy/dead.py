"""The dead letters of jobs, as a person looks at them: which there are, and which were redriven."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stack.connection import Stack
from stack.deploy.jobs import jobs_feed
from stack.errors import BadInput, NotFound, Unavailable
from stack.feeds.produce import DEAD_SUFFIX, dead_feed
from stack.kafka.reader import LogReader, RawBatch
from stack.machine import monotonic
from stack.model.dead import LETTER_SCHEMA, DeadLetter, letter_fields, letter_of
from stack.model.expression import check_against, compile_expression, parse_expression
from stack.model.job import dead_name, job_name_fault, redriven_name

_QUIET_LIMIT_S = 60.0
Position = tuple[int, int]
"""Partition and offset of a dead letter in its own topic: its name, for people `partition/offset`."""


@dataclass(frozen=True, slots=True)
class Found:
    """A dead letter where it stands, and whether it was redriven."""

    position: Position
    letter: DeadLetter
    redriven: bool

    @property
    def name(self) -> str:
        """What `stack dead show` and marks call it."""
        return position_text(self.position)


Fits = Callable[[Found], bool]


def position_text(position: Position) -> str:
    """`0/17`."""
    return f"{position[0]}/{position[1]}"


def parse_position(text: str) -> Position:
    """The position that a person wrote."""
    partition, slash, offset = text.partition("/")
    if not (slash and partition.isdecimal() and offset.isdecimal()):
        raise BadInput(
            f"{text!r} names no dead letter", hint="Write partition/offset, such as 0/17; list them first."
        )
    return int(partition), int(offset)


def filter_letters(where: str | None, positions: tuple[Position, ...] = ()) -> Fits:
    """The test behind --where and the names of letters; BadExpression if it does not fit a dead letter."""
    if where is None:
        return lambda found: not positions or found.position in positions
    expression = parse_expression(where)
    check_against(expression, LETTER_SCHEMA)
    fits = compile_expression(expression)

    def test(found: Found) -> bool:
        named = not positions or found.position in positions
        return named and bool(fits(letter_fields(found.letter, found.redriven), _about(found)))

    return test


def _about(found: Found) -> Mapping[str, Any]:
    """What an expression asks with an underscore: of the letter's own record."""
    partition, offset = found.position
    key = None if found.letter.key is None else found.letter.key.decode("utf-8", "replace")
    return {
        "_key": key,
        "_partition": partition,
        "_offset": offset,
        "_timestamp": found.letter.time_ms,
    }


def jobs_with_letters(stack: Stack) -> list[str]:
    """The jobs that have a topic for dead letters, removed ones included."""
    first, last = dead_name(stack.settings.name, "|").split("|")
    rows = {stack.topic_of(dead_feed(feed)) for feed in stack.catalogue.feeds()}
    names = [
        topic.removeprefix(first).removesuffix(last)
        for topic in stack.admin.topic_names()
        if topic.startswith(first) and topic.endswith(DEAD_SUFFIX) and topic not in rows
    ]
    return sorted(name for name in names if job_name_fault(name) is None)


class DeadFeed:
    """The dead letters of one job. It may be removed: its letters stay until they are too old."""

    def __init__(self, stack: Stack, job: str) -> None:
        self._stack = stack
        self.job = job
        self.topic = dead_name(stack.settings.name, job)
        found = stack.admin.describe([self.topic])
        if self.topic not in found:
            entry = jobs_feed(stack).get(job)
            raise NotFound(
                f"job {job!r} keeps no dead letters: its on_error is {str(entry.spec.settings.on_error)!r}",
                hint='Write on_error = "dead-letter" in its job.toml, and deploy it.',
            )
        self._partitions = found[self.topic].partitions
        # How far its partitions were read by the last `letters`.
        self.ends: dict[int, int] = {}

    def letters(self, ends: Mapping[int, int] | None = None, all_marks: bool = False) -> Iterator[Found]:
        """All letters up to `ends`, oldest first within a partition; by default those that can be seen now.

        What a commit under way will add is not waited for: if its container was killed, that takes as long
        as a transaction may. With `all_marks` whoever is about to mark some is waited for.
        """
        marks = self._marks(all_marks)
        bounds = self._stack.admin.bounds(self.topic, range(self._partitions))
        starts = {number: one.low for number, one in bounds.items()}
        until = {number: max(end, starts[number]) for number, end in (ends or {}).items()}
        with LogReader(self._stack.access, self.topic) as reader:
            reader.assign(starts, until or None)
            for batch in _batches(reader, self.topic, wait=ends is not None):
                for message in batch.messages:
                    position = (int(message.partition() or 0), int(message.offset() or 0))
                    letter = letter_of(message.key(), message.value(), message.headers() or ())
                    yield Found(position, letter, position in marks)
            self.ends = dict(reader.positions)

    def _marks(self, wait: bool) -> set[Position]:
        """The letters that were redriven."""
        topic = redriven_name(self._stack.settings.name, self.job)
        if topic not in self._stack.admin.describe([topic]):
            return set()
        bounds = self._stack.admin.bounds(topic, [0])[0]
        with LogReader(self._stack.access, topic) as reader:
            reader.assign({0: bounds.low}, {0: bounds.high})
            batches = _batches(reader, topic, wait)
            return {parse_position(key.decode()) for batch in batches for key in batch.keys if key}


def _batches(reader: LogReader, topic: str, wait: bool) -> Iterator[RawBatch]:
    """What is there up to the reader's bounds; without `wait` at most what can be seen now."""
    heard = monotonic()
    while not reader.done and (wait or not reader.caught_up):
        batch = reader.read(timeout_s=0.25)
        if len(batch):
            heard = monotonic()
            yield batch
        elif monotonic() - heard > _QUIET_LIMIT_S:
            raise Unavailable(
                f"{topic} could not be read to its end within {_QUIET_LIMIT_S:.0f} s",
                hint="A transaction may be open: it ends by its time limit. Kafka may be away.",
            )
