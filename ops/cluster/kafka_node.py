"""One KRaft broker (and controller) as a child process."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.cluster.commands import captured
from ops.cluster.files import make_empty, write_atomically
from ops.cluster.java import Java
from ops.cluster.layout import Cluster, Layout
from ops.cluster.logging_conf import log4j_properties
from ops.cluster.ports import HOST
from ops.cluster.probes import answers_versions
from ops.cluster.processes import mark
from ops.cluster.properties import properties_text
from ops.cluster.service import Service
from stack.errors import ClusterFault

# Written by us after Kafka's format tool has ended well: a folder without it is half made.
_FORMATTED = ".feedstack-formatted"
_FORMAT_LIMIT_S = 60
_CONTROLLER = "CONTROLLER"
LOGGERS = {"kafka.server.KafkaRaftServer": "info", "org.apache.kafka.clients.NetworkClient": "error"}


def broker_name(node: int) -> str:
    return f"kafka-{node}"


def controller_name(node: int) -> str:
    return f"kafka-{node}-controller"


def kafka_service(
    layout: Layout,
    java: Java,
    jars: Path,
    cluster: Cluster,
    *,
    node: int,
    heap_bytes: int,
    words: Sequence[str] = (),
) -> Service:
    """Broker `node` of the cluster; every node is broker and controller. `words` are more for its JVM."""
    name = broker_name(node)
    conf = layout.conf / name
    log = layout.logs / f"{name}.log"
    logging = f"-Dlog4j2.configurationFile={conf / 'log4j2.properties'}"
    base = [java.command, logging, "-Xshare:auto", *words]
    class_path = ["-cp", f"{jars}/*"]
    command = [
        *base,
        mark(layout.data, name),
        # A killed JVM leaves the native libraries that it unpacked: not in everybody's /tmp.
        f"-Djava.io.tmpdir={layout.temporary(name)}",
        *java_words(heap_bytes),
        *class_path,
        "kafka.Kafka",
        str(conf / "server.properties"),
    ]
    port = cluster.ports[name]

    def prepare() -> None:
        folder = layout.service(name)
        make_empty(layout.temporary(name))
        write_atomically(conf / "server.properties", broker_properties(folder, _loopback_node(cluster, node)))
        write_atomically(conf / "log4j2.properties", log4j_properties(log, "warn", LOGGERS))
        tool = [*base, *class_path, "kafka.tools.StorageTool", "format", "-g", "-t", cluster.cluster_id]
        format_folder(folder, [*tool, "-c", str(conf / "server.properties")])

    return Service(
        name, port, command, log, prepare, lambda: answers_versions(port), explain, patience_s=40.0
    )


def format_folder(folder: Path, format_command: list[str]) -> None:
    """Have Kafka format a new log folder; make a half-made one anew, but never touch one that has data."""
    if (folder / _FORMATTED).exists():
        if not (folder / "meta.properties").exists():
            raise ClusterFault(
                f"{folder} was formatted once but its meta.properties is gone",
                hint="Restore that file from a backup, or move the whole data folder aside to start empty.",
            )
        return
    if folder.exists() and _has_data(folder):
        raise ClusterFault(
            f"{folder} holds a broker's data that this stack did not make",
            hint="Name another data folder in stack.toml, or move this one aside.",
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    reason = _format(format_command)
    if reason is not None:
        shutil.rmtree(folder, ignore_errors=True)
        raise ClusterFault(
            f"{folder} could not be formatted: {reason}", hint="Mend that and run `stack up` again."
        )
    (folder / _FORMATTED).touch()


def _format(command: list[str]) -> str | None:
    """Run Kafka's format tool; None when it ended well, else why it did not."""
    try:
        done = captured(command, _FORMAT_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"Kafka's format tool did not end within {_FORMAT_LIMIT_S} seconds"
    except OSError as error:
        return f"{command[0]} cannot be run: {error.strerror}"
    if done.returncode == 0:
        return None
    said = (done.stderr or done.stdout).strip().splitlines()
    return explain(done.stderr + done.stdout) or (said[-1] if said else f"exit code {done.returncode}")


def _has_data(folder: Path) -> bool:
    """Whether a log folder holds more than Kafka's own metadata: any topic partition."""
    return any(
        entry.is_dir() and not entry.name.startswith("__cluster_metadata") and any(entry.glob("*.log"))
        for entry in folder.iterdir()
    )


@dataclass(frozen=True)
class Node:
    """One broker of a cluster: what it listens on, how clients reach it, and who votes with it.

    Listeners are by name, as host:port; the one that brokers use among themselves comes first.
    """

    number: int
    brokers: int
    listeners: Mapping[str, str]
    advertised: Mapping[str, str]
    controller: str
    voters: Mapping[int, str]


def _loopback_node(cluster: Cluster, number: int) -> Node:
    address = f"{HOST}:{cluster.ports[broker_name(number)]}"
    nodes = range(1, cluster.brokers + 1)
    voters = {one: f"{HOST}:{cluster.ports[controller_name(one)]}" for one in nodes}
    return Node(number, cluster.brokers, {"BROKER": address}, {"BROKER": address}, voters[number], voters)


def broker_properties(folder: Path, node: Node) -> str:
    """The settings of one broker and controller."""
    in_sync = 2 if node.brokers >= 3 else 1
    names = [*node.listeners, _CONTROLLER]
    listeners = {**node.listeners, _CONTROLLER: node.controller}
    values: Mapping[str, object] = {
        "process.roles": "broker,controller",
        "node.id": node.number,
        "controller.quorum.voters": ",".join(f"{one}@{place}" for one, place in node.voters.items()),
        "controller.listener.names": _CONTROLLER,
        "listeners": ",".join(f"{name}://{place}" for name, place in listeners.items()),
        "advertised.listeners": ",".join(f"{name}://{place}" for name, place in node.advertised.items()),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
        "inter.broker.listener.name": names[0],
        "log.dirs": folder,
        # Feeds are made by `stack feeds apply`; a mistyped name must not make one.
        "auto.create.topics.enable": "false",
        "default.replication.factor": node.brokers,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": node.brokers,
        "offsets.topic.num.partitions": 8,
        "transaction.state.log.replication.factor": node.brokers,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": 8,
        "share.coordinator.state.topic.replication.factor": node.brokers,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "num.replica.fetchers": 1,
        "log.cleaner.threads": 1,
        # 128 MB by default: a quarter of the heap that we give.
        "log.cleaner.dedupe.buffer.size": 16 << 20,
        "replica.lag.time.max.ms": 10_000,
        # A broker that was killed may come back only when its session is over. Where it is the only one it
        # stands and falls with its controller: nobody else could lead. But one that only stood still for so
        # long is shut out for a moment, and whoever asks then is told that there is no broker (decision 19).
        "broker.session.timeout.ms": 6_000 if node.brokers > 1 else 3_000,
        "broker.heartbeat.interval.ms": 2_000 if node.brokers > 1 else 300,
        "controller.quorum.election.timeout.ms": 500,
        "controller.quorum.fetch.timeout.ms": 1_000,
    }
    return properties_text(values)


def java_words(heap_bytes: int) -> list[str]:
    """The words for the JVM of a broker."""
    return [
        "-XX:+PerfDisableSharedMem",
        f"-Xms{min(heap_bytes, 256 << 20) >> 20}m",
        f"-Xmx{heap_bytes >> 20}m",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=20",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:MaxDirectMemorySize=128m",
        "-Djava.awt.headless=true",
    ]


def explain(tail: str) -> str | None:
    """A sentence for what the end of its log says."""
    if "Address already in use" in tail:
        return "its port was taken by another process; run `stack up` again, or name a port in stack.toml"
    if "No space left on device" in tail:
        return "the disk is full; free some space and run `stack up` again"
    if "Failed to acquire lock on file .lock" in tail:
        return "another Kafka process holds its log folder; stop that process first"
    if "OutOfMemoryError" in tail:
        return "its heap is too small; raise embedded.kafka_heap in stack.toml"
    if "Too many open files" in tail:
        return "this user may open too few files; raise the limit (ulimit -n 65536)"
    return None
