"""stack doctor: looks at everything the stack stands on and says, for each fault, what to do."""

from __future__ import annotations

import importlib.metadata
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from ops.cluster import processes
from ops.cluster.control import LEAST_FREE_BYTES
from ops.cluster.jars import KAFKA_VERSION, kafka_folder, manifest_fault
from ops.cluster.java import find_java
from ops.cluster.layout import Layout, read_cluster
from ops.cluster.ports import holder, is_free
from ops.cluster.services import wanted_ports
from stack.errors import FeedstackError, Unavailable
from stack.model.duration import format_size
from stack.settings import Endpoints, Secret, Settings, load_settings, read_endpoints

_COMFORTABLE_FREE_BYTES = 5 << 30
_LEAST_OPEN_FILES = 4_096
_MOST_CLOCK_SKEW_S = 5.0
_PACKAGES = ("pyspark", "confluent-kafka", "fastavro", "pyruhvro", "pyarrow", "kazoo", "fastapi")


@dataclass(frozen=True)
class Finding:
    """One thing looked at: ok, a warning, or a fault, with what to do about it."""

    subject: str
    level: str
    text: str
    hint: str = ""


def ok(subject: str, text: str) -> Finding:
    return Finding(subject, "ok", text)


def warn(subject: str, text: str, hint: str) -> Finding:
    return Finding(subject, "warning", text, hint)


def fault(subject: str, text: str, hint: str) -> Finding:
    return Finding(subject, "fault", text, hint)


def examine(config: Path | None) -> Iterator[Finding]:
    """Everything, in the order in which it would fail."""
    yield _python()
    yield from _packages()
    try:
        settings = load_settings(config)
    except FeedstackError as error:
        yield fault("settings", error.message, error.hint)
        return
    yield ok("settings", str(settings.file) if settings.file else "no stack.toml: defaults for this folder")
    checks: list[Callable[[Settings], Iterator[Finding]]] = [_secrets, _disk, _open_files, _zone]
    if settings.kafka is None:
        checks += [_java, _jars]
    for check in (*checks, _ports, _running, _clients):
        try:
            yield from check(settings)
        except FeedstackError as error:
            yield fault(check.__name__.strip("_"), error.message, error.hint)


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return ok("python", version)


def _packages() -> Iterator[Finding]:
    missing, found = [], []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        yield fault("packages", f"not installed: {', '.join(missing)}", "Run `make setup`.")
    else:
        yield ok("packages", ", ".join(found))


def _secrets(settings: Settings) -> Iterator[Finding]:
    secrets = [
        one for one in (settings.kafka.settings if settings.kafka else {}).values() if isinstance(one, Secret)
    ]
    for secret in secrets:
        secret.reveal()
    if secrets:
        yield ok("secrets", f"{len(secrets)} found")


def _disk(settings: Settings) -> Iterator[Finding]:
    folder = settings.data
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        yield fault(
            "disk", f"{format_size(free)} free at {folder}", "Free some space or move the data folder."
        )
    elif free < _COMFORTABLE_FREE_BYTES:
        yield warn(
            "disk", f"{format_size(free)} free at {folder}", "Kafka keeps what you write: plan for more."
        )
    else:
        yield ok("disk", f"{format_size(free)} free at {folder}")
    if not os.access(folder, os.W_OK):
        yield fault(
            "disk", f"{folder} cannot be written", "Change its permissions, or name another data folder."
        )


def _open_files(_settings: Settings) -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _LEAST_OPEN_FILES:
        yield warn("open files", f"this shell allows {soft}", f"Raise it: ulimit -n {_LEAST_OPEN_FILES * 16}")
    else:
        yield ok("open files", f"{soft:,} allowed")


def _zone(_settings: Settings) -> Iterator[Finding]:
    year = time.gmtime().tm_year
    if year < 2025:
        yield fault("clock", f"it says {year}", "Set the clock: record times and retention hang on it.")
    else:
        yield ok("clock", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def _java(settings: Settings) -> Iterator[Finding]:
    java = find_java(settings.embedded.java)
    yield ok("java", f"Java {java.version} at {java.command}")


def _jars(_settings: Settings) -> Iterator[Finding]:
    folder = kafka_folder()
    wrong = manifest_fault(folder)
    if wrong and folder.exists():
        yield warn("jars", wrong, "`stack up` fetches them again.")
    elif wrong:
        yield ok("jars", f"Kafka {KAFKA_VERSION} is not fetched yet; `stack up` does it")
    else:
        yield ok("jars", f"Kafka {KAFKA_VERSION} in {folder}")


def _ports(settings: Settings) -> Iterator[Finding]:
    layout = Layout(settings.data)
    cluster = read_cluster(layout)
    running = processes.find(layout.data)
    wanted = wanted_ports(settings, cluster.brokers if cluster else settings.embedded.brokers)
    taken = 0
    for name, port in wanted.items():
        owner = name.removesuffix("-controller")
        if port and owner not in running and not is_free(port):
            taken += 1
            yield fault(
                "ports", f"{port} for {name} is taken by {holder(port)}", "Stop it, or name another port."
            )
    for name, port in (cluster.ports if cluster else {}).items():
        if not wanted.get(name) and name.removesuffix("-controller") not in running and not is_free(port):
            taken += 1
            yield warn(
                "ports", f"remembered {port} for {name} is taken by {holder(port)}", "`stack up` moves it."
            )
    if not taken:
        yield ok("ports", "free, or held by this stack")


def _running(settings: Settings) -> Iterator[Finding]:
    found = processes.find(settings.data)
    if not found and settings.kafka is not None:
        yield ok("cluster", "nothing of it runs on this machine")
    elif not found:
        yield ok("cluster", "not running; `stack up` starts it")
    elif processes.SUPERVISOR not in found:
        yield warn(
            "cluster", f"{', '.join(sorted(found))} run without a supervisor", "`stack up` takes them over."
        )
    else:
        yield ok("cluster", f"{len(found)} processes under supervisor {found[processes.SUPERVISOR].pid}")


def _clients(settings: Settings) -> Iterator[Finding]:
    """Speak to Kafka, ZooKeeper and the service as any client would; each is asked, whatever others say."""
    from stack.kafka.admin import KafkaAdmin
    from stack.kafka.config import kafka_access
    from stack.zookeeper.session import ping

    if settings.kafka is None and processes.SUPERVISOR not in processes.find(settings.data):
        return
    endpoints = read_endpoints(settings)
    try:
        brokers = KafkaAdmin(kafka_access(settings, endpoints), timeout_s=5).broker_ids()
        yield ok("kafka", f"{len(brokers)} broker(s) answer at {endpoints.kafka}")
    except Unavailable as error:
        yield fault("kafka", error.message, _way_out(settings, "kafka.bootstrap", "kafka-1"))
    try:
        ping(endpoints.zookeeper)
        yield ok("zookeeper", f"answers at {endpoints.zookeeper}")
        yield _runners(settings, endpoints)
    except Unavailable as error:
        yield fault("zookeeper", error.message, _way_out(settings, "zookeeper.hosts", "zookeeper"))
    if endpoints.http is None:
        yield warn("http", "the service is not running", "`stack up` starts it.")
        return
    yield _service(endpoints.http)


def _runners(settings: Settings, endpoints: Endpoints) -> Finding:
    """Who would run jobs."""
    from stack.zookeeper.fleet import open_fleet

    with open_fleet(endpoints.zookeeper, settings.name) as nodes:
        runners = nodes.runners()
    if runners:
        return ok("runner", f"{len(runners)} on {', '.join(sorted({one.spark for one in runners}))}")
    if not settings.runner:
        return ok("runner", "none; runner.enabled is false in stack.toml")
    log = Layout(settings.data).logs / "runner.log"
    return warn("runner", "none is there: jobs stand still", f"`stack up` starts one. Its log: {log}")


def _way_out(settings: Settings, key: str, service: str) -> str:
    """What to do about a server that does not answer."""
    if settings.kafka is not None:
        return f"Check {key} in stack.toml, and whether that server runs."
    log = Layout(settings.data).logs / f"{service}.log"
    return f"Its log: {log}. If it does not come back by itself: `stack down`, then `stack up`."


def _service(url: str) -> Finding:
    import http.client

    host, _, port = url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        date = answer.headers.get("Date")
        if answer.status != 200:
            return fault("http", f"{url} answers {answer.status}", "Look at its log: `stack status --json`.")
        skew_s = abs(time.time() - parsedate_to_datetime(date).timestamp()) if date else 0.0
        if skew_s > _MOST_CLOCK_SKEW_S:
            return warn("http", f"its clock differs by {skew_s:.0f} s", "Set the clocks of both machines.")
    except OSError as error:
        return fault("http", f"{url} does not answer: {error}", "`stack down`, then `stack up`.")
    finally:
        connection.close()
    return ok("http", f"answers at {url}")
