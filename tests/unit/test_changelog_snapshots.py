"""Snapshots, going back to one, emptying a store: all of it also with a crash at every single step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from changelog.budget import Budget
from changelog.manifest import StoreIdentity
from changelog.opening import Opened, open_store
from changelog.plan import CatchUp, FromSnapshot, Rebuild, Reuse
from changelog.port import Store
from changelog.restore import begin
from stack.errors import Unavailable
from stack.model.job import KeyCodec, ValueCodec

IDENTITY = StoreIdentity("main", "count", "counts", 0, "changelog", "id-1", KeyCodec.STR, ValueCodec.INT)
NOW_MS = 1_800_000_000_000
BUDGET = Budget(8 << 20, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "counts" / "0"


def opened(folder: Path) -> Opened:
    return open_store(folder, IDENTITY, BUDGET, NOW_MS)


def commit(store: Store, number: int) -> None:
    """Each commit overwrites one key and adds one, so that content tells the position."""
    store.apply({b"last": b"%d" % number, b"key-%04d" % number: bytes(50)}, number, NOW_MS + number)


def content(number: int) -> dict[bytes, bytes]:
    return {b"last": b"%d" % number} | {b"key-%04d" % one: bytes(50) for one in range(1, number + 1)}


def filled(folder: Path) -> Store:
    """A store at 9 with snapshots at 4 and 6."""
    store = opened(folder).store
    for number in range(1, 10):
        commit(store, number)
        if number in {2, 4, 6}:
            store.snapshot()
    return store


def test_the_newest_two_are_kept(folder: Path) -> None:
    store = filled(folder)
    assert [(one.position, one.time_ms) for one in store.snapshots()] == [(6, NOW_MS + 6), (4, NOW_MS + 4)]
    assert [one.path.name for one in store.snapshots()] == [f"6-{NOW_MS + 6}", f"4-{NOW_MS + 4}"]
    again = store.snapshot()
    assert again is not None
    assert again == store.snapshot()
    assert [one.position for one in store.snapshots()] == [9, 6]
    store.close()


def test_snapshots_share_their_bytes(folder: Path) -> None:
    store = opened(folder).store
    store.apply({b"%d" % number: os.urandom(1000) for number in range(1000)}, 1, NOW_MS)
    place = store.snapshot()
    assert place is not None
    assert {file.stat().st_nlink for file in place.path.glob("*.sst")} == {2}
    store.close()


def test_an_empty_store_has_none(folder: Path) -> None:
    store = opened(folder).store
    assert store.snapshot() is None
    assert store.snapshots() == ()
    store.close()


def test_begin_does_what_the_plan_says(folder: Path) -> None:
    store = filled(folder)
    assert begin(store, Reuse(9, 0, "")) == 9
    assert begin(store, CatchUp(9, 5, "")) == 9
    assert dict(store.scan()) == content(9)
    assert begin(store, FromSnapshot(6, 8, "")) == 6
    assert (store.position, store.position_time_ms) == (6, NOW_MS + 6)
    assert dict(store.scan()) == content(6)
    commit(store, 7)
    assert begin(store, FromSnapshot(4, 8, "")) == 4
    assert dict(store.scan()) == content(4)
    assert begin(store, Rebuild(0, 14, "")) == 0
    assert store.standing() is None
    assert list(store.scan()) == []
    assert [one.position for one in store.snapshots()] == [6, 4]
    with pytest.raises(Unavailable, match=r"the snapshot at 5 .* is gone"):
        begin(store, FromSnapshot(5, 9, ""))
    store.close()


def test_a_damaged_snapshot_is_removed_and_the_restore_planned_anew(folder: Path) -> None:
    store = filled(folder)
    newest = store.snapshots()[0]
    (newest.path / "CURRENT").write_bytes(b"nonsense")
    with pytest.raises(Unavailable, match=r"snapshot at 6 .* is damaged and was removed"):
        begin(store, FromSnapshot(6, 8, ""))
    assert [one.position for one in store.snapshots()] == [4]
    assert store.standing() is None
    assert begin(store, FromSnapshot(4, 8, "")) == 4
    store.close()


def test_snapshots_outlive_a_database_that_cannot_be_opened(folder: Path) -> None:
    filled(folder).close()
    (folder / "db" / "CURRENT").write_bytes(b"")
    again = opened(folder)
    assert again.aside is not None
    assert again.store.standing() is None
    assert [one.position for one in again.store.snapshots()] == [6, 4]
    assert begin(again.store, FromSnapshot(6, 3, "")) == 6
    assert dict(again.store.scan()) == content(6)
    again.store.close()


class Crash(BaseException):
    """The process ends here."""


STEPS = [(os, name) for name in ("link", "rename", "replace", "mkdir", "unlink", "rmdir", "fsync")]


def crash_at(patch: pytest.MonkeyPatch, step: int) -> list[int]:
    """Let the process end before the given step on the file system; counts the steps."""
    taken = [0]

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            taken[0] += 1
            if taken[0] > step:
                raise Crash
            return original(*args, **options)

        return call

    for module, name in [*STEPS, (shutil, "copyfile")]:
        patch.setattr(module, name, counting(getattr(module, name)))
    return taken


def revert(store: Store) -> None:
    begin(store, FromSnapshot(6, 3, ""))


def clear(store: Store) -> None:
    begin(store, Rebuild(0, 9, ""))


def snapshot(store: Store) -> None:
    store.snapshot()


@pytest.mark.parametrize(
    ("act", "outcomes"),
    [(revert, {9, 6}), (clear, {9, None}), (snapshot, {9})],
    ids=["revert", "clear", "snapshot"],
)
def test_a_crash_at_any_step_leaves_one_or_the_other(
    folder: Path, act: Callable[[Store], None], outcomes: set[int | None]
) -> None:
    filled(folder).close()
    pristine = folder.with_name("pristine")
    shutil.copytree(folder, pristine)
    seen: set[int | None] = set()
    step = 0
    while True:
        shutil.rmtree(folder)
        shutil.copytree(pristine, folder)
        store = opened(folder).store
        with pytest.MonkeyPatch.context() as patch:
            taken = crash_at(patch, step)
            with suppress(Crash):
                act(store)
        store.close()
        again = opened(folder)
        assert again.aside is None, (step, again.note)
        assert dict(again.store.scan()) == (content(again.store.position) if again.store.position else {})
        assert {one.position for one in again.store.snapshots()} <= {9, 6, 4}
        assert {6} <= {one.position for one in again.store.snapshots()}
        assert {path.name for path in folder.iterdir()} == {"db", "manifest.json", "snapshots"}
        assert not list(folder.glob("snapshots/*partial*"))
        seen.add(again.store.position)
        again.store.close()
        if taken[0] <= step:
            break
        step += 1
    assert step > 3
    assert seen == outcomes


def test_a_crash_while_a_store_is_made_or_moved_aside(folder: Path) -> None:
    """Opening again always ends with a store that works, and what was moved is still there."""
    other = StoreIdentity("main", "count", "counts", 0, "changelog", "id-2", KeyCodec.STR, ValueCodec.INT)
    step = 0
    while True:
        shutil.rmtree(folder.parent, ignore_errors=True)
        store = opened(folder).store
        commit(store, 1)
        store.close()
        with pytest.MonkeyPatch.context() as patch:
            taken = crash_at(patch, step)
            with suppress(Crash):
                open_store(folder, other, BUDGET, NOW_MS).store.close()
        again = open_store(folder, other, BUDGET, NOW_MS)
        assert again.store.standing() is None
        commit(again.store, 1)
        again.store.close()
        assert len(list(folder.parent.glob("0.aside-other-topic-*"))) == 1
        if taken[0] <= step:
            break
        step += 1
    assert step > 3
