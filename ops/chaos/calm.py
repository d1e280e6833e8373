"""The calm run: the same inputs through the same jobs once more, on a second stack beside the first."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from ops.chaos.candidate import Candidate
from ops.chaos.stage import Say, Stage, stage_on
from ops.chaos.twins import Run, compare
from ops.chaos.verdict import Finding
from ops.cluster import control
from stack.connection import Stack
from stack.feeds.declare import Declaration
from stack.kafka.reader import LogReader
from stack.kafka.writer import LogWriter, WriteRecord
from stack.settings import load_settings

NAME = "calm"
CHECKED = "against a calm run: the same records of each key, as often"
_SETTINGS = """name = "{name}"
schemas = "../schemas"
[kafka]
bootstrap = {kafka}
topic_prefix = "{name}."
[zookeeper]
hosts = {zookeeper}
"""


def differences(stage: Stage, candidate: Candidate, say: Say) -> list[Finding]:
    """What the job has written other than it does without faults. The jobs must have come to rest."""
    with _calm_stage(stage, candidate) as calm:
        say("the same records go through the jobs without faults")
        for source in candidate.sources:
            _copy(stage.stack, calm.stack, source)
        for one in candidate.jobs:
            calm.deploy(one.folder, say)
        calm.drain_all()
        return compare(_run_of(stage), _run_of(calm), _feeds(candidate))


def _run_of(stage: Stage) -> Run:
    settings = stage.settings
    return Run(stage.stack.endpoints.kafka, settings.name, settings.topic_prefix)


def _feeds(candidate: Candidate) -> dict[str, bool]:
    """The outputs of the job, each with whether the order of a key's records counts.

    It does where one task writes them: where they have the key of the inputs.
    """
    job, feeds = candidate.job, candidate.feeds
    own = [name for name, is_broadcast in job.inputs.items() if not is_broadcast]
    keys = {_key_field(feeds[name]) for name in own}
    one_input = len(job.inputs) == 1 and keys != {None}
    return {name: one_input and {_key_field(feeds[name])} == keys for name in job.outputs}


def _key_field(one: Declaration) -> str | None:
    return one.spec.key.field if one.spec.key is not None else None


@contextlib.contextmanager
def _calm_stage(stage: Stage, candidate: Candidate) -> Iterator[Stage]:
    """A second stack on the same Kafka and ZooKeeper, with a runner of its own, for the block."""
    folder = stage.settings.root / NAME
    folder.mkdir()
    ends = stage.stack.endpoints
    text = _SETTINGS.format(name=NAME, kafka=json.dumps(ends.kafka), zookeeper=json.dumps(ends.zookeeper))
    file = folder / "stack.toml"
    file.write_text(text, encoding="utf-8")
    settings = load_settings(file)
    try:
        control.up(settings, None, lambda _: None)
        with stage_on(settings, candidate.names) as calm:
            yield calm
    finally:
        control.down(settings, lambda _: None)


def _copy(source: Stack, target: Stack, one: Declaration) -> None:
    """All records of a feed, each to the partition that it came from, with its time."""
    spec = one.spec
    topics = [stack.topic_of(spec.name, spec.version) for stack in (source, target)]
    ends = source.admin.ends(topics[0], range(spec.partitions))
    writer = LogWriter(target.access)
    try:
        with LogReader(source.access, topics[0]) as reader:
            reader.assign(dict.fromkeys(ends, 0), ends)
            while not reader.done:
                _write(writer, topics[1], reader)
        writer.flush()
    finally:
        writer.close()


def _write(writer: LogWriter, topic: str, reader: LogReader) -> None:
    batch = reader.read()
    parts: dict[int, list[WriteRecord]] = {}
    rows = zip(batch.partitions, batch.keys, batch.values, batch.timestamps_ms, strict=True)
    for partition, key, value, time_ms in rows:
        parts.setdefault(partition, []).append({"key": key, "value": value, "timestamp": time_ms})
    for partition, records in parts.items():
        writer.write(topic, records, partition)
