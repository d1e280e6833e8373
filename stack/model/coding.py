"""How the keys and values of a store become bytes and come back."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from stack.model.packed import Packed, pack


@dataclass(frozen=True, slots=True)
class Coding:
    """One way from Python to bytes and back.

    `fit` turns what user code gave into what is kept, or raises BadRecord; exact instances of `kind` need no
    fitting. Where `kind` is None everything does, and bytes are kept: what user code handed over it could
    change later.

    `encode` may raise ValueError, OverflowError or struct.error for what has the right type but no bytes
    (half a character, a number of more than 64 bits); whoever encodes many at once tells which it was.
    `pack` does the same as `encode` for many, if there is a quicker way than one by one.
    """

    kind: type | None
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    fit: Callable[[Any], Any]
    pack: Callable[[Collection[Any]], Packed] | None = None

    def encode_all(self, items: Collection[Any]) -> Packed:
        """The bytes of many."""
        return pack(list(map(self.encode, items))) if self.pack is None else self.pack(items)


@dataclass(frozen=True, slots=True)
class StoreCodec:
    """The codings of a store."""

    keys: Coding
    values: Coding
