"""Where chaos happens: a stack that runs, and what is asked of the jobs on it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ops.cluster.layout import Layout
from stack.connection import Stack
from stack.deploy.deploy import deploy
from stack.deploy.jobs import JobsFeed, jobs_feed
from stack.deploy.logs import JobLogs
from stack.deploy.operate import JobWatch, ask, scale
from stack.deploy.watch import Judge, View, failure_text, judge_running, judge_stopped, too_late, wait
from stack.errors import BadInput, FeedstackError, LostOwnership, NotDelivered, Unavailable
from stack.feeds.declare import read_declarations
from stack.feeds.plan import Allowed
from stack.model.fleet import JobState
from stack.model.job import Desired
from stack.settings import Settings
from stack.zookeeper.fleet import FleetNodes, open_fleet

_DEPLOY_S = 120.0
_DRAIN_S = 120.0
_PATIENCE_S = 60.0
_LOG_LINES = 20_000
Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    """The running stack and its jobs, by their names, those before the others of whose feeds they read."""

    settings: Settings
    stack: Stack
    jobs: JobsFeed
    names: tuple[str, ...]

    def deploy(self, folder: Path, say: Say) -> None:
        """Deploy the job in a folder and wait until it runs."""
        spec = deploy(self.stack, folder).entry.spec
        self._wait(spec.name, judge_running(spec), _DEPLOY_S)
        say(f"{spec.name} runs")

    def scale(self, job: str, containers: int) -> None:
        """Ask for so many containers, and do not wait for them."""
        patiently(lambda: scale(self.jobs, job, containers))

    def drain_all(self) -> None:
        """Let the jobs read what is left, one after the other, and stop."""
        for job in self.names:
            self._drain(job)

    def _drain(self, job: str) -> None:
        entry, _ = patiently(lambda: ask(self.jobs, job, Desired.DRAINED))
        self._wait(job, judge_stopped(entry.spec, Desired.DRAINED), _DRAIN_S)

    def _wait(self, job: str, judge: Judge, limit_s: float) -> None:
        wait(
            lambda: patiently(lambda: self._look(job)),
            judge,
            timeout_s=limit_s,
            show=lambda _: None,
            late=too_late(job, limit_s),
            clock=time.monotonic,
            sleep=time.sleep,
            every_s=0.5,
        )

    def _look(self, job: str) -> View:
        with self.nodes() as nodes:
            return JobWatch(self.jobs, nodes).look(job)

    def nodes(self) -> contextlib.AbstractContextManager[FleetNodes]:
        """What ZooKeeper has of the jobs, in a session of its own: an earlier one may be lost."""
        return open_fleet(self.stack.endpoints.zookeeper, self.settings.name)

    def refuse_failed(self, job: str) -> None:
        """BadInput if a job has failed for good, as far as ZooKeeper can be asked."""
        status = None
        with contextlib.suppress(FeedstackError), self.nodes() as nodes:
            status = nodes.job(job).status()
        if status is not None and status.state is JobState.FAILED:
            raise BadInput(f"job {job!r} fails: {failure_text(status)}", hint=status.hint)

    def states(self) -> str:
        """How the jobs are doing, in a line for people."""
        said = []
        with contextlib.suppress(FeedstackError), self.nodes() as nodes:
            for job in self.names:
                status = nodes.job(job).status()
                said.append(f"{job}: {status.state} {status.message}" if status else job)
        return "; ".join(said) or "ZooKeeper does not answer"

    def keep_logs(self) -> Path:
        """Copy what everything has logged to a folder that stays."""
        kept = Path(tempfile.mkdtemp(prefix="feedstack-chaos-logs-"))
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(Layout(self.settings.data).logs, kept, dirs_exist_ok=True)
        for job in self.names:
            with contextlib.suppress(FeedstackError):
                lines, _ = JobLogs(self.stack, job).last(_LOG_LINES)
                text = "".join(f"{line.time_ms} {line.slot} {line.level} {line.text}\n" for line in lines)
                (kept / f"{job}.log").write_text(text, encoding="utf-8")
        return kept


def patiently(question: Callable[[], T], limit_s: float = _PATIENCE_S) -> T:
    """The answer, also if Kafka or ZooKeeper was killed a moment ago."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return question()
        except (Unavailable, LostOwnership, NotDelivered):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


@contextlib.contextmanager
def stage_on(settings: Settings, names: tuple[str, ...]) -> Iterator[Stage]:
    """A stage on a stack that runs, for the block; the feeds that its files declare are made."""
    with Stack.connect(settings) as stack:
        declarations = read_declarations(settings.schemas)
        stack.applier.apply(declarations, stack.applier.plan(declarations, Allowed()), lambda _: None)
        yield Stage(settings, stack, jobs_feed(stack), names)
