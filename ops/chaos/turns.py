"""What feeds must hold if jobs have gone back in between: pure judgements for the verifier.

A task that goes back leaves two checkpoints that a command made: one that says where it stood, and one that
says where it goes on. Between where its output ended by the one and by the other stand corrections, and so in
its changelog. So the life of a task falls into pieces: in each of them every key is counted on without gap or
repeat, from what it had at the beginning to the number of its inputs that were read by the end; and between
two pieces it becomes the number of its inputs before the place where the task goes on.

Nothing of the engine is imported here (an import contract holds it).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ops.chaos.verdict import Finding, Kind, Point, judge_deltas, judge_outputs

INTENT, LANDED, ASKED = "rewind", "rewound-by", "rewound-asked"


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets in a log from the first on up to the end."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Once that a task went back: where its input stood and goes on, and where corrections stand."""

    number: int
    stood: int
    goes_on: int
    output: Span
    changelog: Span
    asked: str = ""


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one key in one log: what they say, a deletion being 0, and their offsets."""

    numbers: Sequence[int] = ()
    offsets: Sequence[int] = ()

    def until(self, end: int) -> tuple[Sequence[int], Records]:
        """What stands before an offset, and the rest."""
        place = bisect_left(self.offsets, end)
        return self.numbers[:place], Records(self.numbers[place:], self.offsets[place:])


def judge_life(
    feed: str, key: str, written: Records, inputs: Sequence[int], turns: Sequence[Turn], *, is_output: bool
) -> Iterator[Finding]:
    """Judge the records of a key in an output, or in a changelog; `inputs` are the offsets of its inputs."""
    had = 0
    for turn in turns:
        span = turn.output if is_output else turn.changelog
        piece, written = written.until(span.first)
        corrections, written = written.until(span.end)
        stood, had = _judge_piece(feed, key, piece, (had, bisect_left(inputs, turn.stood)), is_output)
        yield from stood
        then = bisect_left(inputs, turn.goes_on)
        yield from _judge_corrections(feed, key, corrections, (had, then))
        had = then
    found, _ = _judge_piece(feed, key, written.numbers, (had, len(inputs)), is_output)
    yield from found


def _judge_piece(
    feed: str, key: str, numbers: Sequence[int], counts: tuple[int, int], is_output: bool
) -> tuple[list[Finding], int]:
    """One piece of a life, between the counts at its beginning and at its end; with what is left then."""
    had, count = counts
    if is_output:
        return judge_outputs(feed, key, numbers, count, had), numbers[-1] if numbers else had
    return judge_deltas(feed, key, numbers, count, had), numbers[-1] if numbers else had


def _judge_corrections(
    feed: str, key: str, corrections: Sequence[int], counts: tuple[int, int]
) -> Iterator[Finding]:
    had, then = counts
    last = corrections[-1] if corrections else had
    if last != then:
        message = f"goes back from {had} to {last}, then it had {then} inputs"
        yield Finding(Kind.REWIND, feed, key, message)
    elif any(one != then for one in corrections):
        yield Finding(Kind.REWIND, feed, key, f"becomes {corrections[0]} on the way back to {then}")


def judge_landings(
    feed: str,
    task: str,
    points: Sequence[Point],
    turns: Sequence[Turn],
    named: Mapping[str, int],
) -> Iterator[Finding]:
    """Each time a task goes on where it was asked to. `named` are the offsets that named points have."""
    for turn in turns:
        wanted = _wanted(task, [one for one in points if one.number < turn.number], turn.asked, named)
        if wanted is not None and wanted != turn.goes_on:
            message = f"asked to go back to {turn.asked}, which is {wanted}, it goes on at {turn.goes_on}"
            yield Finding(Kind.REWIND, feed, task, message)
        elif turn.goes_on not in {0, *(one.offset for one in points if one.number < turn.number)}:
            message = f"goes back to {turn.goes_on}, where it has never committed"
            yield Finding(Kind.REWIND, feed, task, message)


def _wanted(task: str, before: Sequence[Point], asked: str, named: Mapping[str, int]) -> int | None:
    """The offset that somebody has asked for; None where that is told of another task, or not at all."""
    name, _, number = asked.partition("#")
    if asked.startswith("@"):
        return named.get(asked[1:])
    if number:
        own = name.rpartition("-")[2] == task.rpartition(" ")[2]
        found = [one.offset for one in before if own and one.number == int(number)]
        return found[-1] if found else None
    if not asked:
        return None
    moment_ms = round(datetime.fromisoformat(asked).timestamp() * 1000)
    made = [one for one in before if one.time_ms <= moment_ms]
    return max(made, key=lambda one: (one.time_ms, one.number)).offset if made else 0


def turns_of(points: Sequence[Point]) -> list[Turn]:
    """The times that a task went back, from its checkpoints in order."""
    turns, intent = [], None
    for one in points:
        if one.is_intent:
            intent = one
        elif one.is_landing and intent is not None:
            output = Span(intent.output_end, one.output_end)
            changelog = Span(intent.store_end, one.store_end)
            turns.append(Turn(one.number, intent.offset, one.offset, output, changelog, one.asked))
    return turns
