"""Records that a task cannot get past, and what is told of them."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from stack.errors import BadInput, FeedstackError
from stack.model.plan import Ending, Reason
from stack.runtime.outputs import Refused
from stack.runtime.portions import BadPlace

if TYPE_CHECKING:
    from stack.runtime.runs import Run


class RecordFault(Exception):
    """A record that a task cannot get past; `ending` tells the rest."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.message)
        self.ending = ending


class Verdict(BaseException):
    """Raised into user code that has passed a limit. Not an Exception: nobody on its way is to catch it,
    neither user code nor the engine, which would take it for a fault of what it was doing.

    One that is `lifted` has had its effect, and the container goes on.
    """

    lifted = False


class OverTime(Verdict):
    """Raised into user code that keeps a record for too long."""


class OverMemory(Verdict):
    """Raised into user code of a container that has grown past its limit."""


def undecodable(run: Run, fault: BadPlace) -> RecordFault:
    """Bytes that are no record of their feed."""
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


def refused(run: Run, fault: Refused) -> RecordFault:
    """A value that the code has emitted and that its feed does not take."""
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


def failed(run: Run, index: int, error: Exception | Verdict) -> RecordFault:
    """What user code raised, with the record and the line."""
    place = run.records.place(index)
    where = line_of(error)
    where = f" ({where})" if where else ""
    detail = "".join(traceback.format_exception(error))[-8_000:]
    hint = error.hint if isinstance(error, FeedstackError) and error.hint else ""
    if isinstance(error, Verdict):
        name = run.part.handler.name
        return RecordFault(
            Ending(Reason.FAILED, f"{place}: {name} {error}{where}", hint, place, retry=False, detail=detail)
        )
    hint = hint or "Correct the code and deploy again; nothing of the record was written."
    retry = not isinstance(error, BadInput)
    message = f"{place}: {run.part.handler.name} failed: {said(error)}{where}"
    return RecordFault(Ending(Reason.FAILED, message, hint, place, retry=retry, detail=detail))


def said(error: BaseException) -> str:
    """What an error says, in one line."""
    if isinstance(error, FeedstackError) and error.message:
        return error.message
    return traceback.format_exception_only(error)[-1].strip()


def line_of(error: BaseException) -> str:
    """The last line of user code on the way to the error, with its file; empty if there is none."""
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
    return f"{Path(last.filename).name}, line {last.lineno}{text}"
