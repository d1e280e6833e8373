"""ZooKeeper as a child process, run from the jars that come with pyspark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ops.cluster.files import make_empty, write_atomically
from ops.cluster.jars import spark_jars
from ops.cluster.java import Java
from ops.cluster.layout import Layout
from ops.cluster.logging_conf import log4j_properties
from ops.cluster.ports import HOST
from ops.cluster.probes import answers_ruok
from ops.cluster.processes import mark
from ops.cluster.properties import properties_text
from ops.cluster.service import Service
from stack.errors import ClusterFault

NAME = "zookeeper"
# Only these: with all of Spark's jars on the class path the start takes twice as long.
_JARS = (
    "zookeeper-*",
    "slf4j-api-*",
    "log4j-*",
    "netty-*",
    "metrics-core-*",
    "snappy-java-*",
    "commons-io-*",
)


def zookeeper_service(layout: Layout, java: Java, port: int, heap_bytes: int) -> Service:
    """A single ZooKeeper server on the loopback, admin server off."""
    conf = layout.conf / NAME
    log = layout.logs / "zookeeper.log"
    command = [
        java.command,
        mark(layout.data, NAME),
        f"-Djava.io.tmpdir={layout.temporary(NAME)}",
        *java_words(heap_bytes, conf / "log4j2.properties"),
        "org.apache.zookeeper.server.ZooKeeperServerMain",
        str(conf / "zoo.cfg"),
    ]

    def prepare() -> None:
        make_empty(layout.temporary(NAME))
        write_atomically(conf / "zoo.cfg", properties_text(_settings(layout.service(NAME), port)))
        loggers = {"org.apache.zookeeper.server.ZooKeeperServerMain": "info"}
        write_atomically(conf / "log4j2.properties", log4j_properties(log, "warn", loggers))
        layout.service(NAME).mkdir(parents=True, exist_ok=True)

    return Service(NAME, port, command, log, prepare, lambda: answers_ruok(port), explain, patience_s=10.0)


def java_words(heap_bytes: int, log4j: Path) -> list[str]:
    """The words for the JVM of a ZooKeeper server, with its classes."""
    return [
        "-XX:+PerfDisableSharedMem",
        f"-Xmx{heap_bytes >> 20}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:+ExitOnOutOfMemoryError",
        "-Xshare:auto",
        "-Dzookeeper.admin.enableServer=false",
        f"-Dlog4j2.configurationFile={log4j}",
        "-cp",
        _class_path(),
    ]


def _class_path() -> str:
    """Where its classes are; ClusterFault if there are none."""
    jars = [str(jar) for pattern in _JARS for jar in sorted(spark_jars().glob(f"{pattern}.jar"))]
    if not jars:
        raise ClusterFault(f"no ZooKeeper in {spark_jars()}", hint="Reinstall pyspark: `make clean setup`.")
    return ":".join(jars)


def _settings(data: Path, port: int) -> Mapping[str, object]:
    return {"clientPort": port, "clientPortAddress": HOST, **common_settings(data)}


def common_settings(data: Path) -> Mapping[str, object]:
    """What every ZooKeeper server of ours has in its zoo.cfg."""
    return {
        "dataDir": data,
        "tickTime": 1000,
        "maxClientCnxns": 0,
        "4lw.commands.whitelist": "ruok,srvr",
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 1,
        # The log is preallocated: 64 MB by default, for a few kilobytes of ours.
        "preAllocSize": 1024,
    }


def explain(tail: str) -> str | None:
    """A sentence for what the end of its log says."""
    if "Address already in use" in tail:
        return "its port was taken by another process; run `stack up` again, or name a port in stack.toml"
    if "No space left on device" in tail:
        return "the disk is full; free some space and run `stack up` again"
    if "Unable to load database on disk" in tail:
        return (
            "its files are damaged; restore <data>/zookeeper from a backup, or move it aside to start empty"
        )
    return None
