"""A task on its way to work: checkpoint checked, inputs found, stores restored, a piece at a time.

A container goes on with its other tasks meanwhile, so everything here is cut into steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator

from stack.errors import CorruptState, NotFound, Unavailable
from stack.kafka.reader import LogReader
from stack.machine import monotonic, sleep, time_ms
from stack.model.checkpoint import Checkpoint, InputPoint
from stack.model.metrics import RestoreMetrics
from stack.model.place import Place
from stack.model.plan import TaskId
from stack.runtime.parts import Parts, SourcePart, StorePart
from stack.runtime.task import Task
from stack.runtime.wiring import (
    Bounds,
    BulkLoad,
    Standing,
    Store,
    StoreIdentity,
    begin,
    plan_restore,
)

log = logging.getLogger("feedstack.container")
# A predecessor that was killed may hold its folder for a moment longer.
_LOCKED_LIMIT_S = 30.0
_READ_RECORDS = 20_000
# Without a record for so long, a restore asks whether Kafka is there.
_QUIET_LIMIT_S = 45.0


class Opening:
    """Opens one task step by step; `task` is there when `step` has answered True."""

    def __init__(
        self,
        parts: Parts,
        task: TaskId,
        checkpoint: Checkpoint | None,
        *,
        clock: Callable[[], float] = monotonic,
        clock_ms: Callable[[], int] = time_ms,
    ) -> None:
        self.id = task
        self.note = "opening"
        self.progress: RestoreMetrics | None = None
        self.task: Task | None = None
        self._parts = parts
        self._checkpoint = checkpoint
        self._clock = clock
        self._clock_ms = clock_ms
        self._until = 0.0
        self._stores: dict[str, Store] = {}
        self._steps: Generator[None, None, None] = self._open()

    def step(self, until: float) -> bool:
        """Work until the clock says so; True when the task is open."""
        self._until = until
        while self._clock() < until:
            if next(self._steps, self) is self:
                return True
        return False

    def abandon(self) -> None:
        """Let go of what was opened so far."""
        self._steps.close()
        for store in self._stores.values():
            store.close()

    def _open(self) -> Generator[None, None, None]:
        positions = self._positions()
        yield
        for name, part in self._parts.stores_by_stage[self.id.stage].items():
            yield from self._open_store(name, part)
        self.task = Task(self._parts, self.id, self._stores, positions, self._checkpoint)

    # Inputs

    def _positions(self) -> dict[Place, int]:
        """Where each input continues: at the checkpoint, or at the oldest record of a new input."""
        positions: dict[Place, int] = {}
        for name, part in self._parts.sources[self.id.stage].items():
            point = None if self._checkpoint is None else self._checkpoint.inputs.get(name)
            if point is not None:
                self._refuse_other_topic(name, part, point)
            places = part.places_of(self.id)
            bounds = self._parts.stack.admin.bounds(part.topic.name, [number for _, number in places])
            for place in places:
                bound = bounds[place[1]]
                offset = bound.low if point is None else point.offsets.get(place[1], bound.low)
                if not bound.low <= offset <= bound.high:
                    raise self._gone(name, place, offset, (bound.low, bound.high))
                positions[place] = offset
        return positions

    def _refuse_other_topic(self, name: str, part: SourcePart, point: InputPoint) -> None:
        if point.topic_id != part.topic.id:
            raise CorruptState(
                f"feed {name!r} was deleted and made anew: task {self.id} has read topic {point.topic!r} "
                f"with id {point.topic_id}, now it is {part.topic.name!r} with id {part.topic.id}",
                hint="Offsets of the old feed mean nothing in the new one. Remove the job with its state "
                f"(`stack jobs remove {self._parts.spec.name} --state`) and deploy it anew.",
            )
        if point.partitions != part.topic.partitions and not part.spec.broadcast:
            raise CorruptState(
                f"feed {name!r} had {point.partitions} partitions when task {self.id} last committed, now "
                f"{part.topic.partitions}: keys have moved between partitions, the state has not",
                hint="Write a new feed with the new number of partitions and deploy a new job for it.",
            )

    def _gone(self, name: str, place: Place, offset: int, span: tuple[int, int]) -> NotFound:
        low, high = span
        lost = f"{low - offset:,} records were removed by retention before they were read"
        if offset > high:
            lost = "the feed was cut: it ends before that"
        return NotFound(
            f"feed {name!r}, partition {place[1]}: task {self.id} continues at offset {offset}, but the feed "
            f"holds {low} to {high}; {lost}",
            hint="Nothing was skipped. To begin at the oldest, remove the job with its state "
            f"(`stack jobs remove {self._parts.spec.name} --state`) and deploy it anew.",
        )

    # Stores

    def _open_store(self, name: str, part: StorePart) -> Iterator[None]:
        """Open one store and bring it to the checkpoint."""
        partition, launch = self.id.partition, self._parts.launch
        identity = StoreIdentity(
            launch.settings.name,
            self._parts.spec.name,
            name,
            partition,
            part.topic.name,
            part.topic.id,
            part.spec.key,
            part.spec.value,
        )
        deadline = self._clock() + _LOCKED_LIMIT_S
        while True:
            try:
                folder = self._parts.store_folder(name, partition)
                opened = self._parts.open_store(folder, identity, self._clock_ms())
                break
            except Unavailable as error:
                if self._clock() > deadline:
                    raise
                self.note = error.message
                yield
                sleep(0.02)
        if opened.aside is not None:
            log.warning("store %r of task %s: %s", name, self.id, opened.note)
        self._stores[name] = opened.store
        yield
        yield from self._restore(name, part, opened.store)

    def _restore(self, name: str, part: StorePart, store: Store) -> Iterator[None]:
        """Bring a store to where the checkpoint says it was."""
        point = None if self._checkpoint is None else self._checkpoint.stores.get(name)
        partition = self.id.partition
        admin = self._parts.stack.admin
        bounds = admin.bounds(part.topic.name, [partition])[partition]
        there = Bounds(part.topic.name, part.topic.id, partition, bounds.low, bounds.high)
        # Behind the checkpoint's end there are only records of aborted transactions.
        needed = 0 if point is None else point.end
        local = store.standing()
        if local is not None and needed <= local.position <= bounds.high and point is not None:
            same = point.topic_id == part.topic.id == local.topic_id
            if same:
                log.info("store %r of task %s: the local store is up to date", name, self.id)
                return
        horizon_ms = self._parts.spec.settings.horizon_ms
        snapshots = [Standing(one.position, one.time_ms, part.topic.id) for one in store.snapshots()]
        now_ms = self._clock_ms()
        plan = plan_restore(local, snapshots, there, point, horizon_ms=horizon_ms, now_ms=now_ms)
        log.info("store %r of task %s: %s", name, self.id, plan.why)
        start = begin(store, plan)
        until = bounds.high if point is None else needed
        if start >= until:
            return
        load = BulkLoad(store, self._clock_ms())
        with LogReader(self._parts.stack.access, part.topic.name) as reader:
            reader.assign({partition: start}, {partition: until})
            yield from self._replay(name, reader, load, (start, until))
        if point is None and (store.position or 0) > 0:
            raise CorruptState(
                f"changelog {part.topic.name!r} holds changes, but task {self.id} has no checkpoint",
                hint=f"Remove what is left of the old job with `stack jobs remove {self._parts.spec.name} "
                "--state`, then deploy it anew.",
            )

    def _replay(self, name: str, reader: LogReader, load: BulkLoad, span: tuple[int, int]) -> Iterator[None]:
        partition, (start, until) = self.id.partition, span
        began = heard = self._clock()
        records = 0
        while not reader.done:
            if load.is_full:
                load.work(self._until)
                yield
                continue
            batch = reader.read(_READ_RECORDS, timeout_s=0.01)
            position = reader.positions[partition]
            if len(batch):
                load.add(batch.keys, batch.values, position)  # type: ignore[arg-type]
                records, heard = records + len(batch), self._clock()
            elif self._clock() - heard > _QUIET_LIMIT_S:
                raise Unavailable(f"the changelog of store {name!r} does not come", hint="Is Kafka there?")
            self._tell(name, records, (position - start) / (until - start), began)
            yield
        if records or self._checkpoint is not None:
            load.seal(until, self._clock_ms())
            while not load.work(self._until):
                yield
            took_s = max(0.001, self._clock() - began)
            log.info("store %r of task %s: restored %d records in %.2f s", name, self.id, records, took_s)

    def _tell(self, name: str, records: int, share: float, began: float) -> None:
        spent_s = self._clock() - began
        left_s = spent_s / share * (1 - share) if share > 0 else 0.0
        self.note = f"store {name!r}: {records:,} records, {share:.0%}, {left_s:.0f} s left"
        self.progress = RestoreMetrics(name, records, round(share, 4), round(left_s, 1))
