"""Which children a stack has, by its settings and by what its data folder remembers."""

from __future__ import annotations

from collections.abc import Callable

from ops.cluster.http_node import NAME as HTTP
from ops.cluster.http_node import http_service
from ops.cluster.jars import kafka_jars
from ops.cluster.java import find_java
from ops.cluster.kafka_archive import kafka_archive
from ops.cluster.kafka_node import broker_name, controller_name, kafka_service
from ops.cluster.layout import Cluster, Layout, read_cluster
from ops.cluster.ports import HOST
from ops.cluster.runner_node import runner_service
from ops.cluster.service import Service
from ops.cluster.zookeeper_node import NAME as ZOOKEEPER
from ops.cluster.zookeeper_node import zookeeper_service
from stack.errors import ClusterFault
from stack.runtime.spark_archive import archive_words
from stack.settings import Endpoints, Settings


def wanted_ports(settings: Settings, brokers: int) -> dict[str, int]:
    """Every port that the stack listens on, with the number that the settings ask for or 0."""
    ports = {} if settings.http_url else {HTTP: settings.http_port}
    if settings.kafka is None:
        ports[ZOOKEEPER] = settings.embedded.zookeeper_port
        first = settings.embedded.kafka_port
        for node in range(1, brokers + 1):
            ports[broker_name(node)] = first + node - 1 if first else 0
            ports[controller_name(node)] = 0
    return ports


def embedded_services(
    settings: Settings, layout: Layout, say: Callable[[str], None] = lambda _: None
) -> tuple[list[Service], Endpoints]:
    """The children of this stack and the addresses at which they will answer."""
    cluster = read_cluster(layout)
    if cluster is None:
        raise ClusterFault(f"{layout.data} has not been prepared", hint="Start the stack with `stack up`.")
    ours, http_url = [], settings.http_url
    if http_url is None:
        http = http_service(layout, settings, cluster.ports[HTTP])
        ours.append(http)
        http_url = f"http://{HOST}:{http.port}"
    if settings.runner:
        ours.append(runner_service(layout, settings))
    if settings.kafka is not None:
        return ours, Endpoints(settings.kafka.bootstrap, settings.zookeeper_hosts or "", http_url)
    java = find_java(settings.embedded.java)
    jars = kafka_jars(java, say)
    zookeeper = zookeeper_service(
        layout, java, cluster.ports[ZOOKEEPER], settings.embedded.zookeeper_heap_bytes
    )
    words = archive_words(kafka_archive(java))
    heap_bytes = settings.embedded.kafka_heap_bytes
    brokers = [
        kafka_service(layout, java, jars, cluster, node=node, heap_bytes=heap_bytes, words=words)
        for node in range(1, cluster.brokers + 1)
    ]
    return [*brokers, zookeeper, *ours], Endpoints(
        bootstrap(cluster), f"{HOST}:{cluster.ports[ZOOKEEPER]}", http_url
    )


def bootstrap(cluster: Cluster) -> str:
    """The addresses of all brokers, as clients want them."""
    return ",".join(f"{HOST}:{cluster.ports[broker_name(node)]}" for node in range(1, cluster.brokers + 1))
