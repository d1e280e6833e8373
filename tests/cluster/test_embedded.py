"""The embedded cluster's life: up, down, kill -9, taking over, beside another one, three brokers."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from ops.cluster import control, kafka_archive, processes
from ops.cluster.commands import captured
from ops.cluster.jars import kafka_folder
from ops.cluster.java import find_java
from ops.cluster.runner_node import ARCHIVE
from ops.cluster.temporary import temporary_folder, temporary_stack
from stack import Latest, Oldest, Settings, Stack
from stack.errors import ClusterFault
from stack.runtime.spark_archive import archive_words
from stack.settings import read_endpoints
from tests.cluster.conftest import apply
from tests.clusters import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
NO_RUNNER = "[runner]\nenabled = false\n"


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A stack in a folder whose name needs care: with a blank, and letters that Java's files cannot hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("o dd 漢é")))
        life = temporary_stack("life", quiet)
        settings = life.__enter__()
    try:
        assert (settings.data / "kafka-1" / "meta.properties").exists()
        assert (settings.data / "logs" / "kafka-1.log").exists()
        with Stack.connect(settings) as stack:
            apply(stack)
        yield settings
    finally:
        life.__exit__(None, None, None)


def view(number: int) -> dict[str, Any]:
    return {"user": f"u{number}", "page": "/", "ms": int(time.time() * 1000), "load": float(number)}


def write(settings: Settings, numbers: range) -> None:
    with Stack.connect(settings) as stack, stack.writer("page-views") as writer:
        writer.write_many(view(number) for number in numbers)


def numbers(settings: Settings) -> list[int]:
    with Stack.connect(settings) as stack, stack.reader("page-views") as reader:
        reader.seek(Oldest(), until=Latest())
        return sorted(int(record.value["load"]) for record in reader.records())


def kill(settings: Settings, *names: str) -> None:
    found = processes.find(settings.data)
    for name in names:
        os.kill(found[name].pid, signal.SIGKILL)
    wait_for(lambda: not any(processes.is_alive(found[name]) for name in names), f"the end of {names}")


def pids(settings: Settings) -> dict[str, int]:
    found = processes.find(settings.data)
    # Made once and in the background, when a broker or a runner first starts on a machine.
    archives = (ARCHIVE, kafka_archive.NAME)
    return {name: process.pid for name, process in found.items() if name not in archives}


def states(settings: Settings) -> dict[str, str]:
    return {service.name: service.state for service in control.status(settings)}


def test_status_tells_what_runs(embedded: Settings) -> None:
    services = {service.name: service for service in control.status(embedded)}
    assert set(services) == {"kafka-1", "zookeeper", "http", "runner", "supervisor"}
    for service in services.values():
        assert service.state == "ready"
        assert service.pid
        assert service.memory_bytes > 10 << 20
        assert service.uptime_s is not None
    memory = services["kafka-1"].memory_bytes + services["zookeeper"].memory_bytes
    assert memory < 900 << 20


def test_up_again_finds_it_running(embedded: Settings) -> None:
    before = pids(embedded)
    control.up(embedded, None, quiet)
    assert pids(embedded) == before


def test_a_killed_broker_is_started_again_and_loses_nothing(embedded: Settings) -> None:
    write(embedded, range(500))
    kill(embedded, "kafka-1")
    wait_for(lambda: states(embedded).get("kafka-1") == "ready", "the broker's return", 60)
    assert numbers(embedded) == list(range(500))
    restarts = {service.name: service.restarts for service in control.status(embedded)}
    assert restarts["kafka-1"] == 1


def test_a_killed_runner_is_started_again_at_once(embedded: Settings) -> None:
    before = pids(embedded)
    kill(embedded, "runner")
    wait_for(lambda: pids(embedded).get("runner", before["runner"]) != before["runner"], "the next runner", 5)
    wait_for(lambda: states(embedded).get("runner") == "ready", "the runner's return", 60)
    after = pids(embedded)
    assert after["runner-jvm"] != before["runner-jvm"]
    assert {name: after[name] for name in ("kafka-1", "http")} == {
        name: before[name] for name in ("kafka-1", "http")
    }


def test_children_of_a_killed_supervisor_are_taken_over(embedded: Settings) -> None:
    kill(embedded, "supervisor")
    before = pids(embedded)
    assert set(before) == {"kafka-1", "zookeeper", "http", "runner", "runner-jvm"}
    assert set(states(embedded).values()) == {"orphan"}
    heard: list[str] = []
    control.up(embedded, None, heard.append)
    after = pids(embedded)
    assert {name: after[name] for name in before} == before
    assert any("taking over" in line for line in heard)
    assert numbers(embedded) == list(range(500))
    kill(embedded, "zookeeper")
    wait_for(lambda: states(embedded).get("zookeeper") == "ready", "ZooKeeper's return", 60)


def test_everything_survives_kill_9_of_everything(embedded: Settings) -> None:
    write(embedded, range(500, 600))
    ports = {service.name: service.port for service in control.status(embedded)}
    kill(embedded, "supervisor", "kafka-1", "zookeeper", "http", "runner")
    control.up(embedded, None, quiet)
    assert numbers(embedded) == list(range(600))
    assert {service.name: service.port for service in control.status(embedded)} == ports


def test_data_and_ports_survive_down_and_up(embedded: Settings) -> None:
    ports = {service.name: service.port for service in control.status(embedded)}
    found = processes.find(embedded.data)
    assert control.down(embedded, quiet)
    assert processes.find(embedded.data) == {}
    assert not any(processes.is_alive(process) for process in found.values())
    assert not control.down(embedded, quiet)
    control.up(embedded, None, quiet)
    assert {service.name: service.port for service in control.status(embedded)} == ports
    assert numbers(embedded) == list(range(600))


def test_another_number_of_brokers_is_refused(embedded: Settings) -> None:
    with pytest.raises(ClusterFault, match="holds a cluster of 1 broker"):
        control.up(embedded, 3, quiet)
    assert states(embedded)["kafka-1"] == "ready"


def test_a_second_stack_runs_beside_the_first_and_a_broken_one_leaves_nothing(embedded: Settings) -> None:
    with temporary_stack("beside", quiet, NO_RUNNER) as other:
        with Stack.connect(other) as stack:
            assert stack.catalogue.feeds() == {}
        ports = [service.port for settings in (embedded, other) for service in control.status(settings)]
        used = [port for port in ports if port]
        assert len(set(used)) == len(used)
        taken = next(service.port for service in control.status(other) if service.name == "kafka-1")
        with temporary_folder("broken", f"{NO_RUNNER}[embedded]\nkafka_port = {taken}\n") as third:
            with pytest.raises(ClusterFault, match=f"port {taken} for kafka-1 is taken by pid"):
                control.up(third, None, quiet)
            assert processes.find(third.data) == {}
    assert states(embedded)["kafka-1"] == "ready"


def test_a_child_that_cannot_start_is_explained_and_leaves_nothing_behind() -> None:
    with temporary_folder("sick", NO_RUNNER) as settings:
        folder = settings.data / "kafka-1"
        (folder / "orders-0").mkdir(parents=True)
        (folder / "orders-0" / "00000000000000000000.log").write_bytes(b"somebody's")
        with pytest.raises(ClusterFault, match="holds a broker's data that this stack did not make"):
            control.up(settings, None, quiet)
        assert processes.find(settings.data) == {}
        assert (folder / "orders-0" / "00000000000000000000.log").read_bytes() == b"somebody's"


def test_three_brokers_replicate_and_bear_the_loss_of_one() -> None:
    lines = f'{NO_RUNNER}[embedded]\nkafka_heap = "256MB"\n'
    with temporary_stack("three", quiet, lines, brokers=3) as settings:
        with Stack.connect(settings) as stack:
            apply(stack)
            topic = stack.admin.describe(["page-views"])["page-views"]
            assert topic.replication == 3
            assert stack.admin.settings(["page-views"])["page-views"]["min.insync.replicas"] == "2"
        write(settings, range(100))
        # The leader of the catalogue: everything a client asks first would go to it.
        leader = f"kafka-{leader_of(settings, '_three.catalog')}"
        process = processes.find(settings.data)[leader]
        os.kill(process.pid, signal.SIGSTOP)
        try:
            write(settings, range(100, 200))
            assert numbers(settings) == list(range(200))
            assert states(settings)[leader] == "silent"
        finally:
            process.kill()
        wait_for(lambda: states(settings).get(leader) == "ready", leader, 60)
        assert numbers(settings) == list(range(200))


def test_an_archive_of_kafkas_classes_is_made_once_and_fits() -> None:
    java = find_java()
    file = kafka_archive.kafka_archive(java)
    kafka_archive.make(file, java, wait=True)
    made = file.stat().st_mtime_ns
    kafka_archive.make(file, java, wait=True)
    assert file.stat().st_mtime_ns == made
    words = [*archive_words(file), "-Xshare:on", "-cp", f"{kafka_folder()}/*"]
    # With `on` a JVM refuses to start where an archive does not fit.
    said = captured([java.command, *words, "kafka.tools.StorageTool", "random-uuid"], 60)
    assert (said.returncode, len(said.stdout.strip())) == (0, 22), said.stderr


def leader_of(settings: Settings, topic: str) -> int:
    client = AdminClient({"bootstrap.servers": read_endpoints(settings).kafka})
    return int(client.list_topics(topic, timeout=10).topics[topic].partitions[0].leader)
