"""What an error of a record means now: try again, keep it as a dead letter, skip it, or stop."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stack.model.dead import Kind
from stack.model.job import ErrorPolicy, OnError

# What the record itself is to blame for is the same at every try.
_MAY_PASS = frozenset({Kind.CODE})


class Step(StrEnum):
    """What to do with a record that failed."""

    RETRY = "retry"
    DEAD_LETTER = "dead-letter"
    SKIP = "skip"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Answer:
    """The step, and for a retry how long to wait before it."""

    step: Step
    after_ms: int = 0


_LAST = {OnError.STOP: Step.STOP, OnError.DEAD_LETTER: Step.DEAD_LETTER, OnError.SKIP: Step.SKIP}


def answer_error(policy: ErrorPolicy, kind: Kind, may_pass: bool, retries: int, spent_ms: int) -> Answer:
    """What follows an error. The record was tried again `retries` times, since its first error `spent_ms`
    ago. Waits double; one that would go past the limit for the record is not begun.
    """
    if may_pass and kind in _MAY_PASS and retries < policy.retries:
        # No power of two beyond the limit matters, and a large one would not be a number of milliseconds.
        after_ms = policy.backoff_ms << min(retries, 20)
        if spent_ms + after_ms <= policy.limit_ms:
            return Answer(Step.RETRY, after_ms)
    return Answer(_LAST[policy.on_error])
