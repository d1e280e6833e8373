"""Where the outputs of a job that goes back are to be cut."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice

from stack.connection import Stack
from stack.engine.rewind import Cut, is_settled, may_be_first, output_cut
from stack.model.checkpoint import Checkpoint
from stack.model.plan import TaskId
from stack.offsets.index import CheckpointIndex
from stack.offsets.points import Point

# Behind the point so many commits are looked at first for what they wrote at the same time.
_FIRST_LATER = 200
Targets = Mapping[TaskId, Checkpoint | None]


def find_cuts(
    stack: Stack, index: CheckpointIndex, job: str, feeds: Sequence[str], point: Point
) -> list[Cut]:
    """Per output what stands before belongs to commits that stay. Where all tasks stood still it is known."""
    known = {feed: cut for feed in feeds if (cut := _aligned(stack, feed, point)) is not None}
    unknown = [feed for feed in feeds if feed not in known]
    known |= {cut.feed: cut for cut in _by_commits(stack, index, job, unknown, point)}
    return [known[feed] for feed in feeds]


def _aligned(stack: Stack, feed: str, point: Point) -> Cut | None:
    then = point.outputs.get(feed)
    if then is None or not point.aligned:
        return None
    topic, topic_id, ends = _now(stack, feed)
    if then.topic_id != topic_id or len(then.ends) != len(ends):
        return None
    return Cut(feed, topic, topic_id, tuple(then.ends), ends)


def _by_commits(
    stack: Stack, index: CheckpointIndex, job: str, feeds: Sequence[str], point: Point
) -> list[Cut]:
    """Commits behind the point are looked at until none can matter any more."""
    if not feeds:
        return []
    targets = point.checkpoints
    goes = [index.next_of(job, task, 0 if one is None else one.number) for task, one in targets.items()]
    start = min((row.at for row in goes if row is not None), default=None)
    later, firsts = _before(index, targets, start), _firsts(index, targets)
    stream = iter(()) if start is None else index.following(job, start)
    size = _FIRST_LATER
    while True:
        portion = list(islice(stream, size))
        later += portion
        cuts = [_cut(stack, feed, targets, later, firsts) for feed in feeds]
        if not portion or is_settled(later, targets, cuts):
            return cuts
        size *= 2


def _before(index: CheckpointIndex, targets: Targets, start: int | None) -> list[Checkpoint]:
    """The targets that stand before the first commit that goes; everything else there stays as well."""
    places = [(index.offset_of(one), one) for one in targets.values() if one is not None]
    known = [
        (-1 if at is None else at, one) for at, one in places if at is None or start is None or at < start
    ]
    return [one for _, one in sorted(known, key=lambda pair: pair[0])]


def _firsts(index: CheckpointIndex, targets: Targets) -> set[TaskId]:
    """Tasks that may have come to their container just before the point."""
    found = set()
    for task, one in targets.items():
        if one is not None:
            row = index.numbered(one.job, task, one.number - 1)
            if may_be_first(one, None if row is None else row.slot):
                found.add(task)
    return found


def _cut(
    stack: Stack, feed: str, targets: Targets, later: Sequence[Checkpoint], firsts: Collection[TaskId]
) -> Cut:
    topic, topic_id, ends = _now(stack, feed)
    return output_cut(feed, ends, targets, later, (topic, topic_id), firsts=firsts)


def _now(stack: Stack, feed: str) -> tuple[str, str, tuple[int, ...]]:
    """The topic of a feed, its id, and where its partitions end."""
    topic = stack.topic_of(feed, stack.feed(feed).version)
    about = stack.admin.describe([topic])[topic]
    ends = stack.admin.ends(topic, range(about.partitions))
    return topic, about.id, tuple(ends[number] for number in sorted(ends))
