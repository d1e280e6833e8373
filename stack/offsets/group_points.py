"""From what a person typed to a commit of a group: by time, name, number, offsets, or what was said of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from stack.engine.groups import no_such_commit
from stack.errors import BadInput
from stack.model.group import GroupCommit
from stack.model.startpoint import (
    AtAnnotation,
    AtOffset,
    AtOffsets,
    AtTime,
    Latest,
    Oldest,
    Startpoint,
    format_time,
    parse_startpoint,
    refuse_bad_annotation,
)
from stack.offsets.group_index import GroupIndex

_NUMBER = re.compile(r"#(\d{1,18})")
_SYNTAX = (
    "Write @NAME, a time (2026-03-01T12:00Z), an age (-10m), a commit (#17), offsets per partition "
    "(p0=120,p1=98), oldest or latest."
)
_NEAREST, _SOME = 3, 10


@dataclass(frozen=True, slots=True)
class AtNumber:
    """A commit by its number."""

    number: int


GroupStartpoint = Startpoint | AtAnnotation | AtNumber
"""What a group knows: all that a feed does, names and numbers."""


def parse_group_startpoint(text: str, now_ms: int) -> GroupStartpoint:
    """Read what a person typed after --to or --at."""
    word = text.strip()
    if word.startswith("@"):
        refuse_bad_annotation(word[1:])
        return AtAnnotation(word[1:])
    match = _NUMBER.fullmatch(word)
    if match:
        return AtNumber(int(match.group(1)))
    try:
        return parse_startpoint(word, now_ms)
    except BadInput as error:
        raise BadInput(error.message, hint=_SYNTAX) from None


def find_commit(index: GroupIndex, group: str, startpoint: GroupStartpoint) -> GroupCommit:
    """The commit that a startpoint means; NotFound with the nearest there are."""
    newest = index.newest(group)
    if newest is None:
        raise no_such_group(index, group)
    match startpoint:
        case Latest():
            return newest
        case Oldest():
            return index.first(group) or newest
        case AtTime(timestamp_ms=moment):
            return _at_time(index, group, moment)
        case AtAnnotation(name=name):
            return _named(index, group, name)
        case AtNumber(number=number):
            found = index.numbered(group, number)
            if found is None:
                raise no_such_commit(group, f"{number}", f"It has commits 1 to {newest.number}.")
            return found
        case AtOffset(offset=offset):
            return _at_offsets(index, newest, dict.fromkeys(_only_feed(newest)[1], offset))
        case AtOffsets(offsets=offsets):
            return _at_offsets(index, newest, offsets)


def find_said(index: GroupIndex, group: str, wanted: Mapping[str, str]) -> GroupCommit:
    """The newest commit of which all of this was said."""
    if index.newest(group) is None:
        raise no_such_group(index, group)
    found = index.said(group, wanted)
    if found is None:
        told = " ".join(f"{key}={value}" for key, value in wanted.items())
        known = [f"{key}={value}" for key in wanted for value in index.words(group, key, _SOME)]
        hint = f"Of others: {', '.join(known[:_SOME])}." if known else "No commit says anything of the kind."
        raise no_such_commit(group, f"of which was said {told}", hint)
    return found


def no_such_group(index: GroupIndex, group: str) -> BadInput:
    """What to say where nobody has committed under a name."""
    groups = index.groups()
    near = difflib.get_close_matches(group, groups, n=_NEAREST, cutoff=0.6)
    if near:
        hint = f"Did you mean {' or '.join(near)}?"
    elif groups:
        hint = f"There are: {', '.join(groups[:_SOME])}."
    else:
        hint = f"`stack offsets commit {group} FEED:OFFSETS` makes the first."
    return no_such_commit(group, "at all", hint)


def _at_time(index: GroupIndex, group: str, moment_ms: int) -> GroupCommit:
    found = index.at_time(group, moment_ms)
    if found is None:
        first = index.first(group)
        known = "" if first is None else f"Its first is of {format_time(first.time_ms)} (--to oldest)."
        raise no_such_commit(group, f"at {format_time(moment_ms)} or before", known)
    return found


def _named(index: GroupIndex, group: str, name: str) -> GroupCommit:
    found = index.named(group, name)
    if found is None:
        names = index.words(group, None, 1_000)
        near = difflib.get_close_matches(name, names, n=_NEAREST, cutoff=0.4)
        if near:
            hint = f"Did you mean {' or '.join('@' + one for one in near)}?"
        elif names:
            hint = f"There are: {', '.join('@' + one for one in names[:_SOME])}."
        else:
            hint = f"None has a name yet: `stack offsets commit {group} --name NAME` names where it stands."
        raise no_such_commit(group, f"named {name!r}", hint)
    return found


def _only_feed(newest: GroupCommit) -> tuple[str, Mapping[int, int]]:
    if len(newest.feeds) != 1:
        raise BadInput(
            f"group {newest.group!r} reads several feeds: an offset does not tell which is meant",
            hint="Give a time, a number (#17), a name (@NAME) or key=value.",
        )
    ((feed, point),) = newest.feeds.items()
    return feed, point.offsets


def _at_offsets(index: GroupIndex, newest: GroupCommit, offsets: Mapping[int, int]) -> GroupCommit:
    """The last commit that had read no further; offsets grow with the numbers, unless somebody went back."""
    feed, _ = _only_feed(newest)

    def is_before(one: GroupCommit) -> bool:
        point = one.feeds.get(feed)
        return point is None or all(
            point.offsets.get(number, 0) <= offset for number, offset in offsets.items()
        )

    low, high, found = 1, newest.number, None
    while low <= high:
        middle = (low + high) // 2
        one = index.numbered(newest.group, middle)
        if one is None or is_before(one):
            found, low = one or found, middle + 1
        else:
            high = middle - 1
    if found is None:
        words = ",".join(f"p{number}={offset}" for number, offset in sorted(offsets.items()))
        raise no_such_commit(newest.group, f"at {words} or before", "--to oldest is its first.")
    return found
