"""What `stack up`, `stack down` and `stack status` do."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import psutil

from ops.cluster import processes
from ops.cluster.files import locked, read_json
from ops.cluster.jars import kafka_jars
from ops.cluster.java import find_java
from ops.cluster.layout import Cluster, Layout, new_cluster, read_cluster, recall_cluster, write_cluster
from ops.cluster.place import place_words
from ops.cluster.ports import choose_ports
from ops.cluster.restart import State
from ops.cluster.services import wanted_ports
from stack.errors import ClusterFault, CorruptState
from stack.model.duration import format_size
from stack.settings import Settings

READY_LIMIT_S = 120.0
STOP_LIMIT_S = 90.0
LEAST_FREE_BYTES = 256 << 20
Say = Callable[[str], None]


@dataclass(frozen=True)
class ServiceStatus:
    """One line of `stack status`."""

    name: str
    state: str
    pid: int | None
    port: int
    uptime_s: float | None
    memory_bytes: int
    restarts: int
    reason: str
    log: str


def up(settings: Settings, brokers: int | None, say: Say) -> None:
    """Start the stack, or find it running; returns when all its parts answer."""
    if settings.kafka is not None and settings.http_url is not None and not settings.runner:
        raise ClusterFault(
            "nothing of this stack runs on this machine: its settings name Kafka, ZooKeeper and the HTTP "
            "service elsewhere, and runner.enabled is false",
            hint="Use it as it is (`stack doctor` looks at it), or start it where it runs; the cluster of "
            "docker-compose.yml: `stack compose up`.",
        )
    layout = Layout(settings.data)
    try:
        layout.data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterFault(
            f"the data folder {layout.data} cannot be made: {error.strerror}",
            hint='Name another one in stack.toml: data = "..."',
        ) from None
    with locked(layout.lock_file):
        found = processes.find(layout.data)
        if processes.SUPERVISOR not in found:
            _prepare(settings, layout, brokers, found, say)
            pid = processes.spawn(_supervisor_command(settings), layout.logs / "supervisor.out")
        else:
            _refuse_other_size(read_cluster(layout), brokers)
            pid = found[processes.SUPERVISOR].pid
        try:
            _wait_ready(layout, pid, say)
        except (ClusterFault, KeyboardInterrupt):
            _stop_all(layout)
            raise


def down(settings: Settings, say: Say) -> bool:
    """Stop everything of this stack; False if nothing ran."""
    layout = Layout(settings.data)
    if not layout.data.exists():
        return False
    with locked(layout.lock_file):
        found = processes.find(layout.data)
        if found:
            say(f"stopping {', '.join(sorted(found))}")
        _stop_all(layout)
    return bool(found)


def status(settings: Settings) -> list[ServiceStatus]:
    """What runs now. Looks at the processes themselves: what is written down may be stale."""
    layout = Layout(settings.data)
    found = processes.find(layout.data)
    written = _services_written(layout) if processes.SUPERVISOR in found else {}
    cluster = read_cluster(layout)
    names = [*written] or [name for name in found if name != processes.SUPERVISOR]
    # A supervisor that has not written anything yet has just begun. Without one nobody vouches for a
    # child: it runs, but nobody would start it again.
    unwritten = {"state": State.STARTING if processes.SUPERVISOR in found else "orphan"}
    rows = [_service_status(name, written.get(name, unwritten), found.get(name), cluster) for name in names]
    if processes.SUPERVISOR in found:
        supervisor = _service_status(processes.SUPERVISOR, {}, found[processes.SUPERVISOR], cluster)
        log = str(layout.logs / "supervisor.log")
        rows.append(replace(supervisor, state=str(State.READY), log=log))
    return rows


def _service_status(
    name: str, written: Mapping[str, object], process: psutil.Process | None, cluster: Cluster | None
) -> ServiceStatus:
    state = str(written.get("state", ""))
    started = process.create_time() if process else None
    return ServiceStatus(
        name=name,
        state=state if process or state in (State.RESTARTING, State.FAILED) else "gone",
        pid=process.pid if process else None,
        port=cluster.ports.get(name, 0) if cluster else 0,
        uptime_s=time.time() - started if started else None,
        memory_bytes=processes.resident_bytes(process) if process else 0,
        restarts=int(str(written.get("restarts", 0))),
        reason=str(written.get("reason", "")),
        log=str(written.get("log", "")),
    )


def _services_written(layout: Layout, supervisor_pid: int | None = None) -> dict[str, dict[str, object]]:
    """What run.json says, of this supervisor if one is named; a garbled file says nothing, since the
    supervisor writes it anew."""
    try:
        state = read_json(layout.run_file)
    except CorruptState:
        return {}
    if not isinstance(state, dict) or not isinstance(state.get("services"), dict):
        return {}
    return state["services"] if supervisor_pid in (None, state.get("supervisor")) else {}


def _prepare(
    settings: Settings, layout: Layout, brokers: int | None, found: Mapping[str, psutil.Process], say: Say
) -> None:
    """Check everything that can be checked before a process starts, and settle the ports."""
    if found:
        names = ", ".join(f"{name} (pid {process.pid})" for name, process in sorted(found.items()))
        say(f"the last supervisor is gone, taking over {names}")
    free = shutil.disk_usage(layout.data).free
    if free < LEAST_FREE_BYTES:
        raise ClusterFault(
            f"the disk of {layout.data} has only {format_size(free)} left, "
            f"{format_size(LEAST_FREE_BYTES)} are needed",
            hint="Free some space, or name a data folder on another disk in stack.toml.",
        )
    cluster = read_cluster(layout) or recall_cluster(layout)
    cluster = cluster or new_cluster(brokers or settings.embedded.brokers)
    _refuse_other_size(cluster, brokers)
    if settings.kafka is None:
        kafka_jars(find_java(settings.embedded.java), say)
    own = {*found, *(f"{name}-controller" for name in found)}
    ports, moved = choose_ports(wanted_ports(settings, cluster.brokers), cluster.ports, own)
    for sentence in moved:
        say(sentence)
    write_cluster(layout, replace(cluster, ports=ports))
    layout.run_file.unlink(missing_ok=True)


def _refuse_other_size(cluster: Cluster | None, brokers: int | None) -> None:
    if cluster and brokers and brokers != cluster.brokers:
        raise ClusterFault(
            f"this data folder holds a cluster of {cluster.brokers} broker(s), not {brokers}",
            hint="A cluster keeps its size: name another data folder, or start without --brokers.",
        )


def _supervisor_command(settings: Settings) -> list[str]:
    marker = processes.mark(settings.data, processes.SUPERVISOR)
    return [sys.executable, "-m", "ops.cluster.supervisor", marker, *place_words(settings)]


def _wait_ready(layout: Layout, supervisor_pid: int, say: Say) -> None:
    """Follow run.json until every service answers; say each step; raise with the reason if one cannot."""
    begun = time.monotonic()
    told: set[str] = set()
    while True:
        services = _services_written(layout, supervisor_pid)
        for name, service in services.items():
            if service["state"] == State.READY and name not in told:
                told.add(name)
                where = f" on port {service['port']}" if service["port"] else ""
                say(f"{name} answers{where} ({time.monotonic() - begun:.1f} s)")
            if service["state"] == State.FAILED:
                raise ClusterFault(
                    f"{name} cannot start: {service['reason']}", hint=f"Its log: {service['log']}"
                )
        if services and len(told) == len(services):
            return
        if not psutil.pid_exists(supervisor_pid) or _is_zombie(supervisor_pid):
            raise ClusterFault(
                "the supervisor ended at once: " + _last_line(layout),
                hint=f"Its log: {layout.logs}/supervisor.out",
            )
        if time.monotonic() - begun > READY_LIMIT_S:
            late = ", ".join(sorted(set(services) - told)) or "nothing"
            raise ClusterFault(
                f"after {READY_LIMIT_S:.0f} s still waiting for {late}",
                hint=f"Their logs are in {layout.logs}.",
            )
        time.sleep(0.05)


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _last_line(layout: Layout) -> str:
    try:
        lines = (layout.logs / "supervisor.out").read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it left no message"


def _stop_all(layout: Layout) -> None:
    """The supervisor stops its children; what it leaves, and what it never owned, is stopped here."""
    found = processes.find(layout.data)
    if processes.SUPERVISOR in found:
        processes.stop(found.pop(processes.SUPERVISOR), STOP_LIMIT_S)
    for _, process in processes.find_all(layout.data):
        processes.stop(process, 20)
    layout.endpoints_file.unlink(missing_ok=True)
    layout.run_file.unlink(missing_ok=True)
