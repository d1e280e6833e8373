"""What a store promises, in memory and in RocksDB: positions with their changes, snapshots, owners."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from changelog.budget import Budget
from changelog.manifest import StoreIdentity
from changelog.memory import MemoryDisk
from changelog.opening import Opened, open_store
from changelog.plan import Standing
from changelog.port import Store
from stack.errors import BadInput, Unavailable
from stack.model.job import KeyCodec, ValueCodec

Open = Callable[..., Opened]


def identity(topic_id: str = "t1") -> StoreIdentity:
    return StoreIdentity(
        "s", "job", "counts", 0, "s.job.counts.changelog", topic_id, KeyCodec.STR, ValueCodec.INT
    )


@pytest.fixture(params=["memory", "real"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the store of this test; in memory on a disk of its own."""
    folder, disk = tmp_path / "counts" / "0", MemoryDisk()
    if request.param == "memory":
        return lambda wanted=None: disk.open_store(folder, wanted or identity(), 1_000)
    budget = Budget(8 << 20, 4)
    return lambda wanted=None: open_store(folder, wanted or identity(), budget, 1_000)


def content(store: Store) -> dict[bytes, bytes]:
    return dict(store.scan())


def test_changes_come_with_their_position(opened: Open) -> None:
    store = opened().store
    assert store.standing() is None
    store.apply({b"a": b"1", b"b": b"2"}, 3, 50)
    store.apply({b"a": None}, 5, 60)
    assert store.standing() == Standing(5, 60, "t1")
    assert (store.get(b"a"), store.get(b"b")) == (None, b"2")
    assert store.get_many([b"b", b"a"]) == [b"2", None]
    store.close()
    again = opened().store
    assert (again.position, content(again)) == (5, {b"b": b"2"})
    again.close()


def test_scans_are_in_order_and_bounded(opened: Open) -> None:
    store = opened().store
    store.apply(dict.fromkeys((b"c", b"a", b"b", b"d"), b"x"), 1, 1)
    assert [key for key, _ in store.scan(b"b", b"d")] == [b"b", b"c"]
    assert [key for key, _ in store.scan(reverse=True)] == [b"d", b"c", b"b", b"a"]
    steps = store.scan()
    next(steps)
    store.apply({b"b": None}, 2, 2)
    assert [key for key, _ in steps] == [b"b", b"c", b"d"]
    store.close()


def test_a_write_cannot_go_back_or_use_reserved_keys(opened: Open) -> None:
    store = opened().store
    store.apply({}, 7, 1)
    with pytest.raises(ValueError, match="cannot go back"):
        store.apply({}, 6, 1)
    with pytest.raises(BadInput):
        store.apply({b"\xff" * 16: b"x"}, 8, 1)
    with pytest.raises(BadInput):
        store.get(b"\xff" * 17)
    store.close()


def test_a_snapshot_can_be_gone_back_to(opened: Open) -> None:
    store = opened().store
    assert store.snapshot() is None
    store.apply({b"a": b"1"}, 2, 10)
    kept = store.snapshot()
    assert kept is not None
    store.apply({b"a": b"2"}, 4, 20)
    assert [one.position for one in store.snapshots()] == [2]
    store.revert(kept)
    assert (store.position, content(store)) == (2, {b"a": b"1"})
    store.clear()
    assert (store.position, content(store)) == (None, {})
    assert [one.position for one in store.snapshots()] == [2]
    store.close()


def test_only_the_newest_snapshots_are_kept(opened: Open) -> None:
    store = opened().store
    for position in range(1, 5):
        store.apply({b"a": b"%d" % position}, position, position)
        store.snapshot()
    assert [one.position for one in store.snapshots()] == [4, 3]
    store.close()


def test_a_store_has_one_owner(opened: Open) -> None:
    first = opened().store
    with pytest.raises(Unavailable):
        opened()
    first.close()
    first.close()
    opened().store.close()


def test_a_store_of_another_changelog_is_moved_aside(opened: Open) -> None:
    first = opened().store
    first.apply({b"a": b"1"}, 2, 10)
    first.close()
    other = opened(identity("t2"))
    assert other.aside is not None
    assert "other-topic" in other.aside.name
    assert (other.store.position, content(other.store)) == (None, {})
    other.store.close()


def test_a_crash_loses_what_was_not_flushed_from_the_end() -> None:
    disk, folder = MemoryDisk(), Path("counts/0")
    store = disk.open_store(folder, identity(), 1, "p").store
    store.apply({b"a": b"1"}, 1, 1)
    store.flush()
    store.apply({b"a": b"2"}, 2, 2)
    store.apply({b"b": b"3"}, 3, 3)
    disk.crash("p", lambda count: count - 1)
    left = disk.open_store(folder, identity(), 1, "q").store
    assert (left.position, content(left)) == (2, {b"a": b"2"})
