"""An outside Kafka that wants TLS and a password, with the secret from the environment or a file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from ops.cluster import processes
from ops.cluster.jars import kafka_jars
from ops.cluster.java import find_java
from ops.cluster.kafka_node import kafka_service
from ops.cluster.layout import Cluster, Layout
from ops.cluster.ports import free_port
from ops.cluster.probes import answers_versions
from stack import Latest, Oldest, Stack, load_settings
from stack.errors import BadConfig
from stack.settings import Endpoints
from tests.cluster.conftest import CATALOGUE, PAGE_VIEW, apply
from tests.clusters import wait_for

pytestmark = pytest.mark.cluster
PASSWORD = "correct-horse"  # noqa: S105


@dataclass(frozen=True)
class Secured:
    """A broker of its own whose outside door wants TLS and a password."""

    bootstrap: str
    authority: Path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    java = find_java()
    jars = kafka_jars(java, lambda _: None)
    ports: dict[str, int] = {}
    for name in ("kafka-1", "kafka-1-controller", "door"):
        ports[name] = free_port(ports.values())
    layout = Layout(folder)
    service = kafka_service(
        layout, java, jars, Cluster("AAAAAAAAAAAAAAAAAAAAAA", 1, ports), node=1, heap_bytes=256 << 20
    )
    keys, authority = folder / "keys.p12", folder / "authority.pem"
    keytool = [
        str(Path(java.command).resolve().parent / "keytool"),
        "-keystore",
        str(keys),
        "-storepass",
        PASSWORD,
    ]
    names = ["-dname", "CN=localhost", "-ext", "SAN=ip:127.0.0.1,dns:localhost"]
    _run([*keytool, "-genkeypair", "-keyalg", "RSA", "-storetype", "PKCS12", "-alias", "k", *names])
    _run([*keytool, "-exportcert", "-rfc", "-alias", "k", "-file", str(authority)])
    service.prepare()
    file = layout.conf / "kafka-1" / "server.properties"
    file.write_text(_with_door(file.read_text(), ports["door"], keys))
    process = psutil.Process(processes.spawn(service.command, layout.logs / "out.txt"))
    try:
        wait_for(lambda: answers_versions(ports["kafka-1"]), "the secured broker", 60)
        yield Secured(f"127.0.0.1:{ports['door']}", authority)
    finally:
        processes.stop(process, 20)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def _with_door(properties: str, port: int, keys: Path) -> str:
    """The broker's settings with one more listener, the secured one."""
    door = f"127.0.0.1:{port}"
    lines = []
    for line in properties.splitlines():
        key, _, value = line.partition("=")
        more = {
            "listeners": f"{value},DOOR://{door}",
            "advertised.listeners": f"{value},DOOR://{door}",
            "listener.security.protocol.map": f"{value},DOOR:SASL_SSL",
        }
        lines.append(f"{key}={more.get(key, value)}")
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    lines += [
        f"listener.name.door.ssl.keystore.location={keys}",
        f"listener.name.door.ssl.keystore.password={PASSWORD}",
        f"listener.name.door.ssl.key.password={PASSWORD}",
        "listener.name.door.ssl.keystore.type=PKCS12",
        "listener.name.door.sasl.enabled.mechanisms=PLAIN",
        f'listener.name.door.plain.sasl.jaas.config={login} user_ada="{PASSWORD}";',
    ]
    return "\n".join(lines) + "\n"


def settings_file(folder: Path, secured: Secured, zookeeper: str, password: str) -> Path:
    (folder / "schemas").mkdir()
    (folder / "schemas" / "catalog.toml").write_text(CATALOGUE)
    (folder / "schemas" / "view.avsc").write_text(PAGE_VIEW)
    file = folder / "stack.toml"
    file.write_text(
        f"""name = "outside"
[kafka]
bootstrap = "{secured.bootstrap}"
[kafka.settings]
"security.protocol" = "SASL_SSL"
"ssl.ca.location" = "{secured.authority}"
"sasl.mechanism" = "PLAIN"
"sasl.username" = "ada"
"sasl.password" = {password}
[zookeeper]
hosts = "{zookeeper}"
"""
    )
    return file


def test_feeds_over_tls_with_a_password_from_the_environment(
    secured: Secured, cluster: Endpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDSTACK_TEST_PASSWORD", PASSWORD)
    file = settings_file(tmp_path, secured, cluster.zookeeper, '{ env = "FEEDSTACK_TEST_PASSWORD" }')
    with Stack.connect(file) as stack:
        apply(stack)
        value = {"user": "ada", "page": "/", "ms": 1, "load": 1.0}
        with stack.writer("views") as writer:
            writer.write(value)
        with stack.reader("views") as reader:
            reader.seek(Oldest(), until=Latest())
            assert [record.value for record in reader.records()] == [value]


def test_a_wrong_password_is_told_without_printing_it(
    secured: Secured, cluster: Endpoints, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("wrong-horse\n")
    file = settings_file(tmp_path, secured, cluster.zookeeper, '{ file = "secret" }')
    settings = load_settings(file)
    assert "wrong-horse" not in repr(settings)
    from stack.kafka.admin import KafkaAdmin
    from stack.kafka.config import KafkaAccess

    assert settings.kafka
    admin = KafkaAdmin(KafkaAccess(secured.bootstrap, settings.kafka.settings), timeout_s=5)
    with pytest.raises(BadConfig, match="refuses this user") as error:
        admin.topic_names()
    assert "wrong-horse" not in error.value.message + error.value.hint
