"""Processes of this machine: who a runner is, whether another one is dead, and the end of a container."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import psutil

from stack.model.fleet import RunnerPlace

# In the environment of every container: the identity of the process that launched it.
IDENTITY_VARIABLE = "FEEDSTACK_RUNNER"
_SAME_START_S = 1.0


def this_machine() -> str:
    """A name for the room in which pids count: the host, its boot, and its process namespace."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()[:8])
        parts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return "/".join(parts)


def this_place(runner: str, spark: str = "") -> RunnerPlace:
    """This process as a runner."""
    return RunnerPlace(runner, this_machine(), os.getpid(), psutil.Process().create_time(), spark)


def is_dead(place: RunnerPlace) -> bool:
    """Whether a runner is known to be dead: it was a process of this machine, and is one no more."""
    if place.host != this_machine():
        return False
    try:
        process = psutil.Process(place.pid)
        if abs(process.create_time() - place.started) > _SAME_START_S:
            return True
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def is_former_self(place: RunnerPlace, own: RunnerPlace) -> bool:
    """Whether a runner is this very one under an earlier session, with which it has ended.

    Its id is that of its process, and the number of the session.
    """
    return place.id != own.id and place.id.rpartition(".")[0] == own.id.rpartition(".")[0] != ""


def kill_container(host: str, pid: int, identity: str) -> bool:
    """Kill a container's process, also one that stands still, if it is surely one of ours.

    A pid alone proves nothing: it may be on another machine, or belong to somebody else by now.
    """
    if host != socket.gethostname():
        return False
    try:
        process = psutil.Process(pid)
        if process.environ().get(IDENTITY_VARIABLE) != identity:
            return False
        process.kill()
    except psutil.Error:
        return False
    return True
