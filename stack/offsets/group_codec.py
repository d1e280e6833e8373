"""Commits of groups as bytes, and the feed they stand in: Avro in the registry's wire format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stack.errors import BadRecord, CorruptState
from stack.feeds.avro import wire
from stack.feeds.avro.codec import RecordDecoder, RecordEncoder, find_schema
from stack.feeds.avro.schema import SchemaSource
from stack.kafka.admin import TopicPlan
from stack.model.group import FeedOffsets, GroupCommit
from stack.model.partitioner import partition_of
from stack.offsets.codec import read_long, read_text
from stack.offsets.schemas import GROUP_COMMIT_SCHEMA

_PARTITIONS = 8


def groups_topic(stack: str) -> str:
    """The feed of a stack that holds every commit of every group."""
    return f"_{stack}.groups"


def groups_plan(stack: str) -> TopicPlan:
    """Kept for ever: any commit may be asked for by what was said of it."""
    return TopicPlan(
        groups_topic(stack),
        _PARTITIONS,
        {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "message.timestamp.type": "LogAppendTime",
        },
    )


def group_partition(group: str) -> int:
    """All commits of a group stand in one partition, in their order."""
    return partition_of(group.encode(), _PARTITIONS)


def group_writer_id(stack: str, group: str) -> str:
    """The transactional id under which a group is committed: whoever takes it over fences all others."""
    return f"_{stack}.groups.{group}"


class GroupCommitDecoder:
    """Reads commits of groups, also those of earlier versions of the schema."""

    def __init__(self, schemas: SchemaSource) -> None:
        self._decode = RecordDecoder(schemas, GROUP_COMMIT_SCHEMA).decode

    def __call__(self, data: bytes) -> GroupCommit:
        """The commit; CorruptState if it is something else."""
        try:
            return _commit_of(self._decode(data))
        except (BadRecord, KeyError, TypeError, ValueError) as error:
            raise CorruptState(
                f"a commit of a group cannot be read: {error}",
                hint="It was written by another version of Feedstack, or by something else.",
            ) from None


class GroupCommitEncoder:
    """Writes commits of groups under the id that the registry has for their schema."""

    def __init__(self, schema_id: int) -> None:
        self._encode = RecordEncoder(GROUP_COMMIT_SCHEMA, schema_id).encode

    def __call__(self, one: GroupCommit) -> bytes:
        return self._encode(_tree_of(one))


GroupHead = tuple[str, int, int, str | None, Mapping[str, str]]
"""Group, number, time, name and annotations."""


class GroupCommitHeads:
    """Reads the beginnings of commits: an index needs no more, and may have a million of them to read."""

    def __init__(self, schemas: SchemaSource) -> None:
        self._schemas = schemas
        self._whole = GroupCommitDecoder(schemas)
        self._is_plain: dict[bytes, bool] = {}

    def __call__(self, data: bytes) -> GroupHead:
        """The beginning of a commit; CorruptState if it is something else."""
        header = data[: wire.HEADER_BYTES]
        plain = self._is_plain.get(header)
        try:
            if plain is None:
                writer = find_schema(self._schemas, wire.schema_id_of(header))
                plain = self._is_plain[header] = writer == GROUP_COMMIT_SCHEMA
            if plain:
                return _head(data, wire.HEADER_BYTES)
        except (BadRecord, IndexError, UnicodeDecodeError) as error:
            raise CorruptState(
                f"a commit of a group cannot be read: {error}", hint="It was written by something else."
            ) from None
        one = self._whole(data)
        return one.group, one.number, one.time_ms, one.name, one.annotations


def _head(data: bytes, at: int) -> GroupHead:
    group, at = read_text(data, at)
    number, at = read_long(data, at)
    time_ms, at = read_long(data, at)
    for _ in ("id", "by", "reason"):
        size, at = read_long(data, at)
        at += size
    branch, at = read_long(data, at)
    name = None
    if branch:
        name, at = read_text(data, at)
    annotations: dict[str, str] = {}
    while True:
        count, at = read_long(data, at)
        if count < 0:
            _size, at = read_long(data, at)
        if count == 0:
            return group, number, time_ms, name, annotations
        for _ in range(abs(count)):
            key, at = read_text(data, at)
            annotations[key], at = read_text(data, at)


def _tree_of(one: GroupCommit) -> dict[str, Any]:
    return {
        "group": one.group,
        "number": one.number,
        "time_ms": one.time_ms,
        "id": one.id,
        "by": one.by,
        "reason": one.reason,
        "name": one.name,
        "annotations": dict(one.annotations),
        "feeds": [
            {
                "feed": feed,
                "topic": point.topic,
                "topic_id": point.topic_id,
                "offsets": [
                    {"partition": number, "offset": offset} for number, offset in point.offsets.items()
                ],
            }
            for feed, point in one.feeds.items()
        ],
    }


def _commit_of(tree: dict[str, Any]) -> GroupCommit:
    feeds = {
        one["feed"]: FeedOffsets(
            one["topic"],
            one["topic_id"],
            {place["partition"]: place["offset"] for place in one["offsets"]},
        )
        for one in tree["feeds"]
    }
    return GroupCommit(
        tree["group"],
        tree["number"],
        tree["time_ms"],
        tree["by"],
        feeds,
        tree["name"],
        tree["annotations"],
        tree["reason"],
        tree["id"],
    )
