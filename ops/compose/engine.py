"""The container engine of this machine: commands for it, and whether it will do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.cluster.commands import captured
from ops.cluster.doctor import Finding, fault, ok
from ops.cluster.ports import holder, is_free
from ops.compose import PROFILES
from stack.errors import ClusterFault
from stack.model.duration import format_size

ROOT = Path(__file__).resolve().parents[2]
# Health checks that come quickly at the start, and slowly later, need this.
_LEAST_ENGINE, _LEAST_COMPOSE = (25, 0), (2, 20)
_QUICK_S, _LONG_S = 30.0, 1_800.0
_LEAST_DISK_BYTES = 4 << 30
_ENGINE_HINT = (
    "Start it (systemctl start docker, or Docker Desktop). On a Debian machine without one, or without an "
    "image registry, as root: ops/compose/engine.sh up"
)
ALL_PROFILES = (*PROFILES, "tools")
_PORTS = {
    "KAFKA_1_PORT": 19092,
    "KAFKA_2_PORT": 19093,
    "KAFKA_3_PORT": 19094,
    "ZOOKEEPER_PORT": 12181,
    "SPARK_UI_PORT": 18080,
    "HTTP_PORT": 18081,
}


@dataclass(frozen=True)
class Compose:
    """One cluster of docker-compose.yml: its project's name, and what is different from the file."""

    project: str = "feedstack"
    environment: Mapping[str, str] = field(default_factory=dict)
    profiles: Sequence[str] = ()

    @property
    def ports(self) -> dict[str, int]:
        """The ports on this machine, by their variable."""
        given = {**os.environ, **self.environment}
        return {name: int(given.get(name) or port) for name, port in _PORTS.items()}

    def command(self, *words: str) -> list[str]:
        """A command of docker compose for this cluster."""
        profiles = [word for profile in self.profiles for word in ("--profile", profile)]
        file = ["--project-directory", str(ROOT), "-f", str(ROOT / "docker-compose.yml")]
        return ["docker", "compose", "-p", self.project, *file, *profiles, *words]

    def run(self, *words: str, limit_s: float = _LONG_S) -> str:
        """Run it to its end; ClusterFault with the last it said, if that went wrong."""
        return run(self.command(*words), limit_s, self.environment)

    def show(self, *words: str) -> int:
        """Run it for a person who watches; its exit code."""
        return subprocess.call(self.command(*words), env={**os.environ, **self.environment})

    def containers(self) -> list[dict[str, Any]]:
        """What docker knows of the containers of this cluster, also of those that have stopped."""
        filter_ = f"label=com.docker.compose.project={self.project}"
        names = run(["docker", "ps", "-aq", "--filter", filter_], _QUICK_S).split()
        return json.loads(run(["docker", "inspect", *names], _QUICK_S)) if names else []

    def left_behind(self) -> list[str]:
        """Everything that docker still has of this cluster."""
        filter_ = ["--filter", f"label=com.docker.compose.project={self.project}"]
        found = []
        for kind, words in (
            ("container", ["ps", "-a", "--format", "{{.Names}}"]),
            ("volume", ["volume", "ls", "--format", "{{.Name}}"]),
            ("network", ["network", "ls", "--format", "{{.Name}}"]),
        ):
            found += [f"{kind} {name}" for name in run(["docker", *words, *filter_], _QUICK_S).split()]
        return found

    def complaints(self) -> Iterator[str]:
        """Why services are not well, each in a line."""
        for one in self.containers():
            service = one["Config"]["Labels"].get("com.docker.compose.service", one["Name"].strip("/"))
            state = one["State"]
            health = state.get("Health") or {}
            if state["Status"] == "running" and health.get("Status", "healthy") == "healthy":
                continue
            said = [entry["Output"].strip() for entry in health.get("Log") or () if entry["Output"].strip()]
            reason = said[-1].splitlines()[-1] if said else state.get("Error") or state["Status"]
            if state.get("OOMKilled"):
                reason = "it was killed because it passed its memory limit; raise mem_limit of the service"
            yield f"{service}: {reason}"


def run(
    command: Sequence[str], limit_s: float = _QUICK_S, environment: Mapping[str, str] | None = None
) -> str:
    """What a command prints; ClusterFault if it fails."""
    try:
        done = captured(command, limit_s, environment={**os.environ, **(environment or {})})
    except OSError as error:
        raise ClusterFault(f"{command[0]} cannot be run: {error.strerror}", hint=_ENGINE_HINT) from None
    except subprocess.TimeoutExpired:
        raise ClusterFault(f"{' '.join(command[:6])} … did not end within {limit_s:.0f} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-5:]
        raise ClusterFault(f"{' '.join(command)} failed: {' | '.join(said)}")
    return done.stdout


def examine(compose: Compose) -> Iterator[Finding]:
    """Whether this machine can run the cluster, in the order in which it would fail."""
    if shutil.which("docker") is None:
        yield fault("docker", "there is no docker command", f"Install Docker. {_ENGINE_HINT}")
        return
    try:
        about = json.loads(run(["docker", "info", "--format", "{{json .}}"]))
    except ClusterFault as error:
        yield fault("engine", error.message, _ENGINE_HINT)
        return
    if about.get("ServerErrors"):
        yield fault("engine", str(about["ServerErrors"][0]), _ENGINE_HINT)
        return
    yield _engine(str(about.get("ServerVersion", "")))
    plugin = _compose()
    yield plugin
    if plugin.level == "fault":
        return
    yield _memory(compose, int(about.get("MemTotal") or 0))
    yield from _disk(Path(str(about.get("DockerRootDir") or "/")))
    yield from _ports(compose)


def version_of(text: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _engine(version: str) -> Finding:
    if version_of(version) < _LEAST_ENGINE:
        wanted = ".".join(map(str, _LEAST_ENGINE))
        return fault("engine", f"Docker {version} is too old", f"Install Docker {wanted} or newer.")
    return ok("engine", f"Docker {version}")


def _compose() -> Finding:
    wanted = ".".join(map(str, _LEAST_COMPOSE))
    try:
        version = run(["docker", "compose", "version", "--short"]).strip()
    except ClusterFault as error:
        return fault("compose", error.message, f"Install the compose plugin {wanted} or newer.")
    if version_of(version) < _LEAST_COMPOSE:
        return fault("compose", f"docker compose {version} is too old", f"Install {wanted} or newer.")
    return ok("compose", f"docker compose {version}")


def _memory(compose: Compose, total: int) -> Finding:
    try:
        needed = memory_limits(json.loads(compose.run("config", "--format", "json", limit_s=_QUICK_S)))
    except ClusterFault as error:
        return fault("docker-compose.yml", error.message, "Correct it; `docker compose config` shows where.")
    if total < needed:
        return fault(
            "memory",
            f"the engine has {format_size(total)}; the services may use {format_size(needed)} together",
            "Give the engine more memory, or lower mem_limit and the heaps in docker-compose.yml.",
        )
    return ok("memory", f"{format_size(total)} for at most {format_size(needed)} of the services")


def memory_limits(config: Mapping[str, Any]) -> int:
    """The sum of the memory limits of all services."""
    return sum(int(service["mem_limit"]) for service in config["services"].values())


def _disk(folder: Path) -> Iterator[Finding]:
    # The engine of another machine, or of a virtual one, has its disk there.
    if not folder.exists():
        return
    free = shutil.disk_usage(folder).free
    if free < _LEAST_DISK_BYTES:
        yield fault(
            "disk",
            f"{format_size(free)} free at {folder}, {format_size(_LEAST_DISK_BYTES)} are needed",
            "Free some space: `docker system df` tells what takes it.",
        )
    else:
        yield ok("disk", f"{format_size(free)} free at {folder}")


def _ports(compose: Compose) -> Iterator[Finding]:
    running = any(one["State"]["Running"] for one in compose.containers())
    taken = {} if running else {name: port for name, port in compose.ports.items() if not is_free(port)}
    for name, port in taken.items():
        yield fault(
            "ports",
            f"{port} is taken by {holder(port)}",
            f"Stop that process, or choose another one: {name}={port + 1000} docker compose up -d --wait, "
            "and the same port in ops/compose/stack.toml.",
        )
    if not taken:
        yield ok("ports", "held by this cluster" if running else "free")
