"""Takes records through handlers, a stretch at a time, and says which record is to blame if one fails."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stack.engine.cadence import next_chunk
from stack.errors import BadInput, FeedstackError
from stack.kafka.inputs import Portion
from stack.model.place import Place
from stack.model.plan import Ending, Reason
from stack.runtime.outputs import Refused
from stack.runtime.parts import InputPart, Parts
from stack.runtime.portions import BadPlace, Records
from stack.runtime.task import Task

_FIRST_CHUNK = 16


class RecordFault(Exception):
    """A record that a task cannot get past; `ending` tells the rest."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.message)
        self.ending = ending


class Verdict(BaseException):
    """Raised into user code that has passed a limit. Not an Exception: nobody on its way is to catch it,
    neither user code nor the engine, which would take it for a fault of what it was doing.
    """


class OverTime(Verdict):
    """Raised into user code that keeps a record for too long."""


class OverMemory(Verdict):
    """Raised into user code of a container that has grown past its limit."""


@dataclass(slots=True)
class Run:
    """A portion on its way through one task."""

    task: Task
    part: InputPart
    place: Place
    records: Records
    next_offset: int
    values: Any = None
    at: int = 0
    # Tombstones within a batch are told apart from its rows: (first, end, whether rows).
    spans: list[tuple[int, int, bool]] = field(default_factory=list)


class Work:
    """The records that were read and are not yet handled."""

    def __init__(self, parts: Parts, clock: Callable[[], float] = time.monotonic) -> None:
        self._parts = parts
        self._clock = clock
        self._runs: deque[Run] = deque()
        self._chunk = _FIRST_CHUNK
        self._by_topic = {part.topic.name: part for part in parts.inputs.values()}
        self.handled = 0
        # What the watch looks at: the run at hand, and since when its record is the same.
        self.current: Run | None = None

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, portion: Portion, tasks: Iterable[Task]) -> None:
        """Queue a portion for each task that reads its partition and has not had it yet."""
        part = self._by_topic[portion.place[0]]
        records = Records(portion.batch, part.decoder, portion.place[1])
        for task in tasks:
            position = task.positions[portion.place]
            if position >= portion.next_offset:
                continue
            run = Run(task, part, portion.place, records, portion.next_offset)
            # A broadcast input is read from where its hindmost task stands.
            while run.at < len(records) and records.offset(run.at) < position:
                run.at += 1
            self._runs.append(run)

    def drop(self, tasks: Iterable[Task] | None = None) -> None:
        """Forget what was queued, for all tasks or for some."""
        gone = None if tasks is None else set(map(id, tasks))
        self._runs = deque(run for run in self._runs if gone is not None and id(run.task) not in gone)

    def step(self) -> None:
        """Handle one stretch of records; their outputs are encoded when it returns."""
        run = self._runs[0]
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
            raise self._refused(run, fault) from None
        finally:
            self.current = None
            context.portion = None
        handled = run.at - first
        self.handled += handled
        if run.at >= len(run.records):
            run.task.positions[run.place] = run.next_offset
            self._runs.popleft()
        else:
            run.task.positions[run.place] = run.records.offset(run.at - 1) + 1
        if not handler.batch:
            self._chunk = next_chunk(handled, self._clock() - began)

    def _decode(self, run: Run) -> None:
        payloads = run.records.batch.values
        try:
            if run.part.handler.batch:
                run.spans = _spans(payloads)
                run.values = payloads
            else:
                run.values = run.part.decoder.rows(payloads)
        except BadPlace as fault:
            raise self._undecodable(run, fault) from None

    def _run_records(self, run: Run, end: int) -> None:
        context, function = run.task.context, run.part.handler.function
        try:
            for context.index, value in enumerate(run.values[run.at : end], run.at):
                function(value, context)
        except Refused:
            raise
        except (Exception, Verdict) as error:
            self.current = None
            raise _failed(run, context.index, error) from error
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
            raise self._undecodable(run, BadPlace(first + fault.index, fault.error)) from None
        context.deleted = [] if are_rows else [run.records.key(index) for index in range(first, end)]
        try:
            handler.function(batch, context)
        except Refused:
            raise
        except (Exception, Verdict) as error:
            self.current = None
            raise _failed(run, first, error) from error
        run.at = end

    @staticmethod
    def _undecodable(run: Run, fault: BadPlace) -> RecordFault:
        place = run.records.place(fault.index)
        return RecordFault(
            Ending(
                Reason.FAILED,
                f"{place}: the record cannot be decoded: {fault.error.message}",
                fault.error.hint or "Whoever wrote it must write it again; then remove or skip it.",
                place,
                retry=False,
            )
        )

    @staticmethod
    def _refused(run: Run, fault: Refused) -> RecordFault:
        place, name = run.records.place(min(fault.place, len(run.records) - 1)), run.part.handler.name
        return RecordFault(
            Ending(
                Reason.FAILED,
                f"{place}: {name} emits a value that the feed refuses: {fault.error.message}",
                fault.error.hint or "Correct the code, or the schema of the feed, and deploy again.",
                place,
                retry=False,
            )
        )


def _failed(run: Run, index: int, error: Exception | Verdict) -> RecordFault:
    """What user code raised, with the record and the line."""
    place = run.records.place(index)
    said = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, FeedstackError):
        said = error.message
    where = _line_of(error)
    detail = "".join(traceback.format_exception(error))[-8_000:]
    hint = error.hint if isinstance(error, FeedstackError) and error.hint else ""
    if isinstance(error, Verdict):
        name = run.part.handler.name
        return RecordFault(
            Ending(Reason.FAILED, f"{place}: {name} {error}{where}", hint, place, retry=False, detail=detail)
        )
    hint = hint or "Correct the code and deploy again; nothing of the record was written."
    retry = not isinstance(error, BadInput)
    message = f"{place}: {run.part.handler.name} failed: {said}{where}"
    return RecordFault(Ending(Reason.FAILED, message, hint, place, retry=retry, detail=detail))


def _line_of(error: BaseException) -> str:
    """The last line of user code on the way to the error."""
    own = Path(__file__).parents[1]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not Path(frame.filename).is_relative_to(own) and "changelog" not in Path(frame.filename).parts
    ]
    if not frames:
        return ""
    last = frames[-1]
    text = f": {last.line}" if last.line else ""
    return f" ({Path(last.filename).name}, line {last.lineno}{text})"


def _spans(payloads: list[bytes | None]) -> list[tuple[int, int, bool]]:
    """Stretches of rows and of deletions, in their order."""
    if None not in payloads:
        return [(0, len(payloads), True)]
    spans: list[tuple[int, int, bool]] = []
    for index, payload in enumerate(payloads):
        is_row = payload is not None
        if spans and spans[-1][2] == is_row:
            spans[-1] = (spans[-1][0], index + 1, is_row)
        else:
            spans.append((index, index + 1, is_row))
    return spans
