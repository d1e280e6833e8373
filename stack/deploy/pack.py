"""Packs the folder of a job into one zip, the same bytes for the same files, and names its version."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stack.deploy.settings import SETTINGS_FILE
from stack.errors import BadConfig
from stack.model.duration import format_size
from stack.model.tables import refuse_faults
from stack.tasks.load import JOB_FILE, SITE_FOLDER

MAX_PACKED_BYTES = 64 << 20
VERSION_LENGTH = 12
_OLDEST_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_READABLE = 0o100644 << 16
# A file of the job with such a name would be imported in place of the one that everything else needs.
_TAKEN_MODULES = (sys.stdlib_module_names | {"stack", "changelog"}) - {"test"}

_HINT = f"Name the folder of a job: it holds {JOB_FILE} and {SETTINGS_FILE}."
INVARIANT_FILE = "invariant.py"
# What an installer leaves beside a package; it names folders of this machine.
_TRACES = ("RECORD", "REQUESTED", "INSTALLER", "direct_url.json")

Files = Mapping[str, bytes]
"""Contents by path inside the job's folder, with slashes, in alphabetical order."""


@dataclass(frozen=True)
class Packed:
    """A job's code, ready to be stored. The version stands for what the author wrote, not for `data`."""

    version: str
    sha256: str
    data: bytes


def read_files(folder: Path, limit_bytes: int = MAX_PACKED_BYTES) -> Files:
    """Everything of a job's folder that is shipped: all but job.toml, tests, hidden files and caches."""
    if not folder.is_dir():
        raise BadConfig(
            f"{folder} is not a folder" if folder.exists() else f"there is no folder {folder}",
            hint=_HINT,
        )
    paths, faults = [], []
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        if _is_test(name):
            continue
        fault = _path_fault(path, folder) or _name_fault(name)
        if fault:
            faults.append(f"{name}: {fault}")
        elif name != SETTINGS_FILE:
            paths.append((name, path))
    refuse_faults(str(folder), faults, "Correct them and deploy again.")
    if JOB_FILE not in dict(paths):
        raise BadConfig(f"{folder} holds no {JOB_FILE}", hint=_HINT)
    _refuse_size({name: path.stat().st_size for name, path in paths}, limit_bytes)
    return {name: _read(path) for name, path in sorted(paths)}


def version_of(files: Files) -> str:
    """The version of code, requirements and schemas: it changes if and only if one of them does."""
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        for part in (name.encode(), data):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:VERSION_LENGTH]


def pack(files: Files, site: Path | None = None, limit_bytes: int = MAX_PACKED_BYTES) -> Packed:
    """One zip of a job's files and of the packages that it needs, which lie in the folder `site`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, data in sorted(files.items()):
            _add(archive, name, data)
        for name, path in _site_files(site):
            _add(archive, f"{SITE_FOLDER}/{name}", path.read_bytes())
        sizes = {one.filename: one.compress_size for one in archive.infolist()}
    _refuse_size(_by_package(sizes), limit_bytes)
    data = buffer.getvalue()
    return Packed(version_of(files), hashlib.sha256(data).hexdigest(), data)


def _walk(folder: Path) -> Iterator[Path]:
    for above, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(above) / name).is_symlink()]
        folders[:] = sorted(
            name for name in folders if not _is_hidden(name) and name != "__pycache__" and name not in links
        )
        for name in sorted([*files, *links]):
            if not _is_hidden(name) and not name.endswith(".pyc"):
                yield Path(above) / name


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _is_test(name: str) -> bool:
    """Whether a file tests the job: it lies beside the code, and a new test makes no new version."""
    first, last = name.partition("/")[0], name.rpartition("/")[2]
    return (
        name in (INVARIANT_FILE, "conftest.py")
        or (first == "tests" and first != name)
        or (last.startswith("test_") and last.endswith(".py"))
    )


def _path_fault(path: Path, folder: Path) -> str | None:
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        return f"a link that leads out of the folder, to {path.resolve()}; copy what it leads to"
    if path.is_dir():
        return "a link to a folder; copy what it leads to"
    if not path.is_file():
        return "neither a file nor a folder; remove it"
    return None


def _name_fault(name: str) -> str | None:
    top = name.partition("/")[0]
    if top == SITE_FOLDER and "/" in name:
        return f"{SITE_FOLDER}/ is where the packages of requirements.txt are shipped; rename the folder"
    module = top.removesuffix(".py")
    is_module = name in (f"{module}.py", f"{module}/__init__.py")
    if is_module and module in _TAKEN_MODULES:
        return f"it would take the place of Python's or the stack's own module {module!r}; rename it"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8; rename it"
    return None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}", hint="Check its permissions.") from None


def _site_files(site: Path | None) -> Iterable[tuple[str, Path]]:
    """The installed packages, without what differs from one installation to the next."""
    if site is None:
        return []
    found = []
    for path in sorted(site.rglob("*")):
        name = path.relative_to(site)
        is_trace = name.parts[0] == "bin" or name.name in (
            "RECORD",
            "REQUESTED",
            "INSTALLER",
            "direct_url.json",
        )
        if path.is_file() and not is_trace and "__pycache__" not in name.parts:
            found.append((name.as_posix(), path))
    return found


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    about = zipfile.ZipInfo(name, _OLDEST_ZIP_TIME)
    about.compress_type = zipfile.ZIP_DEFLATED
    about.external_attr = _READABLE
    archive.writestr(about, data)


def _by_package(sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes of files, those of shipped packages added up."""
    found: dict[str, int] = {}
    for name, size_bytes in sizes.items():
        parts = name.split("/")
        about = "/".join(parts[:2]) if parts[0] == SITE_FOLDER else name
        found[about] = found.get(about, 0) + size_bytes
    return found


def _refuse_size(sizes: Mapping[str, int], limit_bytes: int) -> None:
    total = sum(sizes.values())
    if total <= limit_bytes:
        return
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:3]
    told = ", ".join(f"{name} ({format_size(size_bytes)})" for name, size_bytes in largest)
    raise BadConfig(
        f"the job's folder has {format_size(total)}, {format_size(limit_bytes)} are allowed; largest: {told}",
        hint="Keep data elsewhere, such as in a feed that the job reads as bootstrap input.",
    )
