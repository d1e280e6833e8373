"""The checkpoints feed: every commit of every task, the newest found from the end backwards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from stack.connection import Stack
from stack.errors import Unavailable
from stack.kafka.reader import LogReader
from stack.machine import monotonic
from stack.model.checkpoint import REWIND, Checkpoint, checkpoint_key, is_checkpoint_key
from stack.model.partitioner import partition_of
from stack.model.plan import TaskId
from stack.offsets.codec import CheckpointDecoder

PARTITIONS = 8
_FIRST_LOOK = 500
_WIDER = 20
_LIMIT_S = 60.0


def checkpoints_topic(stack: str) -> str:
    """The feed of a stack that holds its checkpoints."""
    return f"_{stack}.checkpoints"


def checkpoint_partition(job: str) -> int:
    """All checkpoints of a job stand in one partition, in the order of their commits."""
    return partition_of(job.encode(), PARTITIONS)


def refuse_rewinding(job: str, points: Iterable[Checkpoint]) -> None:
    """Unavailable if one of these says that a rewind is under way: stores are between two points then."""
    for one in points:
        if REWIND in one.annotations:
            raise Unavailable(
                f"a rewind of job {job!r} is not done yet",
                hint=f"`stack rewind {job}` brings it to its end.",
            )


def checkpoints_since(
    stack: Stack, decode: CheckpointDecoder, job: str, at: int, *, clock: Callable[[], float] = monotonic
) -> Iterator[Checkpoint]:
    """The checkpoints of a job from an offset of the feed on, in their order, up to its end as of now."""
    topic, partition = checkpoints_topic(stack.settings.name), checkpoint_partition(job)
    end = stack.admin.bounds(topic, [partition])[partition].high
    mine, deadline = f"{job}/".encode(), clock() + _LIMIT_S
    with LogReader(stack.access, topic) as reader:
        reader.assign({partition: at}, {partition: end})
        while not reader.done:
            batch = reader.read(timeout_s=0.25)
            if len(batch):
                deadline = clock() + _LIMIT_S
            elif clock() > deadline:
                raise _unread(topic)
            for key, value in zip(batch.keys, batch.values, strict=True):
                if value is not None and is_checkpoint_key(key) and (key or b"").startswith(mine):
                    yield decode(value)


def _unread(topic: str) -> Unavailable:
    return Unavailable(
        f"{topic} could not be read to its end within {_LIMIT_S:.0f} s",
        hint="A transaction may be open: it ends by its time limit. Kafka may be away.",
    )


def last_checkpoints(
    stack: Stack,
    decode: CheckpointDecoder,
    job: str,
    tasks: Collection[TaskId],
    *,
    clock: Callable[[], float] = monotonic,
) -> dict[TaskId, Checkpoint]:
    """The newest checkpoint of each task that has one.

    To be called after the writers of these tasks were fenced: it reads to the end of the feed, and waits
    for open transactions to end. A running job's checkpoints stand near the end, so it looks there first
    and goes back in growing steps.
    """
    topic, partition = checkpoints_topic(stack.settings.name), checkpoint_partition(job)
    bounds = stack.admin.bounds(topic, [partition])[partition]
    wanted = {checkpoint_key(job, task): task for task in tasks}
    found: dict[TaskId, Checkpoint] = {}
    end, window = bounds.high, _FIRST_LOOK
    deadline = clock() + _LIMIT_S
    with LogReader(stack.access, topic) as reader:
        while end > bounds.low and wanted:
            start = max(bounds.low, end - window)
            newest: dict[bytes, bytes | None] = {}
            reader.assign({partition: start}, {partition: end})
            while not reader.done:
                batch = reader.read(timeout_s=0.25)
                pairs = zip(batch.keys, batch.values, strict=True)
                newest.update({key: value for key, value in pairs if key in wanted})
                if not len(batch) and clock() > deadline:
                    raise _unread(topic)
            for key, value in newest.items():
                # A deletion ends the search, too: what stands before it belongs to a job that was removed.
                task = wanted.pop(key)
                if value is not None:
                    found[task] = decode(value)
            end, window = start, window * _WIDER
    return found
