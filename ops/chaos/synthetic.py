"""The load of a user's job: synthetic records for each source feed, by its schema."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence

from ops.chaos.load import Load, Made
from stack.connection import Stack
from stack.errors import BadInput
from stack.feeds.avro.codec import RecordEncoder
from stack.feeds.declare import Declaration
from stack.feeds.encoder import FeedEncoder
from stack.feeds.keys import key_schema
from stack.feeds.reader import now_ms
from stack.feeds.synthetic.generate import Generator
from stack.kafka.writer import WriteRecord
from stack.model.feed import FeedSpec, KeyFormat


class Loads:
    """One load for each source feed; they share the rate. To be closed, whatever happens."""

    def __init__(
        self, stack: Stack, sources: Sequence[Declaration], *, keys: int, rate: float, seed: int
    ) -> None:
        self._open = contextlib.ExitStack()
        share = rate / len(sources)
        self._by_feed: dict[str, Load] = {}
        for number, one in enumerate(sources):
            generator = _generator(one, keys, share, seed + number)
            encode = self._open.enter_context(stack.writer(one.spec.name)).encode
            topic = stack.topic_of(one.spec.name, one.spec.version)
            make = _make(generator, encode)
            self._by_feed[one.spec.name] = Load(stack.endpoints.kafka, topic, make, share)

    def start(self) -> None:
        for one in self._by_feed.values():
            one.start()

    def stop(self) -> None:
        """Write no more; NotDelivered unless everything that was written is acknowledged."""
        for one in self._by_feed.values():
            one.stop()

    def close(self) -> None:
        """Write no more, and forget what is under way."""
        for one in self._by_feed.values():
            one.abandon()
        self._open.close()

    def refuse_failed(self) -> None:
        """NotDelivered if one of them will write no more."""
        for one in self._by_feed.values():
            one.refuse_failed()

    @property
    def written(self) -> int:
        return sum(one.written for one in self._by_feed.values())

    @property
    def acknowledged(self) -> dict[str, Counter[str]]:
        """How many records of each key were acknowledged, by feed."""
        return {name: one.by_key for name, one in self._by_feed.items()}


def refuse_ungenerated(one: Declaration) -> None:
    """BadInput if no record can be made for a feed."""
    try:
        _make(_generator(one, 1, 1.0, 0), _encoder(one).encode)()
    except BadInput as error:
        raise BadInput(
            f"feed {one.spec.name!r} can get no synthetic records: {error.message}",
            hint=error.hint or f'Say in {one.spec.schema} what a field holds: "generate", see docs/feeds.md.',
        ) from None


def _generator(one: Declaration, keys: int, rate: float, seed: int) -> Generator:
    spec: FeedSpec = one.spec
    return Generator(
        one.schema,
        seed,
        keys=keys,
        key_field=spec.key.field if spec.key else None,
        event_time=spec.event_time,
        start_ms=now_ms(),
        rate_per_s=rate,
    )


def _encoder(one: Declaration) -> FeedEncoder:
    """Encodes as a writer would, but for the ids of schemas."""
    key = one.spec.key
    is_avro = key is not None and key.format is KeyFormat.AVRO
    keys = RecordEncoder(key_schema(key, one.schema), 0) if key is not None and is_avro else None
    return FeedEncoder(one.spec, one.schema, 0, keys)


def _make(generator: Generator, encode: Callable[[object], WriteRecord]) -> Callable[[], Made]:
    def make() -> Made:
        record = encode(generator.next())
        return Made(record.get("key"), record["value"], record.get("timestamp", 0))

    return make
