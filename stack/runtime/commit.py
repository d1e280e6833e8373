"""Commits: outputs, deltas, checkpoints and input offsets of a container's tasks become visible together.

The steps, in order. Each may be the last that a process does; what then happens is said beside it.

0. lead     a job that has caught up sends what is there      the transaction aborts, all is done again
1. edge     between two records; positions are frozen         the same
2. deltas   what changed in each store goes to its changelog  the same
3. flush    everything must have arrived                      the same
4. points   checkpoints, and now and then group offsets       the same
5. commit   the transaction                                   unknown until the next one looks at Kafka
6. settle   RocksDB follows, in its own time                  the changelog brings the stores up when opened

Steps 3 to 5 wait for Kafka; they run in a thread while the container reads and handles what comes next. So
does the lead: the first records for a partition cost Kafka the most, since each partition must become part of
the transaction. Records that come meanwhile are still part of the commit, which then has little to wait for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from stack.errors import BadRecord
from stack.kafka.inputs import InputReader
from stack.kafka.transactions import TransactionWriter
from stack.kafka.writer import MAX_VALUE_BYTES, LogWriter
from stack.model.checkpoint import checkpoint_key, checkpoint_to_bytes
from stack.model.place import Place
from stack.offsets.checkpoints import checkpoint_partition, checkpoints_topic
from stack.runtime.parts import Parts
from stack.runtime.task import Task
from stack.runtime.wiring import Deltas

# The group's offsets are a mirror for tools that look at it. Nobody works with them, and to store them takes
# a fifth of a short commit: they follow within this time.
_MIRROR_S = 1.0
# After an abort everything that the thread waits for is over soon.
_LAST_WAIT_S = 10.0


@dataclass(slots=True)
class Edge:
    """What a commit holds of one task."""

    task: Task
    positions: dict[Place, int]
    changed: list[str]
    store_ends: dict[str, int] = field(default_factory=dict)


class Committer:
    """Makes one commit at a time. `start` and `finish` belong to the container's loop."""

    def __init__(
        self,
        parts: Parts,
        writer: TransactionWriter,
        reader: InputReader,
        plain: LogWriter | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.writer = writer
        self._parts = parts
        self._reader = reader
        self._plain = plain
        self._clock = clock
        self._clock_ms = clock_ms
        self._pool = ThreadPoolExecutor(1, "commit")
        self._edges: list[Edge] = []
        self._future: Future[None] | None = None
        self.leads = False
        self._started = 0.0
        self._output_places = [place for places in parts.output_places.values() for place in places]
        self._output_ends = parts.stack.admin.all_ends(self._output_places)
        self._unmirrored: dict[Place, int] = {}
        self._mirrors = False
        self._mirrored_at = float("-inf")
        self.last_took_s, self.finished_at = 0.005, float("-inf")
        # At-least-once outputs must not be produced between their flush and its end.
        self.holds_outputs = False

    @property
    def in_flight(self) -> bool:
        """Whether a commit was started and not finished."""
        return self._future is not None

    @property
    def ready(self) -> bool:
        """Whether `finish` would not wait."""
        return self._future is not None and self._future.done()

    @property
    def waited_s(self) -> float:
        """How long the commit under way has taken so far."""
        return self._clock() - self._started

    @property
    def has_unmirrored(self) -> bool:
        """Whether the group's offsets are behind what was committed."""
        return bool(self._unmirrored)

    @property
    def mirror_is_due(self) -> bool:
        """Whether they should follow now, if need be in a commit of their own."""
        return self._clock() - self._mirrored_at >= _MIRROR_S

    def wait(self, timeout_s: float) -> None:
        """Wait for that long, or until the commit under way is done."""
        if self._future is None:
            time.sleep(timeout_s)
        else:
            wait([self._future], timeout_s)

    def lead(self, tasks: Sequence[Task]) -> None:
        """Step 0: send the deltas so far, with the outputs that were handed over. `finish` must follow."""
        self._begin()
        for task in tasks:
            self._write_deltas(task)
        self.leads = True
        self._future = self._pool.submit(self.writer.deliver_or_abort)

    def _begin(self) -> None:
        self._started = self._clock()
        self.writer.begin_if_needed()

    def start(self, tasks: Sequence[Task], last: bool = False) -> None:
        """Steps 1 and 2, here; 3 to 5 go on in their thread. All outputs must have been handed over.

        Without tasks only the group's offsets follow. The `last` commit leaves nothing for later.
        """
        self._begin()
        self._mirrors = last or self.mirror_is_due
        for task in tasks:
            self._write_deltas(task)
        self._edges = [Edge(task, dict(task.positions), task.changed_stores) for task in tasks]
        self.holds_outputs = True
        self._future = self._pool.submit(self._carry_out, self._clock_ms())

    def finish(self) -> list[Task]:
        """Wait for the commit and settle it (step 6); returns its tasks. Or wait for a lead: no task then.

        Raises what the transaction writer raises: Aborted, LostOwnership, OutcomeUnknown.
        """
        if self._future is None:
            raise AssertionError("no commit is under way")
        future, self._future = self._future, None
        if self.leads:
            self.leads = False
            future.result()
            return []
        try:
            future.result()
        finally:
            self.holds_outputs = False
            self.finished_at = self._clock()
            self.last_took_s = self.finished_at - self._started
        self._note_mirrored()
        now_ms = self._clock_ms()
        for edge in self._edges:
            edge.task.settle(edge.positions, edge.store_ends, now_ms)
        return [edge.task for edge in self._edges]

    def close(self) -> None:
        """End what is under way, and let go of the writer: never while its thread still writes."""
        try:
            self.writer.abort_all()
        finally:
            if self._future is not None:
                wait([self._future], _LAST_WAIT_S)
            self._pool.shutdown(wait=False, cancel_futures=True)
            self.writer.close()

    def _write_deltas(self, task: Task) -> None:
        for name, overlay in task.overlays.items():
            if not overlay.dirty_count:
                continue
            deltas = overlay.take()
            if deltas.values.largest > MAX_VALUE_BYTES:
                raise _too_large(name, deltas)
            topic = self._parts.stores[name].topic.name
            self.writer.write_packed(topic, deltas.keys, deltas.values, task.id.partition)

    def _carry_out(self, time_ms: int) -> None:
        if self._plain is not None:
            self._plain.flush()
            self.holds_outputs = False
        self.writer.commit_or_abort(lambda: self._write_points(time_ms))

    def _group_offsets(self) -> dict[Place, int]:
        """The input offsets of this commit."""
        return {
            (part.topic.name, edge.task.id.partition): edge.positions[part.topic.name, edge.task.id.partition]
            for part in self._parts.inputs.values()
            if not part.spec.broadcast
            for edge in self._edges
        }

    def _mirror(self) -> None:
        """Store the group's offsets, for whoever looks at it, if they are due."""
        offsets = {**self._unmirrored, **self._group_offsets()} if self._mirrors else {}
        if offsets:
            self.writer.send_offsets(offsets, self._reader.group_metadata)

    def _note_mirrored(self) -> None:
        """After a commit: what of it the group does not have yet."""
        if self._mirrors:
            self._unmirrored = {}
            self._mirrored_at = self._started
        else:
            self._unmirrored.update(self._group_offsets())

    def _write_points(self, time_ms: int) -> None:
        """Step 4. After the flush the ends of partitions are those of this commit."""
        stores = self._parts.stores
        asked = [
            (stores[name].topic.name, edge.task.id.partition) for edge in self._edges for name in edge.changed
        ]
        ends = self._parts.stack.admin.all_ends([*asked, *self._output_places])
        outputs = self._output_spans(ends)
        keys, values = [], []
        job = self._parts.spec.name
        for edge in self._edges:
            task = edge.task
            for name in edge.changed:
                edge.store_ends[name] = ends[stores[name].topic.name, task.id.partition]
            point = task.checkpoint(edge.positions, {**task.store_ends, **edge.store_ends}, outputs, time_ms)
            keys.append(checkpoint_key(job, task.id))
            values.append(checkpoint_to_bytes(point))
        stack = self._parts.launch.settings.name
        self.writer.write_pairs(checkpoints_topic(stack), keys, values, checkpoint_partition(job))
        self._mirror()
        self._output_ends.update({place: ends[place] for place in self._output_places})

    def _output_spans(self, ends: dict[Place, int]) -> dict[str, dict[int, tuple[int, int]]]:
        """Which part of each output this commit lies in."""
        spans: dict[str, dict[int, tuple[int, int]]] = {}
        for feed, places in self._parts.output_places.items():
            grown = {
                place[1]: (self._output_ends[place], ends[place])
                for place in places
                if ends[place] > self._output_ends[place]
            }
            if grown:
                spans[feed] = grown
        return spans


def _too_large(store: str, deltas: Deltas) -> BadRecord:
    place = int(deltas.values.sizes.argmax())
    key = deltas.keys[place : place + 1].items()[0] or b""
    return BadRecord(
        f"store {store!r}: the value of key {key[:60]!r} has {deltas.values.largest:,} bytes; a changelog "
        f"takes {MAX_VALUE_BYTES:,}",
        hint="Keep less under one key, for example one entry per item with a common prefix.",
    )
