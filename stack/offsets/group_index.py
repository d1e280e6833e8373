"""A local index of the commits of groups: by number, by time, and by what was said of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stack.connection import Stack
from stack.errors import NotFound
from stack.machine import lock, monotonic
from stack.model.group import GroupCommit
from stack.offsets.group_codec import GroupCommitDecoder, GroupCommitHeads, groups_topic
from stack.offsets.local import LocalIndex, Taken

# Among what is said of a commit, its name has a key that nobody else can use.
_NAME = ""
_LAST = 1 << 62
_TABLES = """
create table groups (id integer primary key, name text not null unique);
create table commits (
  grp integer not null, number integer not null, time_ms integer not null, record blob not null,
  unique (grp, number)
);
create index commits_by_time on commits (grp, time_ms, number);
create table said (
  grp integer not null, key text not null, value text not null, number integer not null,
  primary key (grp, key, value, number)
) without rowid;
"""


class GroupIndex(LocalIndex):
    """Answers questions about commits of groups, for several threads. `refresh` first.

    It holds the whole records: they are small, and a service that is asked often should not go to Kafka for
    each of them.
    """

    tables = _TABLES

    def __init__(
        self, stack: Stack, clock: Callable[[], float] = monotonic, *, in_memory: bool = False
    ) -> None:
        topic, folder = groups_topic(stack.settings.name), stack.settings.data / "offsets" / "groups"
        super().__init__(stack, topic, folder, clock=clock, in_memory=in_memory)
        self._heads = GroupCommitHeads(stack.registry)
        self._decode = GroupCommitDecoder(stack.registry)
        self._lock = lock()

    def _no_feed(self) -> NotFound:
        return NotFound(
            "no group has committed anything on this stack yet",
            hint="`stack offsets commit GROUP FEED:OFFSETS` commits.",
        )

    def refresh(self) -> None:
        with self._lock:
            super().refresh()

    def _add(self, records: Taken) -> None:
        commits: list[tuple[object, ...]] = []
        said: list[tuple[object, ...]] = []
        # Only for this portion: if it is taken back, so are the numbers.
        ids: dict[str, int] = {}
        for _, value, _ in records:
            if value is None:
                continue
            name_of_group, number, time_ms, name, annotations = self._heads(value)
            group = self._id_of(name_of_group, ids)
            commits.append((group, number, time_ms, value))
            said += [(group, key, text, number) for key, text in annotations.items()]
            if name is not None:
                said.append((group, _NAME, name, number))
        self._store.executemany(
            "insert or replace into commits (grp, number, time_ms, record) values (?, ?, ?, ?)", commits
        )
        self._store.executemany("insert or ignore into said values (?, ?, ?, ?)", said)

    def _id_of(self, group: str, ids: dict[str, int]) -> int:
        """The number of a group, which it is given if it has none; `ids` are known from this portion."""
        known = ids.get(group)
        if known is None:
            self._store.execute("insert or ignore into groups (name) values (?)", (group,))
            (known,) = self._store.execute("select id from groups where name = ?", (group,)).fetchone()
            ids[group] = known
        return known

    # Questions

    def groups(self) -> list[str]:
        """All groups that have ever committed."""
        with self._lock:
            return [name for (name,) in self._ask("select name from groups order by name")]

    def newest_of_all(self) -> list[GroupCommit]:
        """The newest commit of each group, in the order of their names."""
        found = map(self.newest, self.groups())
        return [one for one in found if one is not None]

    def newest(self, group: str) -> GroupCommit | None:
        """The newest commit."""
        return self._one("order by number desc", group)

    def first(self, group: str) -> GroupCommit | None:
        """The first commit."""
        return self._one("order by number", group)

    def numbered(self, group: str, number: int) -> GroupCommit | None:
        """One commit by its number."""
        return self._one("and number = ?", group, number)

    def at_time(self, group: str, moment_ms: int) -> GroupCommit | None:
        """The last commit at a moment."""
        return self._one("and time_ms <= ? order by time_ms desc, number desc", group, moment_ms)

    def before(self, group: str, number: int | None, limit: int) -> list[GroupCommit]:
        """So many commits before a number, or the newest, the newest first."""
        bound = _LAST if number is None else number
        return self._some("and number < ? order by number desc", limit, group, bound)

    def named(self, group: str, name: str) -> GroupCommit | None:
        """The newest commit that was given a name."""
        return self._of_all(group, [(_NAME, name)])

    def said(self, group: str, wanted: Mapping[str, str]) -> GroupCommit | None:
        """The newest commit of which all of this was said."""
        return self._of_all(group, list(wanted.items()))

    def words(self, group: str, key: str | None, limit: int) -> list[str]:
        """Names of commits (key None), or values that were given to a key: some of them, the newest first."""
        with self._lock:
            found = self._ask(
                "select value from said join groups on groups.id = grp where name = ? and key = ? "
                "group by value order by max(number) desc limit ?",
                group,
                _NAME if key is None else key,
                limit,
            )
        return [value for (value,) in found]

    def _of_all(self, group: str, pairs: list[tuple[str, str]]) -> GroupCommit | None:
        """From the newest down, each pair in turn says how far the next candidate must lie back."""
        bound = _LAST
        while True:
            numbers = [self._newest_said(group, key, value, bound) for key, value in pairs]
            lowest = min(-1 if number is None else number for number in numbers)
            if lowest < 0:
                return None
            if set(numbers) == {lowest}:
                return self.numbered(group, lowest)
            bound = lowest

    def _newest_said(self, group: str, key: str, value: str, bound: int) -> int | None:
        with self._lock:
            found = self._ask(
                "select number from said where grp = (select id from groups where name = ?) and key = ? "
                "and value = ? and number <= ? order by number desc limit 1",
                group,
                key,
                value,
                bound,
            )
        return found[0][0] if found else None

    def _one(self, where: str, group: str, *values: object) -> GroupCommit | None:
        found = self._some(where, 1, group, *values)
        return found[0] if found else None

    def _some(self, where: str, limit: int, group: str, *values: object) -> list[GroupCommit]:
        question = "select record from commits where grp = (select id from groups where name = ?) "
        with self._lock:
            found = self._ask(f"{question}{where} limit ?", group, *values, limit)
        return [self._decode(record) for (record,) in found]
