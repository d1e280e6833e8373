"""The processes of one stack, known by a mark on their command line rather than by a pid in a file.

A pid file can be stale, or its number can belong to somebody else by now; the mark cannot.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from ops.cluster.jars import cache_folder

SUPERVISOR = "supervisor"
_MAX_OUTPUT_BYTES = 1 << 20
# Children find our packages also where they are run from a checkout that was not installed.
_PACKAGES = str(Path(__file__).resolve().parents[2])


def mark(data: Path, name: str) -> str:
    """The argument that tells one process of one stack from all others on the machine."""
    return f"-Dfeedstack.service={data}:{name}"


def find(data: Path) -> dict[str, psutil.Process]:
    """The live processes of the stack in this data folder, by name."""
    return dict(find_all(data))


def find_all(data: Path) -> list[tuple[str, psutil.Process]]:
    """All of them, also those that share a name: what runs beside a service may outlive it."""
    place = mark(data, "").removesuffix(":")
    found: list[tuple[str, psutil.Process]] = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        for word in process.info["cmdline"] or ():
            # Split at the last colon: a folder's name may hold one too.
            head, colon, name = word.rpartition(":")
            if colon and head == place:
                found.append((name, process))
    return found


def spawn(command: Sequence[str], output: Path) -> int:
    """Start a process of its own session, so that it outlives the terminal; its output goes to a file."""
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.exists() and output.stat().st_size > _MAX_OUTPUT_BYTES:
        output.replace(output.with_name(output.name + ".1"))
    with output.open("ab") as file:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=child_environment(),
            cwd=output.parent,
        )
    return process.pid


def child_environment() -> dict[str, str]:
    """The environment of our children.

    Where Python is told not to leave its compiled files beside the sources, they go to our cache: without
    any, a process that loads Arrow, pandas and Spark needs seconds more to start.
    """
    environment = {**os.environ, "PYTHONPATH": _python_path()}
    if sys.dont_write_bytecode:
        folder = str(cache_folder() / "bytecode")
        environment |= {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
    return environment


def _python_path() -> str:
    before = os.environ.get("PYTHONPATH")
    return f"{_PACKAGES}{os.pathsep}{before}" if before else _PACKAGES


def is_alive(process: psutil.Process) -> bool:
    """Whether a process still runs; a zombie that nobody reaped does not."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stop(process: psutil.Process, patience_s: float) -> bool:
    """Ask a process to end, and make it after `patience_s`. Returns whether it went by itself."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(patience_s)
        except psutil.TimeoutExpired:
            process.kill()
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(10)
            return False
    return True


def resident_bytes(process: psutil.Process) -> int:
    """Memory the process holds, 0 if it is gone."""
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
