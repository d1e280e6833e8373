"""Questions and changes to ZooKeeper that end in time, whatever the connection does."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError

from stack.errors import CorruptState, Unavailable
from stack.machine import start
from stack.zookeeper.fleet_session import ANSWER_S, FleetSession

T = TypeVar("T")
# The same few are read again and again, by whoever waits for a change.
_PARSED = 256
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
_DECODE = json.JSONDecoder().decode


class Change:
    """Several changes that happen together or not at all."""

    def __init__(self, session: FleetSession, doing: str) -> None:
        self._session = session
        self._doing = doing
        self._steps: list[Callable[[Any], None]] = []
        self.results: list[Any] = []

    def check(self, path: str, version: int = -1) -> None:
        self._steps.append(lambda one: one.check(path, version))

    def create(self, path: str, data: bytes, ephemeral: bool = False) -> None:
        self._steps.append(lambda one: one.create(path, data, ephemeral=ephemeral))

    def delete(self, path: str, version: int = -1) -> None:
        self._steps.append(lambda one: one.delete(path, version))

    def set(self, path: str, data: bytes, version: int = -1) -> None:
        self._steps.append(lambda one: one.set_data(path, data, version))

    def commit(self) -> bool:
        """Whether it happened; `results` holds an error or an answer per step.

        If the answer was lost it is asked again, so that a change which cannot be made twice may come
        back as not made: look before you conclude.
        """

        def question() -> Any:
            transaction = self._session.client.transaction()
            for step in self._steps:
                step(transaction)
            return transaction.commit_async()

        self.results = self._session.ask(self._doing, question)
        return not any(isinstance(result, Exception) for result in self.results)


def read(session: FleetSession, path: str) -> tuple[bytes, Any] | None:
    """What a node holds and its state, or None if there is no such node."""
    try:
        data, stat = session.ask(f"reading {path}", lambda: session.client.get_async(path))
    except NoNodeError:
        return None
    return data, stat


def parser(parse: Callable[[Any], T]) -> Callable[[bytes], T]:
    """What `parse` makes of the JSON in a node, found out once per content: nobody may change what it is."""
    return lru_cache(_PARSED)(lambda data: parse(from_bytes(data)))


def read_parsed(session: FleetSession, path: str, parse: Callable[[bytes], T]) -> T | None:
    """What a node holds, as a parser makes it; None if there is no such node."""
    found = read(session, path)
    return None if found is None else parsed(parse, found[0], path)


def read_json(session: FleetSession, path: str) -> Any:
    """What a node holds as JSON, or None if there is no such node."""
    found = read(session, path)
    if found is None:
        return None
    return parsed(from_bytes, found[0], path)


def children(session: FleetSession, path: str) -> list[str]:
    """The names under a node, in order; none if there is no such node."""
    try:
        return sorted(session.ask(f"listing {path}", lambda: session.client.get_children_async(path)))
    except NoNodeError:
        return []


def ensure(session: FleetSession, path: str) -> None:
    """Make a node and those above it where they are missing."""
    if session.ask(f"looking for {path}", lambda: session.client.exists_async(path)) is not None:
        return
    try:
        session.ask(f"making {path}", lambda: session.client.ensure_path_async(path))
    except NodeExistsError:
        return


def delete(session: FleetSession, path: str) -> None:
    """Remove a node that may be gone already."""
    try:
        session.ask(f"removing {path}", lambda: session.client.delete_async(path))
    except NoNodeError:
        return


def is_own(session: FleetSession, path: str) -> bool:
    """Whether an ephemeral node was made by this session."""
    found = read(session, path)
    identity = session.client.client_id
    return found is not None and identity is not None and found[1].ephemeralOwner == identity[0]


def bounded(doing: str, begin: Callable[[], object], limit_s: float = ANSWER_S) -> None:
    """Begin a watch; kazoo would wait for its first answer without end."""
    faults: list[Exception] = []

    def run() -> None:
        try:
            begin()
        except Exception as error:  # told below, or to nobody if it came too late
            faults.append(error)

    thread = start(run, "zookeeper-watch")
    thread.join(limit_s)
    if thread.is_alive():
        raise Unavailable(f"{doing}: ZooKeeper did not answer within {limit_s:.0f} s")
    if faults and isinstance(faults[0], KazooException):
        raise Unavailable(f"{doing}: {type(faults[0]).__name__} {faults[0]}")
    if faults:
        raise faults[0]


def to_bytes(tree: Any) -> bytes:
    """What a node holds, from plain JSON values."""
    return _ENCODE(tree).encode()


def from_bytes(data: bytes) -> Any:
    """The JSON values that `to_bytes` wrote."""
    return _DECODE(data.decode())


def parsed(parse: Callable[[Any], T], tree: Any, path: str) -> T:
    """What `parse` makes of a node's content; CorruptState if it cannot."""
    try:
        return parse(tree)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptState(
            f"{path} in ZooKeeper cannot be read: {type(error).__name__} {error}",
            hint="It was written by another version of Feedstack, or by something else.",
        ) from None
