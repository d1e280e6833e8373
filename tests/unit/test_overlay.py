"""The overlay against a plain dict: whatever is read, committed, aborted, written and lost on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from changelog.overlay import Overlay
from stack.errors import BadRecord
from stack.model.coding import StoreCodec
from stack.model.job import KeyCodec, StoreSpec, ValueCodec
from stack.tasks.codecs import key_coding, value_coding


class Memory:
    """RocksDB's part, in a dict."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self.position = 0

    def get(self, key: bytes) -> bytes | None:
        return self.data.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [self.data.get(key) for key in keys]

    def apply(self, changes: Mapping[bytes, bytes | None], position: int, _time_ms: int) -> None:
        for key, value in changes.items():
            if value is None:
                self.data.pop(key, None)
            else:
                self.data[key] = value
        self.position = position

    def scan(
        self, start: bytes | None, end: bytes | None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        keys = [key for key in self.data if (start is None or key >= start) and (end is None or key < end)]
        return iter([(key, self.data[key]) for key in sorted(keys, reverse=reverse)])


def codec_of(key: str = "str", value: str = "int") -> StoreCodec:
    spec = StoreSpec("s", KeyCodec(key), ValueCodec(value))
    return StoreCodec(key_coding(spec), value_coding(spec))


def overlay_of(key: str = "str", value: str = "int", cached: int = 2_000) -> tuple[Overlay, Memory]:
    memory = Memory()
    return Overlay("s", codec_of(key, value), memory, cached), memory


KEYS = st.text("abc", max_size=3)


class OverlayMachine(RuleBasedStateMachine):
    """Commits may be under way, fail or succeed while the store is read and written."""

    def __init__(self) -> None:
        super().__init__()
        self.store, self.memory = overlay_of()
        # So small that entries fall out of the cache all the time.
        self.store._max_cached = 3
        self.now: dict[str, int] = {}
        self.edge: dict[str, int] | None = None
        self.committed: dict[str, int] = {}

    @rule(key=KEYS, value=st.integers(-(2**63), 2**63 - 1))
    def put(self, key: str, value: int) -> None:
        self.store[key] = self.now[key] = value

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.store.delete(key)
        self.now.pop(key, None)

    @rule(keys=st.lists(KEYS, max_size=5), value=st.integers(0, 9))
    def put_many(self, keys: list[str], value: int) -> None:
        self.store.set_many(keys, [value] * len(keys))
        self.now.update(dict.fromkeys(keys, value))

    @rule(keys=st.lists(KEYS, max_size=6))
    def read(self, keys: list[str]) -> None:
        assert self.store.get_many(keys, -1) == [self.now.get(key, -1) for key in keys]
        for key in keys:
            assert self.store.get(key) == self.now.get(key)
            assert (key in self.store) is (key in self.now)

    @rule(start=st.none() | KEYS, end=st.none() | KEYS, reverse=st.booleans())
    def scan(self, start: str | None, end: str | None, reverse: bool) -> None:
        wanted = [
            (key, value)
            for key, value in sorted(self.now.items(), reverse=reverse)
            if (start is None or key >= start) and (end is None or key < end)
        ]
        assert list(self.store.scan(start, end, reverse)) == wanted

    @rule(prefix=KEYS)
    def prefix(self, prefix: str) -> None:
        assert list(self.store.prefix(prefix)) == sorted(
            (key, value) for key, value in self.now.items() if key.startswith(prefix)
        )

    @rule(
        keys=st.lists(KEYS, max_size=4),
        gone=st.lists(KEYS, max_size=2),
        value=st.integers(0, 9),
        how=st.sampled_from(("keep", "undo", "undo what was interrupted")),
    )
    def try_out(self, keys: list[str], gone: list[str], value: int, how: str) -> None:
        """A stretch behind a mark."""
        before = dict(self.now)
        self.store.mark()
        for key in keys:
            self.put(key, value)
        for key in gone:
            self.delete(key)
        self.read([*keys, *gone, *before])
        self.scan(None, None, False)
        if how == "keep":
            self.store.keep()
            return
        if keys and "interrupted" in how:
            # Written to the cache, and stopped before it was noted.
            self.store._hot[keys[0]] = 77
        self.store.undo(interrupted="interrupted" in how)
        self.now = before

    @rule()
    def begin_commit(self) -> None:
        """In one portion or in several."""
        self.store.take()
        self.edge = dict(self.now)

    @rule()
    def end_commit(self) -> None:
        if self.edge is not None:
            self.store.settle()
            self.committed, self.edge = self.edge, None

    @rule()
    def abort(self) -> None:
        self.store.drop()
        self.now, self.edge = dict(self.committed), None

    @rule()
    def write(self) -> None:
        self.store.write_pending(1, 1)

    @invariant()
    def nothing_uncommitted_is_in_rocksdb(self) -> None:
        held = {
            key.decode(): int.from_bytes(value, "big", signed=True) for key, value in self.memory.data.items()
        }
        if not self.store.pending_count:
            assert held == self.committed
        assert not self.store.is_clean or self.now == self.committed


TestOverlay = OverlayMachine.TestCase
TestOverlay.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_values_that_can_change_are_kept_as_they_were() -> None:
    store, _ = overlay_of(value="json")
    given_value = {"n": [1]}
    store["a"] = given_value
    given_value["n"].append(2)
    assert store["a"] == {"n": [1]}
    store["a"]["n"].append(3)
    assert store["a"] == {"n": [1]}
    assert store.take().values.items() == [b'{"n":[1]}']


@pytest.mark.parametrize(
    ("key", "value", "bad", "words"),
    [
        ("str", "int", ("a", "x"), "store 's' has int values, got str 'x'"),
        ("str", "int", ("a", True), "store 's' has int values, got bool True"),
        ("str", "int", (5, 1), "store 's' has str keys, got int 5"),
        ("int", "str", ("a", "x"), "store 's' has int keys, got str 'a'"),
        ("bytes", "bytes", (b"a", "x"), "store 's' has bytes values, got str 'x'"),
        ("str", "json", ("a", {1, 2}), "store 's': JSON cannot hold {1, 2}"),
    ],
)
def test_what_does_not_fit_is_refused_at_once(key: str, value: str, bad: tuple[Any, Any], words: str) -> None:
    store, _ = overlay_of(key, value)
    with pytest.raises(BadRecord, match=words.replace("{", r"\{")):
        store[bad[0]] = bad[1]
    assert store.dirty_count == 0


@pytest.mark.parametrize(("key", "value"), [("a", 1 << 70), ("\ud800", 1)])
def test_what_has_no_bytes_is_named_at_the_commit(key: str, value: int) -> None:
    store, _ = overlay_of()
    store["fine"] = 1
    store[key] = value
    with pytest.raises(BadRecord, match=r"store 's': the (key|value) .* cannot be kept"):
        store.take()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True))
def test_whole_numbers_are_in_their_order(numbers: list[int]) -> None:
    store, _ = overlay_of("int", "str")
    for number in numbers:
        store[number] = str(number)
    assert list(store) == sorted(numbers)


def test_the_rest_of_a_dict() -> None:
    store, _ = overlay_of()
    store.update({"a": 1, "b": 2})
    store.set("c", 3)
    assert store.setdefault("a", 9) == 1
    assert store.setdefault("d", 4) == 4
    assert store.pop("b") == 2
    assert store.pop("b", 7) == 7
    with pytest.raises(KeyError):
        del store["b"]
    with pytest.raises(KeyError):
        store["b"]
    assert list(store.items()) == [("a", 1), ("c", 3), ("d", 4)]
    assert list(store.values()) == [1, 3, 4]
    with pytest.raises(BadRecord, match="2 keys and 1 values"):
        store.set_many(["a", "b"], [1])
    numbers, _ = overlay_of("int")
    with pytest.raises(BadRecord, match="have no prefix"):
        numbers.prefix("a")
