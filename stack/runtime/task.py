"""One task in a container: its stores, its context, and how far it has come."""

from __future__ import annotations

from stack.model.checkpoint import Checkpoint, InputPoint, OutputPoint, StorePoint, gaps_of
from stack.model.place import Place
from stack.model.plan import TaskId
from stack.runtime.parts import Parts
from stack.runtime.wiring import Overlay, Store
from stack.tasks.context import Context

# Committed changes are written to RocksDB in portions: when so many keys wait, or after so long.
_PENDING_ENTRIES = 100_000


class Task:
    """An open task. `positions` are where its inputs stand, `committed` where its last commit left them."""

    def __init__(
        self,
        parts: Parts,
        task: TaskId,
        stores: dict[str, Store],
        positions: dict[Place, int],
        checkpoint: Checkpoint | None,
    ) -> None:
        self.id = task
        self._parts = parts
        self.backing = stores
        self.overlays = {
            name: Overlay(name, parts.stores[name].codec, store, parts.cached_entries)
            for name, store in stores.items()
        }
        spec = parts.spec
        self.context = Context(spec.name, spec.version, task, self.overlays, parts.outputs)
        self.positions = dict(positions)
        self.committed = dict(positions)
        self.number = 0 if checkpoint is None else checkpoint.number
        # The slot of its last commit, None before its first one anywhere.
        self.last_slot = None if checkpoint is None else checkpoint.slot
        # What is passed over: outputs of a job that went back, and this one with it.
        self.gaps = {} if checkpoint is None else gaps_of(checkpoint)
        # The highest time of a record that was handled, those of a commit that is aborted included.
        self.event_time_ms = None if checkpoint is None else checkpoint.event_time_ms
        self.store_ends = {name: store.position or 0 for name, store in stores.items()}
        # A first commit tells everybody that this version has the task, even if no record comes.
        self.announced = False
        # What the context held at the mark.
        self._counters: dict[str, int] = {}
        self._asked = False

    @property
    def has_changes(self) -> bool:
        """Whether a commit would say anything new."""
        return self.positions != self.committed or not all(one.is_clean for one in self.overlays.values())

    @property
    def changed_stores(self) -> list[str]:
        """The stores with deltas in the commit that is being made."""
        return [name for name, one in self.overlays.items() if one.is_taken]

    @property
    def pending(self) -> int:
        """How many committed keys wait to be written to RocksDB."""
        return sum(one.pending_count for one in self.overlays.values())

    def checkpoint(
        self,
        positions: dict[Place, int],
        store_ends: dict[str, int],
        outputs: dict[str, OutputPoint],
        time_ms: int,
        generation: int = 0,
    ) -> Checkpoint:
        """The record of the commit that is being made, by the plan of a generation."""
        inputs = {}
        for name, part in self._parts.sources[self.id.stage].items():
            places = part.places_of(self.id)
            inputs[name] = InputPoint(
                part.topic.name,
                part.topic.id,
                part.topic.partitions,
                {place[1]: positions[place] for place in places},
                {place[1]: self.gaps[place] for place in places if self._is_before_gaps(place, positions)},
            )
        stores = {
            name: StorePoint(part.topic.name, part.topic.id, store_ends[name])
            for name, part in self._parts.stores_by_stage[self.id.stage].items()
        }
        spec, launch = self._parts.spec, self._parts.launch
        return Checkpoint(
            spec.name,
            self.id,
            spec.version,
            self.number + 1,
            time_ms,
            inputs,
            stores,
            outputs,
            event_time_ms=self.event_time_ms,
            generation=generation,
            slot=launch.slot,
            attempt=launch.attempt,
            horizon_ms=spec.settings.horizon_ms,
        )

    def _is_before_gaps(self, place: Place, positions: dict[Place, int]) -> bool:
        """Whether something is still to be passed over."""
        return place in self.gaps and positions[place] < self.gaps[place][-1].end

    def settle(self, positions: dict[Place, int], store_ends: dict[str, int], time_ms: int) -> None:
        """The commit of these positions is done."""
        for overlay in self.overlays.values():
            overlay.settle()
        self.committed = positions
        self.store_ends.update(store_ends)
        self.number += 1
        self.announced = True
        if self.pending > _PENDING_ENTRIES:
            self.write_pending(time_ms)

    def note_time(self, time_ms: int) -> None:
        """A record of this time was handled."""
        if self.event_time_ms is None or time_ms > self.event_time_ms:
            self.event_time_ms = time_ms

    def drop(self) -> None:
        """Go back to the last commit."""
        for overlay in self.overlays.values():
            overlay.drop()
        self.positions = dict(self.committed)

    def mark(self) -> None:
        """What user code changes from now on can be taken back; `keep` or `undo` must follow."""
        for overlay in self.overlays.values():
            overlay.mark()
        self._counters = dict(self.context.counters)
        self._asked = self.context.commit_requested

    def keep(self) -> None:
        """What has changed since the mark stays."""
        for overlay in self.overlays.values():
            overlay.keep()

    def undo(self, interrupted: bool) -> None:
        """Take back what has changed since the mark; `interrupted` if code was stopped somewhere inside."""
        for overlay in self.overlays.values():
            overlay.undo(interrupted)
        self.context.counters = self._counters
        self.context.commit_requested = self._asked

    def write_pending(self, time_ms: int) -> None:
        """Bring RocksDB up to the last commit."""
        for name, overlay in self.overlays.items():
            overlay.write_pending(self.store_ends[name], time_ms)

    def close(self) -> None:
        """Let go of the stores, which stay on disk for the next who has the task."""
        for store in self.backing.values():
            store.close()
