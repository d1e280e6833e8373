"""The state of a task as its code sees it: a dict in front of RocksDB, with every change kept for the commit.

Layers, the newest first; a read takes the first that knows the key:

    dirty      changed since the last commit was begun, or since the mark where there is one
    kept       changed before the mark
    in flight  changed before that, its commit is under way
    cache      read or written lately: two generations, so that what is not used falls out
    settled    committed, but not yet written to RocksDB
    pending    the same, encoded already
    backing    RocksDB

A commit takes `dirty` (`take`), at once or in portions, writes its deltas, and then either `settle`s it or
`drop`s everything that is not committed. What is settled is written in larger portions than commits have: a
key that changes in every commit is encoded and written once for many of them. A crash loses it, and the
changelog brings it back.

Between two commits `mark` begins a stretch of changes that either `keep` makes part of the rest or `undo`
takes back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from changelog.columns import texts
from stack.errors import BadRecord
from stack.model.coding import StoreCodec
from stack.model.packed import Packed, pack

# What has the right type may still have no bytes.
_NO_BYTES = (ValueError, OverflowError, struct.error)


class Absent:
    """Stands for a key that is known not to be there."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


class Backing(Protocol):
    """Where committed state lies: RocksDB, or a dict in tests."""

    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: list[bytes]) -> list[bytes | None]: ...

    def apply(self, changes: Mapping[bytes, bytes | None], position: int, time_ms: int) -> None: ...

    def scan(
        self, start: bytes | None, end: bytes | None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]: ...


@dataclass(slots=True)
class Deltas:
    """The changes of one commit, encoded: a value of None deletes its key."""

    keys: Packed
    values: Packed

    def __len__(self) -> int:
        return len(self.keys)


class Overlay:
    """A store of one task. The first half is for user code, the second for the container."""

    def __init__(self, name: str, codec: StoreCodec, backing: Backing, max_cached: int = 100_000) -> None:
        self.name = name
        self._keys, self._values = codec.keys, codec.values
        self._backing = backing
        self._max_cached = max(1_000, max_cached // 2)
        self._key_type = codec.keys.kind
        self._value_type = codec.values.kind
        self._hot: dict[Any, Any] = {}
        self._cold: dict[Any, Any] = {}
        self._dirty: dict[Any, Any] = {}
        self._kept: dict[Any, Any] = {}
        self._in_flight: dict[Any, Any] = {}
        self._settled: dict[Any, Any] = {}
        self._pending: dict[bytes, bytes | None] = {}
        self._has_deletions = False
        self._last_keys: tuple[Any, Sequence[Any]] = (None, ())
        # Values that cannot change may be kept as they are; others only as bytes.
        plain = codec.values.kind is not None
        self._encode: Callable[[Any], bytes] = codec.values.encode if plain else _same
        self._encode_all: Callable[[Collection[Any]], Packed] = codec.values.encode_all if plain else pack
        self._unpack: Callable[[bytes], Any] = codec.values.decode if plain else _same
        self._decode: Callable[[Any], Any] | None = None if plain else codec.values.decode

    # For user code: like a dict, in key order where it iterates.

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        held = self._hot.get(key)
        if held is None:
            held = self._find(key)
        if held is ABSENT:
            return default
        return held if self._decode is None else self._decode(held)

    def __getitem__(self, key: Any) -> Any:
        held = self._hot.get(key)
        if held is None:
            held = self._find(key)
        if held is ABSENT:
            raise KeyError(key)
        return held if self._decode is None else self._decode(held)

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(value) is not self._value_type or type(key) is not self._key_type:
            key, value = self._fit(key, value)
        self._hot[key] = value
        self._dirty[key] = value

    def set(self, key: Any, value: Any) -> None:
        """The same as `state[key] = value`."""
        self[key] = value

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self.delete(key)

    def delete(self, key: Any) -> None:
        """Remove a key; nothing happens if it is not there."""
        if type(key) is not self._key_type:
            key = self._keys.fit(key)
        self._has_deletions = True
        self._hot[key] = ABSENT
        self._dirty[key] = ABSENT

    def __contains__(self, key: object) -> bool:
        held = self._hot.get(key)
        return (self._find(key) if held is None else held) is not ABSENT

    def pop(self, key: Any, default: Any = None) -> Any:
        """Remove a key and return its value, or `default`."""
        value = self.get(key, ABSENT)
        if value is ABSENT:
            return default
        self.delete(key)
        return value

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The value of a key; `default` is set and returned if there is none."""
        value = self.get(key, ABSENT)
        if value is ABSENT:
            self[key] = value = default
        return value

    def update(self, changes: Mapping[Any, Any]) -> None:
        """Set many keys."""
        for key, value in changes.items():
            self[key] = value

    def get_many(self, keys: Sequence[Any], default: Any = None) -> list[Any]:
        """The values of many keys at once, `default` where there is none. Arrow arrays will do, too."""
        keys = self._listed(keys)
        found = list(map(self._hot.get, keys))
        if None in found:
            self._find_many([key for key, held in zip(keys, found, strict=True) if held is None])
            # Not from the cache alone: so many keys may have pushed each other out of it.
            found = [self._find(key) if held is None else held for key, held in zip(keys, found, strict=True)]
        if self._decode is not None:
            decode = self._decode
            return [default if held is ABSENT else decode(held) for held in found]
        if ABSENT in found:
            return [default if held is ABSENT else held for held in found]
        return found

    def set_many(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """Set many keys at once. Arrow and NumPy arrays will do, too."""
        keys, values = self._listed(keys), _plain(values)
        if len(keys) != len(values):
            raise BadRecord(f"store {self.name!r}: set_many got {len(keys)} keys and {len(values)} values")
        if set(map(type, keys)) <= {self._key_type} and set(map(type, values)) <= {self._value_type}:
            changes = dict(zip(keys, values, strict=True))
            self._hot.update(changes)
            if self._dirty:
                self._dirty.update(changes)
            else:
                self._dirty = changes
        else:
            for key, value in zip(keys, values, strict=True):
                self[key] = value

    def scan(self, start: Any = None, end: Any = None, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        """Keys and values from `start` up to but not including `end`, in key order, as of now."""
        keys = self._keys
        first = None if start is None else keys.encode(keys.fit(start))
        last = None if end is None else keys.encode(keys.fit(end))
        return self._scan_raw(first, last, reverse)

    def prefix(self, start: str | bytes, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        """Keys that begin with `start`, and their values, in key order."""
        if self._key_type not in (str, bytes):
            raise BadRecord(
                f"store {self.name!r}: keys of type {_name_of(self._key_type)} have no prefix",
                hint="Use scan(start, end).",
            )
        first = self._keys.encode(self._keys.fit(start))
        return self._scan_raw(first, _after_prefix(first), reverse)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All keys and values in key order."""
        return self._scan_raw(None, None, False)

    def keys(self) -> Iterator[Any]:
        """All keys in their order."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[Any]:
        """All values in the order of their keys."""
        return (value for _, value in self.items())

    def __iter__(self) -> Iterator[Any]:
        return self.keys()

    # For the container.

    @property
    def dirty_count(self) -> int:
        """How many keys changed since the last `take`."""
        return len(self._dirty)

    @property
    def is_taken(self) -> bool:
        """Whether something was taken that is neither settled nor dropped."""
        return bool(self._in_flight)

    @property
    def is_clean(self) -> bool:
        """Whether everything is committed."""
        return not self._dirty and not self._in_flight

    @property
    def pending_count(self) -> int:
        """How many keys are committed but not yet in RocksDB; one that changes often may count twice."""
        return len(self._settled) + len(self._pending)

    def mark(self) -> None:
        """What changes from now on can be taken back; `keep` or `undo` must follow."""
        self._kept, self._dirty = self._dirty, {}

    def keep(self) -> None:
        """What has changed since the mark stays."""
        if self._kept:
            self._kept.update(self._dirty)
            self._dirty, self._kept = self._kept, {}

    def undo(self, interrupted: bool = False) -> None:
        """Take back what has changed since the mark; `interrupted` if a change may have come half-way."""
        if interrupted:
            # What stands in the cache but was not noted yet cannot be told from what was read.
            self._hot, self._cold = {}, {}
        for key in self._dirty:
            self._hot.pop(key, None)
            self._cold.pop(key, None)
        self._dirty, self._kept = self._kept, {}

    def take(self) -> Deltas:
        """Everything changed since the last time, encoded. `settle` or `drop` must follow."""
        taken, self._dirty = self._dirty, {}
        self._in_flight = {**self._in_flight, **taken} if self._in_flight else taken
        try:
            deltas = Deltas(self._keys.encode_all(taken), self._packed(taken.values()))
        except _NO_BYTES as error:
            raise self._unencodable(taken) from error
        self._has_deletions = False
        if len(self._hot) > self._max_cached:
            self._cold, self._hot = self._hot, {}
        return deltas

    def settle(self) -> None:
        """The commit that was begun is done."""
        if self._settled:
            self._settled.update(self._in_flight)
        else:
            self._settled = self._in_flight
        self._in_flight = {}

    def drop(self) -> None:
        """Forget everything that is not committed."""
        for layer in (self._in_flight, self._kept, self._dirty):
            for key in layer:
                self._hot.pop(key, None)
                self._cold.pop(key, None)
        self._dirty, self._kept, self._in_flight, self._has_deletions = {}, {}, {}, False

    def write_pending(self, position: int, time_ms: int) -> None:
        """Write what is committed to RocksDB, with the changelog position that it stands for."""
        self._encode_settled()
        if self._pending:
            self._backing.apply(self._pending, position, time_ms)
            self._pending = {}

    # Inside.

    def _listed(self, keys: Sequence[Any]) -> Sequence[Any]:
        """Keys of an Arrow array as a list; the same array is often asked for twice, to get and to set."""
        if isinstance(keys, list | tuple):
            return keys
        if keys is not self._last_keys[0]:
            self._last_keys = (keys, _plain(keys))
        return self._last_keys[1]

    def _fit(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Key and value as they are kept, or BadRecord."""
        if type(key) is not self._key_type:
            key = self._keys.fit(key)
        value = self._values.fit(value)
        return key, value if self._decode is None else self._values.encode(value)

    def _packed(self, held: Collection[Any]) -> Packed:
        if self._has_deletions:
            return pack([None if one is ABSENT else self._encode(one) for one in held])
        return self._encode_all(held)

    def _encode_settled(self) -> None:
        """Bring what is committed into the form in which RocksDB takes it. User code may be interrupted in
        here: until all of it is pending, it is still settled.
        """
        encode_key, encode = self._keys.encode, self._encode
        for key, held in self._settled.items():
            self._pending[encode_key(key)] = None if held is ABSENT else encode(held)
        self._settled = {}

    def _unencodable(self, taken: Mapping[Any, Any]) -> BadRecord:
        """The first key or value that has no bytes, as an error."""
        for key, held in taken.items():
            for what, encode, one in (("key", self._keys.encode, key), ("value", self._encode, held)):
                try:
                    if one is not ABSENT:
                        encode(one)
                except _NO_BYTES as error:
                    shown = repr(one)[:60]
                    return BadRecord(
                        f"store {self.name!r}: the {what} {shown} cannot be kept: {error}",
                        hint="Text must be whole characters; a whole number must fit into 64 bits.",
                    )
        return BadRecord(f"store {self.name!r}: a change cannot be encoded")

    def _find(self, key: Any) -> Any:
        """What the layers behind the cache hold for a key; it is in the cache then."""
        held = self._known(key)
        if held is None:
            raw_key = self._keys.encode(self._keys.fit(key))
            raw = self._pending.get(raw_key, ABSENT)
            if raw is ABSENT:
                raw = self._backing.get(raw_key)
            held = ABSENT if raw is None else self._unpack(raw)  # type: ignore[arg-type]
        self._remember(key, held)
        return held

    def _known(self, key: Any) -> Any:
        for layer in (self._dirty, self._kept, self._in_flight, self._settled, self._cold):
            held = layer.get(key)
            if held is not None:
                return held
        return None

    def _find_many(self, keys: Iterable[Any]) -> None:
        """Bring keys into the cache with one question to RocksDB."""
        asked: list[Any] = []
        raw_keys: list[bytes] = []
        for key in keys:
            held = self._known(key)
            if held is not None:
                self._remember(key, held)
                continue
            raw_key = self._keys.encode(self._keys.fit(key))
            raw = self._pending.get(raw_key, ABSENT)
            if raw is ABSENT:
                asked.append(key)
                raw_keys.append(raw_key)
            else:
                self._remember(key, ABSENT if raw is None else self._unpack(raw))  # type: ignore[arg-type]
        unpack = self._unpack
        for key, answer in zip(asked, self._backing.get_many(raw_keys) if raw_keys else (), strict=True):
            self._remember(key, ABSENT if answer is None else unpack(answer))

    def _remember(self, key: Any, held: Any) -> None:
        self._hot[key] = held
        if len(self._hot) > self._max_cached:
            self._cold, self._hot = self._hot, {key: held}

    def _scan_raw(self, start: bytes | None, end: bytes | None, reverse: bool) -> Iterator[tuple[Any, Any]]:
        changed = self._changed_within(start, end)
        order = sorted(changed, reverse=reverse)
        decode_key, decode_value = self._keys.decode, self._values.decode
        for key, value in _merge(self._backing.scan(start, end, reverse), order, changed, reverse):
            yield decode_key(key), decode_value(value)

    def _changed_within(self, start: bytes | None, end: bytes | None) -> dict[bytes, bytes | None]:
        """Everything that RocksDB does not have yet, by encoded key."""
        self._encode_settled()
        encode_key, encode = self._keys.encode, self._encode
        changed = dict(self._pending)
        for layer in (self._in_flight, self._kept, self._dirty):
            for key, held in layer.items():
                changed[encode_key(key)] = None if held is ABSENT else encode(held)
        return {
            key: value
            for key, value in changed.items()
            if (start is None or key >= start) and (end is None or key < end)
        }


def _merge(
    stored: Iterator[tuple[bytes, bytes]],
    order: Sequence[bytes],
    changed: Mapping[bytes, bytes | None],
    reverse: bool,
) -> Iterator[tuple[bytes, bytes]]:
    """What is stored with what has changed laid over it, in key order."""
    coming = iter(order)
    change = next(coming, None)
    for key, value in stored:
        while change is not None and (change > key if reverse else change < key):
            new = changed[change]
            if new is not None:
                yield change, new
            change = next(coming, None)
        if key not in changed:
            yield key, value
    while change is not None:
        new = changed[change]
        if new is not None:
            yield change, new
        change = next(coming, None)


def _after_prefix(prefix: bytes) -> bytes | None:
    """The first key behind all that begin with `prefix`; None if there is none."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None


def _name_of(kind: type | None) -> str:
    return "anything" if kind is None else kind.__name__


def _same(value: Any) -> Any:
    return value


def _plain(values: Any) -> Sequence[Any]:
    """A list of what an array holds."""
    if isinstance(values, pa.Array) and pa.types.is_string(values.type) and not values.null_count:
        return texts(values)
    for name in ("to_pylist", "tolist"):
        convert = getattr(values, name, None)
        if convert is not None:
            return convert()
    return values
