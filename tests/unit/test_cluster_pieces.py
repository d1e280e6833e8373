"""The pieces of the embedded cluster, each by itself: no JVM, but real sockets and processes."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.cluster import control, http_node, jars, kafka_node, probes, processes, restart, zookeeper_node
from ops.cluster.files import read_json, write_atomically, write_json
from ops.cluster.jars import kafka_jars, manifest_fault
from ops.cluster.java import Java, find_java, parse_version
from ops.cluster.kafka_node import format_folder
from ops.cluster.layout import Layout, new_cluster, read_cluster, write_cluster
from ops.cluster.ports import choose_ports, free_port, is_free
from ops.cluster.restart import Life, State
from ops.cluster.service import Service
from ops.cluster.supervisor import Supervisor
from stack import Settings
from stack.errors import ClusterFault, CorruptState
from tests.clusters import wait_for

# When to start a child again.


def fall_often(life: Life, times: int) -> list[float]:
    """The delay after each of many falls in a row."""
    delays = []
    for _ in range(times):
        life = restart.fell(restart.started(life), now=100.0)
        delays.append(life.start_at - 100.0)
    return delays


def served(now: float = 0.0) -> Life:
    return restart.answered(restart.started(Life()), now)


def test_each_fall_waits_twice_as_long_up_to_half_a_minute() -> None:
    assert fall_often(served(), 9) == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_child_that_served_steadily_begins_with_a_short_delay_again() -> None:
    life = restart.fell(restart.fell(served(), 0.0), 0.0)
    assert life.falls == 2
    life = restart.answered(restart.started(life), 10.0)
    still = restart.answered(life, 10.0 + restart.STEADY_S - 0.1)
    assert restart.fell(still, 100.0).start_at == 102.0
    steady = restart.answered(still, 10.0 + restart.STEADY_S)
    assert restart.fell(steady, 100.0).start_at == 100.5
    assert restart.fell(steady, 100.0).restarts == 3
    assert restart.fell(steady, 100.0, first_delay_s=0.0).start_at == 100.0
    assert restart.fell(restart.fell(steady, 100.0, 0.0), 100.0, 0.0).start_at == 101.0
    assert restart.answered(life, 15.0, steady_s=5.0).falls == 0


def test_a_child_that_never_served_is_given_up_at_its_third_fall() -> None:
    life = Life()
    states = []
    for _ in range(3):
        life = restart.fell(restart.started(life), 0.0)
        states.append(life.state)
    assert states == [State.RESTARTING, State.RESTARTING, State.FAILED]


@given(st.lists(st.sampled_from(["start", "answer", "fall"]), max_size=40))
def test_a_child_that_ever_served_is_never_given_up(events: list[str]) -> None:
    life, now = served(), 0.0
    for event in events:
        now += 7.0
        if event == "fall":
            life = restart.fell(life, now)
            assert 0.5 <= life.start_at - now <= restart.LONGEST_DELAY_S
        else:
            life = restart.started(life) if event == "start" else restart.answered(life, now)
        assert life.state is not State.FAILED


def test_a_child_that_cannot_start_at_all_has_failed() -> None:
    assert restart.failed(Life()).state is State.FAILED


# Ports.


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that this process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_somebody_listens_on_is_not_free(taken: int) -> None:
    assert not is_free(taken)
    assert not is_free(65_536)
    assert is_free(free_port({taken}))


def test_free_ports_are_not_those_named_as_taken() -> None:
    first = free_port(())
    assert all(free_port({first}) != first for _ in range(20))


def test_new_names_get_free_ports_of_their_own() -> None:
    chosen, moved = choose_ports({"a": 0, "b": 0, "c": 0}, {}, ())
    assert len(set(chosen.values())) == 3
    assert all(is_free(port) for port in chosen.values())
    assert moved == []


def test_remembered_ports_are_taken_again() -> None:
    before, _ = choose_ports({"a": 0, "b": 0}, {}, ())
    assert choose_ports({"a": 0, "b": 0}, before, ()) == (before, [])


def test_a_remembered_port_that_is_taken_moves_and_says_so(taken: int) -> None:
    chosen, (sentence,) = choose_ports({"kafka-1": 0, "http": 0}, {"kafka-1": taken}, ())
    assert chosen["kafka-1"] != taken
    assert sentence.startswith(f"kafka-1 moves from port {taken}, now taken by pid {os.getpid()} (")
    assert sentence.endswith(f"to {chosen['kafka-1']}")


def test_a_port_that_a_killed_process_still_holds_is_waited_for() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        closing = threading.Timer(0.3, held.close)
        closing.start()
        assert choose_ports({"kafka-1": 0}, {"kafka-1": port}, ()) == ({"kafka-1": port}, [])
        closing.join()


def test_a_remembered_port_that_the_settings_now_give_to_another_moves() -> None:
    port = free_port(())
    chosen, moved = choose_ports({"a": 0, "b": port}, {"a": port}, ())
    assert chosen["b"] == port
    assert chosen["a"] != port
    assert len(moved) == 1


def test_a_port_of_the_settings_is_never_replaced(taken: int) -> None:
    free = free_port({taken})
    assert choose_ports({"http": free}, {"http": taken}, ()) == ({"http": free}, [])
    with pytest.raises(ClusterFault, match=rf"port {taken} for http is taken by pid {os.getpid()} \("):
        choose_ports({"http": taken}, {}, ())


@pytest.mark.parametrize("fixed", [True, False])
def test_a_port_held_by_our_own_process_is_kept(taken: int, fixed: bool) -> None:
    wanted = {"http": taken if fixed else 0}
    assert choose_ports(wanted, {"http": taken}, {"http"}) == ({"http": taken}, [])


def test_two_names_cannot_have_one_port() -> None:
    port = free_port(())
    with pytest.raises(ClusterFault, match=f"port {port} is meant for zookeeper and for http"):
        choose_ports({"zookeeper": port, "kafka-1": 0, "http": port}, {}, ())


def test_a_port_beyond_the_last_is_refused() -> None:
    with pytest.raises(ClusterFault, match="kafka-2 would get port 65536, but 65535 is the last") as caught:
        choose_ports({"kafka-2": 65_536}, {}, ())
    assert "kafka_port" in caught.value.hint


# Files and what is remembered in them.


def test_a_file_is_replaced_whole_and_its_folder_made(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "run.json"
    write_atomically(file, "one")
    write_atomically(file, "twö")
    assert file.read_text(encoding="utf-8") == "twö"
    assert [entry.name for entry in file.parent.iterdir()] == ["run.json"]


def test_a_write_that_fails_leaves_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.json"
    write_atomically(file, "old")

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(file, "new")
    assert file.read_text() == "old"


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    texts = {letter * 50_000 for letter in "ab"}
    write_atomically(file, "a" * 50_000)
    over = threading.Event()

    def write() -> None:
        for _ in range(40):
            for text in texts:
                write_atomically(file, text)
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = 0
    while not over.is_set():
        assert file.read_text() in texts
        seen += 1
    writer.join()
    assert seen > 0


def test_json_that_is_broken_is_told_what_to_do(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none.json") is None
    write_json(tmp_path / "a.json", {"a": ["é"]})
    assert read_json(tmp_path / "a.json") == {"a": ["é"]}
    for broken in (b"", b"{", b"\xff"):
        (tmp_path / "a.json").write_bytes(broken)
        with pytest.raises(CorruptState, match=r"a\.json is broken") as caught:
            read_json(tmp_path / "a.json")
        assert "a.json.broken" in caught.value.hint


def test_a_cluster_is_remembered_from_start_to_start(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    assert read_cluster(layout) is None
    cluster = replace(new_cluster(3), ports={"kafka-1": 9092, "http": 8081})
    write_cluster(layout, cluster)
    assert read_cluster(layout) == cluster


@pytest.mark.parametrize(
    "text",
    ["[]", "5", "{}", '{"format": 1}', '{"format": 1, "cluster_id": "x", "brokers": 1, "ports": 5}', "{"],
)
def test_a_broken_cluster_file_is_corrupt_state(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(CorruptState, match=r"cluster\.json"):
        read_cluster(Layout(tmp_path))


def test_a_data_folder_of_another_format_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"format": 2, "everything": "else"}')
    with pytest.raises(ClusterFault, match="its format is 2, this one knows 1"):
        read_cluster(Layout(tmp_path))


def test_cluster_ids_are_kafkas_and_differ() -> None:
    ids = {new_cluster(1).cluster_id for _ in range(500)}
    assert len(ids) == 500
    for one in ids:
        assert len(one) == 22
        assert not one.startswith("-")
        assert len(base64.urlsafe_b64decode(one + "==")) == 16


def test_all_of_a_stack_lies_in_its_data_folder(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    paths = [layout.cluster_file, layout.endpoints_file, layout.run_file, layout.lock_file, layout.conf]
    paths += [layout.logs, layout.service("kafka-1")]
    assert len(set(paths)) == len(paths)
    assert all(path.parent == tmp_path for path in paths)


# Java.


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.9" 2023-10-17', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "24-ea" 2025-03-18', 24),
        ('java version "1.8.0_392"', 8),
        ('java version "1.7"', 7),
        ('java version "11.0.2" 2019-01-15 LTS', 11),
        ('JAVA_VERSION="17.0.15"', 17),
        ('JAVA_VERSION="1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17.0.1"', 17),
        ("", None),
        ("command not found", None),
        ("version 17", None),
    ],
)
def test_the_version_is_read_from_what_java_says(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def script(file: Path, body: str) -> Path:
    """An executable shell script."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return file


def says(version: str) -> str:
    return f"echo 'openjdk version \"{version}\"' >&2"


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java: an empty folder is all there is on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def java_fault(configured: str | None = None) -> str:
    with pytest.raises(ClusterFault) as caught:
        find_java(configured)
    assert "Install Java 17" in caught.value.hint
    assert "JAVA_HOME" in caught.value.hint
    return caught.value.message


def test_java_is_found_on_the_path_then_in_java_home_then_where_it_is_named(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = script(bare / "java", says("17.0.1"))
    assert find_java() == Java(str(on_path), 17)
    at_home = script(tmp_path / "home" / "bin" / "java", says("21"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == Java(str(at_home), 21)
    named = script(tmp_path / "named", says("24-ea"))
    assert find_java(str(named)) == Java(str(named), 24)


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ('IMPLEMENTOR="x"\nJAVA_RUNTIME_VERSION="99"\nJAVA_VERSION="21.0.1"\n', 21),
        ('JAVA_VERSION="who knows"\n', 17),
        ("", 17),
        (None, 17),
    ],
)
def test_a_jdk_that_says_its_version_in_a_file_is_not_started(
    bare: Path, tmp_path: Path, release: str | None, version: int
) -> None:
    java = script(tmp_path / "jdk" / "bin" / "java", says("17.0.1"))
    if release is not None:
        (tmp_path / "jdk" / "release").write_text(release)
    (bare / "java").symlink_to(java)
    assert find_java() == Java(str(bare / "java"), version)


def test_a_jdk_that_is_too_old_by_its_file_is_named(bare: Path, tmp_path: Path) -> None:
    java = script(tmp_path / "jdk" / "bin" / "java", says("17.0.1"))
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="1.8.0_392"\n')
    assert java_fault(str(java)) == f"{java} is Java 8; Kafka 4 and Spark 4 need 17 or newer"


@pytest.mark.usefixtures("bare")
def test_no_java_at_all_is_told_how_to_get_one() -> None:
    assert java_fault() == "no Java was found"


def test_java_home_without_java_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(bare / "java", says("17"))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert java_fault() == "JAVA_HOME is /nowhere, but there is no /nowhere/bin/java"


@pytest.mark.parametrize(("version", "number"), [("1.8.0_392", 8), ("11.0.2", 11), ("16.0.2", 16)])
def test_a_java_that_is_too_old_is_named(bare: Path, version: str, number: int) -> None:
    java = script(bare / "java", says(version))
    assert java_fault() == f"{java} is Java {number}; Kafka 4 and Spark 4 need 17 or newer"


@pytest.mark.parametrize("body", ["exit 1", "echo nonsense", r"printf '\377\376' >&2"])
def test_something_that_is_not_java_is_named(bare: Path, body: str) -> None:
    java = script(bare / "java", body)
    assert java_fault().startswith(f"{java} does not say which Java it is")


@pytest.mark.usefixtures("bare")
def test_a_named_java_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    assert java_fault("/nowhere/java") == "/nowhere/java cannot be run: No such file or directory"
    (tmp_path / "java").write_text("")
    assert java_fault(str(tmp_path / "java")).endswith("java cannot be run: Permission denied")


# Kafka's jars.


def jar_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "a.jar").write_bytes(b"a")
    (folder / "b.jar").write_bytes(b"b")
    sums = {name: hashlib.sha256(name[:1].encode()).hexdigest() for name in ("a.jar", "b.jar")}
    write_json(folder / "manifest.json", {"kafka": "4", "sha256": sums})
    return folder


def test_a_whole_set_of_jars_has_no_fault(tmp_path: Path) -> None:
    assert manifest_fault(jar_folder(tmp_path / "jars")) is None


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (lambda folder: (folder / "b.jar").unlink(), "b.jar is missing"),
        (lambda folder: (folder / "a.jar").write_bytes(b"A"), "a.jar is damaged"),
        (lambda folder: (folder / "a.jar").write_bytes(b""), "a.jar is damaged"),
        (lambda folder: (folder / "manifest.json").unlink(), "has no manifest"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), "has no manifest"),
        (lambda folder: (folder / "manifest.json").write_text('{"sha256": {}}'), "has no manifest"),
        (lambda folder: (folder / "manifest.json").write_text('{"sha256": ["a"]}'), "has no manifest"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "has no manifest"),
        (lambda folder: (folder / "manifest.json").write_text('{"sha'), "manifest.json is broken"),
    ],
)
def test_a_set_of_jars_that_is_not_whole_is_told_what_is_wrong(
    tmp_path: Path, harm: Callable[[Path], Any], fault: str
) -> None:
    folder = jar_folder(tmp_path / "jars")
    harm(folder)
    assert fault in (manifest_fault(folder) or "")


def test_jars_that_were_never_fetched_do_not_exist_yet(tmp_path: Path) -> None:
    assert (manifest_fault(tmp_path / "none") or "").endswith("does not exist yet")


FETCHES = "/bin/mkdir -p jars && echo jar > jars/kafka_2.13-4.jar"


@pytest.fixture
def cache(tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache on a machine with neither Java nor Maven."""
    monkeypatch.setenv("FEEDSTACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEEDSTACK_IVY_SETTINGS", raising=False)
    return tmp_path / "cache"


def fetch(java: Path) -> tuple[Path, list[str]]:
    said: list[str] = []
    return kafka_jars(Java(str(java), 17), said.append), said


def test_jars_are_fetched_once(cache: Path, bare: Path) -> None:
    java = script(bare / "java", FETCHES)
    folder, said = fetch(java)
    assert folder == cache / f"kafka-{jars.KAFKA_VERSION}"
    assert manifest_fault(folder) is None
    assert said == [f"fetching Kafka {jars.KAFKA_VERSION} (44 MB, once per user)"]
    script(java, "exit 1")
    assert fetch(java) == (folder, [])


def test_damaged_jars_are_fetched_again(cache: Path, bare: Path) -> None:
    java = script(bare / "java", FETCHES)
    folder, _ = fetch(java)
    (folder / "kafka_2.13-4.jar").write_text("damaged")
    _, (sentence,) = fetch(java)
    assert sentence.endswith("kafka_2.13-4.jar is damaged; fetching Kafka's jars again")
    assert manifest_fault(folder) is None


@pytest.mark.usefixtures("cache")
def test_maven_is_tried_where_ivy_fails(bare: Path) -> None:
    script(bare / "mvn", FETCHES)
    folder, _ = fetch(script(bare / "java", "/bin/mkdir jars; echo half > jars/half.jar; exit 1"))
    assert manifest_fault(folder) is None
    assert sorted(file.name for file in folder.iterdir()) == ["kafka_2.13-4.jar", "manifest.json"]


@pytest.mark.parametrize(
    ("maven", "complaint"),
    [
        (None, "Maven: not installed (it would have been tried next)"),
        ("echo unreachable; exit 1", "Maven: unreachable"),
        ("exit 3", "Maven: exit code 3"),
        ("exit 0", "Maven: exit code 0"),
    ],
)
def test_when_nothing_can_fetch_both_tools_are_named(
    cache: Path, bare: Path, maven: str | None, complaint: str
) -> None:
    if maven is not None:
        script(bare / "mvn", maven)
    java = script(bare / "java", "echo one; echo two; echo 'UNRESOLVED kafka' >&2; exit 1")
    with pytest.raises(ClusterFault, match="could not be fetched") as caught:
        fetch(java)
    assert "Ivy: one | two | UNRESOLVED kafka" in caught.value.message
    assert complaint in caught.value.message
    assert "FEEDSTACK_IVY_SETTINGS" in caught.value.hint
    assert [entry.name for entry in cache.iterdir()] == [f"kafka-{jars.KAFKA_VERSION}.lock"]


@pytest.mark.usefixtures("cache", "bare")
def test_a_java_that_is_gone_is_a_complaint_too() -> None:
    with pytest.raises(ClusterFault, match=r"Ivy: .*No such file"):
        fetch(Path("/nowhere/java"))


# Formatting a broker's folder.


@dataclass
class Formatter:
    """A folder, and a small script in place of Kafka's format tool."""

    folder: Path
    tool: Path
    body: str = 'echo run >> "$1.runs"; echo formatted > "$1/meta.properties"'

    def run(self) -> None:
        script(self.tool, self.body)
        format_folder(self.folder, [str(self.tool), str(self.folder)])

    @property
    def runs(self) -> int:
        counted = self.folder.with_name(f"{self.folder.name}.runs")
        return len(counted.read_text().splitlines()) if counted.exists() else 0


@pytest.fixture
def formatter(tmp_path: Path) -> Formatter:
    return Formatter(tmp_path / "kafka-1", tmp_path / "format")


def test_a_new_folder_is_formatted_once(formatter: Formatter) -> None:
    formatter.run()
    formatter.run()
    assert formatter.runs == 1
    assert (formatter.folder / "meta.properties").read_text() == "formatted\n"


def test_a_folder_in_use_is_never_touched(formatter: Formatter) -> None:
    formatter.run()
    log = formatter.folder / "views-0" / "00000000000000000000.log"
    log.parent.mkdir()
    log.write_text("records")
    formatter.run()
    assert (formatter.runs, log.read_text()) == (1, "records")


def test_a_half_formatted_folder_is_made_anew(formatter: Formatter) -> None:
    metadata = formatter.folder / "__cluster_metadata-0" / "0.log"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("half")
    (formatter.folder / "meta.properties").write_text("half")
    formatter.run()
    assert formatter.runs == 1
    assert not metadata.exists()
    assert (formatter.folder / "meta.properties").read_text() == "formatted\n"


def test_somebody_elses_data_is_refused(formatter: Formatter) -> None:
    log = formatter.folder / "views-0" / "0.log"
    log.parent.mkdir(parents=True)
    log.write_text("records")
    with pytest.raises(ClusterFault, match="holds a broker's data that this stack did not make"):
        formatter.run()
    assert (formatter.runs, log.read_text()) == (0, "records")


def test_a_formatted_folder_that_lost_its_properties_is_refused(formatter: Formatter) -> None:
    formatter.run()
    (formatter.folder / "meta.properties").unlink()
    with pytest.raises(ClusterFault, match=r"its meta\.properties is gone"):
        formatter.run()
    assert formatter.runs == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo first >&2; echo 'no such cluster id' >&2; exit 1", "no such cluster id"),
        ("echo told on stdout; exit 1", "told on stdout"),
        ("exit 4", "exit code 4"),
        ("echo 'java.io.IOException: No space left on device' >&2; exit 1", "the disk is full"),
        (r"printf '\377' >&2; exit 1", "�"),
    ],
)
def test_a_format_that_fails_leaves_nothing_and_says_why(
    formatter: Formatter, body: str, reason: str
) -> None:
    formatter.body = f'echo half > "$1/meta.properties"; {body}'
    with pytest.raises(ClusterFault, match=f"could not be formatted: {reason}"):
        formatter.run()
    assert not formatter.folder.exists()
    formatter.body = Formatter.body
    formatter.run()
    assert formatter.runs == 1


def test_a_format_that_hangs_or_cannot_run_leaves_nothing(
    formatter: Formatter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_node, "_FORMAT_LIMIT_S", 0.1)
    formatter.body = "exec sleep 60"
    with pytest.raises(ClusterFault, match=r"did not end within 0\.1 seconds"):
        formatter.run()
    assert not formatter.folder.exists()
    with pytest.raises(ClusterFault, match="/nowhere/java cannot be run: No such file"):
        format_folder(formatter.folder, ["/nowhere/java"])
    assert not formatter.folder.exists()


# What the end of a log says.

PORT_TAKEN = "its port was taken"


@pytest.mark.parametrize(
    ("explain", "tail", "sentence"),
    [
        (kafka_node.explain, "java.net.BindException: Address already in use", PORT_TAKEN),
        (kafka_node.explain, "java.io.IOException: No space left on device", "the disk is full"),
        (kafka_node.explain, "Failed to acquire lock on file .lock in /x", "another Kafka process holds"),
        (kafka_node.explain, "java.lang.OutOfMemoryError: Java heap space", "raise embedded.kafka_heap"),
        (kafka_node.explain, "java.io.IOException: Too many open files", "ulimit -n"),
        (kafka_node.explain, "all is well", None),
        (kafka_node.explain, "", None),
        (zookeeper_node.explain, "java.net.BindException: Address already in use", PORT_TAKEN),
        (zookeeper_node.explain, "No space left on device", "the disk is full"),
        (zookeeper_node.explain, "Unable to load database on disk", "its files are damaged"),
        (zookeeper_node.explain, "", None),
        (http_node._explain, "[Errno 98] error while attempting to bind: address already in use", PORT_TAKEN),
        (http_node._explain, "INFO a\nfeedstack: kafka is away\nbye", "kafka is away"),
        (http_node._explain, "feedstack: first\nfeedstack: second", "second"),
        (http_node._explain, "Traceback", None),
    ],
)
def test_the_end_of_a_log_is_explained(
    explain: Callable[[str], str | None], tail: str, sentence: str | None
) -> None:
    found = explain(tail)
    assert found is None if sentence is None else sentence in (found or "")


def test_nobody_answers_on_a_silent_port(taken: int) -> None:
    nobody = free_port({taken})
    assert not probes.answers_versions(nobody)
    assert not probes.answers_ruok(nobody)
    assert not probes.answers_health(nobody)


# Processes.

SLEEP = "import time; time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); {SLEEP}"


def command(data: Path, name: str, code: str = SLEEP, *more: str) -> list[str]:
    return [sys.executable, "-S", "-c", code, processes.mark(data, name), *more]


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data folder; whatever process carries its mark at the end is killed."""
    folder = tmp_path / "data"
    folder.mkdir()
    yield folder
    for process in processes.find(folder).values():
        with contextlib.suppress(psutil.Error):
            process.kill()
            process.wait(10)


def spawn(data: Path, name: str, code: str = SLEEP, *more: str) -> psutil.Process:
    """A process with the mark, once it has printed something if its code prints."""
    output = data / "logs" / f"{name}.spawned"
    process = psutil.Process(processes.spawn(command(data, name, code, *more), output))
    # For a moment after it has begun a process has no words.
    wait_for(process.cmdline, f"the command line of {name}")
    if "print" in code:
        wait_for(output.read_bytes, f"{name} to say something")
    return process


def test_processes_are_found_by_the_mark_of_their_data_folder(data: Path) -> None:
    process = spawn(data, "kafka-1")
    other = spawn(data, "http")
    assert {name: one.pid for name, one in processes.find(data).items()} == {
        "kafka-1": process.pid,
        "http": other.pid,
    }
    assert processes.is_alive(process)
    assert processes.resident_bytes(process) > 0


def test_processes_that_share_a_name_are_all_found_and_stopped(data: Path) -> None:
    twins = [spawn(data, "runner-archive"), spawn(data, "runner-archive")]
    assert sorted(one.pid for _, one in processes.find_all(data)) == sorted(one.pid for one in twins)
    assert control.down(Settings(root=data.parent, data=data), lambda _: None)
    assert not any(processes.is_alive(one) for one in twins)


def test_processes_of_other_folders_are_not_found(data: Path, tmp_path: Path) -> None:
    for neighbour in (tmp_path / "data2", tmp_path / "data:x", tmp_path / "data" / "inner"):
        process = spawn(neighbour, "kafka-1")
        try:
            assert processes.find(data) == {}
            assert list(processes.find(neighbour)) == ["kafka-1"]
        finally:
            processes.stop(process, 10)


def test_a_process_that_ends_when_asked_went_by_itself(data: Path) -> None:
    process = spawn(data, "kafka-1")
    assert processes.stop(process, 10)
    assert not processes.is_alive(process)
    assert processes.find(data) == {}
    assert processes.stop(process, 10)
    assert processes.resident_bytes(process) == 0


def test_a_process_that_does_not_end_when_asked_is_killed(data: Path) -> None:
    process = spawn(data, "kafka-1", STUBBORN)
    assert not processes.stop(process, 0.1)
    assert not processes.is_alive(process)


def test_a_dead_child_that_nobody_reaped_is_not_alive(data: Path) -> None:
    process = spawn(data, "kafka-1")
    process.kill()
    wait_for(lambda: not processes.is_alive(process), "the process to be dead")
    assert processes.find(data) == {}


def test_output_goes_to_a_file_that_is_rotated(data: Path) -> None:
    output = data / "logs" / "x.out"
    output.parent.mkdir()
    output.write_bytes(b"x" * ((1 << 20) + 1))
    processes.spawn([sys.executable, "-S", "-c", "print('hello')"], output)
    wait_for(lambda: output.exists() and output.read_bytes() == b"hello\n", "the new output")
    assert (data / "logs" / "x.out.1").stat().st_size == (1 << 20) + 1


# The supervisor.


class Watched:
    """A supervisor in a thread, and what it writes down."""

    def __init__(self, data: Path, services: list[Service]) -> None:
        self.layout = Layout(data)
        self.supervisor = Supervisor(self.layout, services)
        self.thread = threading.Thread(target=self.supervisor.run, daemon=True)
        self.thread.start()

    def about(self, name: str) -> dict[str, Any]:
        state = read_json(self.layout.run_file) or {"services": {}}
        return dict(state["services"].get(name, {"state": None, "pid": None, "restarts": 0, "reason": ""}))

    def wait_state(self, name: str, state: State) -> dict[str, Any]:
        wait_for(lambda: self.about(name)["state"] == state, f"{name} to be {state}", 20)
        return self.about(name)

    def wait_restarts(self, name: str, count: int) -> None:
        wait_for(lambda: self.about(name)["restarts"] == count, f"restart {count} of {name}", 20)

    def stop(self) -> None:
        self.supervisor.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()


Watch = Callable[..., Watched]


@pytest.fixture
def watch(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Starts supervisors of the data folder; restarts are quick, and all is stopped at the end."""
    monkeypatch.setattr(restart, "FIRST_DELAY_S", 0.01)
    started: list[Watched] = []

    def start(*services: Service) -> Watched:
        started.append(Watched(data, list(services)))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def service(data: Path, name: str, code: str = SLEEP, **more: Any) -> Service:
    about: dict[str, Any] = {
        "name": name,
        "port": 1,
        "command": command(data, name, code),
        "log": data / "logs" / f"{name}.log",
        "prepare": lambda: None,
        "answers": lambda: True,
        "explain": lambda _: None,
        "patience_s": 10.0,
    }
    return Service(**{**about, **more})


def test_children_are_prepared_started_and_asked(data: Path, watch: Watch) -> None:
    prepared = threading.Event()
    answers = threading.Event()
    watched = watch(
        service(data, "kafka-1", prepare=prepared.set, answers=answers.is_set), service(data, "zookeeper")
    )
    watched.wait_state("zookeeper", State.READY)
    assert watched.wait_state("kafka-1", State.STARTING)["pid"] == processes.find(data)["kafka-1"].pid
    assert prepared.is_set()
    answers.set()
    about = watched.wait_state("kafka-1", State.READY)
    assert (about["restarts"], about["reason"], about["port"]) == (0, "", 1)


def test_a_child_that_is_killed_is_started_again(data: Path, watch: Watch) -> None:
    watched = watch(service(data, "kafka-1"), service(data, "zookeeper"))
    first = watched.wait_state("kafka-1", State.READY)["pid"]
    bystander = watched.wait_state("zookeeper", State.READY)["pid"]
    for restarts in range(1, restart.HOPELESS_STARTS + 1):
        os.kill(watched.about("kafka-1")["pid"], signal.SIGKILL)
        watched.wait_restarts("kafka-1", restarts)
        watched.wait_state("kafka-1", State.READY)
    assert watched.about("kafka-1")["pid"] not in (None, first)
    assert watched.about("zookeeper")["pid"] == bystander


def test_a_child_that_a_killed_supervisor_left_is_adopted(data: Path, watch: Watch) -> None:
    left = spawn(data, "kafka-1")
    watched = watch(service(data, "kafka-1"))
    about = watched.wait_state("kafka-1", State.READY)
    assert (about["pid"], about["restarts"]) == (left.pid, 0)
    assert about["started_at"] == pytest.approx(left.create_time())
    os.kill(left.pid, signal.SIGKILL)
    watched.wait_restarts("kafka-1", 1)
    assert watched.wait_state("kafka-1", State.READY)["pid"] != left.pid


@pytest.mark.parametrize("answers", [True, False])
def test_a_left_child_with_another_command_or_that_does_not_answer_is_replaced(
    data: Path, watch: Watch, answers: bool
) -> None:
    left = spawn(data, "kafka-1", SLEEP, *(["--other"] if answers else []))
    wanted = service(data, "kafka-1", answers=lambda: answers)
    watched = watch(wanted)
    about = watched.wait_state("kafka-1", State.READY if answers else State.STARTING)
    assert about["pid"] != left.pid
    assert not processes.is_alive(left)
    assert psutil.Process(about["pid"]).cmdline()[1:] == list(wanted.command)[1:]


def test_a_child_that_never_serves_and_falls_is_given_up_with_the_reason(data: Path, watch: Watch) -> None:
    starts = data / "starts"
    code = f"open({str(starts)!r}, 'a').write('x'); print('java.net.BindException: Address already in use')"
    watched = watch(
        service(data, "kafka-1", code, answers=lambda: False, explain=kafka_node.explain),
        service(data, "zookeeper"),
    )
    about = watched.wait_state("kafka-1", State.FAILED)
    assert PORT_TAKEN in about["reason"]
    assert about["pid"] is None
    assert starts.read_text() == "x" * restart.HOPELESS_STARTS
    assert watched.wait_state("zookeeper", State.READY)


def test_a_child_that_falls_without_a_word_is_told_by_its_log(data: Path, watch: Watch) -> None:
    watched = watch(service(data, "kafka-1", "", answers=lambda: False))
    assert watched.wait_state("kafka-1", State.FAILED)["reason"] == (
        f"it ended; its log is {data / 'logs' / 'kafka-1.log'}"
    )


def test_the_log_of_a_child_is_explained_too(data: Path, watch: Watch) -> None:
    log = data / "logs" / "kafka-1.log"
    code = f"open({str(log)!r}, 'a').write('x' * 50_000 + '\\njava.lang.OutOfMemoryError')"
    watched = watch(service(data, "kafka-1", code, answers=lambda: False, explain=kafka_node.explain))
    assert "kafka_heap" in watched.wait_state("kafka-1", State.FAILED)["reason"]


def test_what_an_earlier_life_left_in_the_log_explains_nothing(data: Path, watch: Watch) -> None:
    (data / "logs").mkdir()
    for file in ("kafka-1.log", "kafka-1.out"):
        (data / "logs" / file).write_text("yesterday: Address already in use\n")
    watched = watch(service(data, "kafka-1", "", answers=lambda: False, explain=kafka_node.explain))
    assert watched.wait_state("kafka-1", State.FAILED)["reason"].startswith("it ended; its log is ")


def test_a_child_that_ends_before_it_can_be_looked_at_is_explained(
    data: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spawn_and_reap(arguments: list[str], output: Path) -> int:
        output.parent.mkdir(exist_ok=True)
        with output.open("ab") as file, subprocess.Popen(arguments, stdout=file) as process:
            process.wait()
        return process.pid

    monkeypatch.setattr(processes, "spawn", spawn_and_reap)
    code = "print('Too many open files')"
    watched = watch(service(data, "kafka-1", code, answers=lambda: False, explain=kafka_node.explain))
    assert "ulimit" in watched.wait_state("kafka-1", State.FAILED)["reason"]


def test_a_child_that_cannot_be_prepared_fails_at_once_with_the_hint(data: Path, watch: Watch) -> None:
    def prepare() -> None:
        raise ClusterFault("its folder is gone", hint="Restore it.")

    about = watch(service(data, "kafka-1", prepare=prepare)).wait_state("kafka-1", State.FAILED)
    assert (about["reason"], about["restarts"]) == ("its folder is gone. Restore it.", 0)


def test_a_command_that_does_not_exist_is_tried_and_given_up(data: Path, watch: Watch) -> None:
    about = watch(service(data, "kafka-1", command=["/nowhere/java"])).wait_state("kafka-1", State.FAILED)
    assert "No such file" in about["reason"]


def test_stopping_stops_all_children_those_that_need_others_first(data: Path, watch: Watch) -> None:
    order = data / "order"
    code = (
        "import signal, sys, time\n"
        "def leave(*_):\n"
        f"    open({str(order)!r}, 'a').write(sys.argv[1].rpartition(':')[2] + '\\n')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    names = ["zookeeper", "kafka-1", "http"]

    def speaks(name: str) -> Callable[[], bool]:
        return lambda: bool((data / "logs" / f"{name}.out").read_bytes())

    watched = watch(*(service(data, name, code, answers=speaks(name)) for name in names))
    for name in names:
        watched.wait_state(name, State.READY)
    watched.stop()
    assert processes.find(data) == {}
    assert order.read_text().splitlines() == ["http", "kafka-1", "zookeeper"]


def test_a_child_that_does_not_stop_is_killed_after_its_patience(data: Path, watch: Watch) -> None:
    output = data / "logs" / "kafka-1.out"
    stubborn = service(data, "kafka-1", STUBBORN, patience_s=0.1, answers=lambda: bool(output.read_bytes()))
    watched = watch(stubborn)
    watched.wait_state("kafka-1", State.READY)
    watched.stop()
    assert processes.find(data) == {}


def test_what_is_written_down_is_json_that_names_the_supervisor(data: Path, watch: Watch) -> None:
    watched = watch(service(data, "http"))
    watched.wait_state("http", State.READY)
    state = json.loads(Layout(data).run_file.read_text())
    assert state["supervisor"] == os.getpid()
    assert set(state["services"]["http"]) == {
        *("pid", "port", "state", "restarts", "started_at", "reason", "log"),
    }


def test_a_temporary_stack_that_is_terminated_leaves_nothing() -> None:
    code = """
import time
from ops.cluster.temporary import temporary_folder
with temporary_folder("short") as settings:
    print(settings.root, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert (folder / "stack.toml").exists()
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    assert not folder.exists()
