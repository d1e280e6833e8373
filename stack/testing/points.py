"""Where a test may let a job crash: the points by name, and the hooks that watch for them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException

from stack.errors import BadInput
from stack.kafka.memory.broker import MemoryProcess
from stack.kafka.memory.client import MemoryClient
from stack.kafka.memory.hooks import BEFORE, Hooks
from stack.testing.clock import Clock

POINTS: Mapping[str, str] = {
    "open.fence": "the container has fenced its predecessor, and opened nothing yet",
    "open.store": "a store is about to be opened",
    "open.restore": "a part of a changelog was read, and is not in the store yet",
    "read": "records were read, and none of them is handled yet",
    "outputs": "outputs have arrived in Kafka, the commit has not begun",
    "commit.deltas": "changes of a store have arrived in its changelog",
    "commit.points": "the checkpoints have arrived",
    "commit.flush": "everything has arrived, and nothing is committed",
    "commit.commit": "the transaction is committed, and the stores do not know it yet",
    "store.write": "committed changes are about to be written to a store on disk",
}

REWIND_POINTS: Mapping[str, str] = {
    "rewind.mark": "the entry of the job says that it goes back, and nothing else has happened",
    "rewind.fence": "a container of the job is fenced",
    "rewind.intent": "the checkpoints say that it goes back: no container opens a task any more",
    "rewind.undo": "some of the old values have arrived in a changelog or a table",
    "rewind.land": "everything has arrived, and the last transaction is not committed",
    "rewind.landed": "it is committed, and the entry of the job does not say so yet",
}


# How the processes of rewinds are named.
REWIND_PROCESS = "rewind of "


class Crashed(BaseException):
    """The process at hand is dead. Nobody on the way is to catch it."""


class KitHooks(Hooks):
    """Kafka and disks of a stack in memory: the time of its clock, and a crash where one is wanted."""

    sends_at_once = True

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        # The process that shall crash, and where: a point by its name, or how many requests it may still
        # begin or end.
        self._wanted: tuple[MemoryProcess, str] | None = None
        self._steps_left = 0
        self._lands = False
        # Jobs whose next commit Kafka refuses.
        self._spoilt: set[str] = set()

    def now_s(self) -> float:
        return self._clock.passed_s

    def now_ms(self) -> int:
        return self._clock.now_ms

    def wait(self, seconds: float) -> None:
        self._clock.wait(seconds)

    def crash_at(self, process: MemoryProcess | None, point: str | int = "") -> None:
        """Let a process crash when it comes there next; None takes the wish back.

        A number: at so many beginnings and ends of requests that it makes of Kafka.
        """
        self._wanted = None if process is None else (process, str(point))
        self._steps_left = point if isinstance(point, int) else 0
        self._lands = False

    def abort_next(self, job: str) -> None:
        """Let the next commit of a job be refused."""
        self._spoilt.add(job)

    def point(self, client: MemoryClient, operation: str, phase: str) -> None:
        if self._spoilt and operation == "commit" and phase == BEFORE:
            self._spoil(client.process.name.partition("#")[0])
        if self._wanted is not None and client.process is self._wanted[0]:
            self._pass(self._rewind_point(client, operation, phase) or _kafka_point(client, operation, phase))
            self._count_step()

    def _count_step(self) -> None:
        if self._steps_left > 0:
            self._steps_left -= 1
            if self._steps_left == 0 and self._wanted is not None:
                self._pass(self._wanted[1])

    def _rewind_point(self, client: MemoryClient, operation: str, phase: str) -> str | None:
        """The name of a point at which a rewind is."""
        if phase == BEFORE or not client.process.name.startswith(REWIND_PROCESS):
            return None
        is_own = client.name.endswith(".rewind")
        if operation == "produce" and is_own and client.place is not None:
            topic = client.place[0]
            self._lands = self._lands or topic.endswith(".audit")
            return "rewind.land" if topic.endswith(".audit") else None if topic[0] == "_" else "rewind.undo"
        if operation == "commit":
            return ("rewind.landed" if self._lands else "rewind.intent") if is_own else "rewind.mark"
        return "rewind.fence" if operation == "init" and not is_own and "ledger" not in client.name else None

    def disk_point(self, process: str, step: str, _folder: Path) -> None:
        """What the disk calls before each step."""
        if self._wanted is not None and process == self._wanted[0].name:
            self._pass({"open": "open.store", "apply": "store.write"}.get(step))

    def _spoil(self, job: str) -> None:
        if job in self._spoilt:
            self._spoilt.remove(job)
            reason = "the test wants this commit to be aborted"
            raise KafkaException(
                KafkaError(KafkaError.TRANSACTION_ABORTABLE, reason, txn_requires_abort=True)
            )

    def _pass(self, point: str | None) -> None:
        if self._wanted is not None and point == self._wanted[1]:
            # Before anybody on the way cleans up after itself.
            self._wanted[0].kill()
            self._wanted = None
            raise Crashed(point)


def _kafka_point(client: MemoryClient, operation: str, phase: str) -> str | None:
    """The name of a point at which a client is, if it has one."""
    match operation, phase:
        case "init", "after":
            return "open.fence"
        case "commit", "before":
            return "commit.flush"
        case "commit", "after":
            return "commit.commit"
        case "fetch", "after":
            if not client.name.startswith("feedstack-reader-"):
                return "read"
            return "open.restore" if client.name.endswith(".changelog") else None
        case "produce", "after" if client.place is not None:
            return _written_to(client.place[0])
    return None


def _written_to(topic: str) -> str:
    if topic.endswith(".changelog"):
        return "commit.deltas"
    return "commit.points" if topic.endswith(".checkpoints") and topic.startswith("_") else "outputs"


def known_point(name: str, points: Mapping[str, str] = POINTS) -> str:
    """The name, or BadInput with the points that there are."""
    if name in points:
        return name
    near = difflib.get_close_matches(name, points, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise BadInput(f"there is no crash point {name!r}", hint=f"{hint}There are: {', '.join(points)}.")
