"""The offset manager for consumers outside the stack: commit where a group stands, and find it again.

All commits of a group are made one after the other, without a lock: whoever commits takes over the group's
transactional id, which fences all others, reads what the newest commit is, and writes the next one together
with its entry in the audit feed in one transaction. Who was fenced in between looks again.
"""

from __future__ import annotations

import contextlib
import logging
import random
import secrets
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType

from stack.connection import Stack
from stack.engine.groups import (
    Asked,
    judge_offsets,
    next_commit,
    refuse_made_anew,
    refuse_shape,
)
from stack.errors import BadInput, FeedstackError, LostOwnership, NotDelivered, NotFound, Unavailable
from stack.kafka.writer import LogWriter
from stack.machine import lock, monotonic, sleep, time_ms
from stack.model.group import (
    MOST_LENGTH,
    Committed,
    FeedOffsets,
    GroupCommit,
    Offsets,
    refuse_bad_group,
    refuse_bad_words,
)
from stack.model.startpoint import AtAnnotation, Latest
from stack.offsets.audit import AuditEntry, audit_name, ensure_audit, person, to_record
from stack.offsets.codec import registered_id
from stack.offsets.group_codec import (
    GroupCommitEncoder,
    group_partition,
    group_writer_id,
    groups_plan,
    groups_topic,
)
from stack.offsets.group_feeds import facts_of, topics_of
from stack.offsets.group_index import GroupIndex
from stack.offsets.group_points import GroupStartpoint, find_commit, find_said, parse_group_startpoint
from stack.offsets.schemas import GROUP_COMMIT_SCHEMA

log = logging.getLogger("feedstack.offsets")
# A writer that died holds others up for no longer than this.
_TRANSACTION_LIMIT_S = 10.0
_LIMIT_S = 30.0
# So many commits back, one whose answer was lost is looked for.
_LOOK_BACK = 50


class GroupOffsets:
    """Where one group stands, now and at every commit before.

    offsets = stack.offsets("nightly-export")
    offsets.commit({"page-views": {0: 120, 1: 98}}, version="3f2a")
    reader.seek(offsets.fetch(version="3f2a").startpoint("page-views"))
    """

    def __init__(
        self,
        stack: Stack,
        group: str,
        *,
        by: str | None = None,
        index: Callable[[], GroupIndex] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        refuse_bad_group(group, stack.settings.name)
        self.group = group
        self.by = by
        self._stack = stack
        self._clock = clock
        self._lock = lock()
        self._shared_index = index
        self._own_index: GroupIndex | None = None
        self._writer: LogWriter | None = None
        self._encode: GroupCommitEncoder | None = None

    # Asking

    def newest(self) -> GroupCommit | None:
        """The newest commit; None if there is none. A feed that was made anew is told as by `fetch`."""
        try:
            return self.fetch()
        except NotFound:
            return None

    def fetch(
        self,
        to: GroupStartpoint | str | None = None,
        *,
        name: str | None = None,
        annotations: Mapping[str, str] | None = None,
        **said: str,
    ) -> GroupCommit:
        """The newest commit, or the one at a startpoint, with a name, or of which something was said.

        NotFound with what there is; Outdated if a feed was made anew since, and offsets mean nothing.
        """
        wanted = {**(annotations or {}), **said}
        if (to is not None) + (name is not None) + bool(wanted) > 1:
            raise BadInput(
                "say in one way which commit is meant",
                hint="A startpoint, a name, or key=value of what was said of it.",
            )
        refuse_bad_words(None, wanted)
        index = self._look()
        if wanted:
            found = find_said(index, self.group, wanted)
        else:
            point = AtAnnotation(name.removeprefix("@")) if name is not None else to
            if isinstance(point, str):
                point = parse_group_startpoint(point, time_ms())
            found = find_commit(index, self.group, Latest() if point is None else point)
        topics = topics_of(self._stack, found.feeds)
        refuse_made_anew(found, {feed: None if one is None else one.id for feed, one in topics.items()})
        return found

    def history(self, limit: int = 100, before: int | None = None) -> list[GroupCommit]:
        """Commits as they were made, the newest first; `before` goes on from a number."""
        try:
            return self._look().before(self.group, before, limit)
        except NotFound:
            return []

    # Committing

    def commit(
        self,
        offsets: Offsets | None = None,
        *,
        name: str | None = None,
        reason: str = "",
        expect: int | None = None,
        whole: bool = False,
        mirror: bool = True,
        by: str | None = None,
        annotations: Mapping[str, str] | None = None,
        **said: str,
    ) -> Committed:
        """Commit offsets, by feed and partition, with what is to be said of them.

        What is not named stays where it is, unless `whole`. With `expect`, the number that one thinks is the
        newest (0: none), another commit that came first is not lost: Outdated. With `mirror`, Kafka's own
        group of this name follows; where it cannot, the commit stands, and `mirror_fault` says why.
        """
        words = {**(annotations or {}), **said}
        refuse_bad_words(name, words)
        if len(reason) > MOST_LENGTH:
            raise BadInput("the reason is too long", hint=f"It takes {MOST_LENGTH} characters.")
        given = dict(offsets or {})
        refuse_shape(given)
        feeds = judge_offsets(given, facts_of(self._stack, given))
        asked = Asked(self.group, by or self.by or person(), name, words, reason, expect, whole)
        with self._lock:
            commit = self._made(asked, feeds)
            fault = self._mirrored(commit) if mirror else ""
        if fault:
            log.warning("commit %d of group %s stands, but %s", commit.number, self.group, fault)
        return Committed(commit, mirror and not fault, fault)

    def _made(self, asked: Asked, feeds: Mapping[str, FeedOffsets]) -> GroupCommit:
        deadline = self._clock() + _LIMIT_S
        token, again = secrets.token_hex(8), False
        self._prepare()
        while True:
            try:
                writer, index = self._turn(), self._look()
                last = index.before(self.group, None, _LOOK_BACK if again else 1)
                made = next((one for one in last if one.id == token), None)
                if made is not None:
                    return made
                newest = last[0] if last else None
                commit = next_commit(newest, asked, feeds, time_ms(), token)
                self._write(writer, newest, commit)
                return commit
            except (LostOwnership, NotDelivered) as error:
                # Whether it was committed may be unknown: the token tells after the next turn began.
                again = True
                if self._clock() > deadline:
                    raise Unavailable(
                        f"group {self.group!r} could not be committed in {_LIMIT_S:.0f} s: {error.message}",
                        hint="Others may have kept committing. Look where it stands, and commit again.",
                    ) from error
                sleep(random.uniform(0.01, 0.2))  # noqa: S311

    def _prepare(self) -> None:
        """Make the feeds if nobody has committed here before."""
        if self._encode is not None:
            return
        plan = groups_plan(self._stack.settings.name)
        if plan.name not in self._stack.admin.describe([plan.name]):
            self._stack.admin.create([plan])
        ensure_audit(self._stack)
        self._encode = GroupCommitEncoder(registered_id(self._stack.registry, plan.name, GROUP_COMMIT_SCHEMA))

    def _turn(self) -> LogWriter:
        """The group's writer. Who had the last turn still has it: if somebody took over, its commit fails."""
        if self._writer is None:
            self._writer = LogWriter(
                self._stack.access,
                transactional_id=group_writer_id(self._stack.settings.name, self.group),
                settings={"linger.ms": 0},
                timeout_s=_TRANSACTION_LIMIT_S,
            )
            with self._dropped_on_fault():
                self._writer.init_transactions()
        return self._writer

    @contextlib.contextmanager
    def _dropped_on_fault(self) -> Iterator[None]:
        """A writer that met a fault is not used again; letting go of it ends what it has open."""
        try:
            yield
        except BaseException:
            self._drop_writer()
            raise

    def _write(self, writer: LogWriter, before: GroupCommit | None, commit: GroupCommit) -> None:
        if self._encode is None:
            raise AssertionError("the feeds are not prepared")
        value, name = self._encode(commit), self._stack.settings.name
        entry = AuditEntry(
            "commit",
            self.group,
            commit.by,
            commit.time_ms,
            commit.reason,
            {} if before is None else _told(before),
            {**_told(commit), "name": commit.name, "annotations": dict(commit.annotations)},
        )
        audit_key, audit_value = to_record(entry)
        key, partition = self.group.encode(), group_partition(self.group)
        with self._dropped_on_fault():
            writer.begin()
            writer.write_one(groups_topic(name), value, key, partition=partition)
            writer.write_one(audit_name(name), audit_value, audit_key)
            writer.commit()

    def _mirrored(self, commit: GroupCommit) -> str:
        """Let Kafka's group follow; answers why not. Who finds a newer commit meanwhile mirrors that one:
        of several at once the last to come leaves the newest."""
        try:
            while True:
                topics = topics_of(self._stack, commit.feeds)
                places = {
                    (one.topic, number): offset
                    for feed, one in commit.feeds.items()
                    if (now := topics[feed]) is not None and now.id == one.topic_id
                    for number, offset in one.offsets.items()
                }
                self._stack.admin.move_group(self.group, places)
                newest = self._look().newest(self.group)
                if newest is None or newest.number <= commit.number:
                    return ""
                commit = newest
        except FeedstackError as error:
            return f"Kafka's group {self.group!r} did not follow: {error.message}"

    # What both need

    def _look(self) -> GroupIndex:
        """The index, up to date."""
        if self._shared_index is not None:
            index = self._shared_index()
        else:
            with self._lock:
                if self._own_index is None:
                    is_memory = self._stack.access.memory is not None
                    self._own_index = GroupIndex(self._stack, in_memory=is_memory)
                index = self._own_index
        index.refresh()
        return index

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def close(self) -> None:
        """Release the connections."""
        with self._lock, contextlib.suppress(FeedstackError):
            self._drop_writer()
            if self._own_index is not None:
                self._own_index.close()
                self._own_index = None

    def __enter__(self) -> GroupOffsets:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _told(commit: GroupCommit) -> dict[str, object]:
    """Where a group stands, for the audit feed."""
    offsets = {
        feed: {str(number): offset for number, offset in one.items()} for feed, one in commit.offsets.items()
    }
    return {"commit": commit.number, "offsets": offsets}
