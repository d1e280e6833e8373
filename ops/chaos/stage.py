"""Where chaos happens: a temporary stack with one source feed and two jobs in a chain that count."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ops.chaos.verifier import Chain, Step
from ops.cluster.layout import Layout
from ops.cluster.temporary import temporary_stack
from stack.connection import Stack
from stack.deploy.deploy import deploy
from stack.deploy.jobs import JobsFeed, jobs_feed
from stack.deploy.logs import JobLogs
from stack.deploy.operate import JobWatch, ask, scale
from stack.deploy.watch import Judge, View, judge_running, judge_stopped, too_late, wait
from stack.errors import FeedstackError, LostOwnership, NotDelivered, Unavailable
from stack.feeds.declare import CATALOGUE_NAME, read_declarations
from stack.feeds.plan import Allowed
from stack.model.job import Desired
from stack.settings import Settings
from stack.zookeeper.fleet import FleetNodes, open_fleet

PARTITIONS = 4
CONTAINERS = 2
STEPS = (
    Step("count-clicks", "clicks", "clicks-per-user"),
    Step("count-visits", "clicks-per-user", "visits"),
)
SOURCE, LAST = STEPS[0].source, STEPS[-1].output
_DEPLOY_S = 120.0
_DRAIN_S = 120.0
_PATIENCE_S = 60.0
_LOG_LINES = 20_000
_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Count",
    "fields": [{"name": "user", "type": "string"}, {"name": "count", "type": "long"}],
}
_FEED = """
[feeds.{name}]
kind = "{kind}"
for = "what the chaos run counts"
owner = "chaos"
schema = "count.avsc"
key = "user"
partitions = {partitions}
retention = "forever"
{origin}
"""
_CODE = '''"""Counts records per user: one output for each input, with the count so far."""

from stack import Feed, Job

source, output = Feed("{source}"), Feed("{output}")
job = Job("{name}")


@job.task(source, store="{store}")
def count(record, ctx):
    number = ctx.state.get(record["user"], 0) + 1
    ctx.state[record["user"]] = number
    ctx.emit(output, {{"user": record["user"], "count": number}}, key=record["user"])
'''
_SETTINGS = """containers = {containers}
[stores.{store}]
key = "str"
value = "int"
"""
Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    """The running stack, and what is asked of its two jobs."""

    settings: Settings
    stack: Stack
    jobs: JobsFeed

    @property
    def chain(self) -> Chain:
        """The jobs as the verifier sees them."""
        name, prefix = self.settings.name, self.settings.topic_prefix
        return Chain(self.stack.endpoints.kafka, name, STEPS, prefix)

    def deploy_all(self, say: Say) -> None:
        """Deploy both jobs and wait until they run."""
        for step in STEPS:
            folder = self.settings.root / "jobs" / step.job
            folder.mkdir(parents=True)
            code = _CODE.format(source=step.source, output=step.output, name=step.job, store=step.store)
            settings = _SETTINGS.format(containers=CONTAINERS, store=step.store)
            (folder / "job.py").write_text(code, encoding="utf-8")
            (folder / "job.toml").write_text(settings, encoding="utf-8")
            spec = deploy(self.stack, folder).entry.spec
            self._wait(step.job, judge_running(spec), _DEPLOY_S)
            say(f"{step.job} runs")

    def scale(self, job: str, containers: int) -> None:
        """Ask for so many containers, and do not wait for them."""
        _patiently(lambda: scale(self.jobs, job, containers))

    def drain_all(self) -> None:
        """Let the jobs read what is left, one after the other, and stop."""
        for step in STEPS:
            self._drain(step.job)

    def _drain(self, job: str) -> None:
        entry, _ = _patiently(lambda: ask(self.jobs, job, Desired.DRAINED))
        self._wait(job, judge_stopped(entry.spec, Desired.DRAINED), _DRAIN_S)

    def _wait(self, job: str, judge: Judge, limit_s: float) -> None:
        wait(
            lambda: _patiently(lambda: self._look(job)),
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

    def states(self) -> str:
        """How the jobs are doing, in a line for people."""
        said = []
        with contextlib.suppress(FeedstackError), self.nodes() as nodes:
            for step in STEPS:
                status = nodes.job(step.job).status()
                said.append(f"{step.job}: {status.state} {status.message}" if status else step.job)
        return "; ".join(said) or "ZooKeeper does not answer"

    def keep_logs(self) -> Path:
        """Copy what everything has logged to a folder that stays."""
        kept = Path(tempfile.mkdtemp(prefix="feedstack-chaos-logs-"))
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(Layout(self.settings.data).logs, kept, dirs_exist_ok=True)
        for step in STEPS:
            with contextlib.suppress(FeedstackError):
                lines, _ = JobLogs(self.stack, step.job).last(_LOG_LINES)
                text = "".join(f"{line.time_ms} {line.slot} {line.level} {line.text}\n" for line in lines)
                (kept / f"{step.job}.log").write_text(text, encoding="utf-8")
        return kept


def _patiently(question: Callable[[], T], limit_s: float = _PATIENCE_S) -> T:
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
def open_stage(say: Say) -> Iterator[Stage]:
    """A stage that lives as long as the block, with its feeds made."""
    with temporary_stack("chaos", say) as settings, stage_on(settings) as stage:
        yield stage


@contextlib.contextmanager
def stage_on(settings: Settings) -> Iterator[Stage]:
    """The same on a stack that runs already; its folder of schemas is written."""
    with Stack.connect(settings) as stack:
        settings.schemas.mkdir(parents=True, exist_ok=True)
        (settings.schemas / "count.avsc").write_text(json.dumps(_SCHEMA), encoding="utf-8")
        feeds = [_FEED.format(name=SOURCE, kind="source", partitions=PARTITIONS, origin="")]
        for step in STEPS:
            origin = f'by = "{step.job}"\ninputs = ["{step.source}"]'
            feeds.append(_FEED.format(name=step.output, kind="derived", partitions=PARTITIONS, origin=origin))
        (settings.schemas / CATALOGUE_NAME).write_text("".join(feeds), encoding="utf-8")
        declarations = read_declarations(settings.schemas)
        stack.applier.apply(declarations, stack.applier.plan(declarations, Allowed()), lambda _: None)
        yield Stage(settings, stack, jobs_feed(stack))
