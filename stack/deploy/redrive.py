"""Brings dead letters back: to the tasks of their job, or into the feeds that they came from.

A letter that is brought back and the mark that says so are one transaction, under an id of the job's own.
Whoever begins takes the id over, which ends what another left open, and reads the marks only then: so a
redrive that was killed is simply run again, and no letter comes back twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stack.connection import Stack
from stack.deploy.dead import DeadFeed, Fits, Found
from stack.deploy.jobs import jobs_feed
from stack.errors import BadInput, BadRecord, FeedstackError, LostOwnership, NotFound
from stack.feeds.avro.codec import RecordDecoder
from stack.feeds.encoder import FeedEncoder
from stack.kafka.writer import LogWriter
from stack.machine import time_ms
from stack.model.dead import ATTEMPT, LETTER, DeadLetter, Headers, letter_headers
from stack.model.job import redrive_name, redriven_name
from stack.model.plan import TaskId, job_tasks, task_number

# What one transaction brings back.
_MOST_RECORDS, _MOST_BYTES = 500, 8 << 20
# So many of those that speak against a redrive are told by name.
_MOST_TOLD = 5
_DECODE = "Give the feed a schema that can read them, or leave them out: --where \"kind != 'undecodable'\"."


class To(StrEnum):
    """Where dead letters go back to."""

    JOB = "job"
    SOURCE = "source"


@dataclass(frozen=True)
class RedrivePlan:
    """What a redrive would do: letters by feed and kind, and those that were redriven before."""

    job: str
    to: To
    counts: Mapping[tuple[str, str], int]
    already: int
    ends: Mapping[int, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many letters it would bring back."""
        return sum(self.counts.values())


class Redrive:
    """One redrive of a job's letters: first `plan`, which looks at each of them, then `run`."""

    def __init__(self, stack: Stack, job: str, to: To, fits: Fits) -> None:
        self._stack = stack
        self._feed = DeadFeed(stack, job)
        self._to = to
        self._fits = fits
        # By feed; or what speaks against all of its letters.
        self._ways: dict[str, _Way | BadInput] = {}

    def plan(self) -> RedrivePlan:
        """Count, and refuse what could not be brought back; nothing is changed."""
        if self._to is To.JOB:
            # A job that was removed has nobody to take them.
            jobs_feed(self._stack).get(self._feed.job)
        counts: Counter[tuple[str, str]] = Counter()
        refused: dict[str, list[str]] = {}
        already = there = 0
        for found in self._feed.letters():
            there += 1
            if not self._fits(found):
                continue
            if found.redriven:
                already += 1
                continue
            counts[found.letter.feed, str(found.letter.kind)] += 1
            try:
                self._way(found.letter).check(found)
            except BadInput as error:
                refused.setdefault(error.hint, []).append(f"{found.name}: {error.message}")
        self._refuse(refused)
        if not counts:
            raise self._nothing(there, already)
        return RedrivePlan(self._feed.job, self._to, dict(counts), already, self._feed.ends)

    def _refuse(self, refused: Mapping[str, list[str]]) -> None:
        faults = [fault for several in refused.values() for fault in several]
        if faults:
            told = "".join(f"\n  - {fault}" for fault in faults[:_MOST_TOLD])
            more = f"\n  and {len(faults) - _MOST_TOLD:,} more" if len(faults) > _MOST_TOLD else ""
            count = "1 dead letter" if len(faults) == 1 else f"{len(faults):,} dead letters"
            raise BadRecord(
                f"{count} of job {self._feed.job!r} cannot be redriven, and none was:{told}{more}",
                hint=" ".join(refused),
            )

    def _nothing(self, there: int, already: int) -> NotFound:
        job = self._feed.job
        if not there:
            return NotFound(f"job {job!r} has no dead letters", hint="There is nothing to redrive.")
        if already:
            return NotFound(
                f"nothing is left to redrive: {already:,} of the {there:,} dead letters of job {job!r} fit, "
                "and were redriven before",
                hint="One that failed again is a dead letter of its own, with a higher attempt.",
            )
        return NotFound(
            f"none of the {there:,} dead letters of job {job!r} fits",
            hint=f"`stack dead list {job}` tells what there is.",
        )

    def run(self, plan: RedrivePlan, progress: Callable[[int], None] = lambda _: None) -> int:
        """Bring back what the plan has counted; answers how many there were.

        Another redrive of the same job that goes on elsewhere is ended by it.
        """
        stack, job = self._stack, self._feed.job
        marks, done = redriven_name(stack.settings.name, job), 0
        with LogWriter(stack.access, redrive_name(stack.settings.name, job)) as writer:
            try:
                writer.init_transactions()
                for chunk in self._chunks(plan):
                    writer.begin()
                    for found in chunk:
                        self._way(found.letter).write(writer, found)
                        mark = json.dumps({"to": str(self._to), "time_ms": time_ms()}).encode()
                        writer.write_one(marks, mark, found.name.encode())
                    writer.commit()
                    done += len(chunk)
                    progress(done)
            except LostOwnership:
                raise LostOwnership(
                    f"another redrive of job {job!r} was begun, this one has ended after {done:,} records",
                    hint="Each letter comes back once, whoever brings it.",
                ) from None
            except FeedstackError as error:
                so_far = f"{error.message} ({done:,} of {plan.total:,} were redriven)"
                raise type(error)(so_far, "Run it again: it goes on where it ended.") from error
        return done

    def _chunks(self, plan: RedrivePlan) -> Iterator[list[Found]]:
        """What is to be brought back, a transaction at a time. Marks are read when the id is ours."""
        chunk: list[Found] = []
        size = 0
        for found in self._feed.letters(plan.ends, all_marks=True):
            if found.redriven or not self._fits(found):
                continue
            chunk.append(found)
            size += len(found.letter.value or b"")
            if len(chunk) >= _MOST_RECORDS or size >= _MOST_BYTES:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def _way(self, letter: DeadLetter) -> _Way:
        way = self._ways.get(letter.feed)
        if way is None:
            make = _ToJob if self._to is To.JOB else _ToSource
            try:
                way = make(self._stack, self._feed.job, letter.feed)
            except BadInput as error:
                way = error
            self._ways[letter.feed] = way
        if isinstance(way, BadInput):
            raise way
        return way


class _Way:
    """How letters of one feed go back."""

    def __init__(self, stack: Stack, job: str, feed: str) -> None:
        self._job = job
        self._feed = feed
        self._spec = stack.feed(feed)
        self._registered = stack.schema(feed)
        self._decode = RecordDecoder(stack.registry, self._registered.schema).decode

    def check(self, found: Found) -> None:
        """BadInput if the letter cannot go back."""
        letter = found.letter
        if letter.full_bytes is not None:
            raise BadRecord(
                f"{letter.place} was too large to be kept whole",
                hint="What is kept in part is not redriven: leave it out with --where 'not cut'.",
            )
        if letter.value is None:
            return
        try:
            self._decode(letter.value)
        except BadRecord as error:
            version = self._registered.version
            raise BadRecord(
                f"{letter.place}: feed {self._feed!r} cannot read it with version {version} of its schema: "
                f"{error.message}",
                hint=_DECODE,
            ) from None

    def write(self, writer: LogWriter, found: Found) -> None:
        raise NotImplementedError


class _ToJob(_Way):
    """To the task that had the record, by a topic that only this job reads."""

    def __init__(self, stack: Stack, job: str, feed: str) -> None:
        spec = jobs_feed(stack).get(job).spec
        if feed not in [one.feed for one in spec.inputs]:
            raise BadInput(
                f"job {job!r} does not read feed {feed!r} any more",
                hint=f"Leave its letters out (--where \"feed != '{feed}'\"), or redrive them --to source.",
            )
        super().__init__(stack, job, feed)
        self._topic = redrive_name(stack.settings.name, job)
        found = stack.admin.describe([self._topic])
        if self._topic not in found:
            raise NotFound(
                f"job {job!r} has no topic {self._topic!r}",
                hint='Deploy it with on_error = "dead-letter", which makes it; or redrive --to source.',
            )
        self._spec_of_job = spec

    def check(self, found: Found) -> None:
        super().check(found)
        if TaskId.parse(found.letter.task) not in job_tasks(self._spec_of_job):
            raise BadInput(
                f"job {self._job!r} has no task {found.letter.task} any more",
                hint="Its inputs have fewer partitions now: redrive --to source.",
            )

    def write(self, writer: LogWriter, found: Found) -> None:
        letter = found.letter
        headers: Headers = (*letter_headers(letter), (LETTER, found.name.encode()))
        number = task_number(self._spec_of_job, TaskId.parse(letter.task))
        writer.write_one(self._topic, letter.value, letter.key, headers=headers, partition=number)


class _ToSource(_Way):
    """Into the feed that the record came from, for everybody who reads it."""

    def __init__(self, stack: Stack, job: str, feed: str) -> None:
        super().__init__(stack, job, feed)
        self._topic = stack.topic_of(feed, self._spec.version)
        found = stack.admin.describe([self._topic])
        if self._topic not in found:
            raise NotFound(f"feed {feed!r} has no topic", hint="`stack feeds apply` makes it.")
        self._partitions = found[self._topic].partitions
        self._encoder = FeedEncoder(self._spec, self._registered.schema, self._registered.id)

    def check(self, found: Found) -> None:
        super().check(found)
        letter = found.letter
        if letter.partition >= self._partitions:
            raise BadInput(
                f"{letter.place}: the feed has {self._partitions} partitions now",
                hint="It was made anew: write these records to it yourself.",
            )
        try:
            self._encoder.refuse_unkept(letter.timestamp_ms, letter.timestamp_ms)
        except BadRecord as error:
            raise BadRecord(f"{letter.place}: {error.message}", hint="Redrive --to job.") from None

    def write(self, writer: LogWriter, found: Found) -> None:
        letter = found.letter
        headers: Headers = (
            *letter.headers,
            (LETTER, f"{self._job} {found.name}".encode()),
            (ATTEMPT, str(letter.attempt).encode()),
        )
        writer.write_one(
            self._topic,
            letter.value,
            letter.key,
            letter.timestamp_ms,
            headers=headers,
            partition=letter.partition,
        )
