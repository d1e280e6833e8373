"""Store folders that were deleted, damaged, taken or made for something else, and disks without room."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from changelog.budget import Budget
from changelog.manifest import StoreIdentity
from changelog.opening import Opened, open_store
from changelog.port import Store
from stack.errors import CorruptState, Unavailable
from stack.model.job import KeyCodec, ValueCodec

IDENTITY = StoreIdentity("main", "count", "counts", 0, "changelog", "id-1", KeyCodec.STR, ValueCodec.INT)
NOW_MS = 1_800_000_000_000  # 2027-01-15 08:00:00 UTC
KEYS = [b"key-%05d" % number for number in range(5_000)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A closed store at 7 with some kilobytes on disk."""
    folder = tmp_path / "counts" / "0"
    store = opened(folder).store
    store.apply({key: os.urandom(40) for key in KEYS}, 7, NOW_MS)
    store.snapshot()
    store.close()
    return folder


def opened(folder: Path, identity: StoreIdentity = IDENTITY) -> Opened:
    return open_store(folder, identity, Budget(8 << 20, 1), NOW_MS)


def sst(folder: Path) -> Path:
    return next((folder / "db").glob("*.sst"))


def list_of_files(folder: Path) -> Path:
    return next((folder / "db").glob("MANIFEST-*"))


def flip(file: Path, offset: int) -> None:
    """Change bytes of a file in place, and so in all its hard links."""
    with file.open("r+b") as stream:
        stream.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        old = stream.read(8)
        stream.seek(-len(old), os.SEEK_CUR)
        stream.write(bytes(255 - byte for byte in old))


def change_manifest(folder: Path, **fields: object) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def assert_set_aside(folder: Path, found: Opened, reason: str, sentence: str) -> None:
    """An empty store is open, and the old one is beside it with all its files."""
    name = f"0.aside-{reason}-20270115T080000Z"
    assert found.aside == folder.with_name(name)
    assert found.aside.is_dir()
    assert sentence in found.note
    assert found.note.endswith(f"; the store was moved aside to {name} and a new one was made")
    assert found.store.standing() is None
    assert list(found.store.scan()) == []
    found.store.apply({b"a": b"1"}, 1, NOW_MS)
    found.store.close()
    assert opened(folder, found.store.identity).store.get(b"a") == b"1"


def test_a_deleted_folder_is_made_anew(folder: Path) -> None:
    shutil.rmtree(folder)
    found = opened(folder)
    assert found.note == "a new store was made"
    assert found.store.standing() is None
    found.store.close()


def test_a_deleted_database_is_made_anew(folder: Path) -> None:
    shutil.rmtree(folder / "db")
    found = opened(folder)
    assert found.note == "a new store was made"
    assert found.store.standing() is None
    assert len(found.store.snapshots()) == 1
    found.store.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: os.truncate(folder / "db" / "CURRENT", 0),
        lambda folder: os.truncate(folder / "db" / "CURRENT", 5),
        lambda folder: (folder / "db" / "CURRENT").write_bytes(b"MANIFEST-999999\n"),
        lambda folder: (folder / "db" / "CURRENT").unlink(),
        lambda folder: os.truncate(list_of_files(folder), 0),
        lambda folder: flip(list_of_files(folder), 20),
        lambda folder: list_of_files(folder).unlink(),
        lambda folder: os.truncate(sst(folder), 1000),
        lambda folder: flip(sst(folder), -300),
        lambda folder: sst(folder).unlink(),
    ],
    ids=[
        "CURRENT emptied",
        "CURRENT cut",
        "CURRENT astray",
        "CURRENT gone",
        "MANIFEST emptied",
        "MANIFEST flipped",
        "MANIFEST gone",
        "SST cut",
        "SST index flipped",
        "SST gone",
    ],
)
def test_a_damaged_database_is_moved_aside(
    folder: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    damage(folder)
    with caplog.at_level(logging.WARNING, "feedstack.changelog"):
        found = opened(folder)
    assert_set_aside(folder, found, "damaged", "")
    assert "is kept there until someone removes it" in caplog.text


def test_a_database_that_forgot_its_files_begins_empty(folder: Path) -> None:
    """RocksDB takes a list of files that was cut for a shorter one: an older state, here none at all."""
    os.truncate(list_of_files(folder), list_of_files(folder).stat().st_size // 2)
    found = opened(folder)
    assert found.note == "the store on disk had no whole state and begins empty"
    assert found.store.standing() is None
    found.store.close()


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.get(KEYS[0]),
        lambda store: store.get_many(KEYS[:10]),
        lambda store: list(store.scan()),
        lambda store: list(store.scan(reverse=True)),
    ],
    ids=["get", "get_many", "scan", "scan back"],
)
def test_damage_found_by_reading_ends_the_store_and_its_snapshots(
    folder: Path, read: Callable[[Store], object]
) -> None:
    flip(sst(folder), 100)
    found = opened(folder)
    assert found.store.position == 7
    with pytest.raises(CorruptState) as caught:
        read(found.store)
    assert str(folder) in caught.value.message
    assert "rebuilt from its changelog when it is opened next" in caught.value.hint
    found.store.close()
    again = opened(folder)
    assert_set_aside(folder, again, "damaged", "reading it found damage")
    assert again.store.snapshots() == ()


@pytest.mark.parametrize(
    ("spoil", "reason", "sentence"),
    [
        (lambda folder: (folder / "manifest.json").write_bytes(b"\x00\xff{"), "unreadable", "cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("[1]"), "unreadable", "cannot be read"),
        (lambda folder: change_manifest(folder, topic="x"), "unreadable", "the checksum of its manifest"),
        (lambda folder: change_manifest(folder, checksum=None), "unreadable", "the checksum of its manifest"),
        (lambda folder: change_manifest(folder, format=2), "unknown-format", "its format is 2, known is 1"),
        (lambda folder: (folder / "manifest.json").unlink(), "no-manifest", "it has no manifest"),
    ],
    ids=["garbage", "other JSON", "changed", "no checksum", "format", "gone"],
)
def test_a_bad_manifest_moves_the_store_aside(
    folder: Path, spoil: Callable[[Path], object], reason: str, sentence: str
) -> None:
    spoil(folder)
    assert_set_aside(folder, opened(folder), reason, sentence)


@pytest.mark.parametrize(
    ("identity", "reason", "sentence"),
    [
        (replace(IDENTITY, topic_id="id-2"), "other-topic", "its topic id is id-1, not id-2"),
        (replace(IDENTITY, topic="new"), "other-topic", "its topic is changelog, not new"),
        (replace(IDENTITY, key=KeyCodec.INT), "other-codec", "its key codec is str, not int"),
        (replace(IDENTITY, value=ValueCodec.JSON), "other-codec", "its value codec is int, not json"),
        (replace(IDENTITY, job="sum"), "other-job", "its job is count, not sum"),
        (replace(IDENTITY, stack="two"), "other-stack", "its stack is main, not two"),
        (replace(IDENTITY, store="sums"), "other-store", "its store is counts, not sums"),
        (replace(IDENTITY, partition=1), "other-partition", "its partition is 0, not 1"),
    ],
    ids=lambda one: one if isinstance(one, str) and one.startswith("other") else "",
)
def test_the_store_of_something_else_is_moved_aside(
    folder: Path, identity: StoreIdentity, reason: str, sentence: str
) -> None:
    assert_set_aside(folder, opened(folder, identity), reason, sentence)


def test_nothing_that_was_moved_aside_is_lost(folder: Path) -> None:
    for number in range(3):
        identity = replace(IDENTITY, topic_id=f"id-{number + 2}")
        found = opened(folder, identity)
        found.store.apply({b"a": b"1"}, 1, NOW_MS)
        found.store.close()
    names = sorted(path.name for path in folder.parent.glob("*.aside-*"))
    stem = "0.aside-other-topic-20270115T080000Z"
    assert names == [stem, f"{stem}-2", f"{stem}-3"]
    shutil.rmtree(folder)
    folder.with_name(stem).rename(folder)
    back = opened(folder)
    assert back.store.position == 7
    assert sum(1 for _ in back.store.scan()) == len(KEYS)
    back.store.close()


def test_a_store_has_one_owner_in_a_process(folder: Path) -> None:
    found = opened(folder)
    with pytest.raises(Unavailable, match=f"in use by process {os.getpid()}") as caught:
        opened(folder, replace(IDENTITY, topic_id="id-2"))
    assert str(folder) in caught.value.message
    assert "a killed process needs a moment" in caught.value.hint
    found.store.close()
    opened(folder).store.close()


def test_a_database_opened_by_another_tool_is_waited_for(folder: Path) -> None:
    held = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from rocksdict import Rdict, Options\n"
            "db = Rdict(sys.argv[1], Options(raw_mode=True)); print('open', flush=True); sys.stdin.read()",
            str(folder / "db"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert held.stdout is not None
    held.stdout.readline()
    with pytest.raises(Unavailable, match="is open in another process"):
        opened(folder)
    held.communicate()
    found = opened(folder)
    assert found.store.position == 7
    found.store.close()


def test_a_folder_that_vanishes_under_an_open_store(folder: Path) -> None:
    found = opened(folder)
    shutil.rmtree(folder)
    found.store.apply({b"a": b"8"}, 8, NOW_MS)
    with pytest.raises(CorruptState) as caught:
        found.store.flush()
    assert str(folder) in caught.value.message
    found.store.close()
    again = opened(folder)
    assert again.store.standing() is None
    again.store.close()


FILLER = """
import os, resource, sys
from pathlib import Path
from changelog.budget import Budget
from changelog.manifest import StoreIdentity
from changelog.opening import open_store
from changelog.restore import BulkLoad
from stack.errors import Unavailable

folder = Path(sys.argv[1]) / "counts" / "0"
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
identity = StoreIdentity("main", "count", "counts", 0, "changelog", "id-1", "str", "int")

def refused(attempt):
    try:
        attempt()
    except Unavailable as error:
        assert error.message.startswith(f"the state disk is full: {folder} cannot be written"), error.message
        assert error.hint.startswith("Free space on that disk"), error.hint
        return
    raise AssertionError("it did not fail")

store = open_store(folder, identity, Budget(3 << 20, 1), 1).store

def fill():
    for commit in range(1, 100):
        changes = {b"%03d-%04d" % (commit, number): os.urandom(100) for number in range(1000)}
        store.apply(changes, commit, commit)

refused(fill)
reached = store.position
assert reached is not None and reached < 99
# The commit that failed is missing: a later one must not hide that.
refused(lambda: store.apply({}, reached + 2, 1))
assert len(store.get(b"001-0001")) == 100
store.close()
store = open_store(folder, identity, Budget(3 << 20, 1), 1).store
position = store.position or 0
assert position <= reached
assert sum(1 for _ in store.scan()) == position * 1000

load = BulkLoad(store, 1)
values = [os.urandom(100) for _ in range(120_000)]
load.add([b"%06d" % number for number in range(120_000)], values, 500)
refused(lambda: load.finish(500, 1))
refused(lambda: load.work(0))
assert not list((folder / "load").iterdir())
assert (store.position or 0) == position
assert sum(1 for _ in store.scan()) == position * 1000
store.close()
print("reached", reached, "kept", position)
"""


def test_a_limit_on_file_sizes_is_a_full_disk(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILLER, str(tmp_path), str(400 << 10)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("reached")


def test_a_full_disk(tmp_path: Path) -> None:
    """On a small disk of its own, where a namespace lets us mount one; else by the limit again."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    run = [sys.executable, "-c", FILLER, str(tmp_path)]
    if shutil.which("unshare") and subprocess.run([*unshare, "true"], check=False).returncode == 0:
        run = [*unshare, "sh", "-c", 'mount -t tmpfs -o size=6m none "$0" && exec "$@"', str(tmp_path), *run]
    else:
        run.append(str(2 << 20))
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 0, "some commits had reached the disk"
