"""A small table of the stack (schemas, catalogue) that lives in a compacted feed.

Everybody may read it; writers take turns. The turn is not a lock but Kafka's fencing: see
`stack.kafka.ledger` for the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

Entries = Mapping[str, str]
Changes = Mapping[str, str | None]
Decide = Callable[[Entries], Changes]


class Ledger(Protocol):
    """Text keys to text values, in the order in which the keys first came."""

    def entries(self) -> Entries:
        """Everything written so far by anyone, up to the end of the feed at the moment of the call."""
        ...

    def update(self, decide: Decide) -> Entries:
        """Change the table: `decide` sees the newest entries and answers the changes (None removes a key).

        Nobody else writes in between: if somebody did, `decide` is asked again. All changes become
        visible together, or none. Returns the entries after the change.
        """
        ...


class MemoryLedger:
    """The same in memory, for tests and for checks that must not touch a cluster."""

    def __init__(self, entries: Entries | None = None) -> None:
        self._entries: dict[str, str] = dict(entries or {})

    def entries(self) -> Entries:
        return dict(self._entries)

    def update(self, decide: Decide) -> Entries:
        apply_changes(self._entries, decide(dict(self._entries)))
        return dict(self._entries)


def apply_changes(entries: dict[str, str], changes: Changes) -> None:
    """Carry changes out on a plain dict: None removes."""
    for key, value in changes.items():
        if value is None:
            entries.pop(key, None)
        else:
            entries[key] = value
