"""The crash points of the test kit, planted into a real container: it kills its own process there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from stack.runtime.launch import Launch


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(point: str, launch: Launch, ends: Any) -> None:
    """A container that dies at a point, or whose first commit is aborted."""
    from tests.fleets import run_and_tell

    _PLANTS[point]()
    run_and_tell(launch, ends)


def _after(owner: Any, name: str, act: Callable[[Any, Any], None]) -> None:
    """Do something after each call of a method; it is told who was called and the answer."""
    method = getattr(owner, name)

    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        answer = method(self, *arguments, **named)
        act(self, answer)
        return answer

    setattr(owner, name, called)


def _before(owner: Any, name: str) -> None:
    method = getattr(owner, name)

    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        die()
        return method(self, *arguments, **named)

    setattr(owner, name, called)


def _fence() -> None:
    from stack.kafka.transactions import TransactionWriter

    _after(TransactionWriter, "init_transactions", lambda _self, _: die())


def _open_store() -> None:
    from stack.runtime.opening import Opening

    _before(Opening, "_open_store")


def _restore() -> None:
    from changelog.restore import BulkLoad

    _before(BulkLoad, "add")


def _read() -> None:
    from stack.kafka.inputs import InputReader

    _after(InputReader, "read", lambda _self, portions: die() if portions else None)


def _outputs() -> None:
    from stack.runtime.outputs import Output

    send = Output.send

    def sending(self: Any, writer: Any) -> int:
        count = send(self, writer)
        if count:
            writer.flush()
            die()
        return count

    Output.send = sending  # type: ignore[method-assign]


def _die_delivered(committer: Any) -> None:
    committer.writer.flush()
    die()


def _deltas() -> None:
    from stack.runtime.commit import Committer

    _after(Committer, "_write_deltas", lambda self, _: _die_delivered(self) if self._written else None)


def _points() -> None:
    from stack.runtime.commit import Committer

    _after(Committer, "_write_points", lambda self, _: _die_delivered(self))


def _flush() -> None:
    from stack.kafka.transactions import TransactionWriter

    _before(TransactionWriter, "commit_delivered")


def _commit() -> None:
    from stack.kafka.transactions import TransactionWriter

    _after(TransactionWriter, "commit_delivered", lambda _self, _: die())


def _store_write() -> None:
    from stack.runtime import upkeep
    from stack.runtime.task import Task

    upkeep._PENDING_S = 0.2
    write = Task.write_pending

    def writing(self: Any, time_ms: int) -> None:
        if self.pending:
            die()
        write(self, time_ms)

    Task.write_pending = writing  # type: ignore[method-assign]


def _abort() -> None:
    from stack.kafka.transactions import TransactionWriter

    commit, spoilt = TransactionWriter.commit_delivered, False

    class Spoilt:
        """A client whose commit Kafka refuses."""

        def __init__(self, client: Any) -> None:
            self._client = client

        def __getattr__(self, name: str) -> Any:
            return getattr(self._client, name)

        def commit_transaction(self, _timeout_s: float) -> None:
            raise KafkaException(
                KafkaError(KafkaError.TRANSACTION_ABORTABLE, "planted", txn_requires_abort=True)
            )

    def committing(self: Any) -> None:
        nonlocal spoilt
        if not spoilt:
            spoilt = True
            self._producer = Spoilt(self._producer)
        commit(self)

    TransactionWriter.commit_delivered = committing  # type: ignore[method-assign]


_PLANTS: dict[str, Callable[[], None]] = {
    "open.fence": _fence,
    "open.store": _open_store,
    "open.restore": _restore,
    "read": _read,
    "outputs": _outputs,
    "commit.deltas": _deltas,
    "commit.points": _points,
    "commit.flush": _flush,
    "commit.commit": _commit,
    "store.write": _store_write,
    "abort": _abort,
}
