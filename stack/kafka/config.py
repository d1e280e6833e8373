"""How this stack reaches Kafka: the address, what the user set for librdkafka, and our own defaults."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from confluent_kafka import KafkaException

from stack.errors import BadConfig
from stack.settings import Endpoints, Secret, Settings

log = logging.getLogger("feedstack.kafka")
log.addHandler(logging.NullHandler())
log.propagate = False

Client = TypeVar("Client")

DEFAULTS: Mapping[str, Any] = {
    # A broker that hangs without closing its connections is given up after this; librdkafka waits a minute.
    "socket.timeout.ms": 10_000,
    "socket.connection.setup.timeout.ms": 5_000,
    # A lone broker that stood still is shut out by its controller for a moment. Whoever asks just then is
    # told that there is no broker, and librdkafka does not ask again before this time is over.
    "topic.metadata.refresh.interval.ms": 1_000,
}


class Twin(Protocol):
    """A process on a Kafka in memory (`kafka/memory`), by which its clients are made."""

    def client(self, kind: type[Client], settings: Mapping[str, Any]) -> Client: ...


@dataclass(frozen=True)
class KafkaAccess:
    """Everything a client needs to connect; secrets are looked up when a client is made."""

    bootstrap: str
    settings: Mapping[str, str | Secret] = field(default_factory=dict)
    memory: Twin | None = field(default=None, compare=False, repr=False)

    def client_settings(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of one client: our defaults, the user's, then what must be as it is."""
        given = {k: v.reveal() if isinstance(v, Secret) else v for k, v in self.settings.items()}
        return {**DEFAULTS, **given, "bootstrap.servers": self.bootstrap, **own}


def kafka_access(settings: Settings, endpoints: Endpoints, memory: Twin | None = None) -> KafkaAccess:
    """How to reach the Kafka of a stack, embedded or outside, or one in memory."""
    return KafkaAccess(endpoints.kafka, settings.kafka.settings if settings.kafka else {}, memory)


def make_client(kind: type[Client], access: KafkaAccess, own: Mapping[str, Any]) -> Client:
    """Make a consumer, producer or admin client; a setting that librdkafka refuses is the user's fault."""
    if access.memory is not None:
        return access.memory.client(kind, access.client_settings(own))
    try:
        return kind(access.client_settings(own), logger=log)  # type: ignore[call-arg]
    except KafkaException as error:
        raise BadConfig(
            f"librdkafka refuses a setting: {error.args[0].str()}",
            hint="Check [kafka.settings] in stack.toml.",
        ) from None
    except (TypeError, ValueError) as error:
        raise BadConfig(
            f"a setting for Kafka is wrong: {error}", hint="Check [kafka.settings] in stack.toml."
        ) from None
