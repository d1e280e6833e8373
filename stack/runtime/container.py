"""What Spark runs: one container, from its launch to its ending. It never raises."""

from __future__ import annotations

import contextlib
import gc
import logging
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from stack.connection import Stack
from stack.deploy.code import code_folder
from stack.errors import BadConfig, BadRecord, CorruptState, FeedstackError, LostOwnership, NotFound
from stack.kafka.transactions import TransactionWriter
from stack.model.plan import Ending, Reason
from stack.runtime.launch import Launch
from stack.runtime.logs import LogFeed
from stack.runtime.loop import Container, fencing_writer
from stack.runtime.membership import Membership, Orphaned
from stack.runtime.parts import gather
from stack.runtime.watch import Watch
from stack.runtime.work import RecordFault, Verdict
from stack.tasks.load import load_job
from stack.zookeeper.fleet import FleetSession

log = logging.getLogger("feedstack.container")
# What a person has to change before it can work: trying again would not help.
_LASTING = (BadConfig, BadRecord, CorruptState, NotFound)


def run_container(launch: Launch) -> Ending:
    """Run a container until it ends, and tell how it ended."""
    try:
        with LogFeed(launch) as logs:
            ending = _run(launch)
            logs.tell(ending)
            return ending
    except (Exception, Verdict) as error:
        return _ending(error)


def _run(launch: Launch) -> Ending:
    log.info("container %d, attempt %d, version %s begins", launch.slot, launch.attempt, launch.spec.version)
    try:
        with (
            Stack(launch.settings, launch.endpoints) as stack,
            FleetSession(launch.endpoints.zookeeper).start() as session,
            _calm_collector(),
        ):
            membership = Membership(launch, session)
            watch = Watch(launch.spec.settings, membership)
            # Fencing a predecessor that was killed takes half a second: everything else is done meanwhile.
            with ThreadPoolExecutor(1, "fence") as pool:
                first = pool.submit(fencing_writer, launch, stack.access)
                try:
                    job = load_job(code_folder(stack, launch.spec.code), launch.spec.name)
                    container = Container(gather(launch, stack, job), membership, first)
                    watch.follow(container.work, lambda: container.turns)
                    gc.freeze()
                    return container.run()
                finally:
                    watch.close()
                    membership.leave()
                    _close_unused(first)
    except (Exception, Verdict) as error:
        return _ending(error)


def _close_unused(first: Future[TransactionWriter]) -> None:
    """A writer that no container took over must not stay open; closing one twice is fine."""
    with contextlib.suppress(FeedstackError):
        first.result().close()


def _ending(error: Exception | Verdict) -> Ending:
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
