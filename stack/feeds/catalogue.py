"""The catalogue: what feeds a stack has, kept in a compacted feed of the stack itself."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from typing import Any

from stack.errors import CorruptState, NotFound
from stack.model.feed import (
    FRESHNESS_WINDOW_MS,
    Events,
    FeedSpec,
    FreshnessOf,
    Key,
    KeyFormat,
    Kind,
    Table,
)
from stack.model.ledger import Entries, Ledger


class Catalogue:
    """Looks feeds up by name."""

    def __init__(self, ledger: Ledger, topic_of: Callable[[str, int], str] = lambda name, _: name) -> None:
        self._ledger = ledger
        self._topic_of = topic_of

    def feeds(self) -> dict[str, FeedSpec]:
        """All feeds, by name in alphabetical order."""
        return specs_of(self._ledger.entries())

    def feed(self, name: str) -> FeedSpec:
        """One feed, or NotFound with the nearest names."""
        feeds = self.feeds()
        if name in feeds:
            return feeds[name]
        near = difflib.get_close_matches(name, feeds, n=3, cutoff=0.5)
        if near:
            hint = f"Did you mean {' or '.join(near)}?"
        elif feeds:
            hint = f"There are: {', '.join(list(feeds)[:20])}."
        else:
            hint = (
                "The catalogue is empty: declare feeds in schemas/catalog.toml and run `stack feeds apply`."
            )
        raise NotFound(f"there is no feed {name!r}", hint=hint)

    def put(self, spec: FeedSpec) -> None:
        """Write one feed; writes nothing if it stands there already."""
        # The topic is for other stacks on the same Kafka: they cannot know this one's prefix.
        text = spec_to_json(spec, topic=self._topic_of(spec.name, spec.version))
        self._ledger.update(lambda entries: {} if entries.get(spec.name) == text else {spec.name: text})

    def remove(self, name: str) -> None:
        self._ledger.update(lambda entries: {name: None} if name in entries else {})


def specs_of(entries: Entries) -> dict[str, FeedSpec]:
    """The feeds in the entries of a catalogue."""
    return {name: spec_from_json(name, entries[name]) for name in sorted(entries)}


def spec_to_json(spec: FeedSpec, **more: str) -> str:
    """The stored form of a feed: one JSON object, keys in a fixed order, `more` behind them."""
    storage: dict[str, Any]
    match spec.storage:
        case Events(retention_ms):
            storage = {"events": {"retention_ms": retention_ms}}
        case Table(horizon_ms):
            storage = {"table": {"horizon_ms": horizon_ms}}
    value = {
        "name": spec.name,
        "version": spec.version,
        "kind": str(spec.kind),
        "for": spec.purpose,
        "owner": spec.owner,
        "schema": spec.schema,
        "partitions": spec.partitions,
        **storage,
        "key": {"field": spec.key.field, "format": str(spec.key.format)} if spec.key else None,
        "event_time": spec.event_time,
        "freshness_ms": spec.freshness_ms,
        "freshness_window_ms": spec.freshness_window_ms,
        "freshness_of": str(spec.freshness_of),
        "by": spec.by,
        "inputs": list(spec.inputs),
        "compatibility": spec.compatibility,
        **more,
    }
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def stored_topic(text: str) -> str | None:
    """The topic of a stored feed, where its stack wrote it down."""
    try:
        return str(json.loads(text)["topic"])
    except (ValueError, KeyError, TypeError):
        return None


def spec_from_json(name: str, text: str) -> FeedSpec:
    """Read the stored form; CorruptState names the feed if it is not what we wrote."""
    try:
        value = json.loads(text)
        storage = (
            Table(int(value["table"]["horizon_ms"]))
            if "table" in value
            else Events(_optional_int(value["events"]["retention_ms"]))
        )
        key = value.get("key")
        return FeedSpec(
            name=str(value["name"]),
            kind=Kind(value["kind"]),
            purpose=str(value["for"]),
            owner=str(value["owner"]),
            schema=str(value["schema"]),
            partitions=int(value["partitions"]),
            storage=storage,
            key=Key(key["field"], KeyFormat(key["format"])) if key else None,
            event_time=value.get("event_time"),
            freshness_ms=_optional_int(value.get("freshness_ms")),
            by=value.get("by"),
            inputs=tuple(value.get("inputs", ())),
            compatibility=value.get("compatibility"),
            version=int(value["version"]),
            freshness_window_ms=int(value.get("freshness_window_ms", FRESHNESS_WINDOW_MS)),
            freshness_of=FreshnessOf(value.get("freshness_of", FreshnessOf.JOB)),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptState(
            f"the catalogue's record of feed {name!r} is broken: {error!r}",
            hint="Run `stack feeds apply`: it writes the declared feeds anew.",
        ) from None


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)
