"""The store on real RocksDB: reading, writing, its position, and what a kill leaves behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.budget import Budget
from changelog.manifest import StoreIdentity
from changelog.opening import open_store
from changelog.port import Store
from changelog.store import POSITION_KEY, RESERVED
from stack.errors import BadInput, Unavailable
from stack.model.job import KeyCodec, ValueCodec

IDENTITY = StoreIdentity(
    "main", "count", "counts", 0, "main.count.counts.changelog", "id-1", KeyCodec.STR, ValueCodec.INT
)
NOW_MS = 1_800_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "counts" / "0"


@pytest.fixture
def budget() -> Budget:
    return Budget(16 << 20, 4)


@pytest.fixture
def store(folder: Path, budget: Budget) -> Iterator[Store]:
    one = open_store(folder, IDENTITY, budget, NOW_MS).store
    yield one
    one.close()


def test_reads_what_was_applied(store: Store) -> None:
    assert store.standing() is None
    store.apply({b"a": b"1", b"b": b"2", b"": b"empty key", b"c": b""}, 7, NOW_MS)
    store.apply({b"b": None}, 9, NOW_MS + 1)
    assert store.get(b"a") == b"1"
    assert store.get(b"b") is None
    assert store.get_many([b"c", b"b", b"a", b"a", b""]) == [b"", None, b"1", b"1", b"empty key"]
    assert store.get_many([]) == []
    assert (store.position, store.position_time_ms) == (9, NOW_MS + 1)


def test_comes_back_where_it_was_closed(store: Store, folder: Path, budget: Budget) -> None:
    store.apply({b"a": b"1"}, 7, NOW_MS)
    store.close()
    store.close()
    again = open_store(folder, IDENTITY, budget, NOW_MS)
    assert again.note == "the store on disk stands at offset 7"
    assert again.aside is None
    assert again.store.get(b"a") == b"1"
    standing = again.store.standing()
    assert standing is not None
    assert (standing.position, standing.time_ms, standing.topic_id) == (7, NOW_MS, "id-1")
    again.store.close()


def test_position_can_move_without_changes(store: Store) -> None:
    store.apply({}, 7, NOW_MS)
    store.apply({}, 7, NOW_MS + 5)
    assert (store.position, store.position_time_ms) == (7, NOW_MS + 5)
    assert list(store.scan()) == []


def test_a_write_cannot_go_back(store: Store) -> None:
    store.apply({b"a": b"1"}, 7, NOW_MS)
    with pytest.raises(ValueError, match="at 7"):
        store.apply({b"a": b"0"}, 6, NOW_MS)
    assert store.get(b"a") == b"1"


@pytest.mark.parametrize("key", [RESERVED, POSITION_KEY, RESERVED + b"\xff"])
def test_reserved_keys_are_refused(store: Store, key: bytes) -> None:
    for attempt in (
        lambda: store.get(key),
        lambda: store.get_many([b"a", key]),
        lambda: store.apply({b"a": b"1", key: b"2"}, 7, NOW_MS),
    ):
        with pytest.raises(BadInput, match="cannot begin with sixteen"):
            attempt()
    assert store.get(b"a") is None
    store.apply({RESERVED[1:]: b"fine"}, 7, NOW_MS)
    assert list(store.scan()) == [(RESERVED[1:], b"fine")]


KEYS = st.one_of(st.binary(max_size=3), st.sampled_from([b"\xff" * 15, b"\xff" * 15 + b"\xfe\xff"]))


@given(
    writes=st.lists(st.dictionaries(KEYS, st.none() | st.binary(max_size=3), max_size=8), max_size=4),
    flush_after=st.integers(0, 4),
    span=st.tuples(st.none() | KEYS, st.none() | KEYS | st.just(RESERVED + b"x")),
    reverse=st.booleans(),
)
def test_scans_like_a_sorted_dict(
    shared: Store,
    writes: list[dict[bytes, bytes | None]],
    flush_after: int,
    span: tuple[bytes | None, bytes | None],
    reverse: bool,
) -> None:
    start, end = span
    shared.apply({key: None for key, _ in shared.scan()}, 1, NOW_MS)
    model: dict[bytes, bytes | None] = {}
    for number, changes in enumerate(writes):
        shared.apply(changes, 1, NOW_MS)
        model.update(changes)
        if number == flush_after:
            shared.flush()
    expected = [
        (key, value)
        for key, value in sorted(model.items(), reverse=reverse)
        if value is not None and (start is None or key >= start) and (end is None or key < end)
    ]
    assert list(shared.scan(start, end, reverse)) == expected


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    one = open_store(tmp_path_factory.mktemp("shared") / "0", IDENTITY, Budget(4 << 20, 1), NOW_MS).store
    yield one
    one.close()


def test_a_scan_sees_the_store_as_of_its_first_step(store: Store) -> None:
    store.apply({b"a": b"1", b"b": b"2"}, 1, NOW_MS)
    steps = store.scan()
    assert next(steps) == (b"a", b"1")
    store.apply({b"b": b"3", b"c": b"4"}, 2, NOW_MS)
    assert list(steps) == [(b"b", b"2")]


def test_an_unfinished_scan_does_not_keep_the_store_open(store: Store, folder: Path, budget: Budget) -> None:
    store.apply({b"a": b"1", b"b": b"2"}, 1, NOW_MS)
    steps = store.scan()
    next(steps)
    store.close()
    assert list(steps) == []
    open_store(folder, IDENTITY, budget, NOW_MS).store.close()
    with pytest.raises(Unavailable, match="already closed"):
        store.get(b"a")


def test_sizes(store: Store) -> None:
    assert store.approximate_keys() == 0
    store.apply({b"%d" % number: bytes(100) for number in range(1000)}, 1, NOW_MS)
    assert 900 < store.approximate_keys() < 1100
    assert store.size_bytes() > 100_000
    store.flush()
    assert 900 < store.approximate_keys() < 1100
    assert 2_000 < store.size_bytes() < 1 << 20


def test_stores_of_a_container_share_one_budget(tmp_path: Path) -> None:
    budget = Budget(64 << 20, 2)
    stores = [open_store(tmp_path / name / "0", IDENTITY, budget, NOW_MS).store for name in ("one", "two")]
    held = []
    for store in stores:
        store.apply({b"%06d" % number: os.urandom(100) for number in range(10_000)}, 1, NOW_MS)
        held.append(budget.buffered_bytes())
    assert held[0] > 1 << 20
    assert held[1] > held[0] + (1 << 20)
    assert budget.used_bytes() >= held[1]
    for store in stores:
        store.close()
    assert budget.buffered_bytes() < 1 << 20
    # A store that was opened again must not fall back to a cache of its own.
    before = budget.used_bytes()
    for name in ("one", "two"):
        store = open_store(tmp_path / name / "0", IDENTITY, budget, NOW_MS).store
        assert sum(1 for _ in store.scan()) == 10_000
        assert budget.used_bytes() > before + (1 << 20)
        before = budget.used_bytes()
        store.close()


def test_write_buffers_stay_within_the_budget(tmp_path: Path) -> None:
    budget = Budget(12 << 20, 8)
    stores = [open_store(tmp_path / str(number), IDENTITY, budget, NOW_MS).store for number in range(8)]
    most = 0
    for turn in range(40):
        for store in stores:
            store.apply({os.urandom(16): os.urandom(100) for _ in range(200)}, turn, NOW_MS)
            most = max(most, budget.buffered_bytes())
    # All of it together would be over 8 MiB; a third of the budget may be in buffers, or wait for a flush.
    assert most < 8 << 20
    for store in stores:
        store.close()


def test_quiet_stores_do_not_make_a_busy_one_flush_all_the_time(tmp_path: Path) -> None:
    budget = Budget(12 << 20, 8)
    stores = [open_store(tmp_path / str(number), IDENTITY, budget, NOW_MS).store for number in range(8)]
    for store in stores[1:]:
        store.apply({os.urandom(16): os.urandom(100) for _ in range(2_000)}, 1, NOW_MS)
    for turn in range(300):
        stores[0].apply({os.urandom(16): os.urandom(100) for _ in range(10)}, turn, NOW_MS)
    assert len(list((tmp_path / "0" / "db").glob("*.sst"))) < 4
    for store in stores:
        store.close()


def test_open_files_and_threads_are_bounded(tmp_path: Path) -> None:
    gc.collect()
    me = psutil.Process()
    files, threads = me.num_fds(), me.num_threads()
    budget = Budget(8 << 20, 10)
    stores = [open_store(tmp_path / str(number), IDENTITY, budget, NOW_MS).store for number in range(10)]
    for store in stores:
        store.apply({b"a": b"1"}, 1, NOW_MS)
        store.flush()
    assert me.num_fds() - files <= 10 * 10
    assert me.num_threads() - threads <= 4
    for store in stores:
        store.close()


WRITER = """
import sys
from pathlib import Path
from changelog.budget import Budget
from changelog.manifest import StoreIdentity
from changelog.opening import open_store

NOW_MS = int(sys.argv[2])
topic = "main.count.counts.changelog"
identity = StoreIdentity("main", "count", "counts", 0, topic, "id-1", "str", "int")
store = open_store(Path(sys.argv[1]), identity, Budget(1 << 20, 1), NOW_MS).store
commit = 0 if store.position is None else store.position
print("began", flush=True)
while True:
    commit += 1
    changes = {b"all-%02d" % number: b"%d" % commit for number in range(20)}
    changes[b"one-%08d" % commit] = bytes(2000)
    changes[b"one-%08d" % (commit - 3)] = None
    store.apply(changes, commit, NOW_MS + commit)
    if commit % 500 == 0:
        print(commit, flush=True)
"""


def test_a_kill_leaves_some_commit_whole(folder: Path, budget: Budget) -> None:
    positions = [0]
    for _ in range(2):
        command = [sys.executable, "-c", WRITER, str(folder), str(NOW_MS)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for _ in range(4):
                assert child.stdout.readline()
            with pytest.raises(Unavailable, match=f"in use by process {child.pid}"):
                open_store(folder, IDENTITY, budget, NOW_MS)
            child.send_signal(signal.SIGKILL)
        opened = open_store(folder, IDENTITY, budget, NOW_MS)
        store = opened.store
        assert opened.aside is None, opened.note
        commit = store.position
        # With buffers of 1 MiB, commits of 2 kB reach the disk long before 1,500 of them are done.
        assert commit is not None
        assert commit > positions[-1]
        assert store.position_time_ms == NOW_MS + commit
        kept = [b"one-%08d" % number for number in range(commit - 2, commit + 1)]
        shared = {b"all-%02d" % number: b"%d" % commit for number in range(20)}
        assert dict(store.scan()) == shared | dict.fromkeys(kept, bytes(2000))
        positions.append(commit)
        store.close()
