"""What the checkpoints of a container tell of where an output ends: values in, values out.

One number for each partition serves a rewind in two ways.

Where a commit has written, its records stand behind the number. So it is where the partition ended after the
last commit of the container.

Where a commit has not written, everything that its tasks have written before stands before the number. So it
is where the partition ended after the container last wrote there, or got a task from another one. What others
have sent since then is no matter: it may belong to commits that are not made yet, and a rewind would take it
for older than they are. Only the first commit of a task in a container may tell a number from before the task
came.
"""

from __future__ import annotations

from collections.abc import Sequence

Wrote = frozenset[int] | None
"""The partitions that were written to; None: that was not noted, any."""


class OutputEnds:
    """One output of one container, from commit to commit."""

    def __init__(self, ends: Sequence[int]) -> None:
        """`ends` are asked for when nobody else can write under the container's id any more."""
        self._last = tuple(ends)
        self._own = tuple(ends)
        # What commits without a checkpoint have written: the next checkpoint answers for it.
        self._untold: Wrote = frozenset()

    def wrote(self, sent_to: Wrote) -> Wrote:
        """What the next checkpoint answers for, if this was sent since the last commit."""
        return None if sent_to is None or self._untold is None else sent_to | self._untold

    def told(self, wrote: Wrote) -> tuple[int, ...]:
        """The numbers that go into the checkpoints of a commit."""
        pairs = enumerate(zip(self._last, self._own, strict=True))
        return tuple(last if _is_in(number, wrote) else own for number, (last, own) in pairs)

    def is_good(self, found: Sequence[int], wrote: Wrote) -> bool:
        """Whether these can be the ends after a commit. They never go back, and grow where it has written."""
        return all(
            end >= last + (wrote is not None and number in wrote)
            for number, (last, end) in enumerate(zip(self._last, found, strict=True))
        )

    def note(self, found: Sequence[int], wrote: Wrote, *, has_points: bool, has_new: bool) -> None:
        """A commit is done, with checkpoints if `has_points`, the first of a task that came if `has_new`."""
        if not has_points and wrote != frozenset():
            self._untold = wrote
            return
        self._last = tuple(found)
        if has_points:
            self._untold = frozenset()
            pairs = enumerate(zip(found, self._own, strict=True))
            self._own = tuple(
                end if has_new or _is_in(number, wrote) else own for number, (end, own) in pairs
            )


def _is_in(number: int, wrote: Wrote) -> bool:
    return wrote is None or number in wrote
