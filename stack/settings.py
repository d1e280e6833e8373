"""The settings of one stack: stack.toml, checked as a whole before anything uses it."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stack.errors import BadConfig, BadInput, Unavailable
from stack.model.tables import Parse, flag, plain_text, refuse_faults, section, size_bytes, take

CONFIG_NAME = "stack.toml"
CONFIG_VARIABLE = "STACK_CONFIG"
ENDPOINTS_NAME = "endpoints.json"
_STACK_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_MASTER = re.compile(
    r"local(\[([1-9][0-9]{0,3}|\*)\])?|spark://[^\s,:/]+:[0-9]{1,5}(,[^\s,:/]+:[0-9]{1,5})*"
    r"|yarn|k8s://https?://[^\s,:/]+:[0-9]{1,5}"
)
_HOST = re.compile(r"[^\s,:/]+:([0-9]{1,5})")
_URL = re.compile(r"https?://[^\s,:/]+:([0-9]{1,5})")
_WEBHOOK = re.compile(r"https?://[^\s/]+(/\S*)?")
_SECRET_WORDS = ("password", "secret", "ssl.key.pem", "sasl.jaas", "oauthbearer.config")
# What the stack sets itself: its guarantees hang on these.
_OWN_KAFKA_SETTINGS = {
    "bootstrap.servers": "write it as kafka.bootstrap",
    "metadata.broker.list": "write it as kafka.bootstrap",
    "group.id": "the stack names its own groups",
    "transactional.id": "the stack names its own transactions",
    "enable.idempotence": "writers are always idempotent",
    "isolation.level": "readers always read committed records",
    "enable.auto.commit": "the stack stores offsets itself",
    "partitioner": "keys are always spread by murmur2",
    "enable.partition.eof": "bounded reads need it",
}
# The same for Spark: a container is started by the runner and by nobody else.
_OWN_SPARK_SETTINGS = {
    "spark.master": "write it as spark.master",
    "spark.app.name": "the stack names its application",
    "spark.submit.deployMode": "the runner is the driver",
    "spark.task.maxFailures": "the runner starts containers again",
    "spark.speculation": "a container must not run twice",
    "spark.dynamicAllocation.enabled": "containers stay where they are",
    "spark.python.worker.reuse": "every container has a process of its own",
    "spark.python.daemon.module": "containers are forked from our own",
}


@dataclass(frozen=True)
class Secret:
    """A value that is looked up when it is needed and never printed."""

    key: str
    source: str
    place: str

    def reveal(self) -> str:
        """The value itself, from the environment or a file; BadConfig names what is missing."""
        if self.source == "env":
            value = os.environ.get(self.place)
            if value is None:
                raise BadConfig(
                    f"{self.key}: the environment variable {self.place} is not set",
                    hint=f"Set it in the shell that runs the command: export {self.place}=...",
                )
            return value
        try:
            return Path(self.place).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise BadConfig(
                f"{self.key}: the secret file {self.place} cannot be read: {error.strerror}",
                hint="Check the path and its permissions.",
            ) from None
        except UnicodeDecodeError:
            # Not from the error itself: it quotes bytes of the file.
            raise BadConfig(f"{self.key}: the secret file {self.place} is not UTF-8 text") from None

    def __str__(self) -> str:
        return "***"


@dataclass(frozen=True)
class Embedded:
    """The cluster that `stack up` starts on this machine. A port of 0 means a free one, remembered."""

    brokers: int = 1
    kafka_heap_bytes: int = 512 << 20
    zookeeper_heap_bytes: int = 128 << 20
    kafka_port: int = 0
    zookeeper_port: int = 0
    java: str | None = None


@dataclass(frozen=True)
class OutsideKafka:
    """Somebody else's Kafka; `settings` go to librdkafka as they are."""

    bootstrap: str
    settings: Mapping[str, str | Secret] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """Everything stack.toml says, with paths made absolute."""

    root: Path
    name: str = "feedstack"
    data: Path = Path(".stack")
    schemas: Path = Path("schemas")
    # Containers mostly wait for records: many more of them than cores is fine.
    spark_master: str = "local[64]"
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    runner: bool = True
    # Of several runners only one works at a time.
    runner_alone: bool = False
    http_port: int = 0
    http_url: str | None = None
    topic_prefix: str = ""
    embedded: Embedded = Embedded()
    kafka: OutsideKafka | None = None
    zookeeper_hosts: str | None = None
    # Where alarms are posted to; the address itself may be the secret.
    alarms_webhook: str | Secret | None = None
    file: Path | None = None


@dataclass(frozen=True)
class Endpoints:
    """Where the parts of a running stack answer."""

    kafka: str
    zookeeper: str
    http: str | None


def find_settings_file(start: Path) -> Path | None:
    """The nearest stack.toml at or above `start`, or the one that STACK_CONFIG names."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    for folder in (start, *start.parents):
        if (folder / CONFIG_NAME).is_file():
            return folder / CONFIG_NAME
    return None


def load_settings(path: Path | None = None) -> Settings:
    """Read the settings file, or take the defaults for this folder if there is none."""
    file = path or find_settings_file(Path.cwd())
    if file is None:
        return resolve_paths(Settings(root=Path.cwd()))
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise BadConfig(
            f"{file} cannot be read: {error.strerror}",
            hint=f"Name an existing file with --config or {CONFIG_VARIABLE}, or leave both out.",
        ) from None
    except UnicodeDecodeError:
        raise BadConfig(f"{file} is not UTF-8 text", hint="Save it as UTF-8.") from None
    return parse_settings(text, file.resolve())


def parse_settings(text: str, file: Path) -> Settings:
    """Check the whole text and report all faults at once, each with its key."""
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadConfig(f"{file} is not TOML: {error}", hint="Check that line.") from None
    faults: list[str] = []
    plain = _take(tree, _TOP, "", faults)
    embedded = Embedded(**_take(section(tree, "embedded", faults), _EMBEDDED, "embedded.", faults))
    spark_table = section(tree, "spark", faults)
    spark = _take(spark_table, _SPARK, "spark.", faults)
    spark_conf = _spark_settings(spark_table.get("conf", {}), faults)
    runner = _take(section(tree, "runner", faults), _RUNNER, "runner.", faults)
    http = _take(section(tree, "http", faults), _HTTP, "http.", faults)
    alarms = _take(section(tree, "alarms", faults), _alarms_in(file.parent), "alarms.", faults)
    kafka_table = section(tree, "kafka", faults)
    kafka_plain = _take(kafka_table, _KAFKA, "kafka.", faults)
    prefix = kafka_plain.pop("topic_prefix", "")
    kafka = None
    librdkafka = _librdkafka_settings(kafka_table.get("settings", {}), file.parent, faults)
    if "bootstrap" in kafka_plain:
        kafka = OutsideKafka(kafka_plain["bootstrap"], librdkafka)
    elif "settings" in kafka_table:
        faults.append("kafka.settings: given without kafka.bootstrap, the address of the outside Kafka")
    if "kafka" in tree and "embedded" in tree and kafka is not None:
        faults.append("embedded: an outside Kafka is named in [kafka]; remove one of the two")
    if {"port", "url"} <= http.keys():
        faults.append("http.url: a service elsewhere and a port for our own are named; remove one of the two")
    zookeeper_table = section(tree, "zookeeper", faults)
    zookeeper = _take(zookeeper_table, _ZOOKEEPER, "zookeeper.", faults)
    if ("bootstrap" in kafka_table) != ("hosts" in zookeeper_table):
        missing = "zookeeper.hosts" if "bootstrap" in kafka_table else "kafka.bootstrap"
        faults.append(
            f"{missing}: an outside Kafka and an outside ZooKeeper are named together or not at all"
        )
    refuse_faults(
        str(file), faults, "Correct them and run the command again; docs/settings.md lists every key."
    )
    settings = Settings(
        root=file.parent,
        file=file,
        embedded=embedded,
        kafka=kafka,
        topic_prefix=prefix,
        zookeeper_hosts=zookeeper.get("hosts"),
        spark_master=spark.get("master", Settings.spark_master),
        spark_conf=spark_conf,
        runner=runner.get("enabled", True),
        runner_alone=runner.get("alone", False),
        http_port=http.get("port", 0),
        http_url=http.get("url"),
        alarms_webhook=alarms.get("webhook"),
        **plain,
    )
    return resolve_paths(settings)


def resolve_paths(settings: Settings) -> Settings:
    """The same settings with folders made absolute, relative ones against the settings file."""
    from dataclasses import replace

    root = settings.root.resolve()
    data = (root / settings.data.expanduser()).resolve()
    return replace(settings, root=root, data=data, schemas=(root / settings.schemas.expanduser()).resolve())


def read_endpoints(settings: Settings) -> Endpoints:
    """Where this stack answers: the outside addresses, or what `stack up` wrote down."""
    file = settings.data / ENDPOINTS_NAME
    try:
        written: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(written, dict) or ("kafka" in written) != ("zookeeper" in written):
            raise ValueError("it does not hold the addresses of a stack")
    except FileNotFoundError:
        written = {}
    except (OSError, ValueError, RecursionError) as error:
        raise Unavailable(
            f"{file} cannot be read: {error}", hint="Run `stack up`: it writes it anew."
        ) from None
    http = settings.http_url or written.get("http")
    if settings.kafka is not None:
        return Endpoints(settings.kafka.bootstrap, settings.zookeeper_hosts or "", http)
    if "kafka" not in written:
        raise Unavailable(
            f"stack {settings.name!r} is not running: {settings.data} holds no running cluster",
            hint="Start it with `stack up`.",
        )
    return Endpoints(written["kafka"], written["zookeeper"], http)


def _stack_name(value: Any) -> str:
    if not _STACK_NAME.fullmatch(plain_text(value)):
        raise BadInput(f"{value!r} must be lower-case letters, digits and dashes, at most 40 of them")
    return value


def _path(value: Any) -> Path:
    try:
        return Path(plain_text(value)).expanduser()
    except RuntimeError:
        raise BadInput(f"{value!r} begins with the home of a user who does not exist") from None


def _hosts(value: Any) -> str:
    for one in plain_text(value).split(","):
        match = _HOST.fullmatch(one)
        if not match or not 1 <= int(match.group(1)) <= 65_535:
            raise BadInput(f"{value!r} must be host:port, or several with commas between")
    return value


def _url(value: Any) -> str:
    match = _URL.fullmatch(plain_text(value))
    if not match or not 1 <= int(match.group(1)) <= 65_535:
        raise BadInput(f"{value!r} must be http://host:port")
    return value


def _zookeeper_hosts(value: Any) -> str:
    hosts, _, _ = plain_text(value).partition("/")
    _hosts(hosts)
    return value


def _port(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 65_535:
        raise BadInput(f"must be a port from 0 to 65535 (0: a free one), got {value!r}")
    return value


def _brokers(value: Any) -> int:
    if type(value) is not int or value not in (1, 3):
        raise BadInput(f"must be 1 or 3, got {value!r}")
    return value


def _master(value: Any) -> str:
    if not _MASTER.fullmatch(plain_text(value)):
        raise BadInput(f"must be local[N], spark://host:port, yarn or k8s://https://host:port, got {value!r}")
    return value


_heap = size_bytes("64MB", "64GB")


def _prefix(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9._-]{0,60}", value):
        raise BadInput(f"must be at most 60 letters, digits, dots, dashes and underscores, got {value!r}")
    return value


_TOP: dict[str, Parse] = {"name": _stack_name, "data": _path, "schemas": _path}
_TABLES = ("embedded", "spark", "runner", "http", "alarms", "kafka", "zookeeper")
_EMBEDDED: dict[str, Parse] = {
    "brokers": _brokers,
    "kafka_heap": _heap,
    "zookeeper_heap": _heap,
    "kafka_port": _port,
    "zookeeper_port": _port,
    "java": plain_text,
}
_SPARK: dict[str, Parse] = {"master": _master}
_RUNNER: dict[str, Parse] = {"enabled": flag, "alone": flag}
_HTTP: dict[str, Parse] = {"port": _port, "url": _url}
_ALARMS = ("webhook",)
_KAFKA: dict[str, Parse] = {"bootstrap": _hosts, "topic_prefix": _prefix}
_INNER_TABLES = {"kafka.": ("settings",), "spark.": ("conf",)}
_ZOOKEEPER: dict[str, Parse] = {"hosts": _zookeeper_hosts}
# Keys that people write with their unit but that are kept in bytes.
_RENAMED = {"kafka_heap": "kafka_heap_bytes", "zookeeper_heap": "zookeeper_heap_bytes"}


def _take(
    table: Mapping[str, Any], parsers: Mapping[str, Parse], prefix: str, faults: list[str]
) -> dict[str, Any]:
    tables = _TABLES if prefix == "" else _INNER_TABLES.get(prefix, ())
    taken = take(table, parsers, prefix, faults, tables)
    return {_RENAMED.get(key, key): value for key, value in taken.items()}


def _spark_settings(table: Any, faults: list[str]) -> dict[str, str]:
    if not isinstance(table, dict):
        faults.append("spark.conf: must be a table, written [spark.conf]")
        return {}
    settings: dict[str, str] = {}
    for key, value in table.items():
        name = f"spark.conf.{key}"
        if key in _OWN_SPARK_SETTINGS:
            faults.append(f"{name}: not to be set here: {_OWN_SPARK_SETTINGS[key]}")
        elif not key.startswith("spark."):
            faults.append(f'{name}: settings of Spark begin with "spark."; write the key in quotes')
        elif isinstance(value, bool):
            settings[key] = str(value).lower()
        elif isinstance(value, str | int) and "\n" not in str(value):
            settings[key] = str(value)
        else:
            faults.append(f"{name}: must be text, a number, true or false")
    return settings


def _librdkafka_settings(table: Any, folder: Path, faults: list[str]) -> dict[str, str | Secret]:
    if not isinstance(table, dict):
        faults.append("kafka.settings: must be a table, written [kafka.settings]")
        return {}
    settings: dict[str, str | Secret] = {}
    for key, value in table.items():
        name = f"kafka.settings.{key}"
        try:
            settings[key] = _librdkafka_setting(name, key, value, folder)
        except BadInput as fault:
            faults.append(f"{name}: {fault.message}")
        except ValueError:  # as above
            faults.append(f"{name}: holds a number that is too long")
    return settings


def _librdkafka_setting(name: str, key: str, value: Any, folder: Path) -> str | Secret:
    if key in _OWN_KAFKA_SETTINGS:
        raise BadInput(f"not to be set here: {_OWN_KAFKA_SETTINGS[key]}")
    if _is_secret(value):
        return _secret(name, value, folder)
    if isinstance(value, dict):
        raise BadInput(f'write librdkafka\'s dotted names in quotes: "{key}.…" = "…"')
    if any(word in key for word in _SECRET_WORDS) and not key.endswith(".location"):
        raise BadInput('no secret stands in this file; write { env = "NAME" } or { file = "path" }')
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise BadInput(f"must be text or a number, got {value!r}")


def _alarms_in(folder: Path) -> dict[str, Parse]:
    def webhook(value: Any) -> str | Secret:
        if _is_secret(value):
            return _secret("alarms.webhook", value, folder)
        if not isinstance(value, str) or not _WEBHOOK.fullmatch(value):
            raise BadInput('must be http://… or https://…, or { env = "NAME" } or { file = "path" }')
        return value

    return {"webhook": webhook}


def _is_secret(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)) in ("env", "file")


def _secret(name: str, value: Mapping[str, Any], folder: Path) -> Secret:
    """A secret file is found beside the settings file, whatever folder a process runs in."""
    ((source, place),) = value.items()
    try:
        return Secret(name, source, plain_text(place) if source == "env" else str(folder / _path(place)))
    except BadInput:
        raise BadInput(f"{source} must name where the secret is") from None
