"""Input for the benchmark of tasks: page views, encoded once and written many times."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from stack.connection import Stack
from stack.feeds.avro.columns import ColumnEncoder

_EVENT_TIME_MS = 1_700_000_000_000
_BLOCK_RECORDS = 500_000
_BATCH_RECORDS = 10_000
_PAGES = 997


@dataclass(frozen=True)
class Encoded:
    """Records ready to be written: key and value of each."""

    keys: list[bytes]
    payloads: list[bytes]

    def __len__(self) -> int:
        return len(self.keys)


def user_name(number: int) -> str:
    return f"user-{number:07d}"


def random_users(records: int, keys: int, seed: int = 7) -> list[str]:
    """Users as they would come: each record of any of `keys` users."""
    chance = random.Random(seed)
    return [user_name(chance.randrange(keys)) for _ in range(records)]


def encode_views(stack: Stack, feed: str, users: Iterable[str], seed: int = 11) -> Encoded:
    """A page view of each of these users, in the registry's wire format."""
    names = list(users)
    chance = random.Random(seed)
    batch = pa.RecordBatch.from_pydict(
        {
            "user": names,
            "page": [f"/p/{number % _PAGES}" for number in range(len(names))],
            "ms": [_EVENT_TIME_MS + number for number in range(len(names))],
            "load": [chance.random() * 100 for _ in names],
        }
    )
    registered = stack.schema(feed)
    payloads = ColumnEncoder(registered.schema, registered.id).encode(batch)
    return Encoded([name.encode() for name in names], payloads)


def write_all(stack: Stack, feed: str, views: Encoded) -> None:
    """Write these records in order; returns when all stand in the log."""
    with stack.writer(feed) as writer:
        for start in range(0, len(views), _BATCH_RECORDS):
            end = start + _BATCH_RECORDS
            writer.write_payloads(views.payloads[start:end], views.keys[start:end])


def fill_random(stack: Stack, feed: str, records: int, keys: int) -> None:
    """Fill a feed with the views of random users: one block, written until there are enough."""
    block = encode_views(stack, feed, random_users(min(records, _BLOCK_RECORDS), keys))
    left = records
    while left > 0:
        part = block if left >= len(block) else Encoded(block.keys[:left], block.payloads[:left])
        write_all(stack, feed, part)
        left -= len(part)


def fill_distinct(stack: Stack, feed: str, users: int) -> None:
    """Fill a feed with one view of each of so many users."""
    for start in range(0, users, _BLOCK_RECORDS):
        names = map(user_name, range(start, min(users, start + _BLOCK_RECORDS)))
        write_all(stack, feed, encode_views(stack, feed, names))
