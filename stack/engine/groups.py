"""What a commit of a group becomes, and what speaks against it: values in, values out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stack.errors import BadInput, NotFound, Outdated
from stack.model.group import MOST_FEEDS, MOST_PARTITIONS, FeedOffsets, GroupCommit, Offsets

_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class FeedFacts:
    """A feed as Kafka has it now: its topic, and where each partition ends."""

    topic: str
    topic_id: str
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Asked:
    """A commit that somebody asks for. `whole`: what it does not name is forgotten, not carried along."""

    group: str
    by: str
    name: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    expect: int | None = None
    whole: bool = False


def refuse_shape(offsets: Offsets) -> None:
    """BadInput for what cannot be offsets, whatever feeds there are."""
    _refuse_size(len(offsets), sum(map(len, offsets.values())))
    faults = [
        f"feed {feed!r}, partition {number!r}: {offset!r} is no offset"
        for feed, places in offsets.items()
        for number, offset in places.items()
        if type(number) is not int or type(offset) is not int or not 0 <= offset <= _LARGEST
    ]
    faults += [f"feed {feed!r} is named without any partition" for feed in offsets if not offsets[feed]]
    _raise(faults, "An offset is that of the next record to be handled: a whole number from 0 on.")


def _refuse_size(feeds: int, partitions: int) -> None:
    if feeds > MOST_FEEDS:
        raise BadInput(f"{feeds:,} feeds are too many", hint=f"A group takes {MOST_FEEDS}.")
    if partitions > MOST_PARTITIONS:
        raise BadInput(f"{partitions:,} partitions are too many", hint=f"A group takes {MOST_PARTITIONS:,}.")


def judge_offsets(offsets: Offsets, facts: Mapping[str, FeedFacts]) -> dict[str, FeedOffsets]:
    """The offsets with the topics they are of; BadInput with everything that is wrong with them."""
    _raise([one for feed in offsets for one in _faults(feed, offsets[feed], facts[feed])], _SEE)
    return {
        feed: FeedOffsets(facts[feed].topic, facts[feed].topic_id, dict(places))
        for feed, places in offsets.items()
    }


_SEE = "Nothing was committed. `stack feeds show FEED` prints the partitions and offsets there are."


def _faults(feed: str, places: Mapping[int, int], now: FeedFacts) -> Iterator[str]:
    for number, offset in sorted(places.items()):
        if number not in now.ends:
            yield f"feed {feed!r} has no partition {number}; it has {len(now.ends)}, counted from 0"
        elif offset > now.ends[number]:
            yield f"feed {feed!r}, partition {number} ends at {now.ends[number]}, before {offset}"


def _raise(faults: list[str], hint: str) -> None:
    if faults:
        more = f"; and {len(faults) - 5:,} more" if len(faults) > 5 else ""
        raise BadInput("; ".join(faults[:5]) + more, hint=hint)


def next_commit(
    newest: GroupCommit | None, asked: Asked, feeds: Mapping[str, FeedOffsets], now_ms: int, token: str
) -> GroupCommit:
    """The commit that follows the newest; Outdated if another one is the newest than was thought."""
    number = 0 if newest is None else newest.number
    if asked.expect is not None and asked.expect != number:
        stands = "it has none" if newest is None else f"{number} by {newest.by} is"
        raise Outdated(
            f"commit {asked.expect} is not the newest of group {asked.group!r}: {stands}",
            hint=f"Nothing was committed. `stack offsets fetch {asked.group}` shows where the group stands; "
            "decide again from there.",
        )
    carried = {} if newest is None or asked.whole else newest.feeds
    if not feeds and (newest is None or asked.whole):
        raise BadInput(
            f"a commit of group {asked.group!r} needs offsets of a feed",
            hint="Such as page-views:p0=120,p1=98. Without any, only where the group stands can be named.",
        )
    merged = {**carried, **{feed: _merged(carried.get(feed), one) for feed, one in feeds.items()}}
    _refuse_size(len(merged), sum(len(one.offsets) for one in merged.values()))
    if not (feeds or asked.name or asked.annotations):
        raise BadInput(
            f"a commit of group {asked.group!r} needs something to say: no offsets, no name, no annotation",
            hint="Such as page-views:p0=120,p1=98, version=3f2a or --name before-migration.",
        )
    return GroupCommit(
        asked.group,
        number + 1,
        # Clocks differ from machine to machine; within a group time does not go back.
        now_ms if newest is None else max(now_ms, newest.time_ms),
        asked.by,
        merged,
        asked.name,
        dict(asked.annotations),
        asked.reason,
        token,
    )


def _merged(before: FeedOffsets | None, now: FeedOffsets) -> FeedOffsets:
    """Partitions that are not named stay where they are; of a feed that was made anew nothing stays."""
    if before is None or before.topic_id != now.topic_id:
        return now
    return FeedOffsets(now.topic, now.topic_id, {**before.offsets, **now.offsets})


def refuse_made_anew(commit: GroupCommit, topic_ids: Mapping[str, str | None]) -> None:
    """Outdated if a feed of a commit is not the one any more that its offsets are of; None is gone."""
    for feed, one in sorted(commit.feeds.items()):
        now = topic_ids.get(feed)
        if now == one.topic_id:
            continue
        what = "is gone" if now is None else "was deleted and made anew, or is another version"
        raise Outdated(
            f"feed {feed!r} {what} since commit {commit.number} of group {commit.group!r}: its offsets mean "
            "nothing any more",
            hint=f"`stack offsets fetch {commit.group} --list` shows them all the same. Commit where to read "
            f"{feed} from, or all offsets of the group without it (--whole).",
        )


def no_such_commit(group: str, words: str, hint: str) -> NotFound:
    """What to say where a group has no commit as asked for."""
    return NotFound(f"group {group!r} has no commit {words}", hint=hint)
