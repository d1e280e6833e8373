"""Takes records through handlers where errors are survived: what fails is undone, found and treated alone.

A stretch of records runs as it would without a guard, behind a mark. If anything in it fails, everything
since the mark is taken back, and a shorter stretch runs: the records before the one that failed, then that
one alone. Only a record that has failed alone is treated, so that nobody pays for somebody else's fault. The
code may see a record twice; its effects are there once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stack.engine.cadence import next_chunk
from stack.engine.faults import Step, answer_error
from stack.errors import (
    BadConfig,
    BadRecord,
    ClusterFault,
    CorruptState,
    LostOwnership,
    NotDelivered,
    Retryable,
    Unavailable,
)
from stack.machine import monotonic, sleep, time_ms
from stack.model.dead import DeadLetter, Kind, without_own
from stack.runtime.dead import DeadLetters
from stack.runtime.faults import OverTime, RecordFault, Verdict, failed, line_of, refused, said, undecodable
from stack.runtime.outputs import Outputs, Refused
from stack.runtime.portions import BadPlace
from stack.runtime.runs import Run, spans_of

if TYPE_CHECKING:
    from stack.runtime.work import Work

# No record is to blame for these: they end the container, or the job, as they always do.
_NOT_OF_RECORDS = (
    BadConfig,
    Unavailable,
    LostOwnership,
    NotDelivered,
    CorruptState,
    ClusterFault,
    MemoryError,
)
_MAY_PASS = (Retryable, ConnectionError, TimeoutError)
_FIRST_CHUNK = 16
# A batch that fails is tried again in so many parts; one that succeeds may be followed by one so much larger.
_PARTS, _GROWTH = 8, 4
# The longest wait within a step: the loop has a plan to follow and commits to make.
_WAIT_S = 0.05


@dataclass(frozen=True, slots=True)
class Fault:
    """An error of one record. What is told of it takes longer to find than a record takes: only on demand."""

    kind: Kind
    error: Exception | Verdict
    cause: str = ""
    may_pass: bool = False

    def ending(self, run: Run, index: int) -> RecordFault:
        """What the job would end with."""
        if isinstance(self.error, Refused):
            return refused(run, Refused(index, self.error.error))
        if isinstance(self.error, BadPlace):
            return undecodable(run, self.error)
        return failed(run, index, self.error)


class Guard:
    """Handles runs of inputs with a policy for errors, and counts what became of records that failed."""

    def __init__(
        self,
        work: Work,
        outputs: Outputs,
        dead: DeadLetters,
        *,
        version: str,
        clock: Callable[[], float] = monotonic,
        clock_ms: Callable[[], int] = time_ms,
        sleep: Callable[[float], object] = sleep,
    ) -> None:
        self._work = work
        self._outputs = outputs
        self.dead_letters = dead
        self._version = version
        self._clock = clock
        self._clock_ms = clock_ms
        self._sleep = sleep
        self._chunk = _FIRST_CHUNK
        # Records that failed for good, those of them that were kept or skipped, and tries that were repeated.
        self.errors = self.dead = self.skipped = self.retried = 0

    @property
    def faults(self) -> dict[str, int]:
        """What was counted, by name; nothing while nothing has failed."""
        told = ("errors", "dead", "skipped", "retried")
        return {name: count for name in told if (count := getattr(self, name))}

    def step(self, run: Run) -> None:
        """Handle a stretch of a run, or treat one record; neither while a record waits to be tried again."""
        if run.values is None:
            self._decode(run)
        if run.retry_at > (now := self._clock()):
            self._sleep(min(_WAIT_S, run.retry_at - now))
            return
        end = self._end(run)
        found = self._attempt(run, end)
        if found is None:
            self._passed(run, end, self._clock() - now)
            return
        index, fault = found
        if end == run.at + 1:
            self._treat(run, fault)
        elif run.part.handler.batch:
            run.stop_at = run.at + max(1, (end - run.at) // _PARTS)
        else:
            run.stop_at = run.alone = max(run.at, min(index, end - 1))
            if fault.kind is Kind.TIME:
                # It need not show again that it takes too long.
                run.known_bad[run.alone] = fault

    def _end(self, run: Run) -> int:
        """How far the next stretch goes."""
        if run.at == run.alone:
            return run.at + 1
        if run.part.handler.batch:
            _, end, _ = next(span for span in run.spans if span[1] > run.at)
        else:
            end = min(run.at + self._chunk, len(run.records))
        return min(end, run.stop_at) if run.stop_at > run.at else end

    def _passed(self, run: Run, end: int, took_s: float) -> None:
        """A stretch went well; what was known to be bad was taken out of it."""
        handled = end - run.at
        for index in [one for one in run.known_bad if run.at <= one < end]:
            self._settle(run, index, run.known_bad.pop(index))
        if run.part.handler.batch:
            run.stop_at = end + handled * _GROWTH if run.stop_at else 0
        else:
            self._chunk = next_chunk(handled, took_s)
        run.at = end
        run.retries = 0

    # Decoding

    def _decode(self, run: Run) -> None:
        payloads = run.records.batch.values
        if run.is_lost:
            run.values, run.spans = payloads, [(0, len(payloads), True)]
            self._note_bad(run, 0, [run.lost_error] * len(run.records))
        elif run.part.handler.batch:
            run.spans = spans_of(payloads)
            run.values = payloads
        else:
            try:
                run.values = run.part.decoder.rows(payloads)
            except BadPlace:
                run.values = run.part.decoder.rows_or_faults(payloads)
                self._note_bad(run, 0, run.values)

    @staticmethod
    def _note_bad(run: Run, first: int, values: list[object]) -> None:
        for index, value in enumerate(values, first):
            if isinstance(value, BadRecord):
                run.known_bad[index] = Fault(Kind.UNDECODABLE, BadPlace(index, value), value.message)

    # Running

    def _attempt(self, run: Run, end: int) -> tuple[int, Fault] | None:
        """Run records up to `end`; what failed, by index, and then nothing of them is left."""
        task, work = run.task, self._work
        context = task.context
        stores = run.part.handler.stores
        context.state = context.store(stores[0]) if stores else None
        task.mark()
        self._outputs.mark()
        try:
            try:
                if run.part.handler.batch:
                    self._run_batch(run, end)
                else:
                    context.portion = run.records
                    work.current = run
                    function = run.part.handler.function
                    for context.index, value in self._good(run, end):
                        function(value, context)
                self._outputs.encode()
            finally:
                work.current = None
                context.portion = None
        except (Exception, Verdict) as error:
            # A limit may have been passed at the very moment when the line above was due.
            work.current = None
            found = self._fault_of(run, context.index, error)
            task.undo(interrupted=isinstance(error, Verdict))
            self._outputs.undo()
            return found
        task.keep()
        return None

    @staticmethod
    def _good(run: Run, end: int) -> Iterable[tuple[int, Any]]:
        """The records up to `end`, with their indices, but for those that are known to be bad."""
        found = enumerate(run.values[run.at : end], run.at)
        return [one for one in found if one[0] not in run.known_bad] if run.known_bad else found

    def _run_batch(self, run: Run, end: int) -> None:
        """Hand over rows as one Arrow batch without those that are bad, or the keys of deletions."""
        context, decoder = run.task.context, run.part.decoder
        are_rows = run.values[run.at] is not None
        good = dict(self._good(run, end))
        try:
            batch = decoder.arrow(list(good.values()) if are_rows else [])
        except BadPlace:
            self._note_bad(run, run.at, decoder.rows_or_faults(run.values[run.at : end]))
            good = dict(self._good(run, end))
            batch = decoder.arrow(list(good.values()))
        if not good:
            return
        context.portion = records = run.records.taken(list(good))
        context.index = 0
        context.deleted = [] if are_rows else records.keys()
        self._work.current = run
        run.part.handler.function(batch, context)

    @staticmethod
    def _fault_of(run: Run, index: int, error: Exception | Verdict) -> tuple[int, Fault]:
        """What an error says of a record; raises what no record is to blame for."""
        if isinstance(error, Refused):
            return error.place, Fault(Kind.REFUSED, error, error.error.message)
        if run.part.handler.batch:
            index = run.at
        if isinstance(error, BadPlace):
            return index, Fault(Kind.UNDECODABLE, BadPlace(index, error.error), error.error.message)
        if isinstance(error, OverTime):
            error.lifted = True
            return index, Fault(Kind.TIME, error, f"{run.part.handler.name} {error}")
        if isinstance(error, (Verdict, *_NOT_OF_RECORDS)):
            raise failed(run, index, error) from error
        return index, Fault(Kind.CODE, error, may_pass=isinstance(error, _MAY_PASS))

    # Treating

    def _treat(self, run: Run, fault: Fault) -> None:
        """Decide on the record at hand, which has failed alone."""
        now = self._clock()
        if not run.retries:
            run.failed_at = now
        spent_ms = int((now - run.failed_at) * 1000)
        answer = answer_error(run.part.errors, fault.kind, fault.may_pass, run.retries, spent_ms)
        if answer.step is Step.RETRY:
            run.retries += 1
            run.retry_at = now + answer.after_ms / 1000
            run.alone = run.at
            self.retried += 1
            return
        self._settle(run, run.at, fault)
        run.at += 1
        run.retries = 0

    def _settle(self, run: Run, index: int, fault: Fault) -> None:
        """Give a record up, as the policy says."""
        step = answer_error(run.part.errors, fault.kind, False, run.retries, 0).step
        if step is Step.STOP:
            raise fault.ending(run, index) from fault.error
        self.errors += 1
        if step is Step.SKIP:
            self.skipped += 1
            return
        self.dead += 1
        self.dead_letters.add(self._letter(run, index, fault))

    def _letter(self, run: Run, index: int, fault: Fault) -> DeadLetter:
        records, message = run.records, run.records.batch.messages[index]
        return DeadLetter(
            feed=records.feed,
            partition=records.partition,
            offset=records.offset(index),
            timestamp_ms=records.timestamp_ms(index),
            kind=fault.kind,
            cause=fault.cause or said(fault.error),
            line=line_of(fault.error),
            task=str(run.task.id),
            version=self._version,
            time_ms=self._clock_ms(),
            attempt=records.attempt(index) + 1,
            key=message.key(),
            value=message.value(),
            headers=without_own(records.headers(index)),
        )
