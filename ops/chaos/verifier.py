"""Reads what a chain of counting jobs has left in Kafka, and says whether it is exact.

It shares no code with the engine: it reads values, changelogs, checkpoints and group offsets by the formats
that docs/formats.md makes public.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message

from ops.chaos.reading import Clock, Reading, decode
from ops.chaos.turns import ASKED, INTENT, LANDED, Records, Turn, judge_landings, judge_life, turns_of
from ops.chaos.verdict import (
    Finding,
    Partition,
    Point,
    Report,
    judge_mirror,
    judge_points,
    judge_source,
    judge_spread,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One counting job: for each record of `source` it writes the running number of its key to `output`."""

    job: str
    source: str
    output: str
    store: str = "counts"


@dataclass(frozen=True, slots=True)
class Chain:
    """The jobs to look at, each reading what the one before wrote, and where they are."""

    bootstrap: str
    stack: str
    steps: tuple[Step, ...]
    topic_prefix: str = ""
    number_field: str = "count"

    def topic_of(self, feed: str) -> str:
        return f"{self.topic_prefix}{feed}"

    def changelog_of(self, step: Step) -> str:
        return f"{self.stack}.{step.job}.{step.store}.changelog"


@dataclass
class _Contents:
    """What one topic holds: per key its numbers in order and where they stand, per partition its bounds."""

    numbers: dict[str, array[int]] = field(default_factory=dict)
    offsets: dict[str, array[int]] = field(default_factory=dict)
    spread: dict[str, set[int]] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def add(self, message: Message, number: int) -> None:
        key, partition = message.key().decode(), message.partition()
        held = self.numbers.get(key)
        if held is None:
            held = self.numbers[key] = array("q")
            self.offsets[key] = array("q")
            self.spread[key] = set()
        held.append(number)
        self.offsets[key].append(message.offset())
        self.spread[key].add(partition)
        self.last[partition] = message.offset()

    def of(self, key: str) -> Records:
        return Records(self.numbers.get(key, ()), self.offsets.get(key, ()))

    @property
    def records(self) -> int:
        return sum(map(len, self.numbers.values()))

    def partition(self, number: int) -> Partition:
        return Partition(self.last.get(number, -1), self.ends.get(number, 0))


def verify(
    chain: Chain,
    acknowledged: Mapping[str, int] | None = None,
    limit_s: float = 120.0,
    clock: Clock = time.monotonic,
) -> Report:
    """Read everything and judge it. The jobs must have come to rest.

    `acknowledged` is how many records of each key the writer of the first feed knows to be written.
    VerifierFault if something cannot be read within the limit.
    """
    with Reading(chain.bootstrap, chain.stack, limit_s, clock) as reading:
        return _verify(chain, reading, acknowledged)


def _verify(chain: Chain, reading: Reading, acknowledged: Mapping[str, int] | None) -> Report:
    read = _Chained(chain, reading)
    source = read.source(chain.steps[0].source)
    records = {chain.steps[0].source: source.records}
    findings: list[Finding] = []
    if acknowledged is not None:
        found = {key: len(numbers) for key, numbers in source.numbers.items()}
        findings += judge_source(chain.steps[0].source, found, acknowledged)
    commits, rewinds, keys = 0, 0, len(source.numbers)
    points = read.points()
    for step in chain.steps:
        output = read.output(step.output)
        changelog = read.changelog(step)
        records[step.output] = output.records
        own = {task: found for (job, task), found in points.items() if job == step.job}
        turns = {task: turns_of(found) for task, found in own.items()}
        findings += _judge_records(chain, step, (source, output, changelog), turns)
        group = reading.group_offsets(step.job, chain.topic_of(step.source), source.ends)
        findings += _judge_points(step, source, changelog, own, group)
        findings += _judge_landings(step, own, turns, read.named(step))
        commits += sum(map(len, own.values()))
        rewinds += max(map(len, turns.values()), default=0)
        source = output
    return Report(records, keys, commits, tuple(findings), rewinds=rewinds)


def _judge_records(
    chain: Chain,
    step: Step,
    logs: tuple[_Contents, _Contents, _Contents],
    turns: Mapping[int, Sequence[Turn]],
) -> Iterator[Finding]:
    """A key has one task: input, output and changelog have it in the partition of the same number."""
    source, output, changelog = logs
    for key in sorted({*source.numbers, *output.numbers, *changelog.numbers}):
        inputs = source.offsets.get(key, ())
        own = turns.get(min(source.spread.get(key, {-1})), ())
        for name, contents in ((step.output, output), (chain.changelog_of(step), changelog)):
            is_output = contents is output
            yield from judge_life(name, key, contents.of(key), inputs, own, is_output=is_output)
    for name, contents in ((step.output, output), (chain.changelog_of(step), changelog)):
        for key, partitions in contents.spread.items():
            yield from judge_spread(name, key, partitions)


def _judge_points(
    step: Step,
    source: _Contents,
    changelog: _Contents,
    points: Mapping[int, list[Point]],
    group: Mapping[int, int],
) -> Iterator[Finding]:
    for number in sorted(source.ends):
        task, own = f"job {step.job}, task {number}", points.get(number, [])
        yield from judge_points(step.source, task, own, source.partition(number), changelog.partition(number))
        yield from judge_mirror(step.source, task, group.get(number, -1), source.ends[number], own)


def _judge_landings(
    step: Step,
    points: Mapping[int, list[Point]],
    turns: Mapping[int, list[Turn]],
    named: Mapping[int, Mapping[str, int]],
) -> Iterator[Finding]:
    for number, own in points.items():
        task = f"job {step.job}, task {number}"
        yield from judge_landings(step.source, task, own, turns[number], named.get(number, {}))


class _Chained:
    """What each topic of a chain holds."""

    def __init__(self, chain: Chain, reading: Reading) -> None:
        self._chain = chain
        self._reading = reading
        self._schemas = reading.schemas()

    def source(self, feed: str) -> _Contents:
        """The first feed: which keys, where."""
        contents = _Contents()
        contents.ends = self._reading.read(
            self._chain.topic_of(feed), lambda message: contents.add(message, 0)
        )
        return contents

    def output(self, feed: str) -> _Contents:
        """A feed that a job wrote: the running number in each record."""
        contents, name = _Contents(), self._chain.number_field

        def each(message: Message) -> None:
            value = message.value()
            # A deletion of a table: the count is as it was before the first record.
            contents.add(message, 0 if value is None else decode(value, self._schemas)[name])

        contents.ends = self._reading.read(self._chain.topic_of(feed), each)
        return contents

    def changelog(self, step: Step) -> _Contents:
        """The deltas of a job's store: eight bytes, big end first, with a sign."""
        contents = _Contents()

        def each(message: Message) -> None:
            contents.add(message, int.from_bytes(message.value() or b"", "big", signed=True))

        contents.ends = self._reading.read(self._chain.changelog_of(step), each)
        return contents

    def points(self) -> dict[tuple[str, int], list[Point]]:
        """All checkpoints by job and number of the task, in order."""
        steps = {step.job: step for step in self._chain.steps}
        found = self._reading.checkpoints(steps, lambda job, number, tree: _point(steps[job], number, tree))
        return {task: without_overtaken(points) for task, points in found.items()}

    def named(self, step: Step) -> dict[int, dict[str, int]]:
        """Where each task of a job stood in its input, by its number, at the points that have a name."""
        found: dict[int, dict[str, int]] = {}
        for name, tree in self._reading.named(step.job).items():
            for one in tree["checkpoints"]:
                number = int(one["task"].rpartition("-")[2])
                found.setdefault(number, {})[name] = _point(step, number, one).offset
        return found


def without_overtaken(points: list[Point]) -> list[Point]:
    """Leave out what says that a task goes back and was written over a commit that came just before: it has
    the number of that one, and another one follows that knows of it.
    """
    return [
        one
        for before, one in zip([None, *points], points, strict=False)
        if not (one.is_intent and before is not None and before.number == one.number)
    ]


def _point(step: Step, number: int, tree: dict[str, Any]) -> Point:
    """What is judged of a checkpoint. A task that had not committed before a rewind has nothing to tell."""
    inputs = {one["feed"]: one["offsets"] for one in tree["inputs"]}
    ends = {one["store"]: one["end"] for one in tree["stores"]}
    outputs = {one["feed"]: one["ends"] for one in tree["outputs"]}
    places = [one["offset"] for one in inputs.get(step.source, ()) if one["partition"] == number]
    said = tree["annotations"]
    return Point(
        tree["number"],
        places[0] if places else 0,
        ends.get(step.store, 0),
        tree["time_ms"],
        outputs[step.output][number] if step.output in outputs else 0,
        INTENT in said,
        LANDED in said,
        said.get(ASKED, ""),
    )
