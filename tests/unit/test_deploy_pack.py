"""From a folder to one zip and back: the same bytes for the same files, what is left out, what is refused."""

from __future__ import annotations

import io
import multiprocessing
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.deploy import requirements
from stack.deploy.pack import pack, read_files, version_of
from stack.deploy.requirements import install
from stack.deploy.unpack import unpack, unpacked
from stack.errors import BadConfig, CorruptState, Unavailable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "count"
    (made / "parts").mkdir(parents=True)
    (made / "job.py").write_text("import parts.one\n")
    (made / "parts" / "__init__.py").write_text("")
    (made / "parts" / "one.py").write_text("ONE = 1\n")
    (made / "count.avsc").write_text('{"type": "string"}')
    (made / "job.toml").write_text("containers = 1\n")
    return made


def names_in(data: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(data)).namelist()


def test_all_is_packed_but_settings_caches_and_hidden_files(folder: Path) -> None:
    for name in ("__pycache__/one.pyc", ".git/config", ".hidden", "parts/__pycache__/x.pyc", "old.pyc"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    assert names_in(pack(read_files(folder)).data) == [
        "count.avsc",
        "job.py",
        "parts/__init__.py",
        "parts/one.py",
    ]


def test_what_tests_a_job_is_no_part_of_it(folder: Path) -> None:
    before = pack(read_files(folder))
    for name in ("invariant.py", "conftest.py", "test_job.py", "parts/test_one.py", "tests/a/views.jsonl"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    assert pack(read_files(folder)) == before
    for name in ("parts/invariant.py", "test_data/ages.csv"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("part of the code\n")
        assert name in read_files(folder)


def test_the_same_files_are_the_same_bytes_whenever_they_were_written(folder: Path) -> None:
    first = pack(read_files(folder))
    for file in folder.rglob("*.py"):
        os.utime(file, (1, 1))
        file.chmod(0o755)
    assert pack(read_files(folder)) == first


def test_the_version_is_of_code_requirements_and_schemas_not_of_settings(folder: Path) -> None:
    versions = [version_of(read_files(folder))]
    (folder / "job.toml").write_text("containers = 2\n")
    assert version_of(read_files(folder)) == versions[0]
    for name in ("job.py", "count.avsc", "requirements.txt", "parts/two.py"):
        with (folder / name).open("a") as file:
            file.write("\n")
        versions.append(version_of(read_files(folder)))
    assert len(set(versions)) == len(versions)
    assert all(len(one) == 12 for one in versions)


@given(st.dictionaries(st.text("ab/", min_size=1), st.binary(max_size=3), max_size=4))
def test_versions_differ_where_files_do(files: dict[str, bytes]) -> None:
    assert version_of(files) == version_of(dict(reversed(files.items())))
    moved = {f"{name}a": data for name, data in files.items()}
    assert not files or version_of(moved) != version_of(files)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda f: (f / "out.py").symlink_to("/etc/hostname"), "out.py: a link that leads out of the folder"),
        (lambda f: (f / "all").symlink_to(f / "parts"), "all: a link to a folder"),
        (lambda f: (f / "broken.py").symlink_to(f / "nothing"), "broken.py: neither a file nor a folder"),
        (lambda f: os.mkfifo(f / "pipe"), "pipe: neither a file nor a folder"),
        (lambda f: (f / "queue.py").write_text(""), "queue.py: it would take the place of"),
        (
            lambda f: [(f / "stack").mkdir(), (f / "stack/__init__.py").write_text("")],
            "stack/__init__.py: it wo",
        ),
        (lambda f: [(f / "site").mkdir(), (f / "site/x.py").write_text("")], "site/x.py: site/ is where"),
    ],
)
def test_what_cannot_be_shipped_is_named(folder: Path, make: Callable[[Path], object], says: str) -> None:
    make(folder)
    with pytest.raises(BadConfig) as caught:
        read_files(folder)
    (fault,) = caught.value.faults
    assert fault.startswith(says)


def test_a_link_inside_the_folder_is_packed_as_its_file(folder: Path) -> None:
    (folder / "again.py").symlink_to(folder / "parts" / "one.py")
    assert read_files(folder)["again.py"] == b"ONE = 1\n"


def test_a_folder_that_is_no_job_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="there is no folder"):
        read_files(tmp_path / "nothing")
    with pytest.raises(BadConfig, match=r"holds no job\.py"):
        read_files(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadConfig, match="is not a folder"):
        read_files(tmp_path / "file")


def test_what_is_too_large_is_refused_with_the_largest(folder: Path) -> None:
    (folder / "model.bin").write_bytes(os.urandom(4_000))
    with pytest.raises(BadConfig, match=r"largest: model\.bin \(3\.9 KB\)"):
        read_files(folder, limit_bytes=2_000)
    files = read_files(folder)
    site = folder.parent / "site"
    (site / "big").mkdir(parents=True)
    for number in range(3):
        (site / "big" / f"{number}.bin").write_bytes(os.urandom(3_000))
    with pytest.raises(BadConfig, match=r"largest: site/big \("):
        pack(files, site, limit_bytes=6_000)


# Packages of requirements.txt


def wheel(folder: Path, name: str = "tinything") -> Path:
    """A wheel made by hand: nothing is fetched."""
    file = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", "VALUE = 41\n")
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return file


def test_packages_are_installed_once_and_shipped_without_traces_of_this_machine(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "requirements.txt").write_text(f"# ours\n./{wheel(folder).name}\n")
    files = read_files(folder)
    site = install(files, tmp_path / "cache")
    packed = pack(files, site)
    shipped = [name for name in names_in(packed.data) if name.startswith("site/")]
    assert shipped == [
        "site/tinything-1.0.dist-info/METADATA",
        "site/tinything-1.0.dist-info/WHEEL",
        "site/tinything.py",
    ]
    assert str(tmp_path).encode() not in packed.data
    monkeypatch.setattr(requirements, "_run", lambda *_: pytest.fail("it is in the cache"))
    assert install(files, tmp_path / "cache") == site
    target = tmp_path / "unpacked"
    target.mkdir()
    unpack(packed.data, target)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import tinything; print(tinything.VALUE)"
    done = subprocess.run([sys.executable, "-c", code, target / "site"], capture_output=True, check=True)
    assert done.stdout == b"41\n"


@pytest.mark.parametrize("text", [None, "", "# nothing\n\n   # still nothing\n"])
def test_no_requirements_need_no_folder(folder: Path, tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (folder / "requirements.txt").write_text(text)
    assert install(read_files(folder), tmp_path / "cache") is None


def test_a_requirement_that_cannot_be_had_is_told_in_the_words_of_pip(folder: Path, tmp_path: Path) -> None:
    (folder / "requirements.txt").write_text("./nothing-1.0-py3-none-any.whl\n")
    with pytest.raises(BadConfig, match=r"cannot be installed:\n(.|\n)*nothing-1\.0") as caught:
        install(read_files(folder), tmp_path / "cache")
    assert "Correct the line" in caught.value.hint
    assert [path.name for path in (tmp_path / "cache").iterdir()] == []


def test_what_is_cached_depends_on_text_and_on_files_that_it_names(folder: Path) -> None:
    files = dict(read_files(folder))

    def key(*lines: str) -> str:
        return requirements._cache_key(files, list(lines))

    far, near = key("httpx==1"), key("./x-1-py3-none-any.whl")
    assert key("httpx==2") != far
    files["job.py"] = b"changed"
    assert key("httpx==1") == far
    assert key("./x-1-py3-none-any.whl") != near


# Unpacking into the data folder


def test_code_that_nobody_uses_any_more_goes_when_other_code_comes(folder: Path, tmp_path: Path) -> None:
    packed = pack(read_files(folder))
    codes = tmp_path / "data" / "code"
    for name, days in (("used", 6), ("unused", 8), (".draft-of-a-killed-process", 8)):
        (codes / name).mkdir(parents=True)
        os.utime(codes / name, (time.time() - days * 86_400,) * 2)
    place = unpacked(tmp_path / "data", packed.sha256, lambda: packed.data)
    assert {one.name for one in codes.iterdir()} == {"used", place.name}
    os.utime(place, (0, 0))
    unpacked(tmp_path / "data", packed.sha256, lambda: packed.data)
    assert time.time() - place.stat().st_mtime < 60


def test_code_is_unpacked_once(folder: Path, tmp_path: Path) -> None:
    packed = pack(read_files(folder))
    place = unpacked(tmp_path / "data", packed.sha256, lambda: packed.data)
    assert (place / "parts" / "one.py").read_text() == "ONE = 1\n"
    again = unpacked(tmp_path / "data", packed.sha256, lambda: pytest.fail("it is there"))
    assert again == place == tmp_path / "data" / "code" / packed.sha256


@pytest.mark.parametrize(
    "harm",
    [
        lambda place: (place / "job.py").unlink(),
        lambda place: (place / "job.py").write_text("half"),
        lambda place: (place / ".files.json").unlink(),
        lambda place: (place / ".files.json").write_text("[]"),
    ],
)
def test_a_folder_that_is_not_whole_is_replaced(
    folder: Path, tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    packed = pack(read_files(folder))
    place = unpacked(tmp_path, packed.sha256, lambda: packed.data)
    harm(place)
    unpacked(tmp_path, packed.sha256, lambda: packed.data)
    assert (place / "job.py").read_text() == "import parts.one\n"
    assert [path.name for path in place.parent.iterdir()] == [packed.sha256]


def _unpack_and_look(data_folder: Path, sha256: str, data: bytes) -> str:
    return (unpacked(data_folder, sha256, lambda: data) / "job.py").read_text()


def test_several_processes_may_unpack_at_once(folder: Path, tmp_path: Path) -> None:
    packed = pack(read_files(folder))
    with multiprocessing.get_context("fork").Pool(4) as pool:
        seen = pool.starmap(_unpack_and_look, [(tmp_path, packed.sha256, packed.data)] * 12, chunksize=1)
    assert set(seen) == {"import parts.one\n"}
    assert [path.name for path in (tmp_path / "code").iterdir()] == [packed.sha256]


def test_bytes_that_are_no_zip_are_corrupt(tmp_path: Path) -> None:
    with pytest.raises(CorruptState, match="cannot be unpacked"):
        unpacked(tmp_path, "abc", lambda: b"junk")
    assert list((tmp_path / "code").iterdir()) == []


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "code").write_text("a file where a folder should be")
    packed = pack(read_files(folder))
    with pytest.raises(Unavailable, match="cannot be unpacked into"):
        unpacked(tmp_path, packed.sha256, lambda: packed.data)
