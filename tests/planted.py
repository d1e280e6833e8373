"""Faults planted into the real engine, each in a container's own process: what the verifier must find.

A function here changes the engine of the process that it is called in; `run` is what a fleet starts.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from stack.deploy.rewind_changes import RewindChanges
from stack.deploy.rewinding import Rewinding
from stack.offsets.undo import Change, LogUndo
from stack.runtime.launch import Launch

USER, CLICKS = "user-3", 20
"""The key that a fault befalls, and how many inputs it has."""


def _put(owner: Any, name: str, function: Callable[..., Any]) -> None:
    setattr(owner, name, function)


def run(plant: Callable[[], None], launch: Launch, ends: Any) -> None:
    """A container whose engine has a fault."""
    from tests.fleets import run_and_tell

    plant()
    run_and_tell(launch, ends)


def drop_record() -> None:
    """The first record that is read never reaches the task, yet its offset is passed."""
    from stack.kafka.inputs import InputReader

    read, dropped = InputReader.read, False

    def reading(self: Any, *arguments: Any) -> Any:
        nonlocal dropped
        portions = read(self, *arguments)
        if portions and not dropped:
            dropped = True
            del portions[0].batch.messages[0]
        return portions

    _put(InputReader, "read", reading)


def double_output() -> None:
    """One output is written twice."""
    from stack.runtime.outputs import Output

    send, doubled = Output.send, False

    def sending(self: Any, writer: Any) -> int:
        nonlocal doubled
        if len(self._ready) and not doubled:
            doubled = True
            self._ready.add(self._ready._keys[-1:], self._ready._values[-1:])
        return send(self, writer)

    _put(Output, "send", sending)


def skip_delta() -> None:
    """The last change of one key does not reach the changelog."""
    from changelog.overlay import Deltas, Overlay
    from stack.model.packed import pack

    take = Overlay.take

    def taking(self: Any) -> Deltas:
        taken = take(self)
        pairs = zip(taken.keys.items(), taken.values.items(), strict=True)
        skipped = (USER.encode(), CLICKS.to_bytes(8, "big"))
        kept = [pair for pair in pairs if pair != skipped]
        return Deltas(pack([key for key, _ in kept]), pack([value for _, value in kept]))

    _put(Overlay, "take", taking)


def lose_offset() -> None:
    """Checkpoints tell a place one record before the one that was reached."""
    from stack.runtime.task import Task

    checkpoint = Task.checkpoint

    def behind(self: Any, positions: Any, *rest: Any) -> Any:
        point = checkpoint(self, positions, *rest)
        inputs = {
            name: replace(one, offsets={number: offset - 1 for number, offset in one.offsets.items()})
            for name, one in point.inputs.items()
        }
        return replace(point, inputs=inputs)

    _put(Task, "checkpoint", behind)


def without_transactions() -> None:
    """Everything is written as it comes, and the process is killed before its next checkpoint."""
    from stack.kafka.transactions import TransactionWriter
    from stack.kafka.writer import LogWriter

    def make(self: Any, access: Any, _id: str, settings: Any = None, **_: Any) -> None:
        self.disturbed = self.in_transaction = False
        LogWriter.__init__(self, access, None, settings)

    def die_at_commit(self: Any) -> None:
        self.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    _put(TransactionWriter, "__init__", make)
    _put(TransactionWriter, "init_transactions", lambda _: None)
    _put(TransactionWriter, "begin_if_needed", lambda _: None)
    _put(TransactionWriter, "deliver_or_abort", die_at_commit)


# Faults of rewinds, in the process of the command


@contextlib.contextmanager
def leave_correction_out() -> Iterator[None]:
    """One key of each partition of a table is not brought back."""
    changes = LogUndo.changes

    def fewer(self: Any, *arguments: Any, **options: Any) -> Iterator[Change]:
        is_table = not self._topic.endswith(".changelog")
        for one in changes(self, *arguments, **options):
            yield replace(one, keys=one.keys[1:], values=one.values[1:]) if is_table else one

    with _instead(LogUndo, "changes", fewer):
        yield


@contextlib.contextmanager
def leave_state() -> Iterator[None]:
    """Stores stay as they are."""
    with _instead(RewindChanges, "of_state", lambda *_: iter(())):
        yield


@contextlib.contextmanager
def leave_inputs() -> Iterator[None]:
    """Tasks read on where they stood."""
    landing = Rewinding._landing

    def standing(self: Any, spec: Any, intent: Any, before: Any, *rest: Any) -> Any:
        return replace(landing(self, spec, intent, before, *rest), inputs=before.inputs)

    with _instead(Rewinding, "_landing", standing):
        yield


@contextlib.contextmanager
def _instead(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    before = getattr(owner, name)
    _put(owner, name, function)
    try:
        yield
    finally:
        _put(owner, name, before)
