"""The Avro schemas of what the offset manager writes. `schemas/stack/` has them for everybody else."""

from __future__ import annotations

import json
from typing import Any

from stack.feeds.avro.schema import AvroSchema, parse_avro


def _field(name: str, kind: Any, doc: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "doc": doc, **more}


def _record(name: str, doc: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "doc": doc, "fields": list(fields)}


def _array(of: Any) -> dict[str, Any]:
    return {"type": "array", "items": of}


_GAP = _record(
    "Gap",
    "Records that are not to be handled: they were undone by a rewind of whoever wrote them.",
    _field("first", "long", "The first offset of them."),
    _field("end", "long", "The offset after the last of them."),
)
_OFFSET = _record(
    "PartitionOffset",
    "A partition of an input, and where reading of it continues.",
    _field("partition", "int", "Its number."),
    _field("offset", "long", "The offset of the next record to be handled."),
    _field("gaps", _array(_GAP), "What is passed over on the way, in order.", default=[]),
)
_INPUT = _record(
    "InputPoint",
    "Where reading of one input continues.",
    _field("feed", "string", "Its name; for what is redriven, the topic."),
    _field("topic", "string", "The topic that it is read from."),
    _field("topic_id", "string", "Kafka's id of that topic: another one means that it was made anew."),
    _field("partitions", "int", "How many partitions it had."),
    _field("offsets", _array(_OFFSET), "The partitions that the task reads."),
)
_STORE = _record(
    "StorePoint",
    "How far the changelog of one store reaches.",
    _field("store", "string", "Its name."),
    _field("topic", "string", "Its changelog; the partition is that of the task."),
    _field("topic_id", "string", "Kafka's id of the changelog."),
    _field("end", "long", "The offset after the last delta up to this commit."),
)
_OUTPUT = _record(
    "OutputPoint",
    "Where one output ended before this commit wrote to it.",
    _field("feed", "string", "Its name."),
    _field("topic", "string", "The topic that it is written to."),
    _field("topic_id", "string", "Kafka's id of that topic."),
    _field("ends", _array("long"), "Per partition: the offset after the last record before this commit."),
    _field(
        "wrote",
        ["null", _array("int")],
        "The partitions that this commit may have written to; null: any.",
        default=None,
    ),
)

# The first nine fields are those of `CheckpointHeads`, which reads them without the rest.
CHECKPOINT_TREE = {
    **_record(
        "Checkpoint",
        "One commit of one task of a job: where its inputs, its state and its outputs stood.",
        _field("job", "string", "The job."),
        _field("task", "string", "The task: stage and partition, such as main-2."),
        _field("number", "long", "Counts the commits of the task, without gap."),
        _field("version", "string", "The software version of the job."),
        _field("time_ms", "long", "When the commit was made, in milliseconds since 1970."),
        _field(
            "event_time_ms", ["null", "long"], "The highest time of a record handled so far.", default=None
        ),
        _field("generation", "long", "The plan by which the container had the task."),
        _field("slot", "int", "The container; -1 for a commit that a command made."),
        _field("attempt", "int", "Which attempt of it."),
        _field("inputs", _array(_INPUT), "Where reading continues."),
        _field("stores", _array(_STORE), "How far changelogs reach."),
        _field("outputs", _array(_OUTPUT), "Where outputs ended before."),
        _field("annotations", {"type": "map", "values": "string"}, "What is said of this commit."),
        _field("horizon_ms", "long", "The horizon of the job at the time of the commit.", default=0),
    ),
    "namespace": "feedstack",
}
ANNOTATED_TREE = {
    **_record(
        "Annotated",
        "A point in the life of a job that somebody gave a name: the checkpoints of all its tasks.",
        _field("job", "string", "The job."),
        _field("name", "string", "The name of the point."),
        _field("time_ms", "long", "When it was named, in milliseconds since 1970."),
        _field("by", "string", "Who named it."),
        _field("values", {"type": "map", "values": "string"}, "What else is said of it."),
        _field("aligned", "boolean", "Whether all tasks stood still at it."),
        _field("checkpoints", _array(CHECKPOINT_TREE), "The last commit of each task."),
        _field(
            "outputs",
            _array("feedstack.OutputPoint"),
            "Where outputs ended, if all tasks stood still; else empty.",
            default=[],
        ),
    ),
    "namespace": "feedstack",
}
_GROUP_OFFSET = _record(
    "GroupOffset",
    "A partition of a feed, and where reading of it continues.",
    _field("partition", "int", "Its number."),
    _field("offset", "long", "The offset of the next record to be handled."),
)
_GROUP_FEED = _record(
    "GroupFeed",
    "Where a group stands in one feed.",
    _field("feed", "string", "Its name."),
    _field("topic", "string", "The topic that holds it."),
    _field("topic_id", "string", "Kafka's id of that topic: another one means that it was made anew."),
    _field("offsets", _array(_GROUP_OFFSET), "The partitions that were ever committed."),
)
# All but the last field are those of `GroupCommitHeads`, which reads them without the rest.
GROUP_COMMIT_TREE = {
    **_record(
        "GroupCommit",
        "One commit of a consumer outside the stack: where its group stood in all its feeds.",
        _field("group", "string", "The group."),
        _field("number", "long", "Counts the commits of the group, from 1, without gap."),
        _field("time_ms", "long", "When it was made, in milliseconds since 1970."),
        _field("id", "string", "Tells this commit from every other."),
        _field("by", "string", "Who made it."),
        _field("reason", "string", "Why."),
        _field("name", ["null", "string"], "A name that was given to it.", default=None),
        _field("annotations", {"type": "map", "values": "string"}, "What else is said of it."),
        _field("feeds", _array(_GROUP_FEED), "Where the group stands since this commit."),
    ),
    "namespace": "feedstack",
}
CHECKPOINT_SCHEMA: AvroSchema = parse_avro(json.dumps(CHECKPOINT_TREE), "the schema of checkpoints")
ANNOTATED_SCHEMA: AvroSchema = parse_avro(json.dumps(ANNOTATED_TREE), "the schema of named points")
GROUP_COMMIT_SCHEMA: AvroSchema = parse_avro(json.dumps(GROUP_COMMIT_TREE), "the schema of group commits")
