"""What feeds must hold if nothing was lost and nothing doubled: pure judgements for the verifier.

Nothing of the engine is imported here or in the verifier (an import contract holds it): an error of the
engine must not hide itself.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

_SHOWN = 5


class Kind(StrEnum):
    """What a finding is about."""

    LOST = "lost"
    DOUBLED = "doubled"
    ORDER = "out of order"
    STATE = "state"
    OFFSET = "offset"
    UNDECODABLE = "undecodable"
    DIFFERENT = "different"
    INVARIANT = "invariant"
    REWIND = "rewind"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: in which feed or changelog, with which key or task, and how many times."""

    kind: Kind
    feed: str
    key: str
    message: str
    count: int = 1

    def __str__(self) -> str:
        place = ", ".join(filter(None, (self.feed, self.key)))
        return ": ".join(filter(None, (self.kind, place, self.message)))


@dataclass(frozen=True, slots=True)
class Point:
    """One checkpoint of one task: its number, where its input continues, where its changelog ends.

    A rewind says that it is under way (`is_intent`), then where the task goes on (`is_landing`), and what was
    `asked`. `output_end` is where the partition of the output ended that has the task's number.
    """

    number: int
    offset: int
    store_end: int
    time_ms: int = 0
    output_end: int = 0
    is_intent: bool = False
    is_landing: bool = False
    asked: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """What a partition holds: the offset of its last record (-1 if it has none), and its end."""

    last: int
    end: int


@dataclass(frozen=True, slots=True)
class Report:
    """What the verifier has read and found."""

    records: Mapping[str, int] = field(default_factory=dict)
    keys: int = 0
    commits: int = 0
    findings: tuple[Finding, ...] = ()
    # What was checked, a sentence each, where that differs from run to run.
    checked: tuple[str, ...] = ()
    # How often jobs have gone back.
    rewinds: int = 0

    @property
    def is_exact(self) -> bool:
        return not self.findings

    def count(self, kind: Kind) -> int:
        """How many things of a kind are wrong."""
        return sum(one.count for one in self.findings if one.kind is kind)


def judge_source(feed: str, found: Mapping[str, int], acknowledged: Mapping[str, int]) -> list[Finding]:
    """Every record that Kafka acknowledged to the writer is there, once."""
    findings = []
    for key in sorted({*found, *acknowledged}):
        there, told = found.get(key, 0), acknowledged.get(key, 0)
        if there != told:
            kind = Kind.LOST if there < told else Kind.DOUBLED
            message = f"{told} records were acknowledged, {there} are there"
            findings.append(Finding(kind, feed, key, message, abs(there - told)))
    return findings


def judge_outputs(feed: str, key: str, numbers: Sequence[int], inputs: int, before: int = 0) -> list[Finding]:
    """The outputs of a key are 1 to n in order, n being its inputs; or what comes after those before."""
    first = before + 1
    if len(numbers) == inputs - before and all(map(int.__eq__, numbers, range(first, inputs + 1))):
        return []
    seen = Counter(numbers)
    findings = []
    missing = [number for number in range(first, inputs + 1) if number not in seen]
    if missing:
        message = f"of {first} to {inputs} there is no {_few(missing)}"
        findings.append(Finding(Kind.LOST, feed, key, message, len(missing)))
    again = [number for number, times in seen.items() if times > 1]
    beyond = [number for number in seen if not first <= number <= inputs]
    surplus = sum(seen.values()) - (max(0, inputs - before) - len(missing))
    if surplus:
        said = [f"{_few(again)} more than once"] if again else []
        said += [f"{_few(beyond)} where there are {inputs} inputs"] if beyond else []
        findings.append(Finding(Kind.DOUBLED, feed, key, " and ".join(said), surplus))
    if not findings:
        at = next(place for place, number in enumerate(numbers, first) if number != place)
        findings.append(Finding(Kind.ORDER, feed, key, f"{numbers[at - first]} comes where {at} belongs"))
    return findings


def judge_spread(feed: str, key: str, partitions: Iterable[int]) -> list[Finding]:
    """A key stands in one partition, else its records have no order."""
    numbers = sorted(partitions)
    if len(numbers) == 1:
        return []
    return [Finding(Kind.ORDER, feed, key, f"stands in partitions {_few(numbers)}")]


def judge_deltas(
    changelog: str, key: str, deltas: Sequence[int], inputs: int, before: int = 0
) -> list[Finding]:
    """The values of a key rise from delta to delta, and the last is the number of its inputs."""
    findings = []
    for one, after in itertools.pairwise([before, *deltas]):
        if after <= one:
            findings.append(Finding(Kind.STATE, changelog, key, f"goes from {one} to {after}"))
            break
    last = deltas[-1] if deltas else before
    if last != inputs:
        findings.append(Finding(Kind.STATE, changelog, key, f"ends at {last}, inputs are {inputs}"))
    return findings


def judge_points(
    feed: str, task: str, points: Sequence[Point], source: Partition, changelog: Partition
) -> list[Finding]:
    """Checkpoints follow each other without a gap, go back only by rewinds, and the last covers all."""

    def wrong(message: str) -> Finding:
        return Finding(Kind.OFFSET, feed, task, message)

    if not points:
        return [wrong("has inputs but no checkpoint")] if source.last >= 0 else []
    findings = []
    for before, after in itertools.pairwise(points):
        if after.number != before.number + 1:
            findings.append(wrong(f"checkpoint {after.number} follows {before.number}"))
        if after.offset < before.offset and not after.is_landing:
            message = f"the input goes back from {before.offset} to {after.offset}"
            findings.append(wrong(f"checkpoint {after.number}: {message}"))
        if after.store_end < before.store_end:
            message = f"the changelog goes back from {before.store_end} to {after.store_end}"
            findings.append(wrong(f"checkpoint {after.number}: {message}"))
    last = points[-1]
    if not source.last < last.offset <= source.end:
        findings.append(
            wrong(
                f"the last checkpoint continues at {last.offset}; the last input record is at "
                f"{source.last}, the end at {source.end}"
            )
        )
    if not changelog.last < last.store_end <= changelog.end:
        findings.append(
            wrong(
                f"the last checkpoint has the changelog end at {last.store_end}; its last delta is at "
                f"{changelog.last}, the end at {changelog.end}"
            )
        )
    return findings


def judge_mirror(feed: str, task: str, offset: int, end: int, points: Sequence[Point]) -> list[Finding]:
    """The offset of the consumer group is that of the last checkpoint, or beyond it over what is no record:
    behind a checkpoint that covers all records, up to the end, there are only markers of transactions.
    """
    if not points or points[-1].offset <= offset <= max(end, points[-1].offset):
        return []
    said = f"the consumer group stands at {offset}, the last checkpoint at {points[-1].offset}"
    return [Finding(Kind.OFFSET, feed, task, said)]


def _few(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return shown if len(numbers) <= _SHOWN else f"{shown} and {len(numbers) - _SHOWN} more"
