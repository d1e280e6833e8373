"""The jobs that are simulated: two that count, the second what the first has written; one that keeps a table.

Everything that is the same in all runs is made once: schemas, codecs, handlers. What they shall compute is
told a second time, in plain Python, for the checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from stack import Feed, Job
from stack.connection import Stack
from stack.feeds.avro.codec import RecordDecoder, RecordEncoder
from stack.feeds.avro.schema import AvroSchema, parse_avro
from stack.kafka.admin import Topic
from stack.model.checkpoint import Checkpoint
from stack.model.coding import StoreCodec
from stack.model.feed import Events, FeedSpec, Key, Kind, Table
from stack.model.job import (
    CodePlace,
    InputSpec,
    JobSettings,
    JobSpec,
    KeyCodec,
    StoreSpec,
    ValueCodec,
    changelog_name,
)
from stack.offsets.codec import CheckpointDecoder, CheckpointEncoder, FixedSchemas
from stack.offsets.schemas import CHECKPOINT_SCHEMA
from stack.runtime.launch import Launch
from stack.runtime.outputs import Output, Outputs
from stack.runtime.parts import InputPart, Parts, StorePart
from stack.runtime.portions import InputDecoder
from stack.settings import Settings
from stack.tasks.codecs import key_coding, value_coding

STACK = "sim"
MOST_PARTITIONS = 2
STORE = "counts"
SETTINGS = Settings(root=Path("/simulation"), name=STACK, data=Path("/simulation/data"))
_RECORD = '{{"type":"record","name":"{}","fields":[{{"name":"user","type":"string"}},{}]}}'
_VIEW = parse_avro(_RECORD.format("View", '{"name":"n","type":"long"}'))
_COUNT = parse_avro(_RECORD.format("Count", '{"name":"count","type":"long"}'))
_SCHEMAS = {1: _VIEW, 2: _COUNT}
_IDS = {"views": 1, "counts": 2, "totals": 2, "tallies": 2}
_TABLES = {"tallies"}
HORIZON_S = 60

count_views = Job("count")
count_counts = Job("recount")
tally_views = Job("tally")


@count_views.task(Feed("views"), store=STORE)
def count(view: Any, ctx: Any) -> None:
    """One more view of a user; one with a negative number lets the user be forgotten."""
    user, number = view["user"], 0
    if view["n"] < 0:
        ctx.state.pop(user, None)
    else:
        number = ctx.state[user] = ctx.state.get(user, 0) + 1
    ctx.emit("counts", {"user": user, "count": number})


@count_counts.task(Feed("counts"), store=STORE)
def recount(one: Any, ctx: Any) -> None:
    """One more count of a user."""
    number = ctx.state[one["user"]] = ctx.state.get(one["user"], 0) + 1
    ctx.emit("totals", {"user": one["user"], "count": number})


@tally_views.task(Feed("views"), store=STORE)
def tally(view: Any, ctx: Any) -> None:
    """One more view of a user, in a table; every third one is told under another key, too."""
    user = view["user"]
    if view["n"] < 0:
        ctx.state.pop(user, None)
        ctx.emit("tallies", None, key=user)
        return
    number = ctx.state[user] = ctx.state.get(user, 0) + 1
    ctx.emit("tallies", {"user": user, "count": number})
    if number % 3 == 0:
        ctx.emit("tallies", {"user": f"{user}-thirds", "count": number})


def _after_view(state: dict[str, int], view: dict[str, Any]) -> int:
    if view["n"] < 0:
        state.pop(view["user"], None)
        return 0
    state[view["user"]] = state.get(view["user"], 0) + 1
    return state[view["user"]]


def _after_count(state: dict[str, int], one: dict[str, Any]) -> int:
    state[one["user"]] = state.get(one["user"], 0) + 1
    return state[one["user"]]


def _shown_tally(table: dict[str, int], user: str, number: int) -> None:
    """What the table holds after a view; number 0 is a user that was forgotten."""
    if not number:
        table.pop(user, None)
        return
    table[user] = number
    if number % 3 == 0:
        table[f"{user}-thirds"] = number


class _Schemas:
    """The registry of the simulation."""

    @staticmethod
    def schema_by_id(schema_id: int) -> AvroSchema:
        return _SCHEMAS[schema_id]


@dataclass(frozen=True)
class Simulated:
    """One job: what runs, and what it must compute."""

    job: Job
    source: str
    target: str
    after: Callable[[dict[str, int], dict[str, Any]], int]
    # What its outcome does to a table, where it keeps one: only then it may go back.
    shown: Callable[[dict[str, int], str, int], None] | None = None
    # Outputs of containers that are gone, for the next ones: they are dear to make.
    spare: list[Outputs] = field(default_factory=list, compare=False)

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def changelog(self) -> str:
        return changelog_name(STACK, self.job.name, STORE)

    def spec(self, version: str, settings: JobSettings, partitions: int) -> JobSpec:
        store = StoreSpec(STORE, KeyCodec.STR, ValueCodec.INT)
        code = CodePlace(version, 0, 0, 1)
        inputs = (InputSpec(self.source),)
        return JobSpec(self.name, version, inputs, (self.target,), (store,), settings, partitions, code)


COUNT = Simulated(count_views, "views", "counts", _after_view)
RECOUNT = Simulated(count_counts, "counts", "totals", _after_count)
TALLY = Simulated(tally_views, "views", "tallies", _after_view, _shown_tally)


@cache
def feed_of(name: str) -> FeedSpec:
    """A feed as the catalogue would have it."""
    storage = Table(HORIZON_S * 1000) if name in _TABLES else Events(None)
    return FeedSpec(name, Kind.DERIVED, "", "", "", MOST_PARTITIONS, storage, Key("user"))


@cache
def _input_decoder(name: str) -> InputDecoder:
    return InputDecoder(feed_of(name), _Schemas(), _SCHEMAS[_IDS[name]])


@cache
def view_bytes(user: str, number: int) -> bytes:
    """A view as it stands in its feed."""
    return RecordEncoder(_VIEW, _IDS["views"]).encode({"user": user, "n": number})


@cache
def decoder_of(feed: str) -> Callable[[bytes], Any]:
    """How bytes become values of a feed, for whoever only looks at them: the same few come in all runs."""
    return lru_cache(1 << 12)(RecordDecoder(_Schemas(), _SCHEMAS[_IDS[feed]]).decode)


@cache
def stored(user: str, number: int) -> tuple[bytes, bytes]:
    """A user and its count as they stand in a store."""
    codec = store_codec()
    return codec.keys.encode(user), codec.values.encode(number)


def schema_of(feed: str) -> tuple[int, AvroSchema]:
    """What the registry would have for a feed."""
    return _IDS[feed], _SCHEMAS[_IDS[feed]]


@cache
def store_codec() -> StoreCodec:
    spec = StoreSpec(STORE, KeyCodec.STR, ValueCodec.INT)
    return StoreCodec(key_coding(spec), value_coding(spec))


class _Decoder(CheckpointDecoder):
    """Decodes each checkpoint once: containers and checks read the same ones again and again."""

    def __init__(self, schemas: FixedSchemas) -> None:
        super().__init__(schemas)
        self._known: Callable[[bytes], Checkpoint] = lru_cache(1 << 9)(super().__call__)

    def __call__(self, data: bytes) -> Checkpoint:
        return self._known(data)


_CHECKPOINTS_ID = 99
CHECKPOINT_IDS = {_CHECKPOINTS_ID: CHECKPOINT_SCHEMA}
encode_checkpoint = CheckpointEncoder(_CHECKPOINTS_ID)
decode_checkpoint = _Decoder(FixedSchemas(CHECKPOINT_IDS))


def _outputs(simulated: Simulated, spec: JobSpec) -> Outputs:
    target = simulated.target
    if simulated.spare:
        outputs = simulated.spare.pop()
        outputs.drop()
    else:
        output = Output(feed_of(target), target, _SCHEMAS[_IDS[target]], _IDS[target])
        outputs = Outputs(simulated.name, {target: output})
    several = simulated.shown is not None and spec.settings.containers > 1
    outputs.by_name[target].noted_partitions = spec.partitions if several else 0
    return outputs


def parts_of(simulated: Simulated, launch: Launch, stack: Stack, open_store: Any) -> Parts:
    """What `gather` would look up, without the catalogue and the registry, which no fault concerns here."""
    source, target, changelog = simulated.source, simulated.target, simulated.changelog
    topics: dict[str, Topic] = stack.admin.describe([source, target, changelog])
    (handler,) = simulated.job.handlers
    spec = launch.spec
    return Parts(
        launch,
        stack,
        simulated.job,
        {
            source: InputPart(
                spec.inputs[0],
                topics[source],
                feed_of(source),
                _input_decoder(source),
                handler,
                spec.settings.errors_of(source),
            )
        },
        {STORE: StorePart(spec.stores[0], store_codec(), topics[changelog])},
        _outputs(simulated, spec),
        {target: topics[target]},
        open_store,
        1000,
        encode_checkpoint,
        decode_checkpoint,
    )
