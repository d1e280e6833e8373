"""What the stories about counted page views ask: how many there are, and what the job says."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from stack import Latest, Oldest, Stack
from stack.errors import ClusterFault

JOB = "count-views"
LIMIT_S = 60.0


def views(stack: Stack) -> Counter[str]:
    """How many page views each user has."""
    with stack.reader("page-views") as reader:
        reader.seek(Oldest(), until=Latest())
        return Counter(record.key for record in reader.records())


def counts(stack: Stack) -> dict[str, list[int]]:
    """Every count that was written, per user in order; a deletion ends what was before."""
    found: dict[str, list[int]] = {}
    with stack.reader("views-per-user") as reader:
        reader.seek(Oldest(), until=Latest())
        for record in reader.records():
            if record.value is None:
                found.pop(record.key, None)
            else:
                found.setdefault(record.key, []).append(record.value["count"])
    return found


def counts_now(stack: Stack) -> dict[str, int]:
    """The table: the last count of each user."""
    return {user: numbers[-1] for user, numbers in counts(stack).items()}


def await_that(condition: Callable[[], object], what: str) -> None:
    """Wait until it is so; ClusterFault when the time is over."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterFault(f"after {LIMIT_S:.0f} s the demo still waits for {what}")
        time.sleep(0.05)
