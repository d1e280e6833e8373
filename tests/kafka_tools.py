"""Kafka's own command line, for tests that compare with it."""

from __future__ import annotations

from dataclasses import dataclass

from ops.cluster.commands import captured
from ops.cluster.jars import KAFKA_VERSION, JarSet, cached_jars, kafka_jars
from ops.cluster.java import find_java
from stack.model.place import Place

_TOOLS = JarSet(
    "kafka-tools", "Kafka's tools", "1 MB", (("org.apache.kafka", "kafka-tools", KAFKA_VERSION),), alone=True
)
_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_LIMIT_S = 60


@dataclass(frozen=True)
class GroupRow:
    """A line of `kafka-consumer-groups --describe`."""

    committed: int
    end: int
    lag: int


def group_lags(bootstrap: str, group: str) -> dict[Place, int]:
    """The column LAG, by partition."""
    return {place: row.lag for place, row in group_rows(bootstrap, group).items()}


def group_rows(bootstrap: str, group: str) -> dict[Place, GroupRow]:
    """CURRENT-OFFSET, LOG-END-OFFSET and LAG, by partition."""
    java = find_java(None)
    folders = [cached_jars(_TOOLS, java, lambda _: None), kafka_jars(java, lambda _: None)]
    command = [java.command, "-cp", ":".join(f"{folder}/*" for folder in folders), _GROUPS]
    done = captured([*command, "--bootstrap-server", bootstrap, "--describe", "--group", group], _LIMIT_S)
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    heads = next((line for line in lines if line[0] == "GROUP"), None)
    assert heads is not None, done.stdout + done.stderr
    rows = [dict(zip(heads, line, strict=False)) for line in lines if line[0] == group]
    return {
        (row["TOPIC"], int(row["PARTITION"])): GroupRow(
            int(row["CURRENT-OFFSET"]), int(row["LOG-END-OFFSET"]), int(row["LAG"])
        )
        for row in rows
    }
