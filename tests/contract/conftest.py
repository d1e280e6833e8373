"""The two worlds of the contract: a Kafka in memory, and the shared cluster of the run."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from stack.kafka.admin import KafkaAdmin, TopicPlan
from stack.kafka.config import KafkaAccess
from stack.kafka.memory.broker import MemoryKafka
from stack.machine import steered_by
from stack.settings import read_endpoints
from stack.testing.clock import Clock, MachineInHand
from stack.testing.points import KitHooks
from tests.cluster import conftest as real
from tests.clusters import shared_cluster, wait_for

_numbers = itertools.count()
# The fixtures of the real cluster, under their own names.
cluster, make_settings, settings, stack = real.cluster, real.make_settings, real.settings, real.stack


class KafkaWorld:
    """A Kafka, topics of this test's own on it, and clients' access to it."""

    def __init__(self, memory: MemoryKafka | None) -> None:
        self._memory = memory
        self.unique = f"contract-{os.getpid()}-{next(_numbers)}"
        self.access = self.other_process()
        self.admin = KafkaAdmin(self.access)

    def other_process(self) -> KafkaAccess:
        """Access as another process has it."""
        if self._memory is not None:
            return KafkaAccess("memory", memory=self._memory.process(self.unique))
        return KafkaAccess(read_endpoints(shared_cluster()).kafka)

    def topic(self, name: str = "t", partitions: int = 1, **own: str) -> str:
        """Make a topic; its settings are written with `_` for dots."""
        full = f"{self.unique}.{name}"
        plan = TopicPlan(full, partitions, {key.replace("_", "."): text for key, text in own.items()})
        self.admin.create([plan])
        return full

    def await_end(self, topic: str, end: int) -> None:
        """Wait until the only partition of a topic ends there: markers come after the answer to a commit."""
        wait_for(lambda: self.admin.ends(topic, [0]) == {0: end}, f"offset {end} of {topic}")


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.cluster)])
def kafka(request: pytest.FixtureRequest) -> Iterator[KafkaWorld]:
    if request.param == "real":
        yield KafkaWorld(None)
        return
    clock = Clock()
    hooks = KitHooks(clock)
    hooks.sends_at_once = False
    with steered_by(MachineInHand(clock)):
        yield KafkaWorld(MemoryKafka(hooks))
