"""What a consumer outside the stack has committed: where it stands in feeds, and what it says of that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stack.errors import BadInput, NotFound
from stack.model.startpoint import AtOffsets, refuse_bad_annotation

_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
MOST_VALUES, MOST_LENGTH = 50, 1_000
# With more than these, a commit and its entry in the audit feed would be too large for a record.
MOST_FEEDS, MOST_PARTITIONS = 200, 5_000

Offsets = Mapping[str, Mapping[int, int]]
"""By feed and partition: the offset of the next record to be handled."""


@dataclass(frozen=True, slots=True)
class FeedOffsets:
    """Where a group stands in one feed. The topic id tells a feed that was made anew."""

    topic: str
    topic_id: str
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """One commit of a group: where it stood in all its feeds, by whom, when, and what is said of it."""

    group: str
    number: int
    time_ms: int
    by: str
    feeds: Mapping[str, FeedOffsets]
    name: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    # Tells this commit from every other, so that one whose answer was lost is not made twice.
    id: str = ""

    @property
    def offsets(self) -> dict[str, dict[int, int]]:
        """By feed and partition, in their order."""
        return {feed: dict(sorted(one.offsets.items())) for feed, one in sorted(self.feeds.items())}

    def startpoint(self, feed: str) -> AtOffsets:
        """Where a reader of a feed goes on: `reader.seek(commit.startpoint("page-views"))`."""
        if feed not in self.feeds:
            raise NotFound(
                f"commit {self.number} of group {self.group!r} has no offsets of feed {feed!r}",
                hint=f"It has those of {', '.join(sorted(self.feeds)) or 'no feed'}.",
            )
        return AtOffsets(dict(self.feeds[feed].offsets))

    def as_json(self) -> dict[str, Any]:
        """The commit as plain JSON values."""
        return {
            "group": self.group,
            "commit": self.number,
            "time_ms": self.time_ms,
            "by": self.by,
            "name": self.name,
            "annotations": dict(self.annotations),
            "reason": self.reason,
            "offsets": {
                feed: {str(number): offset for number, offset in one.items()}
                for feed, one in self.offsets.items()
            },
        }


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a commit. `mirror_fault` says why Kafka's group of that name did not follow, if so."""

    commit: GroupCommit
    mirrored: bool
    mirror_fault: str = ""

    @property
    def number(self) -> int:
        return self.commit.number

    def as_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return {**self.commit.as_json(), "mirrored": self.mirrored, "mirror_fault": self.mirror_fault}


def refuse_bad_group(group: str, stack: str) -> None:
    """BadInput if a group cannot have this name."""
    if not _GROUP.fullmatch(group):
        raise BadInput(
            f"{group[:60]!r} cannot name a group",
            hint="Use letters, digits, dots, dashes, underscores and colons, a letter or digit first, up to "
            "200.",
        )
    if group.startswith(f"{stack}."):
        raise BadInput(
            f"{group!r} cannot name a group: Kafka's groups of the stack's own jobs are called so",
            hint=f"Choose a name that does not begin with {stack + '.'!r}.",
        )


def refuse_bad_words(name: str | None, annotations: Mapping[str, str]) -> None:
    """BadInput if something cannot be said of a point or a commit."""
    if name is not None:
        refuse_bad_annotation(name)
    if len(annotations) > MOST_VALUES:
        raise BadInput(f"{len(annotations)} values are too many", hint=f"A point takes {MOST_VALUES}.")
    for key, value in annotations.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise BadInput(f"{key}={value} cannot be kept", hint="Keys and values are texts.")
        if not key or len(key) + len(value) > MOST_LENGTH:
            raise BadInput(
                f"{key[:60]}={value[:60]} cannot be kept",
                hint=f"Write key=value, both together up to {MOST_LENGTH} characters.",
            )
