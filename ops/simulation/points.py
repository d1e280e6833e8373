"""Where a process may be killed, and what happens then: the list behind the crash table in ARCHITECTURE.md.

A point is a request of a process to Kafka, to ZooKeeper or to its disk, before it takes effect or after. The
simulation kills at all of them; a test kills at each once, and compares what becomes of the transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Fate(StrEnum):
    """What becomes of the work that is under way."""

    AGAIN = "done again"
    KEPT = "kept"


@dataclass(frozen=True)
class CrashPoint:
    """One point: whose, which request, what the moment is, and what happens if the process dies there.

    `way` is what makes a container or a runner come there: a step of `ops.simulation.run`.
    """

    kind: str
    operation: str
    phase: str
    moment: str
    fate: Fate
    then: str
    way: str = "write"

    @property
    def name(self) -> str:
        return f"{self.operation}.{self.phase}"


_HEALS = "The store stands at an earlier commit, whole, and says at which; its changelog brings it up."
_ABORTS = "The transaction is aborted by whoever takes the slot over. Its records are read again."

CRASH_POINTS = (
    CrashPoint(
        "container",
        "init",
        "before",
        "It is about to take over the id of its slot",
        Fate.KEPT,
        "Nothing was changed. The runner starts the next attempt.",
        "bounce",
    ),
    CrashPoint(
        "container",
        "init",
        "after",
        "Its predecessor is fenced; the plan is not read yet",
        Fate.KEPT,
        "What the predecessor had open is aborted. The next attempt begins at the last commit.",
        "bounce",
    ),
    CrashPoint(
        "container",
        "zookeeper-sync",
        "before",
        "It is about to ask whether the plan has its attempt",
        Fate.KEPT,
        "The same.",
        "bounce",
    ),
    CrashPoint(
        "container",
        "zookeeper-transaction",
        "before",
        "It is about to register",
        Fate.KEPT,
        "Nobody has seen it. The runner hears from Spark that it is gone.",
        "bounce",
    ),
    CrashPoint(
        "container",
        "zookeeper-transaction",
        "after",
        "It is registered; no task is open",
        Fate.KEPT,
        "Its node goes with its session, or when the next attempt registers.",
        "bounce",
    ),
    CrashPoint(
        "container",
        "list-offsets",
        "before",
        "It is about to ask where logs end, to open a task",
        Fate.KEPT,
        "Nothing was changed; the next attempt opens the task.",
        "bounce",
    ),
    CrashPoint(
        "container",
        "store-open",
        "before",
        "It is about to open a store",
        Fate.KEPT,
        "The store is as it was.",
        "bounce",
    ),
    CrashPoint(
        "container",
        "store-flush",
        "before",
        "A restore is about to begin",
        Fate.KEPT,
        _HEALS,
        "move",
    ),
    CrashPoint(
        "container",
        "store-apply",
        "before",
        "Committed or restored changes are about to be written to a store",
        Fate.KEPT,
        _HEALS,
        "bounce",
    ),
    CrashPoint(
        "container",
        "store-close",
        "before",
        "A task is committed, and not yet closed and released",
        Fate.KEPT,
        f"The runner fences the slot and releases the task for the next owner. {_HEALS}",
        "bounce",
    ),
    CrashPoint(
        "container",
        "produce",
        "before",
        "Outputs, deltas or checkpoints are about to be sent",
        Fate.AGAIN,
        _ABORTS,
    ),
    CrashPoint(
        "container",
        "produce",
        "after",
        "Some of them stand in the log, uncommitted",
        Fate.AGAIN,
        f"{_ABORTS} Readers of committed records never see them.",
    ),
    CrashPoint(
        "container",
        "offsets",
        "before",
        "The group's offsets are about to be added",
        Fate.AGAIN,
        f"{_ABORTS} Nobody works with the group's offsets.",
    ),
    CrashPoint("container", "offsets", "after", "They are added", Fate.AGAIN, _ABORTS),
    CrashPoint(
        "container",
        "commit",
        "before",
        "Everything has arrived; the commit is about to be asked for",
        Fate.AGAIN,
        _ABORTS,
    ),
    CrashPoint(
        "container",
        "commit",
        "after",
        "The transaction is committed; the container does not know it yet",
        Fate.KEPT,
        f"The commit stands, and the next owner continues behind it. {_HEALS}",
    ),
    CrashPoint(
        "container",
        "abort",
        "before",
        "A commit failed; its transaction is about to be aborted",
        Fate.AGAIN,
        _ABORTS,
        "refuse",
    ),
    CrashPoint(
        "container",
        "abort",
        "after",
        "It is aborted; the tasks have not gone back yet",
        Fate.AGAIN,
        "Nothing of it is visible. The next owner begins at the last commit.",
        "refuse",
    ),
    CrashPoint(
        "runner",
        "zookeeper-transaction",
        "before",
        "It is about to write a plan, a status or a release",
        Fate.KEPT,
        "The plan that stands is what the next runner begins with, after it fenced every slot of it.",
        "scale",
    ),
    CrashPoint(
        "runner",
        "zookeeper-transaction",
        "after",
        "It is written; nothing of it is carried out",
        Fate.KEPT,
        "The next runner carries it out. Containers that live on end when they see their runner gone.",
        "scale",
    ),
)

HEADER = ("| who | killed | at this moment | work under way | what happens |", "|---|---|---|---|---|")


def crash_table() -> str:
    """The table as it stands in ARCHITECTURE.md."""
    rows = [f"| {one.kind} | `{one.name}` | {one.moment} | {one.fate} | {one.then} |" for one in CRASH_POINTS]
    return "\n".join((*HEADER, *rows))
