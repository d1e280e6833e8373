"""Installs the packages of a requirements.txt into a folder, to be shipped with a job's code."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from stack.deploy.pack import Files, version_of
from stack.deploy.unused import mark_used, remove_unused
from stack.errors import BadConfig, Unavailable

REQUIREMENTS_FILE = "requirements.txt"
_LIMIT_S = 600.0
_TOLD_LINES = 8
# Lines that lead to other files: those may change while the text stays the same.
_LOCAL = re.compile(
    r"-[erc]\b|--(editable|requirement|constraint)\b|\.{0,2}/|.*(\bfile:|\.(whl|tar\.gz|zip)\b)"
)
_COMMENT = re.compile(r"(^|\s)#.*$")


def install(
    files: Files,
    cache: Path,
    note: Callable[[str], None] = lambda _: None,
    limit_s: float = _LIMIT_S,
) -> Path | None:
    """The folder with the packages that a job's requirements.txt names; None if it names none.

    What was installed once for the same text and the same Python is taken from `cache`, and stays there
    until a week after its last use.
    """
    text = files.get(REQUIREMENTS_FILE, b"").decode("utf-8", "replace")
    lines = [stripped for line in text.splitlines() if (stripped := _COMMENT.sub("", line).strip())]
    if not lines:
        return None
    place = cache / _cache_key(files, lines)
    if place.is_dir():
        mark_used(place)
        return place
    remove_unused(cache)
    note(f"installing the packages of {REQUIREMENTS_FILE}")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".draft-") as draft:
        # Requirements may name wheels that lie beside them.
        source = Path(draft) / "source"
        for name, data in files.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(data)
        site = Path(draft) / "site"
        _run(_command(site), source, limit_s)
        site.mkdir(exist_ok=True)
        try:
            site.rename(place)
        except OSError:
            # Another deploy was first, with the same.
            if not place.is_dir():
                raise
    return place


def _cache_key(files: Files, lines: list[str]) -> str:
    """What the installed packages depend on; files of the job only where a line names one."""
    about = [platform.python_version(), sys.platform, platform.machine(), *lines]
    if any(_LOCAL.match(line) for line in lines):
        about.append(version_of(files))
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:24]


def _command(site: Path) -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        quiet = ("--quiet", "--no-input", "--disable-pip-version-check", "--no-compile")
        tool = [sys.executable, "-m", "pip", "install", *quiet]
    elif (uv := shutil.which("uv")) is not None:
        tool = [uv, "pip", "install", "--quiet", "--python", sys.executable]
    else:
        raise BadConfig(
            f"{REQUIREMENTS_FILE} names packages, but neither pip nor uv is there to install them",
            hint=f"Install one of them: {sys.executable} -m ensurepip",
        )
    return [*tool, "--target", str(site), "-r", REQUIREMENTS_FILE]


def _run(command: list[str], folder: Path, limit_s: float) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"the packages of {REQUIREMENTS_FILE} could not be installed within {limit_s:.0f} s",
            hint="Is the package index reachable? Deploy again later.",
        ) from None
    if done.returncode != 0:
        last = "\n".join(f"    {line}" for line in done.stdout.strip().splitlines()[-_TOLD_LINES:])
        raise BadConfig(
            f"the packages of {REQUIREMENTS_FILE} cannot be installed:\n{last}",
            hint="Correct the line that it names, or see whether the package index is reachable.",
        )
