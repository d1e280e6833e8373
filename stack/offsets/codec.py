"""Checkpoints as bytes: Avro in the registry's wire format, by the schemas of `schemas/stack/`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stack.errors import BadRecord, CorruptState, NotFound
from stack.feeds.avro import wire
from stack.feeds.avro.codec import RecordDecoder, RecordEncoder, find_schema
from stack.feeds.avro.schema import AvroSchema, SchemaSource
from stack.feeds.registry.registry import SchemaRegistry
from stack.model.annotation import Annotated
from stack.model.checkpoint import Checkpoint, Gap, InputPoint, OutputPoint, StorePoint
from stack.model.plan import TaskId
from stack.offsets.schemas import ANNOTATED_SCHEMA, CHECKPOINT_SCHEMA


class CheckpointDecoder:
    """Reads checkpoints, also those of earlier versions of the schema."""

    def __init__(self, schemas: SchemaSource) -> None:
        self._decode = RecordDecoder(schemas, CHECKPOINT_SCHEMA).decode

    def __call__(self, data: bytes) -> Checkpoint:
        """The checkpoint; CorruptState if it is something else."""
        try:
            return checkpoint_of(self._decode(data))
        except (BadRecord, KeyError, TypeError, ValueError) as error:
            raise CorruptState(
                f"a checkpoint cannot be read: {error}",
                hint="It was written by another version of Feedstack, or by something else.",
            ) from None


class CheckpointEncoder:
    """Writes checkpoints under the id that the registry has for their schema."""

    def __init__(self, schema_id: int) -> None:
        self._encode = RecordEncoder(CHECKPOINT_SCHEMA, schema_id).encode

    def __call__(self, one: Checkpoint) -> bytes:
        return self._encode(checkpoint_tree(one))


class AnnotatedDecoder:
    """Reads named points."""

    def __init__(self, schemas: SchemaSource) -> None:
        self._decode = RecordDecoder(schemas, ANNOTATED_SCHEMA).decode

    def __call__(self, data: bytes) -> Annotated:
        """The named point; CorruptState if it is something else."""
        try:
            tree = self._decode(data)
            points = map(checkpoint_of, tree["checkpoints"])
            return Annotated(
                tree["job"],
                tree["name"],
                tree["time_ms"],
                tree["by"],
                {one.task: one for one in points},
                tree["values"],
                tree["aligned"],
                _outputs_of(tree["outputs"]),
            )
        except (BadRecord, KeyError, TypeError, ValueError) as error:
            raise CorruptState(
                f"a named point cannot be read: {error}",
                hint="It was written by another version of Feedstack, or by something else.",
            ) from None


class AnnotatedEncoder:
    """Writes named points."""

    def __init__(self, schema_id: int) -> None:
        self._encode = RecordEncoder(ANNOTATED_SCHEMA, schema_id).encode

    def __call__(self, one: Annotated) -> bytes:
        points = [checkpoint_tree(point) for _, point in sorted(one.checkpoints.items())]
        return self._encode(
            {
                "job": one.job,
                "name": one.name,
                "time_ms": one.time_ms,
                "by": one.by,
                "values": dict(one.values),
                "aligned": one.aligned,
                "checkpoints": points,
                "outputs": _output_trees(one.outputs),
            }
        )


Head = tuple[str, str, int, int, int | None, str, int, int]
"""Job, task, number, time, event time, version, slot and attempt."""


class CheckpointHeads:
    """Reads the beginnings of checkpoints: an index needs no more, and has a million of them to read."""

    def __init__(self, schemas: SchemaSource) -> None:
        self._schemas = schemas
        self._whole = CheckpointDecoder(schemas)
        self._is_plain: dict[bytes, bool] = {}

    def __call__(self, data: bytes) -> Head:
        header = data[: wire.HEADER_BYTES]
        plain = self._is_plain.get(header)
        if plain is None:
            plain = self._is_plain[header] = self._has_own_schema(header)
        if not plain:
            one = self._whole(data)
            task = str(one.task)
            return (
                one.job,
                task,
                one.number,
                one.time_ms,
                one.event_time_ms,
                one.version,
                one.slot,
                one.attempt,
            )
        return _head(data, wire.HEADER_BYTES)

    def _has_own_schema(self, header: bytes) -> bool:
        try:
            return find_schema(self._schemas, wire.schema_id_of(header)) == CHECKPOINT_SCHEMA
        except BadRecord as error:
            raise CorruptState(
                f"a checkpoint cannot be read: {error}", hint="It was written by something else."
            ) from None


def _head(data: bytes, at: int) -> Head:
    try:
        job, at = read_text(data, at)
        task, at = read_text(data, at)
        number, at = read_long(data, at)
        version, at = read_text(data, at)
        time_ms, at = read_long(data, at)
        branch, at = read_long(data, at)
        event_time_ms = None
        if branch:
            event_time_ms, at = read_long(data, at)
        _generation, at = read_long(data, at)
        slot, at = read_long(data, at)
        attempt, at = read_long(data, at)
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptState(
            f"a checkpoint cannot be read: {error}", hint="It was written by something else."
        ) from None
    return job, task, number, time_ms, event_time_ms, version, slot, attempt


def read_text(data: bytes, at: int) -> tuple[str, int]:
    """A text of an Avro body, and where it ends."""
    size, at = read_long(data, at)
    return data[at : at + size].decode(), at + size


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """A number of an Avro body, and where it ends: zigzag, seven bits a byte."""
    byte = data[at]
    at += 1
    number, shift = byte & 0x7F, 7
    while byte & 0x80:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), at


class FixedSchemas:
    """A source of schemas that are known beforehand, for whoever has no registry at hand."""

    def __init__(self, schemas: dict[int, AvroSchema]) -> None:
        self._schemas = schemas

    def schema_by_id(self, schema_id: int) -> AvroSchema:
        if schema_id not in self._schemas:
            raise NotFound(f"there is no schema with the id {schema_id}")
        return self._schemas[schema_id]


def registered_id(registry: SchemaRegistry, topic: str, schema: AvroSchema) -> int:
    """The id of a schema of the stack's own, which is registered if it is not.

    Records of several kinds stand in one topic, each under a subject of its own: `<topic>-<record>`.
    """
    return registry.register(f"{topic}-{schema.tree['namespace']}.{schema.tree['name']}", schema).id


def checkpoint_tree(one: Checkpoint) -> dict[str, Any]:
    """The checkpoint as plain values, as its schema names them."""
    return {
        "job": one.job,
        "task": str(one.task),
        "number": one.number,
        "version": one.version,
        "time_ms": one.time_ms,
        "event_time_ms": one.event_time_ms,
        "generation": one.generation,
        "slot": one.slot,
        "attempt": one.attempt,
        "inputs": [_input_tree(feed, point) for feed, point in one.inputs.items()],
        "stores": [
            {"store": name, "topic": point.topic, "topic_id": point.topic_id, "end": point.end}
            for name, point in one.stores.items()
        ],
        "outputs": _output_trees(one.outputs),
        "annotations": dict(one.annotations),
        "horizon_ms": one.horizon_ms,
    }


def _output_trees(outputs: Mapping[str, OutputPoint]) -> list[dict[str, Any]]:
    return [
        {
            "feed": feed,
            "topic": point.topic,
            "topic_id": point.topic_id,
            "ends": list(point.ends),
            "wrote": None if point.wrote is None else sorted(point.wrote),
        }
        for feed, point in outputs.items()
    ]


def _outputs_of(trees: Iterable[dict[str, Any]]) -> dict[str, OutputPoint]:
    return {
        one["feed"]: OutputPoint(
            one["topic"],
            one["topic_id"],
            tuple(one["ends"]),
            None if one["wrote"] is None else frozenset(one["wrote"]),
        )
        for one in trees
    }


def _input_tree(feed: str, point: InputPoint) -> dict[str, Any]:
    offsets = [
        {
            "partition": partition,
            "offset": offset,
            "gaps": [{"first": gap.first, "end": gap.end} for gap in point.gaps.get(partition, ())],
        }
        for partition, offset in point.offsets.items()
    ]
    return {
        "feed": feed,
        "topic": point.topic,
        "topic_id": point.topic_id,
        "partitions": point.partitions,
        "offsets": offsets,
    }


def checkpoint_of(tree: dict[str, Any]) -> Checkpoint:
    """The checkpoint that `checkpoint_tree` told."""
    return Checkpoint(
        job=tree["job"],
        task=TaskId.parse(tree["task"]),
        version=tree["version"],
        number=tree["number"],
        time_ms=tree["time_ms"],
        inputs={
            one["feed"]: InputPoint(
                one["topic"],
                one["topic_id"],
                one["partitions"],
                {place["partition"]: place["offset"] for place in one["offsets"]},
                {
                    place["partition"]: tuple(Gap(gap["first"], gap["end"]) for gap in place["gaps"])
                    for place in one["offsets"]
                    if place["gaps"]
                },
            )
            for one in tree["inputs"]
        },
        stores={
            one["store"]: StorePoint(one["topic"], one["topic_id"], one["end"]) for one in tree["stores"]
        },
        outputs=_outputs_of(tree["outputs"]),
        annotations=tree["annotations"],
        event_time_ms=tree["event_time_ms"],
        generation=tree["generation"],
        slot=tree["slot"],
        attempt=tree["attempt"],
        horizon_ms=tree["horizon_ms"],
    )
