"""Commits: outputs, deltas, checkpoints and input offsets of a container's tasks become visible together.

The steps, in order. Each may be the last that a process does; what then happens is said beside it.

0. lead     a job that has caught up sends what is there      the transaction aborts, all is done again
1. edge     between two records; positions are frozen         the same
2. deltas   what changed in each store goes to its changelog  the same
3. points   checkpoints, and now and then group offsets       the same
4. flush    everything must have arrived                      the same
5. commit   the transaction                                   unknown until the next one looks at Kafka
6. settle   RocksDB follows, in its own time                  the changelog brings the stores up when opened

Steps 3 to 5 wait for Kafka; they run in a thread while the container reads and handles what comes next. So
does the lead: the first records for a partition cost Kafka the most, since each partition must become part of
the transaction. Records that come meanwhile are still part of the commit, which then has little to wait for.

A checkpoint tells where the changelogs of its task end with this commit. Nobody else writes to them, so that
is known before: the end of the last commit, its marker, and the deltas since. While the transaction commits,
Kafka is asked whether it is so, and where the outputs end, which the next checkpoint tells. Where the end is
not known (the first commit of a task, and after an abort) the flush comes first, then the question.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stack.engine.output_ends import OutputEnds, Wrote
from stack.errors import BadRecord, Unavailable
from stack.kafka.inputs import InputReader
from stack.kafka.transactions import OutcomeUnknown, TransactionWriter
from stack.kafka.writer import MAX_VALUE_BYTES, LogWriter
from stack.machine import Outcome, monotonic, pool, sleep, time_ms, wait_for
from stack.model.checkpoint import OutputPoint, checkpoint_key
from stack.model.place import Place
from stack.offsets.checkpoints import checkpoint_partition, checkpoints_topic
from stack.runtime.parts import Parts
from stack.runtime.task import Task
from stack.runtime.wiring import Deltas

log = logging.getLogger("feedstack.container")
# The group's offsets are a mirror for tools that look at it. Nobody works with them, and to store them takes
# a fifth of a short commit: they follow within this time.
_MIRROR_S = 1.0
# An end that cannot be true is asked for again, for so long.
_STALE_S, _ASK_AGAIN_S = 10.0, 0.05
# After an abort everything that the thread waits for is over soon.
_LAST_WAIT_S = 10.0


@dataclass(slots=True)
class Edge:
    """What a commit holds of one task."""

    task: Task
    positions: dict[Place, int]
    changed: list[str]
    # What the group is told of it.
    offsets: dict[Place, int] = field(default_factory=dict)
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
        clock: Callable[[], float] = monotonic,
        clock_ms: Callable[[], int] = time_ms,
    ) -> None:
        self.writer = writer
        self._parts = parts
        self._reader = reader
        self._plain = plain
        self._clock = clock
        self._clock_ms = clock_ms
        self._pool = pool("commit")
        self._edges: list[Edge] = []
        self._future: Outcome[None] | None = None
        self.leads = False
        # The plan by which the container has its tasks, as the loop tells.
        self.generation = 0
        # Per output the partitions that this commit has written to.
        self._wrote: dict[str, Wrote] = {}
        self._started = 0.0
        self._output_places = [place for places in parts.output_places.values() for place in places]
        ends = parts.stack.admin.all_ends(self._output_places)
        self._output_ends = {feed: OutputEnds(one) for feed, one in self._by_output(ends).items()}
        # Where the next record of a changelog's partition will stand, as far as that is known, and how many
        # this transaction has written there.
        self._next: dict[Place, int] = {}
        self._written: Counter[Place] = Counter()
        self._unmirrored: dict[Place, int] = {}
        self._mirrors = False
        self._mirrored_at = float("-inf")
        self._mirrored: dict[Place, int] = {}
        self.last_took_s, self.finished_at = 0.005, float("-inf")
        # How many records the last commit wrote, and their bytes; and what the writer had taken before it.
        self.last_size = self._taken_before = (0, 0)
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
            sleep(timeout_s)
        else:
            wait_for(self._future, timeout_s)

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
        self._edges = [
            Edge(task, dict(task.positions), task.changed_stores, self._group_offsets(task)) for task in tasks
        ]
        self._wrote = {
            feed: self._output_ends[feed].wrote(sent_to)
            for feed, sent_to in self._parts.outputs.take_sent_to().items()
        }
        self.holds_outputs = True
        self._future = self._pool.submit(self._carry_out, self._clock_ms())

    def finish(self) -> list[Task]:
        """Wait for the commit and settle it (step 6); returns its tasks. Or wait for a lead: no task then.

        Raises what the transaction writer raises: Aborted, LostOwnership, OutcomeUnknown.
        """
        if self._future is None:
            raise AssertionError("no commit is under way")
        future, self._future = self._future, None
        led, self.leads = self.leads, False
        try:
            future.result()
        except BaseException:
            self._forget_ends()
            raise
        finally:
            if not led:
                self.holds_outputs = False
                self.finished_at = self._clock()
                self.last_took_s = self.finished_at - self._started
                self._weigh()
        if led:
            return []
        self._note_mirrored()
        now_ms = self._clock_ms()
        for edge in self._edges:
            edge.task.settle(edge.positions, edge.store_ends, now_ms)
        return [edge.task for edge in self._edges]

    def _weigh(self) -> None:
        """Note what the transaction that has just ended had written."""
        taken = self.writer.taken_records, self.writer.taken_bytes
        self.last_size = taken[0] - self._taken_before[0], taken[1] - self._taken_before[1]
        self._taken_before = taken

    def close(self) -> None:
        """End what is under way, and let go of the writer: never while its thread still writes."""
        try:
            self.writer.abort_all()
        finally:
            if self._future is not None:
                wait_for(self._future, _LAST_WAIT_S)
            self._pool.shutdown(wait=False, cancel_futures=True)
            self.writer.close()

    def _write_deltas(self, task: Task) -> None:
        for name, overlay in task.overlays.items():
            if not overlay.dirty_count:
                continue
            deltas = overlay.take()
            if deltas.values.largest > MAX_VALUE_BYTES:
                raise _too_large(name, deltas)
            topic, partition = place = self._changelog(name, task)
            self.writer.write_packed(topic, deltas.keys, deltas.values, partition)
            self._written[place] += len(deltas)

    def _changelog(self, store: str, task: Task) -> Place:
        return self._parts.stores[store].topic.name, task.id.partition

    def _carry_out(self, time_ms: int) -> None:
        if self._plain is not None:
            self._plain.flush()
            self.holds_outputs = False
        writer = self.writer
        if not self._next.keys() >= self._written.keys():
            writer.deliver_or_abort()
            writer.do_or_abort(self._ask_ends)
        self._deliver_points(time_ms)
        answer = self._parts.stack.admin.begin_ends([*self._written, *self._output_places])
        writer.commit_delivered()
        ends = answer()
        self._note_outputs(ends)
        self._compare(ends, time_ms)

    def _note_outputs(self, ends: dict[Place, int] | None) -> None:
        """Where outputs end now. The next checkpoint tells it, and a rewind to this one goes by that: an
        answer that did not come, or is from before, is asked for until there is a good one.
        """
        found = {} if ends is None else self._by_output(ends)
        deadline = self._clock() + _STALE_S
        while not self._can_be(found):
            if self._clock() > deadline:
                raise OutcomeUnknown("committed, but Kafka does not tell where outputs end")
            sleep(_ASK_AGAIN_S)
            with contextlib.suppress(Unavailable):
                found = self._by_output(self._parts.stack.admin.all_ends(self._output_places))
        # What an earlier attempt has written stood there before this one began.
        slots = {edge.task.last_slot for edge in self._edges if not edge.task.announced}
        has_new = bool(slots - {None, self._parts.launch.slot})
        for feed, one in self._output_ends.items():
            one.note(found[feed], self._wrote[feed], has_points=bool(self._edges), has_new=has_new)

    def _can_be(self, found: dict[str, list[int]]) -> bool:
        return all(
            feed in found and one.is_good(found[feed], self._wrote[feed])
            for feed, one in self._output_ends.items()
        )

    def _by_output(self, ends: Mapping[Place, int]) -> dict[str, list[int]]:
        return {feed: [ends[place] for place in places] for feed, places in self._parts.output_places.items()}

    def _ask_ends(self) -> None:
        """Where the next records of the changelogs would have stood before this transaction."""
        floors = {
            self._changelog(name, edge.task): edge.task.store_ends[name]
            for edge in self._edges
            for name in edge.changed
        }
        deadline = self._clock() + _STALE_S
        while True:
            ends = self._parts.stack.admin.all_ends(self._written)
            if all(end >= floors.get(place, 0) + self._written[place] for place, end in ends.items()):
                break
            # A broker that was just started tells an end from before, for a moment.
            if self._clock() > deadline:
                raise Unavailable(f"changelogs end before what was written to them: {ends}")
            sleep(_ASK_AGAIN_S)
        self._next.update({place: end - self._written[place] for place, end in ends.items()})

    def _compare(self, ends: dict[Place, int] | None, time_ms: int) -> None:
        """After the commit: whether the changelogs end where its checkpoints say."""
        told = {place: self._next[place] + count for place, count in self._written.items()}
        if ends is None or any(ends[place] < end for place, end in told.items()):
            # No answer; or one of a broker that was just started and tells an end from before.
            self._forget_ends()
            return
        self._written.clear()
        # The marker of the transaction may be there already or not; the next record comes after it.
        self._next.update({place: end + 1 for place, end in told.items()})
        wrong = {place: ends[place] for place, end in told.items() if ends[place] > end + 1}
        if wrong:
            log.warning("changelogs do not end where they should, somebody else writes to them: %s", wrong)
            self._correct(wrong, time_ms)

    def _correct(self, ends: dict[Place, int], time_ms: int) -> None:
        """Tell the true ends in one more commit."""
        self._forget_ends()
        for edge in self._edges:
            edge.task.number += 1
            for name in edge.changed:
                place = self._changelog(name, edge.task)
                edge.store_ends[name] = ends.get(place, edge.store_ends[name])
        self.writer.begin_if_needed()
        self._deliver_points(time_ms)
        self.writer.commit_delivered()

    def renew(self, writer: TransactionWriter) -> None:
        """Go on with another writer."""
        self.writer = writer
        self._taken_before = writer.taken_records, writer.taken_bytes
        self._forget_ends()

    def _forget_ends(self) -> None:
        self._next.clear()
        self._written.clear()

    def _group_offsets(self, task: Task) -> dict[Place, int]:
        """What the group is told of a task: its positions, or the end of the log where it has reached that.

        The last records of a log may be markers of transactions, which are never handed out; tools would
        count them as records that wait. Only for the thread that reads.
        """
        places = [
            place
            for part in self._parts.sources[task.id.stage].values()
            if not part.spec.broadcast
            for place in part.places_of(task.id)
        ]
        return {place: self._reader.passed(place, task.positions[place]) for place in places}

    def note_passed(self, tasks: Iterable[Task]) -> None:
        """While nothing waits to be committed: what the group should be told by now."""
        for task in tasks:
            if not task.has_changes:
                offsets = self._group_offsets(task).items()
                self._unmirrored.update(one for one in offsets if self._mirrored.get(one[0], -1) < one[1])

    def _committed_offsets(self) -> dict[Place, int]:
        return {place: offset for edge in self._edges for place, offset in edge.offsets.items()}

    def _mirror(self) -> None:
        """Store the group's offsets, for whoever looks at it, if they are due."""
        offsets = {**self._unmirrored, **self._committed_offsets()} if self._mirrors else {}
        if offsets:
            self.writer.send_offsets(offsets, self._reader.group_metadata)

    def _note_mirrored(self) -> None:
        """After a commit: what of it the group does not have yet."""
        self._unmirrored.update(self._committed_offsets())
        if self._mirrors:
            self._mirrored.update(self._unmirrored)
            self._unmirrored = {}
            self._mirrored_at = self._started

    def _deliver_points(self, time_ms: int) -> None:
        """Steps 3 and 4."""
        self.writer.do_or_abort(lambda: self._write_points(time_ms))
        self.writer.deliver_or_abort()

    def _write_points(self, time_ms: int) -> None:
        """Step 3."""
        outputs = self._outputs_before()
        keys, values = [], []
        job = self._parts.spec.name
        for edge in self._edges:
            task = edge.task
            for name in edge.changed:
                place = self._changelog(name, task)
                if place in self._written:
                    edge.store_ends[name] = self._next[place] + self._written[place]
            ends = {**task.store_ends, **edge.store_ends}
            point = task.checkpoint(edge.positions, ends, outputs, time_ms, self.generation)
            keys.append(checkpoint_key(job, task.id))
            values.append(self._parts.encode_checkpoint(point))
        stack = self._parts.launch.settings.name
        self.writer.write_pairs(checkpoints_topic(stack), keys, values, checkpoint_partition(job))
        self._mirror()

    def _outputs_before(self) -> dict[str, OutputPoint]:
        """Where outputs ended before this commit: all of the last one's stand before that.

        Those that go at once are not held back while Kafka is asked: some of this commit's may stand before
        it, too. A rewind to the last commit leaves them, as at-least-once has it.
        """
        topics = self._parts.output_topics
        return {
            feed: OutputPoint(
                topics[feed].name, topics[feed].id, one.told(self._wrote[feed]), self._wrote[feed]
            )
            for feed, one in self._output_ends.items()
        }


def _too_large(store: str, deltas: Deltas) -> BadRecord:
    place = int(deltas.values.sizes.argmax())
    key = deltas.keys[place : place + 1].items()[0] or b""
    return BadRecord(
        f"store {store!r}: the value of key {key[:60]!r} has {deltas.values.largest:,} bytes; a changelog "
        f"takes {MAX_VALUE_BYTES:,}",
        hint="Keep less under one key, for example one entry per item with a common prefix.",
    )
