"""stack.toml: every key, every fault at once, secrets that stay secret, and where a stack answers."""

from __future__ import annotations

import contextlib
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stack.errors import BadConfig, Unavailable
from stack.settings import (
    Embedded,
    Endpoints,
    OutsideKafka,
    Secret,
    Settings,
    find_settings_file,
    load_settings,
    parse_settings,
    read_endpoints,
    resolve_paths,
)

FILE = Path("/srv/stacks/shop/stack.toml")
OUTSIDE = '[kafka]\nbootstrap = "k:9092"\n[zookeeper]\nhosts = "z:2181"\n'


def parse(text: str) -> Settings:
    return parse_settings(text, FILE)


def faults_of(text: str) -> tuple[str, ...]:
    with pytest.raises(BadConfig) as caught:
        parse(text)
    assert all(fault in caught.value.message for fault in caught.value.faults)
    return caught.value.faults


def only_fault(text: str) -> str:
    (fault,) = faults_of(text)
    return fault


def test_every_key_of_an_embedded_stack_is_read() -> None:
    found = parse(
        """
        name = "shop-2"
        data = "var/data"
        schemas = "/etc/shop/schemas"
        [embedded]
        brokers = 3
        kafka_heap = "1.5GB"
        zookeeper_heap = "64MB"
        kafka_port = 19092
        zookeeper_port = 12181
        java = "/opt/java/bin/java"
        [spark]
        master = "local[4]"
        [spark.conf]
        "spark.executor.memory" = "1g"
        "spark.executor.instances" = 2
        "spark.eventLog.enabled" = true
        [runner]
        enabled = false
        alone = true
        [http]
        port = 8099
        [kafka]
        topic_prefix = "shop."
        """
    )
    assert found == Settings(
        root=FILE.parent,
        name="shop-2",
        data=FILE.parent / "var/data",
        schemas=Path("/etc/shop/schemas"),
        spark_master="local[4]",
        spark_conf={
            "spark.executor.memory": "1g",
            "spark.executor.instances": "2",
            "spark.eventLog.enabled": "true",
        },
        runner=False,
        runner_alone=True,
        http_port=8099,
        topic_prefix="shop.",
        embedded=Embedded(
            brokers=3,
            kafka_heap_bytes=3 << 29,
            zookeeper_heap_bytes=64 << 20,
            kafka_port=19092,
            zookeeper_port=12181,
            java="/opt/java/bin/java",
        ),
        kafka=None,
        zookeeper_hosts=None,
        file=FILE,
    )


@pytest.mark.parametrize(
    ("text", "webhook"),
    [
        ('"https://hooks.example/a/b?c=d"', "https://hooks.example/a/b?c=d"),
        ('{ env = "HOOK" }', Secret("alarms.webhook", "env", "HOOK")),
        ('{ file = "keys/hook" }', Secret("alarms.webhook", "file", str(FILE.parent / "keys/hook"))),
    ],
)
def test_the_address_of_a_webhook_may_be_a_secret(text: str, webhook: str | Secret) -> None:
    assert parse(f"[alarms]\nwebhook = {text}").alarms_webhook == webhook


def test_every_key_of_an_outside_stack_is_read() -> None:
    found = parse(
        """
        [kafka]
        bootstrap = "k1:9092,k2:9092"
        topic_prefix = "shop-"
        [kafka.settings]
        "security.protocol" = "sasl_ssl"
        "socket.timeout.ms" = 5000
        "socket.keepalive.enable" = true
        "retry.jitter" = 0.5
        "sasl.password" = { env = "KAFKA_PASSWORD" }
        "ssl.key.password" = { file = "keys/password" }
        "ssl.key.location" = "keys/key.pem"
        [zookeeper]
        hosts = "z1:2181,z2:2181/shop"
        """
    )
    assert found.kafka == OutsideKafka(
        "k1:9092,k2:9092",
        {
            "security.protocol": "sasl_ssl",
            "socket.timeout.ms": "5000",
            "socket.keepalive.enable": "true",
            "retry.jitter": "0.5",
            "sasl.password": Secret("kafka.settings.sasl.password", "env", "KAFKA_PASSWORD"),
            "ssl.key.password": Secret(
                "kafka.settings.ssl.key.password", "file", str(FILE.parent / "keys/password")
            ),
            "ssl.key.location": "keys/key.pem",
        },
    )
    assert (found.zookeeper_hosts, found.topic_prefix) == ("z1:2181,z2:2181/shop", "shop-")


def test_an_empty_file_means_the_defaults() -> None:
    assert parse("") == resolve_paths(Settings(root=FILE.parent, file=FILE))
    assert parse("").data == FILE.parent / ".stack"


def test_a_data_folder_may_begin_with_the_users_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert parse('data = "~/stack"').data == Path("/home/ada/stack")


def test_all_faults_come_at_once_each_with_its_key() -> None:
    faults = faults_of(
        """
        name = "No Spaces"
        data = 5
        colour = "red"
        spark = "local"
        [embedded]
        brokers = 2
        kafka_heap = "lots"
        zookeeper_port = 70000
        [http]
        prot = 1
        [kafka]
        topic_prefix = "a b"
        [kafka.settings]
        "group.id" = "mine"
        [zookeeper]
        hosts = "nowhere"
        """
    )
    keys = [fault.partition(":")[0] for fault in faults]
    assert keys == [
        "name",
        "data",
        "colour",
        "embedded.brokers",
        "embedded.kafka_heap",
        "embedded.zookeeper_port",
        "spark",
        "http.prot",
        "kafka.topic_prefix",
        "kafka.settings.group.id",
        "kafka.settings",
        "zookeeper.hosts",
        "kafka.bootstrap",
    ]


def test_the_message_counts_the_faults() -> None:
    with pytest.raises(BadConfig, match=r"stack\.toml has 1 fault:"):
        parse("x = 1")
    with pytest.raises(BadConfig, match=r"stack\.toml has 2 faults:"):
        parse("x = 1\ny = 2")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("nane = 'x'", "nane: unknown key; did you mean name?"),
        ("[embeded]\nbrokers = 1", "embeded: unknown key; did you mean embedded?"),
        ("[embedded]\nbroker = 1", "embedded.broker: unknown key; did you mean embedded.brokers?"),
        ("[http]\nprt = 1", "http.prt: unknown key; did you mean http.port?"),
        ("[kafka]\nsetings = 1", "kafka.setings: unknown key; did you mean kafka.settings?"),
        ("[spark]\nzzz = 1", "spark.zzz: unknown key; known here: conf, master"),
    ],
)
def test_an_unknown_key_is_told_what_was_meant(text: str, fault: str) -> None:
    assert only_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("name = ''", "name"),
        ("name = 'Upper'", "name"),
        ("name = '-a'", "name"),
        (f"name = '{'a' * 41}'", "name"),
        ("name = 7", "name"),
        ("data = ''", "data"),
        ('data = "a\\u0000b"', "data"),
        ("schemas = []", "schemas"),
        ("data = '~nobody-of-this-name/x'", "data"),
        ("[embedded]\nbrokers = 0", "embedded.brokers"),
        ("[embedded]\nbrokers = 2", "embedded.brokers"),
        ("[embedded]\nbrokers = 4", "embedded.brokers"),
        ("[embedded]\nbrokers = true", "embedded.brokers"),
        ("[embedded]\nbrokers = 1.0", "embedded.brokers"),
        ("[embedded]\nbrokers = '3'", "embedded.brokers"),
        ("[embedded]\nkafka_heap = '63MB'", "embedded.kafka_heap"),
        ("[embedded]\nkafka_heap = '65GB'", "embedded.kafka_heap"),
        ("[embedded]\nkafka_heap = 512", "embedded.kafka_heap"),
        (f"[embedded]\nkafka_heap = '{'9' * 400}MB'", "embedded.kafka_heap"),
        ("[embedded]\nzookeeper_heap = '1B'", "embedded.zookeeper_heap"),
        ("[embedded]\nkafka_port = -1", "embedded.kafka_port"),
        ("[embedded]\nkafka_port = 65536", "embedded.kafka_port"),
        ("[embedded]\nkafka_port = true", "embedded.kafka_port"),
        ("[embedded]\nzookeeper_port = '2181'", "embedded.zookeeper_port"),
        ("[embedded]\njava = 17", "embedded.java"),
        (f"[embedded]\nkafka_port = 0x{'f' * 5000}", "embedded.kafka_port"),
        ("[http]\nport = 1.5", "http.port"),
        ("[spark]\nmaster = ''", "spark.master"),
        ("[spark]\nmaster = 'mesos://a:1'", "spark.master"),
        ("[spark]\nmaster = 'k8s://host:443'", "spark.master"),
        ("[spark]\nconf = 1", "spark.conf"),
        ("[spark.conf]\n'spark.master' = 'yarn'", "spark.conf.spark.master"),
        ("[spark.conf]\n'spark.task.maxFailures' = 4", "spark.conf.spark.task.maxFailures"),
        ("[spark.conf]\nspark.a = 'x'", "spark.conf.spark"),
        ("[spark.conf]\n'executor.memory' = '1g'", "spark.conf.executor.memory"),
        ("[spark.conf]\n'spark.a' = [1]", "spark.conf.spark.a"),
        ("[http]\nurl = 'http://host'", "http.url"),
        ("[alarms]\nwebhook = 'ftp://host/hook'", "alarms.webhook"),
        ("[alarms]\nwebhook = 'https://'", "alarms.webhook"),
        ("[alarms]\nwebhook = { var = 'HOOK' }", "alarms.webhook"),
        ("[alarms]\nwebhook = { env = 5 }", "alarms.webhook"),
        ("[alarms]\nhook = 'https://host'", "alarms.hook"),
        ("[http]\nurl = 'ftp://host:1'", "http.url"),
        ("[http]\nurl = 'http://host:70000'", "http.url"),
        ("[http]\nport = 1\nurl = 'http://host:1'", "http.url"),
        ("[runner]\nalone = 'yes'", "runner.alone"),
        ("[spark]\nmaster = 'local[0]'", "spark.master"),
        ("[spark]\nmaster = 'spark://host'", "spark.master"),
        ("[runner]\nenabled = 1", "runner.enabled"),
        ("embedded = 1", "embedded"),
        ("[[http]]\nport = 1", "http"),
        ("kafka = 'k:9092'", "kafka"),
        ("[kafka]\ntopic_prefix = 'a/b'", "kafka.topic_prefix"),
        (f"[kafka]\ntopic_prefix = '{'a' * 61}'", "kafka.topic_prefix"),
        ("[kafka]\nbootstrap = 'k:9092'", "zookeeper.hosts"),
        ("[zookeeper]\nhosts = 'z:2181'", "kafka.bootstrap"),
        ("[kafka.settings]\n'client.id' = 'x'", "kafka.settings"),
        (OUTSIDE + "[embedded]\nbrokers = 1", "embedded"),
        (OUTSIDE + "[kafka.settings]\nsasl.username = 'x'", "kafka.settings.sasl"),
        (OUTSIDE + "[kafka.settings]\n'client.id' = ['x']", "kafka.settings.client.id"),
        (OUTSIDE + f"[kafka.settings]\n'a.ms' = 0x{'f' * 5000}", "kafka.settings.a.ms"),
        (OUTSIDE.replace("[zoo", "settings = 5\n[zoo"), "kafka.settings"),
    ],
)
def test_a_bad_value_is_one_fault_under_its_key(text: str, key: str) -> None:
    assert only_fault(text).startswith(f"{key}: ")


@pytest.mark.parametrize(
    "text",
    [
        "[embedded]\nbrokers = 1\nkafka_heap = '64MB'\nkafka_port = 0\nzookeeper_port = 65535",
        "[embedded]\nbrokers = 3\nkafka_heap = '64GB'",
        f"name = '{'a' * 40}'",
        "name = '0'",
        "[kafka]\ntopic_prefix = ''",
        "[kafka]\n[zookeeper]\n[spark]\n[runner]\n[http]\n[embedded]",
    ],
)
def test_values_at_their_bounds_are_taken(text: str) -> None:
    parse(text)


@pytest.mark.parametrize(
    "hosts",
    ["k", "k:", ":9092", "k:0", "k:65536", "k:99999", "k:9092,", "k 1:9092", "ssl://k:9092", "k:٩٠٩٢"],
)
def test_an_address_is_host_and_port(hosts: str) -> None:
    assert only_fault(OUTSIDE.replace("k:9092", hosts)).startswith("kafka.bootstrap: ")
    assert only_fault(OUTSIDE.replace("z:2181", hosts)).startswith("zookeeper.hosts: ")


@pytest.mark.parametrize(
    "key",
    [
        "bootstrap.servers",
        "metadata.broker.list",
        "group.id",
        "transactional.id",
        "enable.idempotence",
        "isolation.level",
        "enable.auto.commit",
        "partitioner",
        "enable.partition.eof",
    ],
)
def test_settings_that_the_guarantees_hang_on_are_refused(key: str) -> None:
    fault = only_fault(f"{OUTSIDE}[kafka.settings]\n'{key}' = 'x'")
    assert fault.startswith(f"kafka.settings.{key}: not to be set here: ")


def test_an_outside_kafka_without_zookeeper_is_told_beside_other_faults() -> None:
    assert [fault.partition(":")[0] for fault in faults_of("x = 1\n[kafka]\nbootstrap = 'k:1'")] == [
        "x",
        "zookeeper.hosts",
    ]


SECRET_KEYS = [
    "sasl.password",
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.key.pem",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.jaas.config",
]


@pytest.mark.parametrize("key", SECRET_KEYS)
@pytest.mark.parametrize(
    "written", ["'hunter2'", "['hunter2']", "{ value = 'hunter2' }", "{ env = ['hunter2'] }"]
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(key: str, written: str) -> None:
    with pytest.raises(BadConfig) as caught:
        parse(f"{OUTSIDE}[kafka.settings]\n'{key}' = {written}")
    assert len(caught.value.faults) == 1
    assert f"kafka.settings.{key}: " in caught.value.message
    assert "hunter2" not in f"{caught.value!r} {caught.value} {caught.value.hint} {caught.value.faults}"


def secret_of(written: str, file: Path = FILE) -> Secret:
    kafka = parse_settings(f"{OUTSIDE}[kafka.settings]\n'sasl.password' = {written}", file).kafka
    assert kafka is not None
    secret = kafka.settings["sasl.password"]
    assert isinstance(secret, Secret)
    return secret


def test_a_secret_comes_from_the_environment_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = secret_of("{ env = 'KAFKA_PASSWORD' }")
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    assert secret.reveal() == "hunter2"
    assert "hunter2" not in f"{secret} {secret!r}"
    assert str(secret) == "***"


def test_a_missing_variable_is_named_when_the_secret_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
    with pytest.raises(BadConfig, match="environment variable KAFKA_PASSWORD is not set") as caught:
        secret_of("{ env = 'KAFKA_PASSWORD' }").reveal()
    assert caught.value.message.startswith("kafka.settings.sasl.password: ")
    assert "export KAFKA_PASSWORD" in caught.value.hint


def test_a_secret_file_is_found_beside_the_settings_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("hunter2\n")
    secret = secret_of("{ file = 'password' }", tmp_path / "stack.toml")
    monkeypatch.chdir("/")
    assert secret.reveal() == "hunter2"
    assert "hunter2" not in f"{secret} {secret!r}"


def test_a_secret_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        BadConfig, match=r"sasl\.password: the secret file .*/nothing cannot be read: No such"
    ):
        secret_of("{ file = 'nothing' }", tmp_path / "stack.toml").reveal()


def test_a_secret_file_that_is_not_text_is_named_but_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b"hunter2\xff")
    with pytest.raises(BadConfig, match="is not UTF-8") as caught:
        secret_of("{ file = 'password' }", tmp_path / "stack.toml").reveal()
    assert "hunter2" not in f"{caught.value!r}"


@pytest.mark.parametrize("written", ["{ env = '' }", "{ env = 5 }", "{ file = '' }", '{ file = "a\\u0000" }'])
def test_a_secret_needs_a_place(written: str) -> None:
    fault = only_fault(f"{OUTSIDE}[kafka.settings]\n'sasl.password' = {written}")
    assert fault.endswith("must name where the secret is")


@pytest.mark.parametrize(
    "text",
    ["name = ", "= 1", "[embedded", "name = 'a'\nname = 'b'", "x = " + "9" * 5000, "x = " + "[" * 5000],
)
def test_what_is_not_toml_is_refused_with_the_file(text: str) -> None:
    with pytest.raises(BadConfig, match=r"/stack\.toml is not TOML: "):
        parse(text)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stack.toml").write_bytes(b'name = "caf\xe9"')
    with pytest.raises(BadConfig, match=r"stack\.toml is not UTF-8"):
        load_settings(tmp_path / "stack.toml")


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadConfig, match="cannot be read") as caught:
        load_settings(tmp_path / name)
    assert str(tmp_path) in caught.value.message
    assert "--config" in caught.value.hint


@pytest.fixture
def nested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder two levels below one with a stack.toml; the process stands in the inner one."""
    monkeypatch.delenv("STACK_CONFIG", raising=False)
    (tmp_path / "stack.toml").write_text('name = "outer"')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    return inner


def test_the_nearest_file_above_counts(nested: Path, tmp_path: Path) -> None:
    assert find_settings_file(nested) == tmp_path / "stack.toml"
    assert (load_settings().name, load_settings().root) == ("outer", tmp_path.resolve())
    (nested / "stack.toml").write_text('name = "inner"')
    assert load_settings().name == "inner"


def test_a_folder_called_stack_toml_is_passed_over(nested: Path, tmp_path: Path) -> None:
    (nested / "stack.toml").mkdir()
    assert find_settings_file(nested) == tmp_path / "stack.toml"


def test_the_variable_goes_before_the_search(
    nested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.toml").write_text('name = "other"')
    monkeypatch.setenv("STACK_CONFIG", str(tmp_path / "other.toml"))
    assert load_settings().name == "other"
    monkeypatch.setenv("STACK_CONFIG", str(tmp_path / "nothing.toml"))
    with pytest.raises(BadConfig, match=r"nothing\.toml cannot be read"):
        load_settings()


def test_an_empty_variable_is_no_variable(nested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STACK_CONFIG", "")
    assert load_settings().name == "outer"


def test_a_named_file_goes_before_the_variable(
    nested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STACK_CONFIG", str(tmp_path / "nothing.toml"))
    assert load_settings(tmp_path / "stack.toml").name == "outer"


def test_without_any_file_the_folder_has_the_defaults(nested: Path, tmp_path: Path) -> None:
    (tmp_path / "stack.toml").unlink()
    assert find_settings_file(nested) is None, "a stack.toml lies above the folder for temporary files"
    assert load_settings() == resolve_paths(Settings(root=nested))


# Where a stack answers.

RUNNING = {"kafka": "127.0.0.1:9092", "zookeeper": "127.0.0.1:2181", "http": "http://127.0.0.1:8081"}


def embedded(tmp_path: Path, written: str | None) -> Settings:
    if written is not None:
        (tmp_path / ".stack").mkdir()
        (tmp_path / ".stack" / "endpoints.json").write_text(written)
    return parse_settings('name = "shop"', tmp_path / "stack.toml")


def outside(tmp_path: Path, written: str | None) -> Settings:
    embedded(tmp_path, written)
    return parse_settings(OUTSIDE, tmp_path / "stack.toml")


def test_a_running_stack_answers_where_it_wrote(tmp_path: Path) -> None:
    assert read_endpoints(embedded(tmp_path, json.dumps(RUNNING))) == Endpoints(**RUNNING)


@pytest.mark.parametrize("written", [None, "{}", '{"http": "http://x:1"}'])
def test_a_stack_that_is_not_running_is_told_to_start(tmp_path: Path, written: str | None) -> None:
    with pytest.raises(Unavailable, match="stack 'shop' is not running") as caught:
        read_endpoints(embedded(tmp_path, written))
    assert "stack up" in caught.value.hint


@pytest.mark.parametrize("written", ["", "{", "[]", "5", '"kafka"', '{"kafka": "k:1"}', "[" * 100_000])
def test_a_broken_endpoints_file_is_named(tmp_path: Path, written: str) -> None:
    with pytest.raises(Unavailable, match=r"endpoints\.json cannot be read") as caught:
        read_endpoints(embedded(tmp_path, written))
    assert "stack up" in caught.value.hint


def test_an_outside_stack_answers_at_its_addresses_without_any_file(tmp_path: Path) -> None:
    assert read_endpoints(outside(tmp_path, None)) == Endpoints("k:9092", "z:2181", None)


def test_an_outside_stack_takes_only_the_service_from_the_file(tmp_path: Path) -> None:
    assert read_endpoints(outside(tmp_path, json.dumps(RUNNING))) == Endpoints(
        "k:9092", "z:2181", RUNNING["http"]
    )


# Anything that TOML can say.

KEYS = (
    st.sampled_from(["name", "data", "schemas", "embedded", "spark", "runner", "http", "kafka", "zookeeper"])
    | st.sampled_from(["brokers", "kafka_heap", "kafka_port", "java", "master", "port", "bootstrap"])
    | st.sampled_from(["topic_prefix", "settings", "hosts", "sasl.password", "group.id", "env", "file"])
    | st.text(max_size=5)
)
LEAVES = (
    st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.integers()
    | st.floats()
    | st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.sampled_from(
        ["k:9092", "z:2181/x", "512MB", "shop", "~", "~x/y", "\0", "../..", "1.5GB", "a" * 5000]
    )
    | st.datetimes()
)
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_size=6,
)


def to_toml(value: Any) -> str:
    """A value as TOML, tables inline."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value).replace("\x7f", "\\u007f") if value.isascii() else _quoted(value)
        case list():
            return f"[{', '.join(map(to_toml, value))}]"
        case Mapping():
            return "{" + ", ".join(f"{to_toml(key)} = {to_toml(one)}" for key, one in value.items()) + "}"
        case int() | float():
            return str(value)
        case _:
            return str(value.isoformat())


def _quoted(text: str) -> str:
    return '"' + "".join(f"\\U{ord(letter):08x}" for letter in text) + '"'


@given(TREES)
@settings(max_examples=300)
@example({"kafka": {"bootstrap": "k:1", "settings": {"sasl.password": {"file": "\0"}}}})
@example({"embedded": {"brokers": 1.0}})
@example({"schemas": "~x/y"})
@example({"embedded": {"kafka_heap": "9" * 400 + "TB"}})
def test_any_toml_is_settings_or_bad_config(tree: dict[str, Any]) -> None:
    text = "\n".join(f"{to_toml(key)} = {to_toml(value)}" for key, value in tree.items())
    tomllib.loads(text)
    with contextlib.suppress(BadConfig):
        found = parse(text)
        assert found.data.is_absolute()
        assert found.schemas.is_absolute()
        assert (found.kafka is None) == (found.zookeeper_hosts is None)
        assert type(found.embedded.brokers) is int


@given(st.text(max_size=40) | st.text(alphabet="[]{}=\"'\n.a1#", max_size=40))
def test_any_text_is_settings_or_bad_config(text: str) -> None:
    with contextlib.suppress(BadConfig):
        parse(text)


@given(st.binary(max_size=60))
@settings(max_examples=50)
def test_any_bytes_are_settings_or_bad_config(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / f"any-{os.getpid()}.toml"
    file.write_bytes(data)
    with contextlib.suppress(BadConfig):
        load_settings(file)
