"""What Arrow arrays may hold but the reference refuses: nulls out of place, bad text, impossible times."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from stack.errors import BadRecord
from stack.feeds.avro.arrays import without_null
from stack.feeds.avro.logical import END_DAY, FIRST_DAY
from stack.feeds.avro.nodes import Node

_PER_DAY = {"ms": 86_400_000, "us": 86_400_000_000}


class BadPayload(BadRecord):
    """A bad record in a batch; `index` is its place there."""

    def __init__(self, error: BadRecord, index: int) -> None:
        super().__init__(f"payload {index}: {error.message}", error.hint, error.field)
        self.index = index


def is_sound(batch: pa.RecordBatch) -> bool:
    """Whether all text is UTF-8 and all dates and times are ones that Python has."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return all(_has_possible_times(column) for column in batch.columns)


def _has_possible_times(column: pa.Array) -> bool:
    kind = column.type
    if pa.types.is_temporal(kind):
        return _is_possible(column)
    if pa.types.is_list(kind):
        return _has_possible_times(column.values)
    if pa.types.is_map(kind):
        return _has_possible_times(column.items)
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        return all(_has_possible_times(column.field(place)) for place in range(kind.num_fields))
    return True


def _is_possible(column: pa.Array) -> bool:
    kind = column.type
    least, until = FIRST_DAY, END_DAY
    if pa.types.is_timestamp(kind):
        least, until = least * _PER_DAY[kind.unit], until * _PER_DAY[kind.unit]
    elif pa.types.is_time(kind):
        least, until = 0, _PER_DAY[kind.unit]
    found = pc.min_max(column.view(pa.int32() if kind.bit_width == 32 else pa.int64())).as_py()
    return found["min"] is None or (least <= found["min"] and found["max"] < until)


def has_stray_null(node: Node, column: pa.Array, present: pa.Array | None = None) -> bool:
    """Whether a null stands where Avro allows none; `present` says which rows of the parent are there."""
    inner, optional = without_null(node)
    if not optional and inner.kind not in ("null", "union") and column.null_count:
        strays = column.is_null() if present is None else pc.and_(column.is_null(), present)
        if strays.true_count:
            return True
    if not inner.children:
        return False
    if inner.kind == "record":
        there = column.is_valid() if column.null_count else None
        if there is not None and present is not None:
            there = pc.and_(there, present)
        below = there if there is not None else present
        return any(
            has_stray_null(one.node, column.field(place), below) for place, one in enumerate(inner.fields)
        )
    if inner.kind == "array" and inner.item:
        return has_stray_null(inner.item, column.flatten())
    if inner.kind == "map" and inner.item:
        return has_stray_null(inner.item, column.items)
    return False
