"""Reads what any jobs have left, and says whether it can be what was promised, whatever the jobs compute.

It shares no code with the engine (an import contract holds it).
"""

from __future__ import annotations

import hashlib
import itertools
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Message
from rocksdict import AccessType, Options, Rdict

from ops.chaos.reading import Clock, Reading, decode, text_of
from ops.chaos.verdict import (
    Finding,
    Kind,
    Partition,
    Point,
    Report,
    judge_mirror,
    judge_points,
    judge_source,
    judge_spread,
)

CHECKED = (
    "handled: every input has been read, and checkpoints follow each other without a gap",
    "outputs: every record can be read, and a key stands in one partition",
    "state: what is on disk is what the changelogs say",
)
_POSITION_KEY = b"\xff" * 16 + b"feedstack.position"
_POSITION = struct.Struct(">qq")
_MOST_TOLD = 5
_NOTHING = Partition(-1, 0)


@dataclass(frozen=True, slots=True)
class LeftJob:
    """A job that has come to rest: what it reads (and whether every task reads it all), writes, remembers."""

    name: str
    inputs: Mapping[str, bool]
    outputs: tuple[str, ...]
    stores: tuple[str, ...]
    tasks: int


@dataclass(frozen=True, slots=True)
class Remains:
    """Where to look. `state` is the folder with the stores of all jobs on this machine."""

    bootstrap: str
    stack: str
    jobs: tuple[LeftJob, ...]
    state: Path
    topic_prefix: str = ""

    def topic_of(self, feed: str) -> str:
        return f"{self.topic_prefix}{feed}"

    def changelog_of(self, job: LeftJob, store: str) -> str:
        return f"{self.stack}.{job.name}.{store}.changelog"


@dataclass
class _Contents:
    """What one topic holds: how many records of each key, and the bounds of each partition."""

    keys: Counter[str] = field(default_factory=Counter)
    last: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def partition(self, number: int) -> Partition:
        return Partition(self.last.get(number, -1), self.ends.get(number, 0))


def examine(
    remains: Remains,
    acknowledged: Mapping[str, Mapping[str, int]],
    limit_s: float = 120.0,
    clock: Clock = time.monotonic,
) -> Report:
    """Read everything and judge it. The jobs must have come to rest.

    `acknowledged` is how many records of each key the writers of the source feeds know to be written.
    VerifierFault if something cannot be read within the limit.
    """
    with Reading(remains.bootstrap, remains.stack, limit_s, clock) as reading:
        return _Examination(remains, reading).report(acknowledged)


class _Examination:
    """One reading of everything; each feed is read once."""

    def __init__(self, remains: Remains, reading: Reading) -> None:
        self._remains = remains
        self._reading = reading
        self._schemas = reading.schemas()
        self._feeds: dict[str, _Contents] = {}
        self._findings: list[Finding] = []

    def report(self, acknowledged: Mapping[str, Mapping[str, int]]) -> Report:
        jobs = self._remains.jobs
        keys: set[str] = set()
        for feed, told in acknowledged.items():
            self._feeds[feed] = self._source(feed)
            self._findings += judge_source(feed, self._feeds[feed].keys, told)
            keys |= self._feeds[feed].keys.keys()
        for feed in dict.fromkeys(name for job in jobs for name in job.outputs):
            self._feeds[feed] = self._output(feed)
        points = self._reading.checkpoints([job.name for job in jobs], _taken)
        for job in jobs:
            own = {task: found for (name, task), found in points.items() if name == job.name}
            self._job(job, own)
        records = {feed: contents.keys.total() for feed, contents in self._feeds.items()}
        commits = sum(map(len, points.values()))
        # Several inputs or stores of a task tell the same of its checkpoints.
        return Report(records, len(keys), commits, tuple(dict.fromkeys(self._findings)), CHECKED)

    def _source(self, feed: str) -> _Contents:
        contents = _Contents()

        def each(message: Message) -> None:
            contents.keys[text_of(message.key())] += 1
            contents.last[message.partition()] = message.offset()

        contents.ends = self._reading.read(self._remains.topic_of(feed), each)
        return contents

    def _output(self, feed: str) -> _Contents:
        contents = _Contents()
        spread: dict[bytes, set[int]] = {}

        def each(message: Message) -> None:
            key, value = message.key(), message.value()
            contents.keys[text_of(key)] += 1
            contents.last[message.partition()] = message.offset()
            if key is not None:
                spread.setdefault(key, set()).add(message.partition())
            fault = None if value is None else self._fault_of(value)
            if fault is not None:
                place = f"partition {message.partition()}, offset {message.offset()}"
                self._findings.append(Finding(Kind.UNDECODABLE, feed, text_of(key), f"{place}: {fault}"))

        contents.ends = self._reading.read(self._remains.topic_of(feed), each)
        for key, partitions in spread.items():
            self._findings += judge_spread(feed, text_of(key), partitions)
        return contents

    def _fault_of(self, value: bytes) -> str | None:
        try:
            decode(value, self._schemas)
        # fastavro has no error of its own: whatever it stumbles over is one.
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def _job(self, job: LeftJob, points: Mapping[int, list[_Taken]]) -> None:
        changelogs = {store: self._changelog(job, store) for store in job.stores}
        for feed, is_broadcast in job.inputs.items():
            contents = self._feeds[feed]
            topic = self._remains.topic_of(feed)
            group = {} if is_broadcast else self._reading.group_offsets(job.name, topic, contents.ends)
            for number, part in itertools.product(range(job.tasks), sorted(contents.ends)):
                if not is_broadcast and part != number:
                    continue
                own, task = points.get(number, []), f"job {job.name}, task {number}"
                placed = [Point(one.number, one.offset(feed, part), 0) for one in own]
                self._findings += judge_points(feed, task, placed, contents.partition(part), _NOTHING)
                if not is_broadcast:
                    self._findings += judge_mirror(
                        feed, task, group.get(part, -1), contents.ends[part], placed
                    )
        for store, changelog in changelogs.items():
            for number in range(job.tasks):
                own, task = points.get(number, []), f"job {job.name}, task {number}"
                ends = [Point(one.number, 0, one.stores.get(store, 0)) for one in own]
                name = self._remains.changelog_of(job, store)
                self._findings += judge_points(name, task, ends, _NOTHING, changelog.partition(number))

    def _changelog(self, job: LeftJob, store: str) -> _Contents:
        """Read a changelog, and compare the stores on disk with it."""
        topic, contents = self._remains.changelog_of(job, store), _Contents()
        folder = self._remains.state / job.name / store
        held: dict[int, dict[bytes, bytes]] = {}
        positions: dict[int, int] = {}
        for number in range(job.tasks):
            try:
                found = read_store(folder / str(number) / "db")
            # rocksdict raises plain exceptions.
            except Exception as error:
                self._findings.append(
                    Finding(Kind.STATE, topic, f"task {number}", f"cannot be read: {error}")
                )
                continue
            if found is not None:
                positions[number], held[number] = found
        wanted: dict[int, dict[bytes, bytes]] = {number: {} for number in held}

        def each(message: Message) -> None:
            number = message.partition()
            contents.last[number] = message.offset()
            if message.offset() < positions.get(number, 0):
                if message.value() is None:
                    wanted[number].pop(message.key(), None)
                else:
                    wanted[number][message.key()] = _digest(message.value())

        contents.ends = self._reading.read(topic, each)
        for number, state in held.items():
            self._findings += judge_state(topic, f"task {number}", state, wanted[number])
        return contents


@dataclass(frozen=True, slots=True)
class _Taken:
    """What is needed of a checkpoint."""

    number: int
    inputs: Mapping[str, Mapping[int, int]]
    stores: Mapping[str, int]

    def offset(self, feed: str, partition: int) -> int:
        return self.inputs.get(feed, {}).get(partition, 0)


def _taken(_job: str, _task: int, tree: dict[str, Any]) -> _Taken:
    return _Taken(
        tree["number"],
        {
            one["feed"]: {place["partition"]: place["offset"] for place in one["offsets"]}
            for one in tree["inputs"]
        },
        {one["store"]: one["end"] for one in tree["stores"]},
    )


def read_store(folder: Path) -> tuple[int, dict[bytes, bytes]] | None:
    """The position of a store on disk and a digest of each of its values; None if there is none."""
    if not folder.is_dir():
        return None
    store = Rdict(str(folder), Options(raw_mode=True), access_type=AccessType.read_only())
    try:
        found = {key: value for key, value in store.items() if key == _POSITION_KEY}
        held = {key: _digest(value) for key, value in store.items() if key != _POSITION_KEY}
    finally:
        store.close()
    position = _POSITION.unpack(found[_POSITION_KEY])[0] if found else 0
    return position, held


def judge_state(
    changelog: str, task: str, held: Mapping[bytes, bytes], wanted: Mapping[bytes, bytes]
) -> Iterator[Finding]:
    """A store holds what its changelog says; the first keys that differ are told."""
    wrong = sorted(key for key in held.keys() | wanted.keys() if held.get(key) != wanted.get(key))
    for key in wrong[:_MOST_TOLD]:
        if key not in wanted:
            message = "on disk, but not in the changelog"
        elif key not in held:
            message = "in the changelog, but not on disk"
        else:
            message = "another value on disk than in the changelog"
        yield Finding(Kind.STATE, changelog, f"{task}, {text_of(key)}", message)
    if len(wrong) > _MOST_TOLD:
        left = len(wrong) - _MOST_TOLD
        yield Finding(Kind.STATE, changelog, task, f"and {left:,} more keys", left)


def _digest(value: bytes) -> bytes:
    """A value, or what stands for a long one: however large the state is, only its keys count."""
    return value if len(value) <= 16 else hashlib.blake2b(value, digest_size=16).digest()
