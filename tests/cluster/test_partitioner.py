"""Keys lie where Kafka's Java client would put them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from ops.cluster.jars import kafka_jars, spark_jars
from ops.cluster.java import find_java
from stack import Stack
from stack.kafka.admin import TopicPlan
from stack.kafka.reader import LogReader
from stack.kafka.writer import LogWriter
from stack.model.partitioner import murmur2, partition_of

pytestmark = pytest.mark.cluster
PARTITIONS = 7


@pytest.fixture(scope="module")
def java_utils() -> Iterator[Any]:
    """The class that the Java client hashes with, in a JVM of its own."""
    java = find_java()
    jars = kafka_jars(java, lambda _: None)
    bridge = next(spark_jars().glob("py4j-*.jar"))
    port, token = launch_gateway(
        jarpath=str(bridge),
        classpath=f"{jars}/*",
        java_path=java.command,
        die_on_exit=True,
        enable_auth=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    yield gateway.jvm.org.apache.kafka.common.utils.Utils
    gateway.shutdown()


def test_ten_thousand_random_keys_lie_where_java_puts_them(stack: Stack, java_utils: Any) -> None:
    chance = random.Random(11)
    keys = list({chance.randbytes(chance.randrange(1, 40)) for _ in range(10_500)})[:10_000]
    assert len(keys) == 10_000
    topic = stack.topic_of("keys")
    stack.admin.create([TopicPlan(topic, PARTITIONS)])
    with LogWriter(stack.access) as log:
        log.write(topic, [{"value": b"", "key": key} for key in keys])
    where: dict[bytes, int] = {}
    with LogReader(stack.access, topic) as reader:
        bounds = stack.admin.bounds(topic, range(PARTITIONS))
        reader.assign({n: b.low for n, b in bounds.items()}, {n: b.high for n, b in bounds.items()})
        while not reader.done:
            batch = reader.read()
            where.update(zip([key or b"" for key in batch.keys], batch.partitions, strict=True))
    for key in keys:
        by_java = java_utils.murmur2(key)
        assert murmur2(key) == by_java & 0xFFFFFFFF
        assert where[key] == java_utils.toPositive(by_java) % PARTITIONS == partition_of(key, PARTITIONS)
