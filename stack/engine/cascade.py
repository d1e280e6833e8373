"""Jobs that go back with another whose outputs they read: in which order, where to, what they pass over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter

from stack.model.checkpoint import Checkpoint, Gap
from stack.model.job import JobSpec

Cuts = Mapping[str, Sequence[int]]
"""Per feed and partition: what stands before belongs to commits that stay."""


def downstream(specs: Mapping[str, JobSpec], name: str) -> list[str]:
    """The jobs that read what a job writes, and those that read what they write; writers before readers."""
    reads: dict[str, set[str]] = {}
    waiting = [name]
    while waiting:
        writer = waiting.pop()
        outputs = set(specs[writer].outputs) if writer in specs else set()
        for other, spec in specs.items():
            if other not in (name, writer) and outputs.intersection(one.feed for one in spec.inputs):
                if other not in reads:
                    waiting.append(other)
                reads.setdefault(other, set()).add(writer)
    return [one for one in TopologicalSorter(reads).static_order() if one != name]


def is_before(point: Checkpoint, cuts: Cuts) -> bool:
    """Whether a commit has read nothing that stands behind a cut."""
    return all(
        offset <= cuts[feed][number]
        for feed, one in point.inputs.items()
        if feed in cuts
        for number, offset in one.offsets.items()
        if number < len(cuts[feed])
    )


def last_before(numbers: tuple[int, int], fits: Callable[[int], bool | None]) -> int | None:
    """The highest of consecutive numbers that fits, searched from the end in growing steps.

    What fits is followed by what does not, but for those who have gone back themselves: then the one found
    fits, and a higher one may, too. None if there is none. A number that is not known (None) fits no one.
    """
    first, last = numbers
    step, above = 1, last + 1
    low = last
    while low >= first and not fits(low):
        above, low = low, low - step
        step *= 2
        if low < first < above:
            low = first
    if low < first:
        return None
    while above - low > 1:
        middle = (low + above) // 2
        if fits(middle):
            low = middle
        else:
            above = middle
    return low


def with_gap(gaps: Iterable[Gap], new: Gap) -> tuple[Gap, ...]:
    """What is passed over with one more; those that touch become one."""
    merged: list[Gap] = []
    for one in sorted([*gaps, *([new] if new.first < new.end else [])], key=lambda gap: gap.first):
        if merged and one.first <= merged[-1].end:
            merged[-1] = Gap(merged[-1].first, max(merged[-1].end, one.end))
        else:
            merged.append(one)
    return tuple(merged)
