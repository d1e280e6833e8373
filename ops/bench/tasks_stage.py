"""Where tasks are measured: a temporary stack with a catalogue of its own that grows with the runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ops.cluster import processes
from ops.cluster.temporary import temporary_stack
from stack.connection import Stack
from stack.feeds.declare import CATALOGUE_NAME, read_declarations
from stack.feeds.plan import Allowed
from stack.settings import Settings

PARTITIONS = 4
NOISY = 0.15
"""Above this share of the machine, what others do there shows in the figures."""
_QUIET_PERCENT = 40
# Threads C1 and C2 of a Java process; Linux cuts their names.
_COMPILER = " CompilerThre"
COUNTS = "counts"
"""The feed that lends its schema to all outputs."""

_SOURCE = """
[feeds.{name}]
kind = "source"
for = "page views that the benchmark counts"
owner = "bench"
schema = "page-view.avsc"
key = "user"
partitions = {partitions}
retention = "forever"
"""
_DERIVED = """
[feeds.{name}]
kind = "derived"
for = "how many pages each user has viewed so far"
owner = "bench"
schema = "user-views.avsc"
key = "user"
partitions = {partitions}
retention = "forever"
by = "{by}"
inputs = ["{source}"]
"""


@dataclass
class Stage:
    """The stack that all measurements share, and a folder for what the jobs keep on disk."""

    settings: Settings
    stack: Stack
    scratch: Path
    say: Callable[[str], None]
    _declared: dict[str, str] = field(default_factory=dict)

    def add_source(self, name: str) -> bool:
        """Declare and make a source feed; False if it is there already."""
        if name in self._declared:
            return False
        self._declared[name] = _SOURCE.format(name=name, partitions=PARTITIONS)
        self._apply()
        return True

    def add_derived(self, name: str, by: str, source: str) -> None:
        """Declare and make a feed that the job `by` writes; its records carry the broker's time."""
        self._declared[name] = _DERIVED.format(name=name, by=by, source=source, partitions=PARTITIONS)
        self._apply()
        topic = self.stack.topic_of(name)
        self.stack.admin.change_settings(topic, {"message.timestamp.type": "LogAppendTime"})

    def remove_feed(self, name: str) -> None:
        """Remove a feed with its records."""
        del self._declared[name]
        self._apply()

    def _apply(self) -> None:
        (self.settings.schemas / CATALOGUE_NAME).write_text(
            "".join(self._declared.values()), encoding="utf-8"
        )
        declarations = read_declarations(self.settings.schemas)
        applier = self.stack.applier
        applier.apply(declarations, applier.plan(declarations, Allowed(destroy=True)), lambda _: None)

    def remove_topics(self, word: str) -> None:
        """Delete every topic with this word in its name, but no feed."""
        feeds = {self.stack.topic_of(feed) for feed in self._declared}
        names = [topic for topic in sorted(self.stack.admin.topic_names() - feeds) if word in topic]
        if names:
            self.stack.admin.delete(names)

    def settle(self, limit_s: float = 20.0) -> None:
        """Wait for two quiet seconds in a row, but not for ever: others may use this machine, too."""
        quiet, deadline = 0, time.monotonic() + limit_s
        while quiet < 2 and time.monotonic() < deadline:
            quiet = quiet + 1 if psutil.cpu_percent(1) < _QUIET_PERCENT else 0

    def own_cpu_s(self) -> float:
        """CPU seconds of this process and of the stack's, with all their children."""
        return sum(map(process_cpu_s, self._own_pids()))

    def compilers_cpu_s(self) -> float:
        """CPU seconds of the compilers in the Java processes among these; 0 where threads have no names."""
        return sum(map(_compilers_cpu_s, self._own_pids()))

    def _own_pids(self) -> set[int]:
        pids = [os.getpid(), *(found.pid for found in processes.find(self.settings.data).values())]
        return _with_children(pids)


@contextlib.contextmanager
def open_stage(say: Callable[[str], None], lines: str = "") -> Iterator[Stage]:
    """A stage that lives as long as the block; `lines` are for its stack.toml."""
    with temporary_stack("bench", say, lines) as settings:
        scratch = settings.root / "jobs-under-test"
        scratch.mkdir()
        with Stack.connect(settings) as stack:
            made = Stage(settings, stack, scratch, say)
            made.add_source("views")
            made.add_derived(COUNTS, by="nobody", source="views")
            yield made


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _with_children(pids: list[int]) -> set[int]:
    found = set(pids)
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.update(child.pid for child in psutil.Process(pid).children(recursive=True))
    return found


def process_cpu_s(pid: int) -> float:
    """CPU seconds of one process and of those of its children that have ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def _compilers_cpu_s(pid: int) -> float:
    ticks = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            name, _, fields = thread.read_text(encoding="utf-8", errors="replace").rpartition(") ")
            if _COMPILER in name:
                # User and system time: fields 14 and 15 of a line whose third comes first here.
                ticks += sum(map(int, fields.split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def tree_cpu_s(*pids: int) -> float:
    """CPU seconds of processes and all their children."""
    return sum(map(process_cpu_s, _with_children(list(pids))))


class OtherLoad:
    """How much of the machine anything but this benchmark used: noise that a figure should tell of."""

    def __init__(self, stage: Stage, clock: Callable[[], float] = time.monotonic) -> None:
        self._stage = stage
        self._clock = clock
        self._begun = self._look()

    def share(self) -> float:
        """The share of all cores since this object was made, 0 to 1."""
        at, busy_s, own_s = self._look()
        begun_at, begun_busy_s, begun_own_s = self._begun
        others_s = (busy_s - begun_busy_s) - (own_s - begun_own_s)
        return max(0.0, others_s) / max(at - begun_at, 0.001) / (os.cpu_count() or 1)

    def _look(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        busy_s = sum(times) - times.idle - times.iowait - getattr(times, "guest", 0.0)
        return self._clock(), busy_s, self._stage.own_cpu_s()
