"""The record of one commit of one task: where its inputs, its state and its outputs stood."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from stack.errors import CorruptState
from stack.model.plan import TaskId

FORMAT = 2
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
_DECODE = json.JSONDecoder().decode


@dataclass(frozen=True, slots=True)
class InputPoint:
    """Where reading of one input continues. The topic id tells a feed that was made anew."""

    topic: str
    topic_id: str
    partitions: int
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class StorePoint:
    """How far the changelog of one store reaches: the offset after the last delta of this commit."""

    topic: str
    topic_id: str
    end: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One commit of one task. `outputs` are where the partitions of its output feeds ended before the commit
    wrote to them: its records lie from there to where the task's next checkpoint says, among those of others.
    """

    job: str
    task: TaskId
    version: str
    number: int
    time_ms: int
    inputs: Mapping[str, InputPoint]
    stores: Mapping[str, StorePoint] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def checkpoint_key(job: str, task: TaskId) -> bytes:
    """The key of a task's checkpoints."""
    return f"{job}/{task}".encode()


def checkpoint_to_bytes(one: Checkpoint) -> bytes:
    """The value of a checkpoint record: compact JSON."""
    tree = {
        "format": FORMAT,
        "job": one.job,
        "task": str(one.task),
        "version": one.version,
        "number": one.number,
        "time_ms": one.time_ms,
        "inputs": {
            feed: {
                "topic": point.topic,
                "topic_id": point.topic_id,
                "partitions": point.partitions,
                "offsets": {str(number): offset for number, offset in point.offsets.items()},
            }
            for feed, point in one.inputs.items()
        },
        "stores": {
            name: {"topic": point.topic, "topic_id": point.topic_id, "end": point.end}
            for name, point in one.stores.items()
        },
        "outputs": {
            feed: {str(number): offset for number, offset in ends.items()}
            for feed, ends in one.outputs.items()
        },
        "annotations": dict(one.annotations),
    }
    return _ENCODE(tree).encode()


def checkpoint_from_bytes(data: bytes) -> Checkpoint:
    """The checkpoint that `checkpoint_to_bytes` wrote; CorruptState if it is something else."""
    try:
        tree = _DECODE(data.decode())
        if tree["format"] != FORMAT:
            raise ValueError(f"its format is {tree['format']!r}, known is {FORMAT}")
        return Checkpoint(
            job=tree["job"],
            task=TaskId.parse(tree["task"]),
            version=tree["version"],
            number=int(tree["number"]),
            time_ms=int(tree["time_ms"]),
            inputs={
                feed: InputPoint(
                    one["topic"],
                    one["topic_id"],
                    int(one["partitions"]),
                    {int(number): int(offset) for number, offset in one["offsets"].items()},
                )
                for feed, one in tree["inputs"].items()
            },
            stores={
                name: StorePoint(one["topic"], one["topic_id"], int(one["end"]))
                for name, one in tree["stores"].items()
            },
            outputs={
                feed: {int(number): int(offset) for number, offset in ends.items()}
                for feed, ends in tree["outputs"].items()
            },
            annotations=dict(tree["annotations"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CorruptState(
            f"a checkpoint cannot be read: {error}",
            hint="It was written by another version of Feedstack, or by something else.",
        ) from None
