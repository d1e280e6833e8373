"""Many byte strings in one piece of memory."""

from __future__ import annotations

import ctypes

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.feeds.avro.batch_rows import packed_of
from stack.model.job import KeyCodec, StoreSpec, ValueCodec
from stack.model.packed import Packed, pack, pack_longs, pack_ordered_longs, pack_texts
from stack.tasks.codecs import key_coding, value_coding

ITEMS = st.lists(st.none() | st.binary(max_size=9))
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)


def in_memory(packed: Packed) -> list[bytes | None]:
    """What stands at the addresses."""
    places = zip(packed.addresses().tolist(), packed.sizes.tolist(), strict=True)
    return [ctypes.string_at(address, size) if address else None for address, size in places]


@given(ITEMS)
def test_what_was_packed_stands_at_its_address(items: list[bytes | None]) -> None:
    packed = pack(items)
    assert in_memory(packed) == packed.items() == items
    assert packed.total == sum(len(item or b"") for item in items)
    assert packed.largest == max((len(item or b"") for item in items), default=0)


@given(ITEMS, st.integers(0, 9), st.integers(0, 9))
def test_a_part_is_packed_as_the_whole(items: list[bytes | None], start: int, end: int) -> None:
    part = pack(items)[start:end]
    assert in_memory(part) == part.items() == items[start:end]
    assert len(part) == len(items[start:end])


@given(st.lists(st.text(max_size=5)))
def test_an_arrow_column_is_packed_where_it_lies(texts: list[str]) -> None:
    column = pa.array(["before", *texts, "behind"], pa.string())[1:-1]
    assert in_memory(packed_of(column)) == packed_of(column).items() == list(map(str.encode, texts))


@pytest.mark.parametrize("codec", ["str", "int", "bytes"])
@given(data=st.data())
def test_many_keys_and_values_become_the_same_bytes_as_one_by_one(codec: str, data: st.DataObject) -> None:
    kinds = {"str": st.text(max_size=5), "int": LONGS, "bytes": st.binary(max_size=5)}
    items = data.draw(st.lists(kinds[codec]))
    spec = StoreSpec("s", KeyCodec(codec), ValueCodec(codec))
    for coding in (key_coding(spec), value_coding(spec)):
        assert coding.encode_all(items).items() == list(map(coding.encode, items))


def test_what_has_no_bytes_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        pack_texts(["a", "\ud800"])
    for packing in (pack_longs, pack_ordered_longs):
        with pytest.raises(OverflowError):
            packing([1, 1 << 63])
