"""Which partitions many keys belong to, all at once: murmur2 by columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stack.model.packed import Packed
from stack.model.partitioner import MULTIPLIER, SEED

_Words = npt.NDArray[np.uint32]
_M = np.uint32(MULTIPLIER)


def partitions_of(keys: Packed, partitions: int) -> frozenset[int]:
    """The partitions, among so many, to which these keys go; a record without a key may go to any."""
    if keys.missing is not None and keys.missing.any():
        return frozenset(range(partitions))
    places = (_murmur2(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)
    return frozenset(np.unique(places).tolist())


def _murmur2(keys: Packed) -> _Words:
    data = np.frombuffer(keys.data, np.uint8)
    sizes, starts = keys.sizes, keys.starts
    hashed = np.uint32(SEED) ^ sizes.astype(np.uint32)
    whole = sizes // 4
    for number in range(int(whole.max(initial=0))):
        there = np.flatnonzero(whole > number)
        word = _mixed(_word(data, starts[there] + 4 * number))
        hashed[there] = hashed[there] * _M ^ word
    rest = sizes % 4
    for place in (2, 1, 0):
        there = np.flatnonzero(rest > place)
        byte = data[starts[there] + 4 * whole[there] + place].astype(np.uint32)
        hashed[there] ^= byte << np.uint32(8 * place)
    there = np.flatnonzero(rest)
    hashed[there] *= _M
    hashed ^= hashed >> np.uint32(13)
    hashed *= _M
    return hashed ^ (hashed >> np.uint32(15))


def _word(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> _Words:
    """Four bytes each, the lowest first."""
    word = data[starts].astype(np.uint32)
    for place in (1, 2, 3):
        word |= data[starts + place].astype(np.uint32) << np.uint32(8 * place)
    return word


def _mixed(word: _Words) -> _Words:
    word *= _M
    word ^= word >> np.uint32(24)
    word *= _M
    return word
