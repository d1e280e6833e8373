"""Kafka's own command line, for tests that compare with it."""

from __future__ import annotations

from ops.cluster.commands import captured
from ops.cluster.jars import KAFKA_VERSION, JarSet, cached_jars, kafka_jars
from ops.cluster.java import find_java
from stack.model.place import Place

_TOOLS = JarSet(
    "kafka-tools", "Kafka's tools", "1 MB", (("org.apache.kafka", "kafka-tools", KAFKA_VERSION),), alone=True
)
_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_LIMIT_S = 60


def group_lags(bootstrap: str, group: str) -> dict[Place, int]:
    """The column LAG of `kafka-consumer-groups --describe`, by partition."""
    java = find_java(None)
    folders = [cached_jars(_TOOLS, java, lambda _: None), kafka_jars(java, lambda _: None)]
    command = [java.command, "-cp", ":".join(f"{folder}/*" for folder in folders), _GROUPS]
    done = captured([*command, "--bootstrap-server", bootstrap, "--describe", "--group", group], _LIMIT_S)
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    heads = next((line for line in lines if line[0] == "GROUP"), None)
    assert heads is not None, done.stdout + done.stderr
    rows = [dict(zip(heads, line, strict=False)) for line in lines if line[0] == group]
    return {(row["TOPIC"], int(row["PARTITION"])): int(row["LAG"]) for row in rows}
