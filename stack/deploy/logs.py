"""The logs feed: what the code of jobs says and prints, and what containers say of it, line by line.

One record per line, keyed by the job, in JSON: {"time_ms", "job", "slot", "attempt", "level", "text"}, and
{"task", "feed", "partition", "offset"} where a record was at hand.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from stack.connection import Stack
from stack.errors import Unavailable
from stack.kafka.reader import LogReader, RawBatch
from stack.model.job import logs_name

_PARTITION = 0
_FIRST_LOOK = 1_000
_WIDER = 8
_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. `level` is a word of Python's logging: info, warning, error."""

    time_ms: int
    job: str
    slot: int
    attempt: int
    level: str
    text: str
    # The record that was at hand when it was logged.
    task: str | None = None
    feed: str | None = None
    partition: int | None = None
    offset: int | None = None


def line_to_bytes(line: LogLine) -> bytes:
    """The value of a record of the logs feed; its key is the job."""
    tree = {name: value for name, value in asdict(line).items() if value is not None}
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def line_from_bytes(data: bytes) -> LogLine | None:
    """The line that was written; None if it is something else."""
    try:
        tree = json.loads(data)
        return LogLine(
            int(tree["time_ms"]),
            str(tree["job"]),
            int(tree["slot"]),
            int(tree["attempt"]),
            str(tree["level"]),
            str(tree["text"]),
            tree.get("task"),
            tree.get("feed"),
            tree.get("partition"),
            tree.get("offset"),
        )
    except (ValueError, KeyError, TypeError):
        return None


class JobLogs:
    """Reads the lines of one job, of all its containers or of one."""

    def __init__(
        self,
        stack: Stack,
        job: str,
        slot: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._stack = stack
        self._topic = logs_name(stack.settings.name)
        self._job = job
        self._slot = slot
        self._clock = clock
        self._sleep = sleep

    def last(self, count: int) -> tuple[list[LogLine], int]:
        """The last lines, and the offset behind them; searched from the end backwards, in growing steps."""
        if self._topic not in self._stack.admin.describe([self._topic]):
            return [], 0
        bounds = self._stack.admin.bounds(self._topic, [_PARTITION])[_PARTITION]
        found: list[LogLine] = []
        end, window = bounds.high, max(_FIRST_LOOK, count)
        deadline = self._clock() + _LIMIT_S
        with LogReader(self._stack.access, self._topic) as reader:
            while end > bounds.low and len(found) < count:
                start = max(bounds.low, end - window)
                reader.assign({_PARTITION: start}, {_PARTITION: end})
                part: list[LogLine] = []
                while not reader.done:
                    batch = reader.read(timeout_s=0.25)
                    part += self._lines(batch)
                    if not len(batch) and self._clock() > deadline:
                        raise Unavailable(f"{self._topic} could not be read within {_LIMIT_S:.0f} s")
                found = part + found
                end, window = start, window * _WIDER
        return found[-count:], bounds.high

    def follow(self, offset: int) -> Iterator[LogLine]:
        """Every line from an offset on, as it comes; for ever."""
        while self._topic not in self._stack.admin.describe([self._topic]):
            self._sleep(0.5)
        with LogReader(self._stack.access, self._topic) as reader:
            reader.assign({_PARTITION: offset})
            while True:
                yield from self._lines(reader.read(timeout_s=0.5))

    def _lines(self, batch: RawBatch) -> list[LogLine]:
        key = self._job.encode()
        lines = [
            line_from_bytes(value)
            for own, value in zip(batch.keys, batch.values, strict=True)
            if own == key and value is not None
        ]
        return [one for one in lines if one is not None and self._slot in (None, one.slot)]
