"""What a person asks of a deployed job: pause, resume, drain, scale, remove. Each writes the entry."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from stack.connection import Stack
from stack.deploy.jobs import JobsFeed, jobs_feed
from stack.deploy.watch import View
from stack.errors import BadInput, NotFound
from stack.kafka.writer import LogWriter
from stack.model.checkpoint import checkpoint_key
from stack.model.feed import value_subject
from stack.model.fleet import JobState
from stack.model.job import (
    MAIN_STAGE,
    Desired,
    JobEntry,
    changelog_name,
    redrive_name,
    rewind_id,
    transactional_id,
)
from stack.model.plan import TaskId, job_tasks, tasks_of
from stack.offsets.checkpoints import checkpoint_partition, checkpoints_topic
from stack.zookeeper.fleet import FleetNodes, open_fleet


@dataclass(frozen=True)
class JobWatch:
    """Looks at jobs, in the jobs feed and in ZooKeeper."""

    jobs: JobsFeed
    nodes: FleetNodes

    def look(self, name: str) -> View:
        """What is seen of a job now."""
        job = self.nodes.job(name)
        return View(self.jobs.find(name), job.status(), job.reports(), len(self.nodes.runners()))


@contextlib.contextmanager
def watch_jobs(stack: Stack) -> Iterator[JobWatch]:
    """A look at the jobs of a stack, for the block."""
    with open_fleet(stack.endpoints.zookeeper, stack.settings.name) as nodes:
        yield JobWatch(jobs_feed(stack), nodes)


def ask(jobs: JobsFeed, name: str, desired: Desired) -> tuple[JobEntry, bool]:
    """Ask a job to pause or drain; answers its entry, and whether that was news."""
    entry = jobs.get(name)
    if entry.desired is desired:
        return entry, False
    return _asked(jobs, name, desired), True


def resume(jobs: JobsFeed, name: str, view: View) -> tuple[JobEntry, bool]:
    """Let a paused or drained job run, and a failed one try again; answers whether there was a need."""
    entry = jobs.get(name)
    failed = view.status is not None and view.status.state is JobState.FAILED
    if entry.desired is Desired.RUNNING and not failed:
        return entry, False
    return _asked(jobs, name, Desired.RUNNING), True


def _asked(jobs: JobsFeed, name: str, desired: Desired) -> JobEntry:
    """The number of the try tells what a runner says of this from what it said before."""
    return _changed(jobs, name, lambda one: replace(one, desired=desired, try_number=one.try_number + 1))


def scale(jobs: JobsFeed, name: str, containers: int) -> tuple[JobEntry, bool]:
    """Run a job in so many containers; answers whether that was news."""
    entry = jobs.get(name)
    tasks = len(job_tasks(entry.spec))
    if containers > tasks:
        raise BadInput(
            f"job {name!r} has {tasks} tasks, one per partition of its inputs: "
            f"of {containers} containers some would have none",
            hint=f"Scale it to {tasks} at most.",
        )
    if entry.spec.settings.containers == containers:
        return entry, False

    def change(one: JobEntry) -> JobEntry:
        return replace(
            one, spec=replace(one.spec, settings=replace(one.spec.settings, containers=containers))
        )

    return _changed(jobs, name, change), True


def _changed(jobs: JobsFeed, name: str, change: Callable[[JobEntry], JobEntry]) -> JobEntry:
    entry = jobs.update(name, lambda one: None if one is None else change(one))
    if entry is None:
        raise NotFound(f"job {name!r} was removed by someone just now")
    return entry


def refuse_running(view: View, name: str) -> None:
    """A job that works is not removed by a slip of the finger."""
    if view.reports and view.entry is not None and view.entry.desired is Desired.RUNNING:
        raise BadInput(
            f"job {name!r} is running: it would be stopped for good",
            hint=f"Say --yes to remove it all the same, or first `stack jobs drain {name}`.",
        )


def remove_state(stack: Stack, jobs: JobsFeed, name: str) -> tuple[str, ...]:
    """Delete what a removed job has kept: changelogs, checkpoints, schemas, what was redriven to it and
    local files. Its dead letters stay, with the marks of those that were redriven, until they are too old.

    To be called when its containers are gone; one that hangs somewhere is fenced first. Answers the
    changelogs that were deleted.
    """
    left = jobs.left(name)
    specs = [] if left is None else [one for one in (left.spec, left.previous) if one is not None]
    _fence(stack, name, max((one.settings.containers for one in specs), default=0))
    first, last = changelog_name(stack.settings.name, name, "|").split("|")
    changelogs = sorted(
        topic for topic in stack.admin.topic_names() if topic.startswith(first) and topic.endswith(last)
    )
    counts = [about.partitions for about in stack.admin.describe(changelogs).values()]
    stages = {MAIN_STAGE, *(stage for one in specs for stage in one.stages)}
    most = max([*counts, *(count for one in specs for count in one.stages.values())], default=0)
    _delete_checkpoints(stack, name, [task for stage in stages for task in tasks_of(most, stage)])
    stack.admin.delete([*changelogs, *stack.admin.describe([redrive_name(stack.settings.name, name)])])
    _forget_schemas(stack, changelogs)
    shutil.rmtree(stack.settings.data / "state" / name, ignore_errors=True)
    jobs.forget(name)
    return tuple(changelogs)


def _fence(stack: Stack, name: str, slots: int) -> None:
    fence_slots(stack, name, slots)
    # A rewind under way would else write checkpoints of a job that is gone.
    take_over(stack, rewind_id(stack.settings.name, name))


def fence_slots(stack: Stack, name: str, slots: int) -> None:
    """Take over the ids of a job's slots: no container of it commits any more."""
    for slot in range(slots):
        take_over(stack, transactional_id(stack.settings.name, name, slot))


def take_over(stack: Stack, transactional_id: str) -> None:
    """Fence whoever writes under an id; what it left open is aborted."""
    with LogWriter(stack.access, transactional_id) as writer:
        writer.init_transactions()


def _forget_schemas(stack: Stack, changelogs: Iterable[str]) -> None:
    known = set(stack.registry.state().subjects())
    for topic in changelogs:
        if value_subject(topic) in known:
            stack.registry.delete_subject(value_subject(topic))


def _delete_checkpoints(stack: Stack, name: str, tasks: Sequence[TaskId]) -> None:
    topic = checkpoints_topic(stack.settings.name)
    if tasks and topic in stack.admin.describe([topic]):
        tombstones = [{"key": checkpoint_key(name, task), "value": None} for task in tasks]
        with LogWriter(stack.access) as writer:
            writer.write(topic, tombstones, checkpoint_partition(name))
