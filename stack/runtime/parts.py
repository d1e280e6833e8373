"""Everything that the tasks of a container share: feeds, codecs, stores, clients, all looked up once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stack.connection import Stack
from stack.errors import BadConfig, NotFound
from stack.feeds.avro.codec import RecordEncoder
from stack.kafka.admin import Topic
from stack.model.coding import StoreCodec
from stack.model.feed import FeedSpec, KeyFormat, key_subject
from stack.model.job import (
    ErrorPolicy,
    Guarantee,
    InputSpec,
    JobSpec,
    StoreSpec,
    ValueCodec,
    changelog_name,
    dead_name,
    group_name,
    redrive_name,
)
from stack.model.place import Place
from stack.model.plan import TaskId, task_number
from stack.offsets.checkpoints import checkpoints_topic
from stack.offsets.codec import CheckpointDecoder, CheckpointEncoder, registered_id
from stack.offsets.schemas import CHECKPOINT_SCHEMA
from stack.runtime.launch import Launch
from stack.runtime.outputs import Output, Outputs
from stack.runtime.portions import InputDecoder
from stack.runtime.wiring import Disk, OpenStore, rocks_disk
from stack.tasks.codecs import key_coding, value_coding
from stack.tasks.declare import Handler, Job


@dataclass(frozen=True, slots=True)
class SourcePart:
    """Something that tasks read: its topic as it is now."""

    spec: InputSpec
    topic: Topic

    def places_of(self, task: TaskId) -> list[Place]:
        """The partitions that a task of the input's stage reads."""
        numbers = range(self.topic.partitions) if self.spec.broadcast else (task.partition,)
        return [(self.topic.name, number) for number in numbers]


@dataclass(frozen=True, slots=True)
class RedrivePart(SourcePart):
    """What is redriven to the tasks of a job, each of which has a partition of its own there."""

    of_job: JobSpec

    def places_of(self, task: TaskId) -> list[Place]:
        return [(self.topic.name, task_number(self.of_job, task))]


@dataclass(frozen=True, slots=True)
class InputPart(SourcePart):
    """One input: its feed, who handles its records, and what is done about those that fail."""

    feed: FeedSpec
    decoder: InputDecoder
    handler: Handler
    errors: ErrorPolicy


@dataclass(frozen=True, slots=True)
class StorePart:
    """One store: how its bytes are made, and its changelog as it is now."""

    spec: StoreSpec
    codec: StoreCodec
    topic: Topic


@dataclass(frozen=True)
class Parts:
    """What a container works with."""

    launch: Launch
    stack: Stack
    job: Job
    inputs: dict[str, InputPart]
    stores: dict[str, StorePart]
    outputs: Outputs
    output_topics: dict[str, Topic]
    open_store: OpenStore
    cached_entries: int
    encode_checkpoint: CheckpointEncoder
    decode_checkpoint: CheckpointDecoder
    # Where dead letters go, and whence they come back; a job may have neither.
    dead: Topic | None = None
    redrive: RedrivePart | None = None

    @cached_property
    def output_places(self) -> dict[str, list[Place]]:
        """The partitions of each output."""
        return {
            feed: [(topic.name, number) for number in range(topic.partitions)]
            for feed, topic in self.output_topics.items()
        }

    @property
    def spec(self) -> JobSpec:
        return self.launch.spec

    @cached_property
    def sources(self) -> dict[str, dict[str, SourcePart]]:
        """By stage, everything that its tasks read: the inputs, and what is redriven to them."""
        redrive = {} if self.redrive is None else {self.redrive.spec.feed: self.redrive}
        return {stage: {**inputs, **redrive} for stage, inputs in self.inputs_by_stage.items()}

    @cached_property
    def inputs_by_stage(self) -> dict[str, dict[str, InputPart]]:
        """The inputs of each stage."""
        return {
            stage: {name: part for name, part in self.inputs.items() if part.spec.stage == stage}
            for stage in self.spec.stages
        }

    @cached_property
    def stores_by_stage(self) -> dict[str, dict[str, StorePart]]:
        """The stores of each stage."""
        return {
            stage: {name: part for name, part in self.stores.items() if part.spec.stage == stage}
            for stage in self.spec.stages
        }

    @property
    def group(self) -> str:
        return group_name(self.launch.settings.name, self.spec.name)

    @cached_property
    def _state_folder(self) -> Path:
        return self.launch.state_folder

    def store_folder(self, store: str, partition: int) -> Path:
        return self._state_folder / store / str(partition)


def gather(launch: Launch, stack: Stack, job: Job, disk: Disk = rocks_disk) -> Parts:
    """Look everything up; what the job needs and is not there is an error that names it."""
    spec = launch.spec
    topics = _topics(stack, spec)
    handlers = {one.feed: handler for handler in job.handlers for one in handler.inputs}
    inputs = {}
    for one in spec.inputs:
        feed = stack.feed(one.feed)
        topic = topics[stack.topic_of(one.feed, feed.version)]
        if not one.broadcast and topic.partitions != spec.stages[one.stage]:
            raise BadConfig(
                f"feed {one.feed!r} has {topic.partitions} partitions now; job {spec.name!r} was deployed "
                f"for {spec.stages[one.stage]}, and its state is divided among so many",
                hint="Keys of a grown feed move between partitions. Write a new feed with the new number "
                "of partitions, and deploy the job under a new name for it.",
            )
        decoder = InputDecoder(feed, stack.registry, stack.schema(one.feed).schema)
        errors = spec.settings.errors_of(one.feed)
        inputs[one.feed] = InputPart(one, topic, feed, decoder, handlers[one.feed], errors)
    stores = {one.name: _store_part(launch, stack, one, topics) for one in spec.stores}
    outputs = Outputs(spec.name, {name: _output(stack, name) for name in spec.outputs})
    output_topics = {name: topics[output.topic] for name, output in outputs.by_name.items()}
    if spec.settings.containers > 1 and spec.settings.guarantee is Guarantee.EXACTLY_ONCE:
        _note_partitions(outputs, output_topics)
    count = max(1, sum(spec.stages[one.stage] for one in spec.stores))
    settings = spec.settings
    # Half for RocksDB, half for values in Python's own form, which take some 200 bytes each.
    opener = disk(settings.cache_bytes // 2, count)
    cached = settings.cache_bytes // 2 // 200 // count
    dead, redrive = _dead_parts(stack, spec)
    checkpoints = checkpoints_topic(stack.settings.name)
    return Parts(
        launch,
        stack,
        job,
        inputs,
        stores,
        outputs,
        output_topics,
        opener,
        cached,
        CheckpointEncoder(registered_id(stack.registry, checkpoints, CHECKPOINT_SCHEMA)),
        CheckpointDecoder(stack.registry),
        dead,
        redrive,
    )


def _note_partitions(outputs: Outputs, topics: dict[str, Topic]) -> None:
    """Where several containers write to a table, a rewind must know which of them wrote to a partition."""
    for name, output in outputs.by_name.items():
        if output.spec.is_table:
            output.noted_partitions = topics[name].partitions


def _dead_parts(stack: Stack, spec: JobSpec) -> tuple[Topic | None, RedrivePart | None]:
    """Where dead letters go, and whence they come back.

    Whoever has a way back reads it, also a version that makes no dead letters: its tasks remember how far
    they came, and the next version goes on from there.
    """
    letters, back = dead_name(stack.settings.name, spec.name), redrive_name(stack.settings.name, spec.name)
    found = stack.admin.describe([letters, back])
    if spec.settings.keeps_dead_letters and letters not in found:
        raise NotFound(
            f"job {spec.name!r} cannot run: there is no topic {letters!r} for its dead letters",
            hint="Someone deleted it. `stack jobs deploy` makes it anew.",
        )
    return found.get(letters), RedrivePart(InputSpec(back), found[back], spec) if back in found else None


def _topics(stack: Stack, spec: JobSpec) -> dict[str, Topic]:
    wanted = {
        stack.topic_of(name, stack.feed(name).version): f"feed {name!r}"
        for name in (*(one.feed for one in spec.inputs), *spec.outputs)
    }
    for store in spec.stores:
        wanted[changelog_name(stack.settings.name, spec.name, store.name)] = (
            f"the changelog of {store.name!r}"
        )
    found = stack.admin.describe(wanted)
    missing = [f"{what} has no topic {name!r}" for name, what in wanted.items() if name not in found]
    if missing:
        raise NotFound(
            f"job {spec.name!r} cannot run: {'; '.join(missing)}",
            hint="Someone deleted it. `stack feeds apply` makes feeds; `stack jobs deploy` makes changelogs, "
            "but a deleted changelog took the job's state with it.",
        )
    return found


def _store_part(launch: Launch, stack: Stack, spec: StoreSpec, topics: dict[str, Topic]) -> StorePart:
    name = changelog_name(launch.settings.name, launch.spec.name, spec.name)
    schema_id = 0
    if spec.value is ValueCodec.AVRO:
        schema_id = stack.registry.latest(f"{name}-value").id
    codec = StoreCodec(key_coding(spec), value_coding(spec, stack.registry, schema_id))
    return StorePart(spec, codec, topics[name])


def _output(stack: Stack, name: str) -> Output:
    feed, registered = stack.feed(name), stack.schema(name)
    keys = None
    if feed.key is not None and feed.key.format is KeyFormat.AVRO:
        of_key = stack.registry.latest(key_subject(name))
        keys = RecordEncoder(of_key.schema, of_key.id)
    return Output(feed, stack.topic_of(name, feed.version), registered.schema, registered.id, keys)
