"""What Spark runs: one container, from its launch to its ending. It never raises."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import traceback
from collections.abc import Callable, Iterator
from functools import partial

from stack.connection import Stack
from stack.deploy.code import code_folder
from stack.deploy.topics import ensure_topics, metrics_plan
from stack.errors import BadConfig, BadRecord, CorruptState, FeedstackError, LostOwnership, NotFound
from stack.kafka.transactions import TransactionWriter
from stack.machine import Outcome, pool
from stack.model.plan import Ending, Reason
from stack.runtime.faults import RecordFault, Verdict
from stack.runtime.launch import Launch
from stack.runtime.logs import LogFeed
from stack.runtime.loop import Container, fencing_writer
from stack.runtime.membership import Membership, Orphaned
from stack.runtime.metrics import MetricsThread
from stack.runtime.parts import Parts, gather
from stack.runtime.watch import Watch
from stack.tasks.declare import Job
from stack.tasks.load import load_job
from stack.zookeeper.fleet import FleetSession

log = logging.getLogger("feedstack.container")
# What a person has to change before it can work: trying again would not help.
_LASTING = (BadConfig, BadRecord, CorruptState, NotFound)


def run_container(launch: Launch) -> Ending:
    """Run a container until it ends, and tell how it ended."""
    try:
        with LogFeed(launch) as logs:
            ending = _run(launch, logs)
            logs.tell(ending)
            return ending
    except (Exception, Verdict) as error:
        return ending_of(error)


def _run(launch: Launch, logs: LogFeed) -> Ending:
    log.info("container %d, attempt %d, version %s begins", launch.slot, launch.attempt, launch.spec.version)
    try:
        with (
            Stack(launch.settings, launch.endpoints) as stack,
            FleetSession(launch.endpoints.zookeeper).start() as session,
            _calm_collector(),
        ):
            membership = Membership(launch, session)
            watch = Watch(launch.spec.settings, membership)
            metrics = MetricsThread(launch, logs.send, partial(_make_metrics, stack))

            def gathered() -> Parts:
                job = load_job(code_folder(stack, launch.spec.code), launch.spec.name)
                _import_for(job)
                return gather(launch, stack, job)

            def begin(container: Container) -> None:
                watch.follow(container.work, lambda: container.turns)
                logs.follow(container.work)
                gc.freeze()
                metrics.start(container.metrics)

            def end() -> None:
                watch.close()
                metrics.stop()

            return serve(launch, stack, membership, gathered, begin=begin, end=end)
    except (Exception, Verdict) as error:
        return ending_of(error)


def serve(
    launch: Launch,
    stack: Stack,
    membership: Membership,
    gathered: Callable[[], Parts],
    *,
    begin: Callable[[Container], None] = lambda _: None,
    end: Callable[[], None] = lambda: None,
) -> Ending:
    """Take the slot's id over, gather the parts, work; `begin` and `end` are called around it."""
    # Fencing a predecessor that was killed takes half a second: everything else is done meanwhile.
    fence = pool("fence")
    first = fence.submit(fencing_writer, launch, stack.access)
    try:
        container = Container(gathered(), membership, first)
        begin(container)
        return container.run()
    finally:
        end()
        membership.leave()
        _close_unused(first)
        fence.shutdown()


def _import_for(job: Job) -> None:
    """pyarrow imports pandas when user code first makes an array: not with the first batch at hand."""
    if any(handler.batch for handler in job.handlers):
        with contextlib.suppress(ImportError):
            importlib.import_module("pandas")


def _make_metrics(stack: Stack, topic: str) -> None:
    """Make the metrics feed, for a job that was deployed before there was one."""
    if topic not in stack.admin.describe([topic]):
        ensure_topics(stack.admin, [metrics_plan(stack.settings.name)])


def _close_unused(first: Outcome[TransactionWriter]) -> None:
    """A writer that no container took over must not stay open; closing one twice is fine."""
    with contextlib.suppress(FeedstackError):
        first.result().close()


def ending_of(error: Exception | Verdict) -> Ending:
    """What an error means for the job."""
    if isinstance(error, RecordFault):
        return error.ending
    if isinstance(error, LostOwnership):
        return Ending(Reason.FENCED, error.message, error.hint)
    if isinstance(error, Orphaned):
        return Ending(Reason.ORPHANED, str(error))
    if isinstance(error, Verdict):
        hint = "Raise the limit in job.toml, or find what takes so much."
        return Ending(Reason.FAILED, f"the container {error}", hint, retry=False)
    if isinstance(error, FeedstackError):
        lasting = isinstance(error, _LASTING)
        reason = Reason.FAILED if lasting else Reason.LOST
        return Ending(reason, error.message, error.hint, retry=not lasting)
    said = traceback.format_exception_only(error)[-1].strip()
    detail = "".join(traceback.format_exception(error))[-8_000:]
    return Ending(Reason.FAILED, f"the container failed: {said}", detail=detail)


@contextlib.contextmanager
def _calm_collector() -> Iterator[None]:
    """Collect garbage seldom: batches of dicts look like leaks to the collector, and are none."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
