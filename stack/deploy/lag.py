"""How far jobs are behind, as Kafka itself has it: the same numbers that its own tool prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stack.connection import Stack
from stack.model.feed import FeedSpec
from stack.model.group import GroupCommit
from stack.model.job import JobSpec, group_name, redrive_name
from stack.model.place import Place
from stack.model.plan import job_tasks


@dataclass(frozen=True, slots=True)
class InputLag:
    """One partition of one input: what the job has committed, and where the log ends."""

    feed: str
    partition: int
    committed: int | None
    end: int
    topic: str = ""

    @property
    def records(self) -> int | None:
        """Records that wait, markers of transactions among them; None before the first commit."""
        return None if self.committed is None else max(0, self.end - self.committed)

    def as_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return {
            "feed": self.feed,
            "partition": self.partition,
            "offset": self.committed,
            "end": self.end,
            "records": self.records,
        }


def input_lags(stack: Stack, spec: JobSpec, feeds: Mapping[str, FeedSpec]) -> tuple[InputLag, ...]:
    """How far a job is behind in each partition of its inputs, whether it runs or not.

    Not of broadcast inputs: every task reads all of them, which a consumer group cannot tell.
    """
    places = input_places(stack, spec, feeds)
    committed = stack.admin.committed(group_name(stack.settings.name, spec.name))
    ends = stack.admin.all_ends(places)
    return tuple(InputLag(feed, at[1], committed.get(at), ends[at], at[0]) for at, feed in places.items())


def input_places(stack: Stack, spec: JobSpec, feeds: Mapping[str, FeedSpec]) -> dict[Place, str]:
    """The partitions that the group of a job has offsets for, with their feeds; the way by which dead letters
    come back is one, too.
    """
    places = {
        (stack.topic_of(one.feed, feeds[one.feed].version), number): one.feed
        for one in spec.inputs
        if not one.broadcast and one.feed in feeds
        for number in range(spec.stages[one.stage])
    }
    if spec.settings.keeps_dead_letters:
        back = redrive_name(stack.settings.name, spec.name)
        places |= {(back, number): back for number in range(len(job_tasks(spec)))}
    return places


def commit_lags(stack: Stack, commit: GroupCommit) -> tuple[InputLag, ...]:
    """How far a group is behind, by one of its commits."""
    places = {
        (one.topic, number): (feed, offset)
        for feed, one in sorted(commit.feeds.items())
        for number, offset in sorted(one.offsets.items())
    }
    ends = stack.admin.all_ends(places)
    return tuple(InputLag(feed, at[1], offset, ends[at], at[0]) for at, (feed, offset) in places.items())


def total_lag(lags: Iterable[InputLag]) -> int | None:
    """All of them together; None if nothing was committed yet."""
    known = [one.records for one in lags if one.records is not None]
    return sum(known) if known else None
