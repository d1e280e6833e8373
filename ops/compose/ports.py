"""On which ports the services listen inside of the cluster."""

from __future__ import annotations

KAFKA_PORT = 9092
KAFKA_OUTSIDE_PORT = 9094
KAFKA_CONTROLLER_PORT = 9093
ZOOKEEPER_PORT = 2181
MASTER_PORT = 7077
MASTER_UI_PORT = 8080
WORKER_UI_PORT = 8081
HTTP_PORT = 8081
