"""The cluster of docker-compose.yml, without an engine: its file, its roles, its checks."""

from __future__ import annotations

import http.server
import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops.cluster.doctor import Finding
from ops.cluster.ports import free_port
from ops.compose import engine, health, roles, volume
from ops.compose.engine import ROOT, Compose, examine, memory_limits
from ops.compose.roles import ROLES, Words, become, memory_limit, need_memory
from ops.compose.volume import take_volume
from stack.errors import ClusterFault
from stack.settings import load_settings
from stack.zookeeper.ensemble import member_line, members

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: one for name, one in SERVICES.items() if one["image"].startswith("${FEEDSTACK_IMAGE")}
DEFAULT = {name: one for name, one in SERVICES.items() if not one.get("profiles")}
KAFKA = {
    "SERVICE": "kafka-2",
    "KAFKA_HOSTS": "kafka-1,kafka-2,kafka-3",
    "KAFKA_NODE": "2",
    "KAFKA_CLUSTER_ID": "FeedstackComposeClustA",
    "KAFKA_HEAP": "256MB",
    "KAFKA_OUTSIDE": "127.0.0.1:19093",
}
ZOOKEEPER = {
    "SERVICE": "zookeeper",
    "ZOOKEEPER_NODE": "1",
    "ZOOKEEPER_FIRST": "zookeeper",
    "ZOOKEEPER_HEAP": "64MB",
}


# The file


def test_ports_are_published_on_the_loopback_only() -> None:
    published = [port for one in SERVICES.values() for port in one.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:${") for port in published)


def test_the_services_that_start_by_default_fit_into_6_gb() -> None:
    total = sum(int(one["mem_limit"].removesuffix("m")) << 20 for one in DEFAULT.values())
    assert total <= 6_000_000_000


def test_every_service_is_looked_after() -> None:
    assert set(DEFAULT) == {
        *("kafka-1", "kafka-2", "kafka-3", "zookeeper", "spark-master"),
        *("spark-worker-1", "spark-worker-2", "runner", "http"),
    }
    for name, one in OURS.items():
        if name == "cli":
            continue
        role = one["command"][-1]
        assert role in ROLES
        assert one["healthcheck"]["test"][-2:] == ["ops.compose.health", role]
        assert one["environment"]["SERVICE"] == name
        assert one["restart"] == "unless-stopped"
        assert one["volumes"] == [f"{name}:/data"]
        assert name in COMPOSE["volumes"]


def test_every_profile_is_known() -> None:
    used = {profile for one in SERVICES.values() for profile in one.get("profiles", ())}
    assert used == set(engine.ALL_PROFILES)


def test_nothing_that_starts_by_default_waits_for_a_profile() -> None:
    assert all("depends_on" not in one for one in SERVICES.values())


def test_the_ports_are_those_of_the_settings_that_are_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Compose().ports:
        monkeypatch.delenv(name, raising=False)
    text = (ROOT / "docker-compose.yml").read_text("utf-8")
    for name, port in Compose().ports.items():
        assert f"${{{name}:-{port}}}" in text
    host = load_settings(ROOT / "ops/compose/stack.toml")
    ports = Compose().ports
    assert host.kafka is not None
    assert host.kafka.bootstrap == ",".join(f"127.0.0.1:{ports[f'KAFKA_{n}_PORT']}" for n in (1, 2, 3))
    assert host.zookeeper_hosts == f"127.0.0.1:{ports['ZOOKEEPER_PORT']}"
    assert host.http_url == f"http://127.0.0.1:{ports['HTTP_PORT']}"
    assert not host.runner


def test_the_settings_inside_name_services_of_the_file() -> None:
    inside = load_settings(ROOT / "ops/compose/inside.toml")
    assert inside.kafka is not None
    hosts = (
        f"{inside.kafka.bootstrap},{inside.zookeeper_hosts},{inside.spark_master.removeprefix('spark://')}"
    )
    assert {one.partition(":")[0] for one in hosts.split(",")} <= set(OURS)
    assert inside.runner_alone


def test_the_image_has_the_versions_of_the_lock_file() -> None:
    def pins(file: Path) -> set[str]:
        return set(re.findall(r"^([a-z0-9.-]+==\S+)", file.read_text("utf-8"), re.MULTILINE))

    image = pins(ROOT / "ops/compose/requirements.lock")
    assert len(image) > 20
    assert image <= pins(ROOT / "requirements.lock")
    assert not {name for name in image if name.startswith(("pytest", "mypy", "ruff"))}


# Volumes


def test_a_new_volume_is_marked_and_found_again(tmp_path: Path) -> None:
    take_volume(tmp_path, "kafka-1")
    take_volume(tmp_path, "kafka-1")
    assert json.loads((tmp_path / "volume.json").read_text()) == {
        "format": volume.FORMAT,
        "service": "kafka-1",
    }


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ('{"format": 99, "service": "kafka-1"}', "has format 99, this image knows 1"),
        ('{"format": 1, "service": "kafka-2"}', "the volume of kafka-2, not of kafka-1"),
        ("[]", "has format None"),
        ("{", "the mark of the volume is broken"),
    ],
)
def test_a_volume_of_something_else_is_refused(tmp_path: Path, mark: str, message: str) -> None:
    (tmp_path / "volume.json").write_text(mark)
    with pytest.raises(ClusterFault, match=re.escape(message)) as caught:
        take_volume(tmp_path, "kafka-1")
    assert caught.value.hint
    assert (tmp_path / "volume.json").read_text() == mark


def test_files_of_a_stranger_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "precious").write_text("x")
    with pytest.raises(ClusterFault, match="precious"):
        take_volume(tmp_path, "kafka-1")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["lost+found", "precious"]


# Roles


@pytest.fixture
def whole_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder, in an image whose jars are there and whose format tool does nothing."""
    monkeypatch.setattr(roles, "manifest_fault", lambda _: None)
    monkeypatch.setattr(roles, "format_folder", lambda folder, command: folder.mkdir())  # noqa: ARG005
    data = tmp_path / "data"
    data.mkdir()
    return data


def test_a_broker_answers_inside_and_outside(whole_image: Path) -> None:
    server = become("kafka", KAFKA, whole_image)
    properties = (whole_image / "conf/server.properties").read_text()
    assert "advertised.listeners=BROKER://kafka-2:9092,OUTSIDE://127.0.0.1:19093\n" in properties
    assert "controller.quorum.voters=1@kafka-1:9093,2@kafka-2:9093,3@kafka-3:9093\n" in properties
    assert "min.insync.replicas=2\n" in properties
    assert "node.id=2\n" in properties
    assert server.command[-2:] == ["kafka.Kafka", str(whole_image / "conf/server.properties")]
    assert "-Xmx256m" in server.command


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"KAFKA_NODE": ""}, "KAFKA_NODE is not set"),
        ({"KAFKA_NODE": "two"}, "KAFKA_NODE is 'two', not a number"),
        ({"KAFKA_NODE": "4"}, "KAFKA_NODE is 4, but KAFKA_HOSTS names 3"),
        ({"KAFKA_HEAP": "much"}, "KAFKA_HEAP: 'much' is not a size"),
        ({"SERVICE": ""}, "SERVICE is not set"),
    ],
)
def test_a_wrong_environment_is_told(whole_image: Path, wrong: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterFault, match=re.escape(message)) as caught:
        become("kafka", {**KAFKA, **wrong}, whole_image)
    assert caught.value.hint


def test_an_image_without_jars_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDSTACK_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ClusterFault, match="the image is not complete") as caught:
        become("kafka", KAFKA, tmp_path)
    assert "docker compose build" in caught.value.hint
    assert not (tmp_path / "volume.json").exists()


def test_the_first_zookeeper_is_an_ensemble_that_others_join(whole_image: Path) -> None:
    become("zookeeper", ZOOKEEPER, whole_image)
    config = (whole_image / "conf/zoo.cfg").read_text()
    file = whole_image / "conf/zoo.cfg.dynamic"
    assert f"dynamicConfigFile={file}\n" in config
    assert "standaloneEnabled=false\n" in config
    assert members(file.read_text()) == {1: "zookeeper"}
    assert (whole_image / "zookeeper/myid").read_text() == "1\n"


def test_zookeeper_keeps_the_members_that_it_wrote_itself(whole_image: Path) -> None:
    become("zookeeper", ZOOKEEPER, whole_image)
    newer = whole_image / "conf/zoo.cfg.dynamic.100000002"
    newer.write_text(
        "".join(member_line(n, f"zookeeper-{n}") + "\n" for n in (1, 2, 3)) + "version=100000002\n"
    )
    config = whole_image / "conf/zoo.cfg"
    config.write_text(re.sub(r"dynamicConfigFile=.*", f"dynamicConfigFile={newer}", config.read_text()))
    become("zookeeper", ZOOKEEPER, whole_image)
    assert f"dynamicConfigFile={newer}\n" in config.read_text()
    assert len(members(newer.read_text())) == 3


def test_spark_serves_its_services(whole_image: Path) -> None:
    environment = {
        "SERVICE": "spark-worker-1",
        "SPARK_MASTER": "spark://spark-master:7077",
        "WORKER_SLOTS": "4",
        "WORKER_MEMORY": "1GB",
    }
    server = become("spark-worker", environment, whole_image)
    words = " ".join(server.command)
    assert "--host spark-worker-1" in words
    assert "--cores 4 --memory 1024m" in words
    assert server.command[-1] == "spark://spark-master:7077"
    assert server.environment["SPARK_LOCAL_DIRS"] == str(whole_image / "tmp")


def test_a_limit_below_the_heap_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "memory_limit", lambda: 100 << 20)
    with pytest.raises(ClusterFault, match="the memory limit of this service is 100 MB") as caught:
        need_memory(200 << 20, "KAFKA_HEAP")
    assert "mem_limit" in caught.value.hint
    need_memory(50 << 20, "KAFKA_HEAP")


@pytest.mark.parametrize(("text", "limit"), [("1048576\n", 1 << 20), ("max\n", None), (f"{1 << 62}\n", None)])
def test_the_limit_of_a_container(tmp_path: Path, text: str, limit: int | None) -> None:
    file = tmp_path / "memory.max"
    file.write_text(text)
    assert memory_limit((tmp_path / "none", file)) == limit
    assert memory_limit((tmp_path / "none",)) is None


def test_a_fault_is_told_once_and_stands(tmp_path: Path) -> None:
    """The process stays, with its fault in the health check, until it is stopped."""
    script = (
        "import sys; from pathlib import Path; import ops.compose.health as h; "
        f"h.FAULT_FILE = Path({str(tmp_path / 'fault')!r}); "
        "from ops.compose.__main__ import main; main(['kafka'])"
    )
    environment = {**os.environ, "FEEDSTACK_CACHE": str(tmp_path / "none"), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("feedstack: the image is not complete")
        assert process.poll() is None
        assert (tmp_path / "fault").read_text() == line
        process.terminate()
    assert process.returncode


# Health


@contextmanager
def serving(answers: dict[str, Any]) -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path)
            self.send_response(200 if found is not None else 404)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(
    ("workers", "well"),
    [
        ([{"id": "w1", "state": "ALIVE"}], True),
        ([{"id": "w1", "state": "DEAD"}], False),
        ([{"id": "w2", "state": "ALIVE"}], False),
        ([], False),
    ],
)
def test_a_worker_is_well_once_its_master_counts_on_it(
    monkeypatch: pytest.MonkeyPatch, workers: list[dict[str, str]], well: bool
) -> None:
    with serving({"/json/": {"id": "w1"}}) as own, serving({"/json/": {"workers": workers}}) as master:
        monkeypatch.setattr(health, "WORKER_UI_PORT", own)
        monkeypatch.setattr(health, "MASTER_UI_PORT", master)
        monkeypatch.setenv("SPARK_MASTER", "spark://127.0.0.1:7077")
        assert health.worker_is_registered() is well


def test_a_master_is_well_while_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"/json/": {"status": "STANDBY"}}) as port:
        monkeypatch.setattr(health, "MASTER_UI_PORT", port)
        assert not health.master_is_alive()
    assert not health.master_is_alive()


def test_a_zookeeper_without_the_others_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health, "_CONF", tmp_path)
    monkeypatch.setattr(health, "ZOOKEEPER_PORT", free_port(()))
    (tmp_path / "zoo.cfg.dynamic.5").write_text(
        "".join(member_line(n, "127.0.0.1") + "\n" for n in (1, 2, 3))
    )
    assert not health.quorum_is_there()
    assert "--profile ensemble" in capsys.readouterr().out


def test_a_runner_is_well_while_it_goes_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = tmp_path / "alive"
    monkeypatch.setattr(health, "_ALIVE_FILE", alive)
    assert not health.runner_decides()
    alive.touch()
    assert health.runner_decides()
    os.utime(alive, (1, 1))
    assert not health.runner_decides()


def test_health_imports_little() -> None:
    script = "import sys, ops.compose.health; print({m.split('.')[0] for m in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "'ops'" in done.stdout
    assert not [name for name in ("'stack'", "'kazoo'", "'psutil'", "'click'") if name in done.stdout]


# The engine

FAKE = """#!{python}
import json, sys
words = sys.argv[1:]
known = json.loads({answers!r})
for start, answer in known:
    if words[: len(start)] == start or start == [one for one in words if one in start]:
        if isinstance(answer, str):
            print(answer)
            sys.exit(0)
        print(answer[0], file=sys.stderr)
        sys.exit(1)
sys.exit("unexpected: " + " ".join(words))
"""
INFO = {"ServerVersion": "26.1.5", "MemTotal": 16 << 30, "DockerRootDir": "/"}
CONFIG = {"services": {name: {"mem_limit": str(512 << 20)} for name in DEFAULT}}


class FakeDocker:
    """A docker command that answers what the test says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = folder / "docker"
        monkeypatch.setenv("PATH", str(folder))
        self.answers: dict[str, Any] = {
            "info": json.dumps(INFO),
            "compose version": "2.26.1",
            "config": json.dumps(CONFIG),
            "ps": "",
        }

    def examine(self) -> dict[str, Finding]:
        known = json.dumps([[key.split(), answer] for key, answer in self.answers.items()])
        self._file.write_text(FAKE.format(python=sys.executable, answers=known))
        self._file.chmod(stat.S_IRWXU)
        ports = {name: str(free_port(())) for name in Compose().ports}
        return {one.subject: one for one in examine(Compose(environment=ports))}


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    return FakeDocker(tmp_path, monkeypatch)


def test_a_machine_that_will_do(docker: FakeDocker) -> None:
    found = docker.examine()
    assert {one.level for one in found.values()} == {"ok"}
    assert set(found) == {"engine", "compose", "memory", "disk", "ports"}


def test_no_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (only,) = examine(Compose())
    assert only.level == "fault"
    assert "engine.sh up" in only.hint


def test_no_engine(docker: FakeDocker) -> None:
    docker.answers["info"] = ["Cannot connect to the Docker daemon"]
    found = docker.examine()
    assert found["engine"].level == "fault"
    assert "Cannot connect" in found["engine"].text
    assert "Start it" in found["engine"].hint


def test_an_engine_that_is_too_old(docker: FakeDocker) -> None:
    docker.answers["info"] = json.dumps({**INFO, "ServerVersion": "20.10.24+dfsg1"})
    assert docker.examine()["engine"] == Finding(
        "engine", "fault", "Docker 20.10.24+dfsg1 is too old", "Install Docker 25.0 or newer."
    )


@pytest.mark.parametrize("answer", ["1.29.2", ["unknown command: docker compose"]])
def test_a_compose_that_is_too_old_or_missing(docker: FakeDocker, answer: Any) -> None:
    docker.answers["compose version"] = answer
    found = docker.examine()["compose"]
    assert found.level == "fault"
    assert "2.20 or newer" in found.hint


def test_too_little_memory(docker: FakeDocker) -> None:
    docker.answers["info"] = json.dumps({**INFO, "MemTotal": 2 << 30})
    found = docker.examine()["memory"]
    assert found.level == "fault"
    assert found.text == "the engine has 2.0 GB; the services may use 4.5 GB together"


def test_a_port_that_is_taken(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "is_free", lambda _: False)
    found = docker.examine()["ports"]
    assert found.level == "fault"
    assert "is taken by" in found.text
    assert "_PORT=" in found.hint


def test_limits_are_summed() -> None:
    assert memory_limits(CONFIG) == len(DEFAULT) * (512 << 20)


def test_complaints_tell_what_a_health_check_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def container(service: str, **state: Any) -> dict[str, Any]:
        labels = {"com.docker.compose.service": service}
        return {"Name": f"/x-{service}-1", "Config": {"Labels": labels}, "State": {"Error": "", **state}}

    well = container("http", Status="running", Health={"Status": "healthy", "Log": []})
    ill = container(
        "kafka-1",
        Status="running",
        Health={"Status": "unhealthy", "Log": [{"Output": ""}, {"Output": "feedstack: it is full\n"}]},
    )
    dead = container("runner", Status="exited", OOMKilled=True)
    monkeypatch.setattr(Compose, "containers", lambda _: [well, ill, dead])
    assert list(Compose().complaints()) == [
        "kafka-1: feedstack: it is full",
        "runner: it was killed because it passed its memory limit; raise mem_limit of the service",
    ]


def test_words_are_read_or_refused() -> None:
    words = Words({"A": " 7 ", "B": "", "C": "64MB"})
    assert words.number("A") == 7
    assert words.size("C") == 64 << 20
    with pytest.raises(ClusterFault, match="B is not set"):
        words.text("B")
