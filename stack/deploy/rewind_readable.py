"""Whether the code of now can read what a rewind brings back: inputs from the point on, and state of then.

What the registry says is enough for most rewinds: a schema that it no longer has, or that the reader's one
does not understand, must have been deleted or pushed through. Only where there are such, records are looked
at, and a rewind is refused for one that really cannot be read, never for one that might.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stack.connection import Stack
from stack.deploy.jobs import JobsFeed
from stack.engine.rewind import Move, Refusal, StateChoice
from stack.errors import BadRecord, NotFound, Unavailable
from stack.feeds.avro import wire
from stack.feeds.avro.codec import RecordDecoder
from stack.feeds.avro.schema import AvroSchema, parse_avro
from stack.feeds.registry.compatibility import find_breaks
from stack.feeds.registry.state import RegistryState, Which
from stack.kafka.reader import LogReader, RawBatch
from stack.machine import monotonic
from stack.model.feed import value_subject
from stack.model.job import JobSpec, OnError, StoreSpec, ValueCodec, changelog_name
from stack.offsets.undo import LogUndo
from stack.tasks.codecs import key_coding, value_coding

_READ_RECORDS, _READ_S, _QUIET_LIMIT_S = 20_000, 0.25, 60.0
# So far back from the point values are looked at whose coding nobody has written down.
_TAIL = 500

_RESTORE = (
    "Put the schema back under its id (docs/schemas.md, mode IMPORT), or choose a point behind these records."
)
_UNDERSTAND = (
    "Register a schema of the feed that reads them (new fields have a default), or choose a later point."
)
_ELSE = (
    "Deploy a version that reads them, choose a point of the version that runs, or let stores be: --state "
    "keep, or --state empty."
)


class _Present:
    """The schemas that the registry has now. Its own cache would remember those that are gone."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state

    def schema_by_id(self, schema_id: int) -> AvroSchema:
        return self._state.with_id(schema_id)[0].schema


class _Doubts:
    """Which headers of payloads stand for a schema that a reader may not understand."""

    def __init__(self, state: RegistryState, subject: str, reader: AvroSchema) -> None:
        self._state = state
        known = state.versions_of(subject, Which.ALL)
        self._strange = {one.id for one in known if find_breaks(reader, one.schema)}
        self._seen: dict[bytes, bool] = {}
        # Whether one was met that the registry does not have any more.
        self.gone = False
        self.any = bool(self._strange) or len(state.uses) < state.highest_id
        self.decode = RecordDecoder(_Present(state), reader).decode

    def about(self, payload: bytes) -> bool:
        """Whether a payload must be looked at: its schema is gone, or not understood."""
        header = payload[: wire.HEADER_BYTES]
        found = self._seen.get(header)
        if found is None:
            found = self._seen[header] = self._is_doubtful(header)
        return found

    def _is_doubtful(self, header: bytes) -> bool:
        try:
            schema_id = wire.schema_id_of(header)
        except BadRecord:
            return False  # it never was what the registry knows: nothing has become unreadable
        is_gone = schema_id <= self._state.highest_id and schema_id not in self._state.uses
        self.gone = self.gone or is_gone
        return is_gone or schema_id in self._strange


@dataclass(frozen=True, slots=True)
class _Span:
    """Offsets of one partition that are read again."""

    start: int
    end: int


class Readable:
    """Finds what a rewind of one job would bring back and nobody could read.

    `gaps` are, per input, where a job that follows another begins to pass over it.
    """

    def __init__(
        self,
        stack: Stack,
        jobs: JobsFeed,
        spec: JobSpec,
        gaps: Mapping[str, Sequence[int]],
        *,
        best_effort: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._stack = stack
        self._jobs = jobs
        self._spec = spec
        self._gaps = gaps
        self._best_effort = best_effort
        self._clock = clock
        self._state = stack.registry.state()

    def refusals(self, moves: Sequence[Move], state: StateChoice) -> Iterator[Refusal]:
        """Everything that speaks against going back there."""
        for one in self._spec.inputs:
            # What its own stages wrote is not read again: they write it anew.
            if one.feed not in self._spec.inner_feeds:
                yield from self._input(one.feed, moves)
        if state is StateChoice.THEN:
            for store in self._spec.stores:
                yield from self._store(store, moves)

    # Inputs

    def _input(self, feed: str, moves: Sequence[Move]) -> Iterator[Refusal]:
        policy = self._spec.settings.errors_of(feed)
        if self._best_effort and policy.on_error is not OnError.STOP:
            return
        doubts = _Doubts(self._state, value_subject(feed), self._stack.schema(feed).schema)
        if not doubts.any:
            return
        topic = self._stack.topic_of(feed, self._stack.feed(feed).version)
        first, count = "", 0
        for batch in self._read(topic, self._spans(feed, topic, moves)):
            records = zip(batch.partitions, batch.offsets, batch.values, strict=True)
            for partition, offset, value in records:
                if value is None or not doubts.about(value):
                    continue
                fault = _fault(doubts.decode, value)
                if fault is not None:
                    count += 1
                    first = first or f"partition {partition}, offset {offset}: {fault}"
        if count:
            hint = _RESTORE if doubts.gone else _UNDERSTAND
            if policy.on_error is not OnError.STOP:
                hint += f" --best-effort leaves them to {policy.on_error}."
            yield Refusal(
                f"{count:,} record{'' if count == 1 else 's'} of feed {feed!r} that the job would read again "
                f"cannot be read any more ({first})",
                hint,
            )

    def _spans(self, feed: str, topic: str, moves: Sequence[Move]) -> dict[int, _Span]:
        """What of a feed is read again, by partition: from the earliest task to the furthest."""
        found: dict[int, _Span] = {}
        partitions = {
            number
            for one in moves
            if one.now is not None and feed in one.now.inputs
            for number in one.now.inputs[feed].offsets
        }
        bounds = self._stack.admin.bounds(topic, sorted(partitions))
        for one in moves:
            now = None if one.now is None else one.now.inputs.get(feed)
            then = None if one.then is None else one.then.inputs.get(feed)
            for number, end in {} if now is None else now.offsets.items():
                low = bounds[number].low
                start = low if then is None else max(low, then.offsets.get(number, low))
                known = found.get(number, _Span(start, end))
                found[number] = _Span(min(known.start, start), min(max(known.end, end), bounds[number].high))
        cuts = dict(enumerate(self._gaps.get(feed, ())))
        ends = {number: min(span.end, cuts.get(number, span.end)) for number, span in found.items()}
        return {
            number: _Span(span.start, ends[number])
            for number, span in found.items()
            if span.start < ends[number]
        }

    # Stores

    def _store(self, store: StoreSpec, moves: Sequence[Move]) -> Iterator[Refusal]:
        """Values that are put back: those of keys that have changed since the point."""
        topic = changelog_name(self._stack.settings.name, self._spec.name, store.name)
        points = {
            one.task.partition: one.then
            for one in moves
            if one.then is not None and store.name in one.then.stores
        }
        ends = self._stack.admin.ends(topic, points)
        touched = {number: one for number, one in points.items() if ends[number] > one.stores[store.name].end}
        for version in sorted({one.version for one in touched.values()}):
            then = self._codecs(version).get(store.name, (store.key, store.value))
            for word, was, now in (("keys", then[0], store.key), ("values", then[1], store.value)):
                if was != now:
                    yield Refusal(
                        f"store {store.name!r}: its {word} were {was} at that point (version {version}), and "
                        f"are {now} now: what it held cannot be read any more",
                        _ELSE,
                    )
                    return
        cuts = {number: one.stores[store.name].end for number, one in touched.items()}
        fault = self._strange_value(store, topic, cuts)
        unknown = {number: cuts[number] for number, one in touched.items() if not self._is_known(one.version)}
        if fault is None and unknown:
            fault = self._strange_tail(store, topic, unknown)
        if fault is not None:
            yield Refusal(f"store {store.name!r}: what it held at that point cannot be read: {fault}", _ELSE)

    def _codecs(self, version: str) -> Mapping[str, tuple[str, str]]:
        if version == self._spec.version:
            return {}
        return self._jobs.codecs(self._spec.name, version) or {}

    def _is_known(self, version: str) -> bool:
        return version == self._spec.version or self._jobs.codecs(self._spec.name, version) is not None

    def _strange_value(self, store: StoreSpec, topic: str, cuts: Mapping[int, int]) -> str | None:
        """The first Avro value that would be put back and cannot be read, looked for if there are doubts."""
        if store.value is not ValueCodec.AVRO or store.schema is None:
            return None
        doubts = _Doubts(self._state, value_subject(topic), parse_avro(store.schema))
        if not doubts.any:
            return None
        log = LogUndo(self._stack, topic, self._clock)
        for number, cut in cuts.items():
            for change in log.changes(number, cut, _READ_RECORDS):
                for key, value in zip(change.keys, change.values, strict=True):
                    if value is not None and doubts.about(value):
                        fault = _fault(doubts.decode, value)
                        if fault is not None:
                            return f"key {_shown(store, key)}: {fault}"
        return None

    def _strange_tail(self, store: StoreSpec, topic: str, cuts: Mapping[int, int]) -> str | None:
        """The same for codings that nobody wrote down, by the last values before the point: another coding
        would show in all of them."""
        keys, values = key_coding(store), value_coding(store, _Present(self._state), 0)
        bounds = self._stack.admin.bounds(topic, cuts)
        spans = {
            number: _Span(max(bounds[number].low, cut - _TAIL), cut)
            for number, cut in cuts.items()
            if bounds[number].low < cut
        }
        last: dict[tuple[int, bytes | None], bytes | None] = {}
        for batch in self._read(topic, spans):
            places = zip(batch.partitions, batch.keys, strict=True)
            last.update(zip(places, batch.values, strict=True))
        for (_, key), value in last.items():
            if key is None or value is None:
                continue
            fault = _fault(keys.decode, key) or _fault(values.decode, value)
            if fault is not None:
                return f"key {key[:40]!r}: {fault}"
        return None

    def _read(self, topic: str, spans: Mapping[int, _Span]) -> Iterator[RawBatch]:
        if not spans:
            return
        heard = self._clock()
        with LogReader(self._stack.access, topic) as reader:
            reader.assign(
                {number: one.start for number, one in spans.items()},
                {number: one.end for number, one in spans.items()},
            )
            while not reader.done:
                batch = reader.read(_READ_RECORDS, _READ_S)
                if len(batch):
                    heard = self._clock()
                    yield batch
                elif self._clock() - heard > _QUIET_LIMIT_S:
                    raise Unavailable(f"{topic} could not be read", hint="Kafka may be away: try again.")


def _fault(decode: Callable[[bytes], Any], data: bytes) -> str | None:
    """Why something cannot be decoded; None if it can."""
    try:
        decode(data)
    except (BadRecord, NotFound) as error:
        return error.message
    except (ValueError, struct.error, RecursionError) as error:
        return f"{data[:40]!r} is something else ({error})"
    return None


def _shown(store: StoreSpec, key: bytes) -> str:
    try:
        return repr(key_coding(store).decode(key))
    except (ValueError, struct.error):
        return repr(key[:40])
