"""What a rewind appends to changelogs and tables, so that they hold what they held at the point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from stack.connection import Stack
from stack.deploy.rewind_intent import Intent
from stack.engine.rewind import StateChoice
from stack.kafka.transactions import TransactionWriter
from stack.model.job import JobSpec, changelog_name
from stack.offsets.undo import Change, LogUndo

# So many changes go into one transaction: it must end long before its time limit.
MOST_CHANGES = 200_000


class RewindChanges:
    """Looks them up, a piece at a time."""

    def __init__(self, stack: Stack, most: int = MOST_CHANGES) -> None:
        self._stack = stack
        self.most = most

    def of(self, specs: Mapping[str, JobSpec], intents: Mapping[str, Intent]) -> Iterator[tuple[int, Change]]:
        """All of state (0) and of tables (1)."""
        for job, intent in intents.items():
            yield from ((0, one) for one in self.of_state(specs[job], intent))
        for intent in intents.values():
            yield from ((1, one) for one in self.of_tables(intent))

    def of_state(self, spec: JobSpec, intent: Intent) -> Iterator[Change]:
        """What the stores of a job need."""
        if intent.state is StateChoice.KEEP:
            return
        for store in spec.stores:
            log = LogUndo(self._stack, changelog_name(self._stack.settings.name, spec.name, store.name))
            for task, target in intent.targets.items():
                if task.stage != store.stage:
                    continue
                point = None if target is None else target.stores.get(store.name)
                cut = 0 if point is None else point.end
                is_empty = intent.state is StateChoice.EMPTY
                yield from log.changes(task.partition, cut, self.most, empty=is_empty)

    def of_tables(self, intent: Intent) -> Iterator[Change]:
        """What the tables of a job need."""
        for feed, offsets in intent.cuts.items():
            log = LogUndo(self._stack, self._stack.topic_of(feed, self._stack.feed(feed).version))
            for partition, cut in enumerate(offsets):
                yield from log.changes(partition, cut, self.most)


def append(writer: TransactionWriter, changes: Iterable[Change]) -> None:
    """Write them within a transaction."""
    writer.begin_if_needed()
    for one in changes:
        writer.write_pairs(one.topic, one.keys, one.values, one.partition)
