"""Where the outputs of a job that goes back are to be cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from stack.connection import Stack
from stack.engine.rewind import Cut, is_settled, output_cut
from stack.model.checkpoint import Checkpoint
from stack.model.plan import TaskId
from stack.offsets.index import CheckpointIndex
from stack.offsets.points import Point

# As far behind the point commits are looked at for what they wrote at the same time; a job whose containers
# write among each other for longer than this has no clear cut there.
_MOST_LATER = 5_000


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
    if not feeds:
        return []
    targets: Mapping[TaskId, Checkpoint | None] = point.checkpoints
    places = [_place(index, job, task, one) for task, one in targets.items()]
    start = min((place for place in places if place is not None), default=None)
    later: list[Checkpoint] = []
    cuts: list[Cut] = []
    stream = iter(()) if start is None else index.following(job, start)
    while True:
        portion = list(islice(stream, 200))
        later += portion
        cuts = [_cut(stack, feed, targets, later) for feed in feeds]
        # Every container must have said where it stood after the point.
        if not portion or len(later) >= _MOST_LATER or all(is_settled(one, cuts) for one in portion[-50:]):
            return cuts


def _place(index: CheckpointIndex, job: str, task: TaskId, target: Checkpoint | None) -> int | None:
    """Where the first commit of a task stands that may matter: its target, or all that are known."""
    place = None if target is None else index.offset_of(target)
    if place is None:
        first = index.first(job, task)
        return None if first is None else first.at
    return place


def _cut(
    stack: Stack, feed: str, targets: Mapping[TaskId, Checkpoint | None], later: Sequence[Checkpoint]
) -> Cut:
    topic, topic_id, ends = _now(stack, feed)
    return output_cut(feed, ends, targets, later, (topic, topic_id))


def _now(stack: Stack, feed: str) -> tuple[str, str, tuple[int, ...]]:
    """The topic of a feed, its id, and where its partitions end."""
    topic = stack.topic_of(feed, stack.feed(feed).version)
    about = stack.admin.describe([topic])[topic]
    ends = stack.admin.ends(topic, range(about.partitions))
    return topic, about.id, tuple(ends[number] for number in sorted(ends))
