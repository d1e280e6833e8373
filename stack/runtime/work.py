"""Takes records through handlers, a stretch at a time, and says which record is to blame if one fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from stack.engine.cadence import next_chunk
from stack.kafka.inputs import Portion
from stack.machine import monotonic
from stack.runtime.dead import DeadLetters
from stack.runtime.faults import Verdict, failed, refused, undecodable
from stack.runtime.guard import Guard
from stack.runtime.metrics import Meter
from stack.runtime.outputs import Refused
from stack.runtime.parts import Parts
from stack.runtime.portions import BadPlace, Records
from stack.runtime.runs import Run, redriven_runs, spans_of
from stack.runtime.task import Task

_FIRST_CHUNK = 16


class Work:
    """The records that were read and are not yet handled."""

    def __init__(self, parts: Parts, clock: Callable[[], float] = monotonic) -> None:
        self._parts = parts
        self._clock = clock
        self._runs: deque[Run] = deque()
        self._chunk = _FIRST_CHUNK
        self._by_topic = {part.topic.name: part for part in parts.inputs.values()}
        self.handled = 0
        self.dead_letters = DeadLetters(parts.dead)
        # What becomes of records that fail, and how many did: `errors`, `dead`, `skipped`, `retried`.
        self.guard = Guard(self, parts.outputs, self.dead_letters, version=parts.spec.version, clock=clock)
        # Where a container measures itself.
        self.meter: Meter | None = None
        # What the watch looks at: the run at hand, and since when its record is the same.
        self.current: Run | None = None

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, portion: Portion, tasks: Iterable[Task]) -> None:
        """Queue a portion for each task that reads its partition and has not had it yet."""
        part = self._by_topic.get(portion.place[0])
        if part is None:
            for task in tasks:
                self._runs.extend(redriven_runs(portion, task, self._parts.inputs_by_stage[task.id.stage]))
            return
        whole = Records(portion.batch, part.decoder, portion.place[1])
        for task in tasks:
            position = task.positions[portion.place]
            if position >= portion.next_offset:
                continue
            records = whole
            if portion.place in task.gaps:
                records = whole.without(task.gaps[portion.place])
            run = Run(task, part, portion.place, records, portion.next_offset)
            # A broadcast input is read from where its hindmost task stands.
            while run.at < len(records) and records.log_offset(run.at) < position:
                run.at += 1
            self._runs.append(run)

    def drop(self, tasks: Iterable[Task] | None = None) -> None:
        """Forget what was queued, for all tasks or for some."""
        gone = None if tasks is None else set(map(id, tasks))
        self._runs = deque(run for run in self._runs if gone is not None and id(run.task) not in gone)

    def step(self) -> None:
        """Handle one stretch of records; their outputs are encoded when it returns."""
        run = self._runs[0]
        first, began = run.at, self._clock()
        if run.at >= len(run.records):
            pass  # all of it is passed over
        elif run.part.errors.guards:
            self.guard.step(run)
        else:
            self._step(run)
        self.handled += run.at - first
        if run.at > first:
            run.task.note_time(run.records.timestamp_ms(run.at - 1))
        if self.meter is not None:
            self.meter.handled(run, run.at - first, self._clock() - began)
        if run.at >= len(run.records):
            run.task.positions[run.place] = run.next_offset
            self._runs.popleft()
        elif run.at > first:
            run.task.positions[run.place] = run.records.log_offset(run.at - 1) + 1

    def _step(self, run: Run) -> None:
        """The same where an error ends the container: nothing has to be undone."""
        if run.values is None:
            self._decode(run)
        began = self._clock()
        context = run.task.context
        context.portion = run.records
        handler = run.part.handler
        context.state = context.store(handler.stores[0]) if handler.stores else None
        self.current = run
        first = run.at
        try:
            if handler.batch:
                self._run_batch(run)
            else:
                self._run_records(run, min(run.at + self._chunk, len(run.records)))
            self._parts.outputs.encode()
        except Refused as fault:
            raise refused(run, fault) from None
        finally:
            self.current = None
            context.portion = None
        if not handler.batch:
            self._chunk = next_chunk(run.at - first, self._clock() - began)

    def _decode(self, run: Run) -> None:
        payloads = run.records.batch.values
        try:
            if run.is_lost:
                raise BadPlace(0, run.lost_error)
            if run.part.handler.batch:
                run.spans = spans_of(payloads)
                run.values = payloads
            else:
                run.values = run.part.decoder.rows(payloads)
        except BadPlace as fault:
            raise undecodable(run, fault) from None

    def _run_records(self, run: Run, end: int) -> None:
        context, function = run.task.context, run.part.handler.function
        try:
            for context.index, value in enumerate(run.values[run.at : end], run.at):
                function(value, context)
        except Refused:
            raise
        except (Exception, Verdict) as error:
            self.current = None
            raise failed(run, context.index, error) from error
        run.at = end

    def _run_batch(self, run: Run) -> None:
        """Hand over the next rows of the portion as one Arrow batch, or the next deletions."""
        context, handler = run.task.context, run.part.handler
        first, end, are_rows = next(span for span in run.spans if span[1] > run.at)
        first = max(first, run.at)
        context.index = first
        try:
            batch = run.part.decoder.arrow(run.values[first:end] if are_rows else [])
        except BadPlace as fault:
            raise undecodable(run, BadPlace(first + fault.index, fault.error)) from None
        context.deleted = [] if are_rows else [run.records.key(index) for index in range(first, end)]
        try:
            handler.function(batch, context)
        except Refused:
            raise
        except (Exception, Verdict) as error:
            self.current = None
            raise failed(run, first, error) from error
        run.at = end
