"""What containers log, in a feed of the stack: `stack jobs logs` shows it wherever they run."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import time
from collections import deque
from types import TracebackType

from stack.deploy.logs import LogLine, line_to_bytes
from stack.errors import FeedstackError
from stack.kafka.config import kafka_access
from stack.kafka.writer import LogWriter
from stack.model.job import logs_name
from stack.model.plan import Ending, Reason
from stack.runtime.launch import Launch
from stack.runtime.work import Work

log = logging.getLogger("feedstack.container")
# What is logged faster than Kafka takes it is lost, and counted.
_MOST_WAITING = 2_000
_MOST_CHARACTERS = 20_000
_LAST_WAIT_S = 3.0
_PATIENCE_S = 30.0
_AGAIN_S = 0.5
# What these tell in good times is nothing to the people who read a job's log.
_INNER = ("kazoo", "feedstack.zookeeper", "feedstack.kafka", "py4j", "asyncio")


class LogFeed(logging.Handler):
    """A handler that writes to the logs feed from its own thread; it never holds the container up.

    While it is open it takes everything that is logged, and what user code prints.
    """

    def __init__(self, launch: Launch) -> None:
        super().__init__(logging.INFO)
        self._launch = launch
        self._topic = logs_name(launch.settings.name)
        self._waiting: deque[tuple[str, bytes, bytes]] = deque()
        self._lost = 0
        self._work: Work | None = None
        self._thread_of_work = 0
        self._wake = threading.Event()
        self._closing = False
        self._writer = self._new_writer()
        self._thread = threading.Thread(target=self._write_all, name="logs", daemon=True)

    def _new_writer(self) -> LogWriter:
        access = kafka_access(self._launch.settings, self._launch.endpoints)
        return LogWriter(access, settings={"linger.ms": 50}, timeout_s=_PATIENCE_S)

    def __enter__(self) -> LogFeed:
        self._root = logging.getLogger()
        self._level = self._root.level
        self._root.setLevel(min(self._level, logging.INFO) if self._level else logging.INFO)
        self._root.addHandler(self)
        self._stdout, self._stderr = sys.stdout, sys.stderr
        sys.stdout = _Printed(logging.getLogger("print"), logging.INFO)
        sys.stderr = _Printed(logging.getLogger("print"), logging.WARNING)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout, sys.stderr = self._stdout, self._stderr
        self._root.removeHandler(self)
        self._root.setLevel(self._level)
        self._closing = True
        self._wake.set()
        self._thread.join(_LAST_WAIT_S)

    def follow(self, work: Work) -> None:
        """From now on tell the record that is at hand when this thread logs a line."""
        self._work, self._thread_of_work = work, threading.get_ident()

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        """Write something else by the same way, if there is room; it may get lost."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append((topic, key, value))
            self._wake.set()

    def tell(self, ending: Ending) -> None:
        """Log how the container ended."""
        level = logging.ERROR if ending.reason is Reason.FAILED else logging.INFO
        log.log(level, "container %d ends: %s. %s", self._launch.slot, ending.reason, ending.message)
        if ending.detail:
            log.log(level, "%s", ending.detail)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line; called by `logging`."""
        if record.name.startswith(_INNER) and record.levelno < logging.WARNING:
            return
        if len(self._waiting) >= _MOST_WAITING:
            self._lost += 1
            return
        line = LogLine(
            int(record.created * 1000),
            self._launch.spec.name,
            self._launch.slot,
            self._launch.attempt,
            record.levelname.lower(),
            self.format(record)[:_MOST_CHARACTERS],
            *self._place(),
        )
        self._waiting.append((self._topic, self._launch.spec.name.encode(), line_to_bytes(line)))
        self._wake.set()

    def _place(self) -> tuple[str, str, int, int] | tuple[()]:
        """Task, feed, partition and offset of the record at hand, if this is the thread that has it."""
        run = None if self._work is None else self._work.current
        if run is None or threading.get_ident() != self._thread_of_work:
            return ()
        records, context = run.records, run.task.context
        return str(run.task.id), records.feed, records.partition, records.offset(context.index)

    def _write_all(self) -> None:
        while not (self._closing and not self._waiting):
            self._wake.wait(1.0)
            self._wake.clear()
            try:
                while self._waiting:
                    topic, key, value = self._waiting.popleft()
                    self._writer.write_one(topic, value, key)
                if self._lost:
                    count, self._lost = self._lost, 0
                    log.warning("%d lines of the log were lost: they came faster than Kafka took them", count)
            except FeedstackError:
                # It may never recover by itself, and is not worth finding out.
                self._writer.close()
                time.sleep(_AGAIN_S)
                self._writer = self._new_writer()
        with contextlib.suppress(FeedstackError):
            self._writer.flush()
        self._writer.close()


class _Printed(io.TextIOBase):
    """Standard output as lines of the log."""

    def __init__(self, target: logging.Logger, level: int) -> None:
        self._target = target
        self._level = level
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                self._target.log(self._level, "%s", line)
        return len(text)
