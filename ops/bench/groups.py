"""How long it takes to find one commit of a group among many, by what was said of it and by time."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from ops.bench.rewind import stage
from stack.connection import Stack
from stack.errors import ClusterFault
from stack.kafka.writer import LogWriter
from stack.model.group import FeedOffsets, GroupCommit
from stack.model.startpoint import AtTime
from stack.offsets.codec import registered_id
from stack.offsets.group_codec import GroupCommitEncoder, group_partition, groups_plan
from stack.offsets.group_index import GroupIndex
from stack.offsets.schemas import GROUP_COMMIT_SCHEMA

_FEED, _GROUP = "page-views", "many"
_PARTITIONS = 4
_LOOK_UPS, _FETCHES = 200, 50


@dataclass(frozen=True)
class GroupFigures:
    """How fast the index is built, how long a look-up in it takes, and a whole fetch with its questions."""

    commits: int
    build_s: float
    look_up_ms: float
    fetch_ms: float


def measure_groups(commits: int, say: Callable[[str], None]) -> GroupFigures:
    """So many commits of one group in the feed, each with two annotations, every tenth with a name."""
    with stage(say) as (_, stack):
        say(f"writing {commits:,} commits of a group")
        began_ms = _write(stack, commits)
        with GroupIndex(stack) as index:
            began = time.monotonic()
            index.refresh()
            build_s = time.monotonic() - began
            chance = random.Random(7)
            look_ups = []
            for turn in range(_LOOK_UPS):
                number = chance.randrange(1, commits + 1)
                began = time.perf_counter()
                found = (
                    index.said(_GROUP, {"version": str(number), "by": "bench"})
                    if turn % 2
                    else index.at_time(_GROUP, began_ms + number)
                )
                look_ups.append(time.perf_counter() - began)
                _refuse_other(found, number)
        fetches = []
        offsets = stack.offsets(_GROUP)
        for turn in range(_FETCHES):
            number = chance.randrange(1, commits + 1)
            began = time.perf_counter()
            one = offsets.fetch(version=str(number)) if turn % 2 else offsets.fetch(AtTime(began_ms + number))
            fetches.append(time.perf_counter() - began)
            _refuse_other(one, number)
    return GroupFigures(
        commits, build_s, statistics.median(look_ups) * 1000, statistics.median(fetches) * 1000
    )


def _refuse_other(found: GroupCommit | None, number: int) -> None:
    if found is None or found.number != number:
        raise ClusterFault(f"the index does not find commit {number} of the group")


def _write(stack: Stack, commits: int) -> int:
    """Write them all, a millisecond apart; answers when the time before the first was."""
    plan = groups_plan(stack.settings.name)
    stack.admin.create([plan])
    topic = stack.topic_of(_FEED)
    topic_id = stack.admin.describe([topic])[topic].id
    encode = GroupCommitEncoder(registered_id(stack.registry, plan.name, GROUP_COMMIT_SCHEMA))
    began_ms = time.time_ns() // 1_000_000 - commits
    with LogWriter(stack.access) as writer:
        values = []
        for number in range(1, commits + 1):
            places = dict.fromkeys(range(_PARTITIONS), number)
            one = GroupCommit(
                _GROUP,
                number,
                began_ms + number,
                "bench",
                {_FEED: FeedOffsets(topic, topic_id, places)},
                f"name-{number}" if number % 10 == 0 else None,
                {"version": str(number), "by": "bench"},
                id=f"{number:016x}",
            )
            values.append(encode(one))
            if len(values) == 10_000 or number == commits:
                keys: list[bytes | None] = [_GROUP.encode()] * len(values)
                writer.write_pairs(plan.name, keys, values, group_partition(_GROUP))
                values = []
        writer.flush()
    return began_ms
