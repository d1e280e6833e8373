"""Ports on the loopback: free ones, and who holds a taken one."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Collection, Mapping

import psutil

from ops.cluster.probes import LOOPBACK
from stack.errors import ClusterFault

HOST = LOOPBACK
LAST_PORT = 65_535
_PATIENCE_S = 2.0


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True


def _comes_free(port: int) -> bool:
    """Whether a port is free, or will be in a moment: a process that was killed holds it until its last
    thread has ended, when it is long gone from the process list.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while not (free := is_free(port)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return free


def free_port(taken: Collection[int]) -> int:
    """A port that nobody listens on and that is not in `taken`.

    Taken below the range that the system hands out for outgoing connections where possible: such a
    port is not lost to somebody's client between two starts of the stack.
    """
    low, high = 20_000, _first_ephemeral_port()
    start = secrets.randbelow(high - low)  # two stacks started at once rarely meet
    for step in range(high - low):
        port = low + (start + step) % (high - low)
        if port not in taken and is_free(port):
            return port
    raise ClusterFault(
        f"no free port from {low} to {high}", hint="Name ports in stack.toml: [embedded] kafka_port."
    )


def _first_ephemeral_port() -> int:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            first = int(file.read().split()[0])
    except (OSError, ValueError):
        return 32_768
    return first if first > 21_000 else 32_768


def holder(port: int) -> str:
    """Who listens on a port, as far as this user may see it: 'pid 123 (java)'."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                name = psutil.Process(connection.pid).name() if connection.pid else "unknown"
                return f"pid {connection.pid} ({name})"
    except (psutil.Error, OSError):
        pass
    return "another process"


def choose_ports(
    wanted: Mapping[str, int], remembered: Mapping[str, int], own: Collection[str]
) -> tuple[dict[str, int], list[str]]:
    """A port for every name, and a sentence for each remembered one that had to change.

    `wanted` holds the port that the settings name, or 0 for any; `own` are names whose port is held by
    our own running process. A port named in the settings is never replaced by another one.
    """
    chosen = _fixed_ports(wanted, own)
    moved = []
    for name, port in wanted.items():
        if port:
            continue
        before = remembered.get(name)
        if before and before not in chosen.values() and (name in own or _comes_free(before)):
            chosen[name] = before
            continue
        chosen[name] = free_port({*chosen.values(), *remembered.values()})
        if before:
            moved.append(f"{name} moves from port {before}, now taken by {holder(before)}, to {chosen[name]}")
    return chosen, moved


def _fixed_ports(wanted: Mapping[str, int], own: Collection[str]) -> dict[str, int]:
    """The ports that the settings name, if they can be had."""
    fixed: dict[str, int] = {}
    for name, port in wanted.items():
        if not port:
            continue
        if port > LAST_PORT:
            raise ClusterFault(
                f"{name} would get port {port}, but {LAST_PORT} is the last",
                hint="Name a lower embedded.kafka_port in stack.toml: further brokers count up from it.",
            )
        if port in fixed.values():
            other = next(one for one, its_port in fixed.items() if its_port == port)
            raise ClusterFault(
                f"port {port} is meant for {other} and for {name}",
                hint="Name different ports in stack.toml (0: a free one); brokers count up from kafka_port.",
            )
        if name not in own and not is_free(port):
            raise ClusterFault(
                f"port {port} for {name} is taken by {holder(port)}",
                hint="Stop that process, or name another port in stack.toml (0: a free one).",
            )
        fixed[name] = port
    return fixed
