"""The nodes of a ZooKeeper in memory, with their past: a server that lags behind tells what was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import EventType, ZnodeStat

# What a server may still have to tell of a node; nobody lags further behind.
_KEPT = 64


@dataclass(slots=True)
class Node:
    """One node as of one change. Never changed itself: freezing it would make it slow to make."""

    data: bytes
    version: int
    made: int
    changed: int
    owner: int = 0
    children: tuple[str, ...] = ()
    children_version: int = 0
    # Made when somebody first asks for it.
    _stat: ZnodeStat | None = None

    def with_children(self, children: tuple[str, ...]) -> Node:
        """The same node after a child came or went."""
        version = self.children_version + 1
        return Node(self.data, self.version, self.made, self.changed, self.owner, children, version)

    @property
    def stat(self) -> ZnodeStat:
        if self._stat is None:
            self._stat = ZnodeStat(
                self.made,
                self.changed,
                0,
                0,
                self.version,
                self.children_version,
                0,
                self.owner,
                len(self.data),
                len(self.children),
                self.changed,
            )
        return self._stat


@dataclass(frozen=True, slots=True)
class Step:
    """One part of a change: check, create, set or delete."""

    kind: str
    path: str
    data: bytes = b""
    version: int = -1
    ephemeral: bool = False


class Tree:
    """All nodes. Every change has a number, the zxid; `events` tells what watches see of each."""

    def __init__(self) -> None:
        root = Node(b"", 0, 0, 0)
        self._past: dict[str, list[tuple[int, Node | None]]] = {"/": [(0, root)]}
        self.zxid = 0
        self.events: dict[int, list[tuple[str, str]]] = {}
        self._open: dict[str, Node | None] = {}
        self._told: list[tuple[str, str]] = []

    def find(self, path: str, at: int | None = None) -> Node | None:
        """A node now, or as it was at an earlier change."""
        if path in self._open:
            return self._open[path]
        past = self._past.get(path)
        if not past:
            return None
        if at is None or past[-1][0] <= at:
            return past[-1][1]
        return next((node for zxid, node in reversed(past) if zxid <= at), None)

    def get(self, path: str, at: int | None = None) -> Node:
        """The same; NoNodeError if there is none."""
        node = self.find(path, at)
        if node is None:
            raise NoNodeError
        return node

    def change(self, steps: Sequence[Step], session: int) -> list[Any]:
        """All steps or none; an answer or an error per step, as kazoo gives them."""
        answers: list[Any] = []
        try:
            for step in steps:
                answers.append(self._take[step.kind](self, step, session))  # noqa: PERF401 - kept if one fails
        except Exception as error:
            self._open.clear()
            self._told.clear()
            before, left = len(answers), len(steps) - len(answers) - 1
            return [
                *(RolledBackError() for _ in range(before)),
                error,
                *(RuntimeInconsistency() for _ in range(left)),
            ]
        self._seal()
        return answers

    def change_one(self, step: Step, session: int) -> Any:
        """One step; raises its error."""
        (answer,) = self.change([step], session)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ephemerals(self, session: int) -> list[str]:
        """The nodes that go with a session."""
        return [
            path
            for path, past in self._past.items()
            if past[-1][1] is not None and past[-1][1].owner == session
        ]

    def _seal(self) -> None:
        if not self._open:
            return
        self.zxid += 1
        for path, node in self._open.items():
            past = self._past.setdefault(path, [])
            past.append((self.zxid, node))
            del past[:-_KEPT]
        self.events[self.zxid] = list(self._told)
        self.events.pop(self.zxid - _KEPT, None)
        self._open.clear()
        self._told.clear()

    def _check(self, step: Step, _session: int) -> bool:
        self._versioned(step)
        return True

    def _versioned(self, step: Step) -> Node:
        node = self.get(step.path)
        if step.version not in (-1, node.version):
            raise BadVersionError
        return node

    def _create(self, step: Step, session: int) -> str:
        path = step.path
        above, _, name = path.rpartition("/")
        parent = self.get(above or "/")
        if parent.owner:
            raise NoChildrenForEphemeralsError
        if self.find(path) is not None:
            raise NodeExistsError
        number = self.zxid + 1
        self._open[path] = Node(step.data, 0, number, number, session if step.ephemeral else 0)
        self._open[above or "/"] = parent.with_children((*parent.children, name))
        self._told += [(EventType.CREATED, path), (EventType.CHILD, above or "/")]
        return path

    def _set(self, step: Step, _session: int) -> ZnodeStat:
        node = self._versioned(step)
        changed = Node(
            step.data,
            node.version + 1,
            node.made,
            self.zxid + 1,
            node.owner,
            node.children,
            node.children_version,
        )
        self._open[step.path] = changed
        self._told.append((EventType.CHANGED, step.path))
        return changed.stat

    def _delete(self, step: Step, _session: int) -> bool:
        node = self._versioned(step)
        if node.children:
            raise NotEmptyError
        above, _, name = step.path.rpartition("/")
        parent = self.get(above or "/")
        self._open[step.path] = None
        self._open[above or "/"] = parent.with_children(tuple(one for one in parent.children if one != name))
        self._told += [(EventType.DELETED, step.path), (EventType.CHILD, above or "/")]
        return True

    _take: dict[str, Callable[..., Any]] = {  # noqa: RUF012
        "check": _check,
        "create": _create,
        "set": _set,
        "delete": _delete,
    }
