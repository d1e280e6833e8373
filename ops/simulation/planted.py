"""Bugs on purpose: each takes away one guard that the protocols rest on, and some seed must notice.

The guards stay as they are in the product. A bug is planted by replacing a function for the time of a run.
A guard whose loss no seed notices would mean that the simulation is too weak, or the guard of no use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import changelog.memory
import changelog.plan
import stack.runtime.loop
import stack.runtime.opening
from changelog.manifest import misfit_of
from changelog.memory import MemoryStore
from changelog.plan import Bounds, Standing
from ops.simulation import planted_rewinds as rewinds
from stack.errors import FeedstackError
from stack.kafka.admin import Bounds as OffsetBounds
from stack.kafka.admin import KafkaAdmin
from stack.kafka.transactions import OutcomeUnknown, TransactionWriter
from stack.kafka.writer import LogWriter
from stack.runtime.commit import Committer
from stack.runtime.intake import Intake
from stack.runtime.loop import Container
from stack.runtime.opening import Opening
from stack.runtime.runner_feed import Errands
from stack.runtime.task import Task
from stack.runtime.work import Work
from stack.zookeeper.fleet_session import FleetSession

Plant = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class Bug:
    """A guard that is gone, in the words of the design, and how it is taken away."""

    name: str
    guard: str
    plant: Plant
    # A seed that notices it; tried first.
    seed: int | None = None


def _open_at_once() -> Any:
    return patch.object(stack.runtime.loop, "may_open", lambda *_: True)


def _fence_nobody() -> Any:
    def fence(_: Errands, _job: str, _slot: int, _wanted: Any, done: Callable[[], None]) -> None:
        done()

    return patch.object(Errands, "fence", fence)


def _keep_the_epoch() -> Any:
    def renew(self: Container) -> None:
        self._committer.writer.disturbed = False

    return patch.object(Container, "_renew_writer", renew)


def _keep_what_was_read() -> Any:
    return patch.object(Intake, "go_back", lambda _: None)


def _keep_queued_work() -> Any:
    def drop(self: Work, tasks: Any = None) -> None:
        if tasks is not None:
            real(self, tasks)

    real = Work.drop
    return patch.object(Work, "drop", drop)


def _keep_the_overlay() -> Any:
    """State goes on from changes of a transaction that was aborted."""

    def drop(self: Task) -> None:
        for overlay in self.overlays.values():
            overlay.settle()
        self.positions = dict(self.committed)

    return patch.object(Task, "drop", drop)


def _take_unknown_for_aborted() -> Any:
    real = TransactionWriter.commit_delivered

    def commit(self: TransactionWriter) -> None:
        try:
            real(self)
        except OutcomeUnknown as error:
            self._abort_after(error)

    return _unasked(patch.object(TransactionWriter, "commit_delivered", commit))


@contextlib.contextmanager
def _unasked(bug: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    """Two guards at once: whoever has its id again asks who has committed since, and would find out."""
    with bug, rewinds.renew_without_a_look():
        yield


def _take_unknown_for_done() -> Any:
    real = TransactionWriter.commit_delivered

    def commit(self: TransactionWriter) -> None:
        try:
            real(self)
        except OutcomeUnknown:
            self.in_transaction = False

    return _unasked(patch.object(TransactionWriter, "commit_delivered", commit))


def _read_to_the_stable_end() -> Any:
    real = KafkaAdmin.bounds

    def bounds(self: KafkaAdmin, name: str, partitions: Iterable[int]) -> dict[int, OffsetBounds]:
        logs = self._access.memory.kafka.topic(name).logs  # type: ignore[union-attr]
        return {
            number: OffsetBounds(one.low, logs[number].stable)
            for number, one in real(self, name, partitions).items()
        }

    return patch.object(KafkaAdmin, "bounds", bounds)


def _position_by_itself() -> Any:
    real = MemoryStore.apply

    def apply(self: MemoryStore, changes: Any, position: int, time_ms: int) -> None:
        real(self, {}, position, time_ms)
        real(self, changes, position, time_ms)

    return patch.object(MemoryStore, "apply", apply)


def _any_topic_id() -> Any:
    """A store of a changelog that was deleted and made anew is taken for one of the new changelog."""
    real = misfit_of

    def misfit(found: Any, wanted: Any) -> Any:
        fault = real(found, wanted)
        return None if fault is not None and fault.reason == "other-topic" else fault

    return patch.object(changelog.memory, "misfit_of", misfit)


def _no_horizon() -> Any:
    real = changelog.plan._refusal

    def refusal(one: Standing, bounds: Bounds, _horizon_ms: int, now_ms: int) -> str | None:
        return real(one, bounds, 1 << 60, now_ms)

    return patch.object(changelog.plan, "_refusal", refusal)


def _wait_for_kazoo() -> Any:
    return patch.object(FleetSession, "_watch", lambda _: None)


def _trust_the_group() -> Any:
    real = Opening._positions

    def positions(self: Opening) -> Any:
        found = real(self)
        group = self._parts.stack.access.memory.kafka.groups.get(self._parts.group, {})  # type: ignore[union-attr]
        return {place: group.get(place, offset) for place, offset in found.items()}

    return patch.object(Opening, "_positions", positions)


def _commit_undelivered() -> Any:
    """Outputs that go at once may be on their way still when their inputs are committed."""
    real = LogWriter.flush

    def flush(self: LogWriter) -> None:
        if isinstance(self, TransactionWriter):
            real(self)
            return
        with contextlib.suppress(FeedstackError):
            real(self)

    return patch.object(LogWriter, "flush", flush)


def _ends_never_forgotten() -> Any:
    """After an abort the ends of changelogs are still taken for known."""
    return patch.object(Committer, "_forget_ends", lambda _: None)


BUGS = (
    Bug(
        "open-at-once",
        "a task is opened only after its owner released it or was fenced",
        _open_at_once,
        10,
    ),
    Bug("fence-nobody", "the runner fences a container that is gone", _fence_nobody, 29),
    Bug("keep-epoch", "after trouble in commit or abort the epoch is raised", _keep_the_epoch, 65),
    Bug("keep-read", "an abort seeks every task back", _keep_what_was_read, 131),
    Bug("keep-work", "an abort drops what was prefetched", _keep_queued_work, 161),
    Bug("keep-overlay", "an abort drops the overlays", _keep_the_overlay, 131),
    Bug(
        "unknown-aborted",
        "an unknown outcome is no abort: leave and reopen",
        _take_unknown_for_aborted,
        11,
    ),
    Bug("unknown-done", "an unknown outcome is no commit: leave and reopen", _take_unknown_for_done, 61),
    Bug(
        "stable-end",
        "an opening reads to the high watermark, not to the stable end",
        _read_to_the_stable_end,
        8,
    ),
    Bug("position-apart", "a store's position is written with its changes", _position_by_itself, 29),
    Bug("any-topic", "a store counts only for the changelog of its topic id", _any_topic_id, 125),
    Bug("no-horizon", "a store counts only if it is younger than the horizon", _no_horizon, 1635),
    Bug("wait-for-kazoo", "suspended for longer than the session counts as lost", _wait_for_kazoo, 84),
    Bug("trust-group", "the checkpoint is the truth, not the group", _trust_the_group, 8),
    Bug("undelivered", "nothing may be undelivered at a commit", _commit_undelivered, 261),
    Bug("keep-ends", "after an abort the ends of changelogs are asked for again", _ends_never_forgotten, 10),
    Bug(
        "rewind-unfenced",
        "a rewind fences every slot before and after its intent",
        rewinds.fence_no_slot,
        4063,
    ),
    Bug("open-at-intent", "a task is not opened while an intent stands", rewinds.open_at_an_intent, 13215),
    Bug("land-first", "a rewind lands in the transaction that ends the undoing", rewinds.land_first, 2),
    Bug("leave-tables", "tables go back with the state", rewinds.leave_tables, 2),
    Bug("intend-once", "intents are written until nobody has committed since", rewinds.intend_once, 2301),
    Bug(
        "renew-unasked",
        "whoever raises its epoch asks who has committed since",
        rewinds.renew_without_a_look,
        32801,
    ),
    Bug("rewinds-apart", "all rewinds of a job write under one id", rewinds.ids_of_their_own, 1683),
)


@contextlib.contextmanager
def planted(name: str) -> Iterator[Bug]:
    """A bug, for the block."""
    bug = next(one for one in BUGS if one.name == name)
    with bug.plant():
        yield bug
