"""Many byte strings in one piece of memory: what goes to Kafka in bulk, without an object for each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
_HALF = np.uint64(1 << 63)


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Byte strings that follow each other in `data`, which is anything with bytes in it."""

    data: Any
    starts: Numbers
    sizes: Numbers
    # Which of them are None, if any is.
    missing: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, part: slice) -> Packed:
        missing = None if self.missing is None else self.missing[part]
        return Packed(self.data, self.starts[part], self.sizes[part], missing)

    @property
    def total(self) -> int:
        """Bytes of all of them."""
        return int(self.sizes.sum())

    @property
    def largest(self) -> int:
        """Bytes of the largest."""
        return int(self.sizes.max()) if len(self.sizes) else 0

    def addresses(self) -> Numbers:
        """Where in memory each of them begins; 0 for None. True as long as `data` lives."""
        begin = np.frombuffer(self.data, np.uint8).ctypes.data if len(self.data) else _SOMEWHERE.ctypes.data
        found = self.starts + begin
        if self.missing is not None:
            found[self.missing] = 0
        return found

    def items(self) -> list[bytes | None]:
        """Each as an object of its own."""
        if not len(self):
            return []
        # They follow each other: what lies before and behind them is not copied.
        first, last = int(self.starts[0]), int(self.starts[-1] + self.sizes[-1])
        whole = bytes(memoryview(self.data)[first:last])
        starts = (self.starts - first).tolist()
        ends = (self.starts - first + self.sizes).tolist()
        found: list[bytes | None] = [whole[start:end] for start, end in zip(starts, ends, strict=True)]
        if self.missing is not None:
            for place in np.flatnonzero(self.missing).tolist():
                found[place] = None
        return found


# What an empty string points to.
_SOMEWHERE = np.zeros(1, np.uint8)


def pack(items: Collection[bytes | None]) -> Packed:
    """These, end to end; None takes no room."""
    missing = None
    try:
        data = b"".join(items)  # type: ignore[arg-type]
    except TypeError:
        missing = np.fromiter((item is None for item in items), np.bool_, len(items))
        items = [item or b"" for item in items]
        data = b"".join(items)  # type: ignore[arg-type]
    return _end_to_end(data, np.fromiter(map(len, items), np.int64, len(items)), missing)  # type: ignore[arg-type]


def pack_texts(items: Collection[str]) -> Packed:
    """Texts as UTF-8; UnicodeEncodeError for half a character."""
    whole = "".join(items)
    if not whole.isascii():
        return pack(list(map(str.encode, items)))
    return _end_to_end(whole.encode("ascii"), np.fromiter(map(len, items), np.int64, len(items)))


def pack_longs(items: Collection[int]) -> Packed:
    """Whole numbers as 8 bytes; OverflowError for those that need more."""
    return _eights(np.fromiter(items, np.int64, len(items)).astype(">i8"))


def pack_ordered_longs(items: Collection[int]) -> Packed:
    """The same with the sign bit flipped: the order of the bytes is that of the numbers."""
    return _eights((np.fromiter(items, np.int64, len(items)).view(np.uint64) ^ _HALF).astype(">u8"))


def pack_slices(data: Any, ends: npt.NDArray[np.int32] | Numbers) -> Packed:
    """Slices of `data` that follow each other: from one of `ends` to the next."""
    starts = ends[:-1].astype(np.int64)
    return Packed(data, starts, ends[1:].astype(np.int64) - starts)


def _end_to_end(data: bytes, sizes: Numbers, missing: npt.NDArray[np.bool_] | None = None) -> Packed:
    return Packed(data, sizes.cumsum() - sizes, sizes, missing)


def _eights(numbers: npt.NDArray[Any]) -> Packed:
    return Packed(numbers.tobytes(), np.arange(0, 8 * len(numbers), 8), np.full(len(numbers), 8))
