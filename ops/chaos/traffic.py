"""The traffic of the chain: a load at a steady rate into its first feed, and a look at its last one."""

from __future__ import annotations

import io
import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import fastavro

from ops.chaos.chain import JOBS, LAST, PARTITIONS, SOURCE, chain_of
from ops.chaos.flow import Flow
from ops.chaos.load import Load, Made
from ops.chaos.progress import Progress
from ops.chaos.stage import Stage
from ops.chaos.verdict import Report
from ops.chaos.verifier import verify
from stack.errors import ClusterFault

KEYS, RATE = 2_000, 1_500
# Jobs catch up within this, or the run has failed; the longest a fault may take is part of it.
_RECOVER_S = 120.0
_VERIFY_S = 180.0
_LOOK_S = 0.05


class Traffic:
    """Load and outputs of one run. To be closed, whatever happens."""

    def __init__(self, stage: Stage, seed: int, rate: int = RATE, recover_s: float = _RECOVER_S) -> None:
        self._stage = stage
        self._recover_s = recover_s
        stack = stage.stack
        schema = stack.schema(SOURCE)
        make = _clicks(schema.schema.tree, schema.id, seed)
        self._load = Load(stack.endpoints.kafka, stack.topic_of(SOURCE), make, rate)
        self._flow = Flow(stack.access, stack.topic_of(LAST), PARTITIONS)
        self._progress = Progress(stage, JOBS, recover_s)

    def start(self) -> None:
        """Begin to write, and wait until outputs flow."""
        self._load.start()
        deadline = time.monotonic() + self._recover_s
        while not all(self._flow.counts.values()):
            if time.monotonic() > deadline:
                raise ClusterFault(f"after {self._recover_s:.0f} s not every partition has outputs")
            time.sleep(_LOOK_S)
        self._progress.await_handled()

    def outage_s(self, since: float) -> float:
        """Wait until everything that is written by now was handled, and tell how long none came to a
        partition. Outputs are not counted for that: a job that went back has more of them than inputs."""
        self._progress.await_handled()
        return self._flow.longest_silence_s(since, time.monotonic())

    def judge(self, records: int, say: Callable[[str], None]) -> Report:
        """Write up to so many records, let the jobs come to rest, and read what they have left."""
        while self._load.written < records:
            self._load.refuse_failed()
            time.sleep(_LOOK_S)
        self._load.stop()
        acknowledged = self._load.by_key
        say(f"the load has ended after {sum(acknowledged.values()):,} records; draining")
        self._stage.drain_all()
        self.close()
        say("verifying")
        return verify(chain_of(self._stage), acknowledged, limit_s=_VERIFY_S)

    def close(self) -> None:
        """Write and watch no longer."""
        self._load.abandon()
        self._flow.close()
        self._progress.close()


def _clicks(schema: Any, schema_id: int, seed: int) -> Callable[[], Made]:
    """Makes clicks of random users, some of them busier than others."""
    parsed, header = fastavro.parse_schema(schema), b"\0" + schema_id.to_bytes(4, "big")
    chance, numbers = random.Random(seed), itertools.count(1)

    def make() -> Made:
        user = f"user-{int(KEYS * chance.random() ** 2)}"
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, {"user": user, "count": next(numbers)})
        return Made(user.encode(), header + body.getvalue())

    return make
