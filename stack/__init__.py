"""Feedstack: feeds in Kafka, jobs on Spark, state that can be rewound. This is the public surface."""

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
    Unavailable,
)
from stack.feeds.reader import FeedBatch, FeedReader
from stack.feeds.writer import FeedWriter
from stack.model.feed import FeedSpec
from stack.model.record import Record
from stack.model.startpoint import AtOffset, AtOffsets, AtTime, Latest, Oldest, Startpoint
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
    "CorruptState",
    "Feed",
    "FeedBatch",
    "FeedReader",
    "FeedSpec",
    "FeedWriter",
    "FeedstackError",
    "Incompatible",
    "Job",
    "Latest",
    "LostOwnership",
    "NotDelivered",
    "NotFound",
    "Oldest",
    "Record",
    "Settings",
    "Stack",
    "Startpoint",
    "Unavailable",
    "load_settings",
]
