"""Synthetic records that are true to a schema: the same seed gives the same records."""

from __future__ import annotations

import math
import random
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from stack.errors import BadInput
from stack.feeds.avro.schema import AvroSchema
from stack.feeds.synthetic.makers import Clock, MakerBuilder

MAX_KEYS = 10_000_000


class Generator:
    """Makes records of `schema` without end.

    The field `key_field` (a dotted path) takes one of `keys` values; with `skew` 0 all alike often, with 1
    as in Zipf's law, key 0 being the most frequent. The field `event_time` starts at `start_ms` and moves
    on with `rate_per_s` records a second. A field may carry "generate" in the schema, with "min" and
    "max" or "values"; else its type and its name decide.
    """

    def __init__(
        self,
        schema: AvroSchema,
        seed: int,
        *,
        keys: int = 1_000,
        skew: float = 0.0,
        key_field: str | None = None,
        event_time: str | None = None,
        start_ms: int = 0,
        rate_per_s: float = 1_000.0,
    ) -> None:
        if not 1 <= keys <= MAX_KEYS:
            raise BadInput(f"keys must be from 1 to {MAX_KEYS:,}, got {keys:,}")
        if not (math.isfinite(skew) and 0 <= skew <= 10):
            raise BadInput(f"skew must be from 0 to 10, got {skew}", hint="0 is uniform, 1 is Zipf's law.")
        if not (math.isfinite(rate_per_s) and rate_per_s > 0):
            raise BadInput(f"the rate must be more than 0 records a second, got {rate_per_s}")
        chance = random.Random(seed)  # noqa: S311 - test data, not a secret
        self._clock = Clock(start_ms, rate_per_s)
        builder = MakerBuilder(
            schema,
            chance,
            self._clock,
            _ranks(chance, keys, skew),
            key_field=key_field,
            event_time=event_time,
        )
        self._make = builder.build_root()

    def next(self) -> Any:
        """The next record."""
        value = self._make()
        self._clock.count += 1
        return value

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.next()


def _ranks(chance: random.Random, keys: int, skew: float) -> Callable[[], int]:
    """Draws the number of a key, 0 being the most frequent; a table of 8 bytes a key, none for skew 0."""
    draw = chance.random
    if skew == 0:
        return lambda: int(draw() * keys)
    reach = array("d", accumulate((rank**-skew for rank in range(1, keys + 1)), initial=0.0))
    total, last = reach[-1], keys - 1
    return lambda: min(bisect_right(reach, draw() * total) - 1, last)
