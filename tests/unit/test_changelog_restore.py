"""Bulk restore: the same outcome as one write at a time, in files that overlap, in small pieces of time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog import restore
from changelog.budget import Budget
from changelog.columns import column, order
from changelog.manifest import StoreIdentity
from changelog.opening import open_store
from changelog.port import Store
from changelog.restore import BulkLoad
from changelog.store import POSITION_KEY, RocksStore
from stack.errors import CorruptState
from stack.model.job import KeyCodec, ValueCodec

IDENTITY = StoreIdentity("main", "count", "counts", 0, "changelog", "id-1", KeyCodec.STR, ValueCodec.INT)
NOW_MS = 1_800_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "counts" / "0"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    one = open_store(folder, IDENTITY, Budget(16 << 20, 1), NOW_MS).store
    yield one
    one.close()


@pytest.fixture
def files_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a file also for a handful of entries."""
    monkeypatch.setattr(restore, "_BATCH_ENTRIES", 0)


def deltas(seed: int, count: int, keys: int) -> tuple[list[bytes], list[bytes | None]]:
    chance = random.Random(seed)
    names = [b"key-%06d" % chance.randrange(keys) for _ in range(count)]
    return names, [None if chance.random() < 0.2 else chance.randbytes(chance.randrange(20)) for _ in names]


def alive(held: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
    return {key: value for key, value in sorted(held.items()) if value is not None}


@pytest.mark.parametrize("at_first", [0, 2_000], ids=["empty", "not empty"])
def test_the_last_delta_of_a_key_wins(store: Store, folder: Path, at_first: int, files_only: None) -> None:
    """Over files of the same load, over what was flushed and over what was not; tombstones, too."""
    model: dict[bytes, bytes | None] = {}
    if at_first:
        for position in (1, 2):
            model.update(zip(*deltas(position, at_first, 3_000), strict=True))
            store.apply(model, position, NOW_MS - 5)
            if position == 1:
                store.flush()
    load = BulkLoad(store, NOW_MS, chunk_entries=1_000)
    keys, values = deltas(9, 12_000, 4_000)
    for first in range(0, len(keys), 500):
        piece = keys[first : first + 500], values[first : first + 500]
        load.add(*piece, 3 + first + 500)
        model.update(zip(*piece, strict=True))
    load.finish(20_000, NOW_MS + 9)
    assert (store.position, store.position_time_ms) == (20_000, NOW_MS + 9)
    assert dict(store.scan()) == alive(model)
    assert store.get_many(list(model)) == list(model.values())
    store.apply({b"key-000001": b"later"}, 20_001, NOW_MS + 10)
    assert store.get(b"key-000001") == b"later"
    store.close()
    again = open_store(folder, IDENTITY, Budget(16 << 20, 1), NOW_MS).store
    assert dict(again.scan()) == alive(model | {b"key-000001": b"later"})
    assert again.position == 20_001
    again.close()


def test_a_small_load_leaves_no_file(store: Store, folder: Path) -> None:
    load = BulkLoad(store, NOW_MS)
    load.add([b"a", b"b", b"a"], [b"1", b"2", None], 3)
    load.finish(4, NOW_MS)
    assert dict(store.scan()) == {b"b": b"2"}
    assert store.position == 4
    assert not list(folder.glob("*/*.sst"))


def test_an_empty_load_moves_the_position(store: Store) -> None:
    BulkLoad(store, NOW_MS).finish(12, NOW_MS + 1)
    assert (store.position, store.position_time_ms) == (12, NOW_MS + 1)


@pytest.mark.parametrize(("begun", "time_ms"), [(None, NOW_MS), (3, NOW_MS - 77)])
def test_a_store_in_the_middle_of_a_load_is_as_old_as_its_oldest_part(
    store: Store, begun: int | None, time_ms: int, files_only: None
) -> None:
    if begun is not None:
        store.apply({b"x": b"1"}, begun, NOW_MS - 77)
    load = BulkLoad(store, NOW_MS, chunk_entries=10)
    load.add([b"%d" % number for number in range(10)], [b"1"] * 10, 13)
    assert load.is_full
    while not load.work(0):
        assert store.position == begun
    assert (store.position, store.position_time_ms) == (13, time_ms)
    load.add([b"y"], [b"1"], 14)
    assert store.position == 13
    load.finish(20, NOW_MS + 9)
    assert (store.position, store.position_time_ms) == (20, NOW_MS + 9)


def test_large_values_are_cut_by_their_bytes(store: Store, files_only: None) -> None:
    load = BulkLoad(store, NOW_MS, chunk_bytes=1 << 20)
    for turn in range(20):
        load.add([b"same"], [bytes(100_000)], turn)
    assert not load.is_full, "one key that is overwritten is not much"
    for turn in range(20, 40):
        load.add([b"%d" % turn], [bytes(100_000)], turn)
    assert load.is_full
    load.finish(99, NOW_MS)
    assert sum(1 for _ in store.scan()) == 21


def test_work_stops_at_its_time_and_goes_on_later(store: Store) -> None:
    ticks = iter(range(10_000))
    load = BulkLoad(store, NOW_MS, clock=lambda: float(next(ticks)))
    keys = [b"%06d" % number for number in range(50_000)]
    load.add(keys, keys, 50_000)
    load.seal(50_000, NOW_MS)
    calls = 1
    while not load.work(until=0):
        calls += 1
    assert calls > 5, "every call did one piece only"
    assert store.get_many(keys[::1000]) == keys[::1000]


def test_a_full_load_can_be_added_to(store: Store, files_only: None) -> None:
    load = BulkLoad(store, NOW_MS, chunk_entries=10)
    for turn in range(5):
        load.add([b"%d-%d" % (turn, number) for number in range(10)], [b"1"] * 10, turn)
    load.finish(5, NOW_MS)
    assert sum(1 for _ in store.scan()) == 50


@pytest.mark.parametrize("small", [True, False], ids=["batch", "file"])
@pytest.mark.parametrize(("key", "what"), [(POSITION_KEY, "kept for the store"), (None, "without a key")])
def test_a_changelog_with_foreign_records_is_refused(
    store: Store, key: bytes | None, what: str, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "_BATCH_ENTRIES", 10 if small else 0)
    load = BulkLoad(store, NOW_MS)
    load.add([b"a", key], [b"1", b"2"], 2)  # type: ignore[list-item]
    with pytest.raises(CorruptState, match=f"^changelog changelog holds a .*{what}"):
        load.finish(2, NOW_MS)
    with pytest.raises(CorruptState):
        load.work(0)
    assert store.standing() is None


def test_a_load_waits_while_files_pile_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "_BATCH_ENTRIES", 0)
    crowded = [True] * 3
    monkeypatch.setattr(RocksStore, "is_crowded", lambda _: bool(crowded and crowded.pop()))
    load = BulkLoad(store, NOW_MS)
    load.add([b"a"], [b"1"], 1)
    load.seal(1, NOW_MS)
    for _ in range(3):
        assert not load.work(float("inf")), "it leaves the time to others"
        assert store.position is None
    assert load.work(float("inf"))
    assert store.position == 1
    assert not store.is_crowded()


LOADER = """
import sys
from pathlib import Path
from changelog.budget import Budget
from changelog.manifest import StoreIdentity
from changelog.opening import open_store
from changelog.restore import BulkLoad

identity = StoreIdentity("main", "count", "counts", 0, "changelog", "id-1", "str", "int")
store = open_store(Path(sys.argv[1]), identity, Budget(4 << 20, 1), 1).store
load = BulkLoad(store, 1, chunk_entries=6_000)
position = store.position or 0
while True:
    batch = range(position, position + 1000)
    # Delta n sets key n, and deletes key n - 10,000.
    keys = [key for n in batch for key in (b"%09d" % n, b"%09d" % (n - 10_000))]
    load.add(keys, [b"1", None] * 1000, position + 1000)
    position += 1000
    if store.position and position % 8000 == 0:
        print(store.position, flush=True)
"""


def test_a_kill_in_a_load_leaves_it_whole_at_some_offset(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LOADER, str(folder)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for _ in range(3):
            assert child.stdout.readline()
        child.send_signal(signal.SIGKILL)
    store = open_store(folder, IDENTITY, Budget(4 << 20, 1), NOW_MS).store
    position = store.position
    assert position is not None
    assert position > 6_000
    expected = [b"%09d" % number for number in range(max(0, position - 10_000), position)]
    assert [key for key, _ in store.scan()] == expected
    load = BulkLoad(store, NOW_MS)
    load.add([expected[0], b"new"], [None, b"1"], position + 2)
    load.finish(position + 2, NOW_MS)
    assert [key for key, _ in store.scan()] == [*expected[1:], b"new"]
    store.close()


@given(st.lists(st.binary(max_size=12), unique=True, min_size=1), st.binary(max_size=9))
def test_order_is_the_order_of_bytes(keys: list[bytes], prefix: bytes) -> None:
    keys = [prefix + key for key in keys]
    held = column(keys)
    assert held.to_pylist() == keys
    assert held.take(order(held)).to_pylist() == sorted(keys)


@given(st.lists(st.none() | st.binary(max_size=4)))
def test_columns_keep_nothing_apart_from_empty(items: list[bytes | None]) -> None:
    assert column(items).to_pylist() == items


def test_loading_does_not_import_pandas() -> None:
    """It takes a second or more, in the middle of a restore."""
    code = (
        "import sys; from changelog.columns import column, order\n"
        "keys = column([b'12345678-%d' % n for n in range(99)])\n"
        "keys.take(order(keys)).to_pylist(); column([b'1', None]).to_pylist()\n"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
