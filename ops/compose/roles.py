"""What each service of the cluster runs: its command, its files, its environment.

A role prepares its volume and then becomes its server: signals and memory limits reach the server itself.
Addresses come from the environment that docker-compose.yml gives; everything else is fixed here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ops.cluster import kafka_node, runner_node, zookeeper_node
from ops.cluster.files import make_empty, write_atomically
from ops.cluster.jars import cache_folder, kafka_folder, manifest_fault
from ops.cluster.java import find_java
from ops.cluster.kafka_node import Node, broker_properties, format_folder
from ops.cluster.layout import Layout
from ops.cluster.logging_conf import log4j_properties
from ops.cluster.properties import properties_text
from ops.cluster.standalone import MASTER, WORKER
from ops.compose.ports import (
    HTTP_PORT,
    KAFKA_CONTROLLER_PORT,
    KAFKA_OUTSIDE_PORT,
    KAFKA_PORT,
    MASTER_PORT,
    MASTER_UI_PORT,
    WORKER_UI_PORT,
    ZOOKEEPER_PORT,
)
from ops.compose.volume import take_volume
from stack.errors import BadInput, ClusterFault
from stack.model.duration import format_size, parse_size_bytes
from stack.runtime.spark_archive import archive_file, archive_words
from stack.runtime.spark_jvm import jvm_command, jvm_environment
from stack.zookeeper.ensemble import member_line

DATA = Path("/data")
# A worker that is silent for so long is dead to the master.
_WORKER_TIMEOUT_S = 10
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True)
class Server:
    """What a role becomes."""

    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Words:
    """The environment of a service, with a fault for what is missing."""

    given: Mapping[str, str]

    def text(self, name: str) -> str:
        """The value of a variable that must be there."""
        value = self.given.get(name, "").strip()
        if not value:
            raise ClusterFault(
                f"the environment variable {name} is not set",
                hint="docker-compose.yml shows what it should hold.",
            )
        return value

    def number(self, name: str) -> int:
        """The same for a number."""
        value = self.text(name)
        if not value.isdecimal():
            raise ClusterFault(f"{name} is {value!r}, not a number", hint="See docker-compose.yml.")
        return int(value)

    def size(self, name: str) -> int:
        """The same for a size in bytes."""
        value = self.text(name)
        try:
            return parse_size_bytes(value)
        except BadInput as error:
            raise ClusterFault(f"{name}: {error.message}", hint=error.hint) from None


def kafka(words: Words, data: Path = DATA) -> Server:
    """A broker and controller; clients on the host reach it by an address of its own."""
    hosts = words.text("KAFKA_HOSTS").split(",")
    number = words.number("KAFKA_NODE")
    heap = words.size("KAFKA_HEAP")
    if not 1 <= number <= len(hosts):
        raise ClusterFault(
            f"KAFKA_NODE is {number}, but KAFKA_HOSTS names {len(hosts)}", hint="See docker-compose.yml."
        )
    need_memory(heap + (160 << 20), "KAFKA_HEAP")
    jars = kafka_folder()
    host = hosts[number - 1]
    node = Node(
        number,
        len(hosts),
        {"BROKER": f"0.0.0.0:{KAFKA_PORT}", "OUTSIDE": f"0.0.0.0:{KAFKA_OUTSIDE_PORT}"},
        {"BROKER": f"{host}:{KAFKA_PORT}", "OUTSIDE": words.text("KAFKA_OUTSIDE")},
        f"0.0.0.0:{KAFKA_CONTROLLER_PORT}",
        {one: f"{name}:{KAFKA_CONTROLLER_PORT}" for one, name in enumerate(hosts, 1)},
    )
    java = find_java().command
    conf = data / "conf"
    base = [java, f"-Dlog4j2.configurationFile={_logging(conf, kafka_node.LOGGERS)}", "-Xshare:auto"]
    classes = ["-cp", f"{jars}/*"]
    properties = conf / "server.properties"
    folder = data / "kafka"
    write_atomically(properties, broker_properties(folder, node))
    tool = [*base, *classes, "kafka.tools.StorageTool", "format", "-g", "-c", str(properties)]
    format_folder(folder, [*tool, "-t", words.text("KAFKA_CLUSTER_ID")])
    return Server([*base, *kafka_node.java_words(heap), *classes, "kafka.Kafka", str(properties)])


def zookeeper(words: Words, data: Path = DATA) -> Server:
    """A ZooKeeper server: the first one is an ensemble by itself, which further ones join."""
    heap = words.size("ZOOKEEPER_HEAP")
    need_memory(heap + (64 << 20), "ZOOKEEPER_HEAP")
    number, host, first = words.number("ZOOKEEPER_NODE"), words.text("SERVICE"), words.text("ZOOKEEPER_FIRST")
    folder, conf = data / "zookeeper", data / "conf"
    folder.mkdir(exist_ok=True)
    write_atomically(folder / "myid", f"{number}\n")
    settings = {
        **zookeeper_node.common_settings(folder),
        "initLimit": 10,
        "syncLimit": 5,
        "standaloneEnabled": "false",
        "reconfigEnabled": "true",
        # Nobody is asked who they are: the network is the cluster's own.
        "skipACL": "yes",
        "dynamicConfigFile": _ensemble_file(conf, {1: first, number: host}),
    }
    write_atomically(conf / "zoo.cfg", properties_text(settings))
    if number > 1:
        _begin_to_join(number, host, f"{first}:{ZOOKEEPER_PORT}")
    return Server(
        [
            find_java().command,
            *zookeeper_node.java_words(heap, _logging(conf, {})),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(conf / "zoo.cfg"),
        ]
    )


def _ensemble_file(conf: Path, initial: Mapping[int, str]) -> Path:
    """The file with the members: the one that ZooKeeper wrote last, or a new one."""
    for line in _lines(conf / "zoo.cfg"):
        name, _, value = line.partition("=")
        if name == "dynamicConfigFile" and Path(value).is_file():
            return Path(value)
    file = conf / "zoo.cfg.dynamic"
    write_atomically(file, "".join(f"{member_line(*one)}\n" for one in initial.items()))
    return file


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []


def _begin_to_join(number: int, host: str, ensemble: str) -> None:
    """In a process that outlives this one: the server must run before it can become a member."""
    words = [sys.executable, "-m", "ops.compose.ensemble", "join", ensemble, str(number), host]
    # By way of a shell that ends at once, so that nobody but init has to look after it.
    subprocess.run(["/bin/sh", "-c", '"$@" &', "sh", *words], check=True)


def spark_master(words: Words, data: Path = DATA) -> Server:
    """The master of the Spark cluster."""
    place = ["--host", words.text("SERVICE"), "--port", str(MASTER_PORT), "--webui-port", str(MASTER_UI_PORT)]
    return _spark(data, [MASTER, *place], [f"-Dspark.worker.timeout={_WORKER_TIMEOUT_S}"])


def spark_worker(words: Words, data: Path = DATA) -> Server:
    """A worker: it gives places to containers, which keep their state in its volume."""
    memory = words.size("WORKER_MEMORY")
    place = ["--host", words.text("SERVICE"), "--webui-port", str(WORKER_UI_PORT)]
    share = ["--cores", str(words.number("WORKER_SLOTS")), "--memory", f"{memory >> 20}m"]
    work = data / "work"
    # Of executors that are no more.
    make_empty(work)
    cleaning = [f"-Dspark.worker.timeout={_WORKER_TIMEOUT_S}", "-Dspark.worker.cleanup.enabled=true"]
    return _spark(
        data, [WORKER, *place, *share, "--work-dir", str(work), words.text("SPARK_MASTER")], cleaning
    )


def runner(words: Words, data: Path = DATA) -> Server:
    """The Spark application that hosts the jobs."""
    make_empty(Layout(data).temporary(runner_node.NAME))
    return Server([sys.executable, "-m", "ops.runner", "--config", words.text("STACK_CONFIG"), "--console"])


def http(words: Words, data: Path = DATA) -> Server:  # noqa: ARG001
    """Our HTTP service with the schema registry."""
    place = ["--host", "0.0.0.0", "--port", str(HTTP_PORT)]
    return Server(
        [sys.executable, "-m", "ops.service", "--config", words.text("STACK_CONFIG"), *place, "--console"]
    )


ROLES: Mapping[str, Callable[[Words, Path], Server]] = {
    "kafka": kafka,
    "zookeeper": zookeeper,
    "spark-master": spark_master,
    "spark-worker": spark_worker,
    "runner": runner,
    "http": http,
}


def become(role: str, environment: Mapping[str, str], data: Path = DATA) -> Server:
    """Check image and volume, write the files of a role, and return what it is to become."""
    words = Words(environment)
    check_image()
    take_volume(data, words.text("SERVICE"))
    (data / "conf").mkdir(exist_ok=True)
    return ROLES[role](words, data)


def check_image() -> None:
    """Whether everything was built into the image."""
    fault = manifest_fault(kafka_folder())
    if fault is not None:
        raise ClusterFault(
            f"the image is not complete: {fault}",
            hint="Build it again: `docker compose build`, if need be with --no-cache.",
        )


def need_memory(needed_bytes: int, variable: str) -> None:
    """ClusterFault if the service may not use as much memory as its heap and what goes with it."""
    limit = memory_limit()
    if limit is not None and limit < needed_bytes:
        raise ClusterFault(
            f"the memory limit of this service is {format_size(limit)}, but {variable} and what goes with it "
            f"take {format_size(needed_bytes)}",
            hint=f"Raise mem_limit of the service in docker-compose.yml, or lower {variable}.",
        )


def memory_limit(files: tuple[Path, ...] = _CGROUP_LIMITS) -> int | None:
    """How much memory this container may use, if that is limited."""
    for file in files:
        try:
            text = file.read_text("ascii").strip()
        except OSError:
            continue
        return int(text) if text.isdecimal() and int(text) < 1 << 60 else None
    return None


def _spark(data: Path, main: list[str], words: list[str]) -> Server:
    java = find_java().command
    logging = _logging(data / "conf", {})
    archive = archive_words(archive_file(cache_folder(), java))
    temporary = data / "tmp"
    make_empty(temporary)
    words = [*words, *archive, f"-Dlog4j2.configurationFile={logging}", f"-Djava.io.tmpdir={temporary}"]
    environment = {**jvm_environment(os.environ), "SPARK_LOCAL_DIRS": str(temporary)}
    return Server(jvm_command(java, "192m", words, main), environment)


def _logging(conf: Path, loggers: Mapping[str, str]) -> Path:
    file = conf / "log4j2.properties"
    write_atomically(file, log4j_properties(None, "warn", loggers))
    return file
