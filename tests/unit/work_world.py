"""One task without a cluster: records go through real codecs, overlays and outputs, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from confluent_kafka import Message

from stack.feeds.avro.codec import RecordDecoder, RecordEncoder
from stack.feeds.avro.schema import AvroSchema, parse_avro
from stack.kafka.admin import Topic
from stack.kafka.inputs import Portion
from stack.kafka.reader import RawBatch
from stack.model.coding import StoreCodec
from stack.model.dead import DeadLetter, letter_of
from stack.model.feed import Events, FeedSpec, Key, Kind
from stack.model.job import ErrorPolicy, InputSpec, KeyCodec, OnError, StoreSpec, ValueCodec
from stack.model.plan import TaskId
from stack.runtime.outputs import Output, Outputs
from stack.runtime.parts import InputPart
from stack.runtime.portions import InputDecoder
from stack.runtime.task import Task
from stack.runtime.work import Work
from stack.tasks.codecs import key_coding, value_coding
from stack.tasks.declare import Feed, Job
from tests.unit.test_overlay import Memory

CLICK = parse_avro(
    '{"type":"record","name":"Click","fields":[{"name":"user","type":"string"},{"name":"n","type":"long"}]}'
)
TALLY = parse_avro(
    '{"type":"record","name":"Tally","fields":[{"name":"user","type":"string"},{"name":"count","type":"long"}]}'
)
PLACE = ("clicks", 0)
BACK = ("t.count.redrive", 0)
_encode = RecordEncoder(CLICK, 1).encode


class Schemas:
    """A registry of two schemas."""

    def schema_by_id(self, schema_id: int) -> AvroSchema:
        from stack.errors import NotFound

        if schema_id not in (1, 2):
            raise NotFound(f"no schema {schema_id}")
        return CLICK if schema_id == 1 else TALLY


def click(number: int, user: str | None = None) -> bytes:
    """The bytes of a click."""
    return _encode({"user": user or f"user-{number % 5}", "n": number})


class Sent:
    """Takes what a writer would."""

    def __init__(self) -> None:
        self.records: list[tuple[str, Any, Any, Any]] = []

    def write_pairs(self, topic: str, keys: Iterable[Any], values: Iterable[Any], *_: Any) -> None:
        self.records += [(topic, key, value, ()) for key, value in zip(keys, values, strict=True)]

    def write_packed(self, topic: str, keys: Any, values: Any, *_: Any) -> None:
        self.write_pairs(topic, keys.items(), values.items())

    def write(self, topic: str, records: list[dict[str, Any]], *_: Any) -> None:
        self.records += [(topic, one["key"], one["value"], ()) for one in records]

    def write_one(self, topic: str, value: Any, key: Any = None, *, headers: Any, partition: int) -> None:
        assert partition == 0
        self.records.append((topic, key, value, headers))


class WorkWorld:
    """A task of a job that the test writes, and what becomes of what it is given."""

    def __init__(
        self,
        function: Callable[[Any, Any], object],
        policy: ErrorPolicy = ErrorPolicy(OnError.DEAD_LETTER),  # noqa: B008
        *,
        batch: bool = False,
    ) -> None:
        job = Job("count")
        job.task(Feed("clicks"), store="counts", batch=batch)(function)
        clicks = FeedSpec("clicks", Kind.SOURCE, "", "", "", 1, Events(None), Key("user"))
        tallies = FeedSpec("tallies", Kind.DERIVED, "", "", "", 1, Events(None), Key("user"), by="count")
        store = StoreSpec("counts", KeyCodec.STR, ValueCodec.INT)
        codec = StoreCodec(key_coding(store), value_coding(store))
        decoder = InputDecoder(clicks, Schemas(), CLICK)
        topic = Topic("clicks", "id", 1, 1)
        part = InputPart(InputSpec("clicks"), topic, clicks, decoder, job.handlers[0], policy)
        self.outputs = Outputs("count", {"tallies": Output(tallies, "tallies", TALLY, 2)})
        self.now = 100.0
        parts: Any = SimpleNamespace(
            inputs={"clicks": part},
            inputs_by_stage={"main": {"clicks": part}},
            stores={"counts": SimpleNamespace(spec=store, codec=codec)},
            outputs=self.outputs,
            spec=SimpleNamespace(name="count", version="v1"),
            cached_entries=1_000,
            dead=Topic("t.count.dead", "id", 1, 1),
        )
        memory: Any = Memory()
        self.task = Task(parts, TaskId("main", 0), {"counts": memory}, {PLACE: 0, BACK: 0}, None)
        self.work = Work(parts, lambda: self.now)
        self.guard = self.work.guard
        self.guard._sleep = self._pass
        self._offset = 0

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    def give(self, values: Iterable[bytes | None], **details: Any) -> None:
        """Queue records as one portion."""
        messages = []
        for value in values:
            one = {"key": b"k", "headers": None, **details}
            messages.append(
                Message(
                    topic="clicks",
                    partition=0,
                    offset=self._offset,
                    value=value,
                    timestamp=(1, 1_700_000_000_000 + self._offset),
                    **one,
                )
            )
            self._offset += 1
        self.work.add(Portion(PLACE, RawBatch(messages), self._offset), [self.task])

    def run(self, most: int = 100_000) -> None:
        """Handle everything that was queued."""
        while self.work:
            self.work.step()
            most -= 1
            assert most, "it does not come to an end"

    def sent(self) -> Sent:
        """What would be written now."""
        taken: Any = Sent()
        self.outputs.send(taken)
        if len(self.work.dead_letters):
            self.work.dead_letters.send(taken)
        return taken

    def tallies(self) -> list[tuple[str, int]]:
        """The outputs so far; only once, as `letters`."""
        decode = RecordDecoder(Schemas()).decode
        values = [decode(value) for topic, _, value, _ in self.sent().records if topic == "tallies"]
        return [(one["user"], one["count"]) for one in values]

    def letters(self) -> list[DeadLetter]:
        """The dead letters so far."""
        taken: Any = Sent()
        if len(self.work.dead_letters):
            self.work.dead_letters.send(taken)
        return [letter_of(key, value, headers) for _, key, value, headers in taken.records]

    def counts(self) -> dict[str, int]:
        """The state as user code would see it."""
        return dict(self.task.overlays["counts"].items())
