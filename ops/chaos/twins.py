"""Compares what two runs over the same inputs have written, key by key.

It shares no code with the engine (an import contract holds it).
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message

from ops.chaos.reading import HEADER_BYTES, Clock, Reading, decode, text_of
from ops.chaos.verdict import Finding, Kind

_MOST_SHOWN = 5
_MOST_HELD = 100_000
_BAG = 1 << 128


@dataclass(frozen=True, slots=True)
class Run:
    """One of the two runs: where it is, and the topics of its feeds."""

    bootstrap: str
    stack: str
    topic_prefix: str = ""


@dataclass(slots=True)
class Digest:
    """What stands for all records of a key: how many, which, and in which order."""

    count: int = 0
    bag: int = 0
    sequence: bytes = b""

    def add(self, body: bytes) -> None:
        one = hashlib.blake2b(body, digest_size=16).digest()
        self.count += 1
        self.bag = (self.bag + int.from_bytes(one, "big")) % _BAG
        self.sequence = hashlib.blake2b(self.sequence + one, digest_size=16).digest()


Digests = Mapping[bytes | None, Digest]


def compare(
    run: Run,
    calm: Run,
    feeds: Mapping[str, bool],
    limit_s: float = 120.0,
    clock: Clock = time.monotonic,
) -> list[Finding]:
    """Where the feeds of a run differ from those of a calm one; each with whether order counts.

    VerifierFault if something cannot be read within the limit.
    """
    with (
        Reading(run.bootstrap, run.stack, limit_s, clock) as ours,
        Reading(calm.bootstrap, calm.stack, limit_s, clock) as theirs,
    ):
        sides = _Side(ours, run), _Side(theirs, calm)
        findings = []
        for feed, is_ordered in feeds.items():
            own, other = (side.digests(feed) for side in sides)
            found = list(judge_digests(feed, own, other, is_ordered))
            findings += _explained(feed, found, *sides)
        return findings


def judge_digests(feed: str, own: Digests, calm: Digests, is_ordered: bool) -> Iterator[Finding]:
    """The keys whose records are not those of the calm run."""
    for key in sorted(own.keys() | calm.keys(), key=lambda one: one or b""):
        ours, theirs = own.get(key, Digest()), calm.get(key, Digest())
        told = f"{ours.count:,} records, in a calm run {theirs.count:,}"
        if ours.count != theirs.count:
            kind = Kind.LOST if ours.count < theirs.count else Kind.DOUBLED
            yield Finding(kind, feed, text_of(key), told, abs(ours.count - theirs.count))
        elif ours.bag != theirs.bag:
            yield Finding(Kind.DIFFERENT, feed, text_of(key), "other records than in a calm run")
        elif is_ordered and key is not None and ours.sequence != theirs.sequence:
            yield Finding(Kind.ORDER, feed, text_of(key), "another order than in a calm run")


def first_difference(own: list[Any], calm: list[Any]) -> str:
    """Where two lists of records part, for people."""
    for number, (ours, theirs) in enumerate(itertools.zip_longest(own, calm, fillvalue="nothing"), 1):
        if ours != theirs:
            return f"record {number} is {ours}, in a calm run {theirs}"
    return ""


@dataclass
class _Side:
    """The feeds of one run."""

    reading: Reading
    run: Run
    _schemas: dict[int, Any] = field(default_factory=dict)

    def digests(self, feed: str) -> dict[bytes | None, Digest]:
        found: dict[bytes | None, Digest] = {}

        def each(message: Message) -> None:
            # Ids of schemas are each stack's own.
            body = b"null" if message.value() is None else b"=" + message.value()[HEADER_BYTES:]
            found.setdefault(message.key(), Digest()).add(body)

        self.reading.read(f"{self.run.topic_prefix}{feed}", each)
        return found

    def records(self, feed: str, keys: Collection[str]) -> dict[str, list[Any]]:
        """The values of a few keys, in order."""
        self._schemas = self._schemas or self.reading.schemas()
        found: dict[str, list[Any]] = {key: [] for key in keys}

        def each(message: Message) -> None:
            key = text_of(message.key())
            if key in found and len(found[key]) < _MOST_HELD:
                value = message.value()
                found[key].append(None if value is None else decode(value, self._schemas))

        self.reading.read(f"{self.run.topic_prefix}{feed}", each)
        return found


def _explained(feed: str, findings: list[Finding], own: _Side, calm: _Side) -> list[Finding]:
    """The same, the first few with the record at which the runs part."""
    keys = [one.key for one in findings[:_MOST_SHOWN]]
    if not keys:
        return findings
    ours, theirs = own.records(feed, keys), calm.records(feed, keys)
    explained = []
    for one in findings:
        parted = first_difference(ours[one.key], theirs[one.key]) if one.key in ours else ""
        message = f"{one.message}; {parted}" if parted else one.message
        explained.append(Finding(one.kind, one.feed, one.key, message, one.count))
    return explained
