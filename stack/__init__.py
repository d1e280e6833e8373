"""Feedstack: feeds in Kafka, jobs on Spark, state that can be rewound. This is the public surface.

A name is loaded when it is first asked for: a process that needs one error, or the settings, does not load
Arrow, Avro and the client of Kafka for it, which takes half a second.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from stack.connection import Stack
    from stack.errors import (
        BadCatalogue,
        BadConfig,
        BadExpression,
        BadInput,
        BadRecord,
        BadSchema,
        ClusterFault,
        CorruptState,
        FeedstackError,
        Incompatible,
        LostOwnership,
        NotDelivered,
        NotFound,
        Outdated,
        Retryable,
        Unavailable,
    )
    from stack.feeds.reader import FeedBatch, FeedReader
    from stack.feeds.writer import FeedWriter
    from stack.model.feed import FeedSpec
    from stack.model.group import Committed, GroupCommit
    from stack.model.record import Record
    from stack.model.startpoint import AtOffset, AtOffsets, AtTime, Latest, Oldest, Startpoint
    from stack.offsets.groups import GroupOffsets
    from stack.settings import Settings, load_settings
    from stack.tasks.declare import Feed, Job

__all__ = [
    "AtOffset",
    "AtOffsets",
    "AtTime",
    "BadCatalogue",
    "BadConfig",
    "BadExpression",
    "BadInput",
    "BadRecord",
    "BadSchema",
    "ClusterFault",
    "Committed",
    "CorruptState",
    "Feed",
    "FeedBatch",
    "FeedReader",
    "FeedSpec",
    "FeedWriter",
    "FeedstackError",
    "GroupCommit",
    "GroupOffsets",
    "Incompatible",
    "Job",
    "Latest",
    "LostOwnership",
    "NotDelivered",
    "NotFound",
    "Oldest",
    "Outdated",
    "Record",
    "Retryable",
    "Settings",
    "Stack",
    "Startpoint",
    "Unavailable",
    "load_settings",
]
_PLACES = {
    "stack.connection": ("Stack",),
    "stack.errors": (
        "BadCatalogue",
        "BadConfig",
        "BadExpression",
        "BadInput",
        "BadRecord",
        "BadSchema",
        "ClusterFault",
        "CorruptState",
        "FeedstackError",
        "Incompatible",
        "LostOwnership",
        "NotDelivered",
        "NotFound",
        "Outdated",
        "Retryable",
        "Unavailable",
    ),
    "stack.feeds.reader": ("FeedBatch", "FeedReader"),
    "stack.feeds.writer": ("FeedWriter",),
    "stack.model.feed": ("FeedSpec",),
    "stack.model.group": ("Committed", "GroupCommit"),
    "stack.model.record": ("Record",),
    "stack.model.startpoint": ("AtOffset", "AtOffsets", "AtTime", "Latest", "Oldest", "Startpoint"),
    "stack.offsets.groups": ("GroupOffsets",),
    "stack.settings": ("Settings", "load_settings"),
    "stack.tasks.declare": ("Feed", "Job"),
}

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load a public name; whoever asks again finds it here."""
        place = next((place for place, names in _PLACES.items() if name in names), None)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(_importlib.import_module(place), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
