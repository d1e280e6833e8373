"""A client of a ZooKeeper in memory, with as much of kazoo's face as the fleet and kazoo's recipes use."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooState
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry

from stack import machine
from stack.zookeeper.memory.ensemble import Ensemble
from stack.zookeeper.memory.hooks import AFTER, BEFORE
from stack.zookeeper.memory.tree import Step

log = logging.getLogger("feedstack.zookeeper")
Watcher = Callable[[WatchedEvent], object]
_ON_DATA = (EventType.CREATED, EventType.CHANGED, EventType.DELETED)
_ON_CHILDREN = (EventType.CHILD, EventType.DELETED)


class Answer:
    """A request under way. Its effect and its answer come together, when somebody first waits for it."""

    __slots__ = ("_act", "_client", "_is_done", "_operation", "_path", "_value")

    def __init__(self, client: MemoryClient, operation: str, path: str, act: Callable[[], Any]) -> None:
        self._client = client
        self._operation = operation
        self._path = path
        self._act = act
        self._value: Any = None
        self._is_done = False

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ARG002
        if not self._is_done:
            client = self._client
            if client.state != KazooState.CONNECTED or client.closed:
                client.reach(timeout)
            # An error is told to who waits, and not kept: it would hold on to everything around it.
            self._value = client.request(self._operation, self._path, self._act)
            self._is_done = True
        return self._value


class Transaction:
    """Several changes that happen together or not at all."""

    def __init__(self, client: MemoryClient) -> None:
        self._client = client
        self._steps: list[Step] = []

    def create(self, path: str, value: bytes = b"", ephemeral: bool = False) -> None:
        self._steps.append(Step("create", path, value, ephemeral=ephemeral))

    def delete(self, path: str, version: int = -1) -> None:
        self._steps.append(Step("delete", path, version=version))

    def set_data(self, path: str, value: bytes, version: int = -1) -> None:
        self._steps.append(Step("set", path, value, version))

    def check(self, path: str, version: int) -> None:
        self._steps.append(Step("check", path, version=version))

    def commit_async(self) -> Answer:
        return self._client.changed("transaction", self._steps)


class Handler:
    """Threads as the recipes ask for them."""

    def __init__(self, client: MemoryClient) -> None:
        self._client = client

    @staticmethod
    def lock_object() -> Any:
        return machine.lock()

    @staticmethod
    def sleep_func(seconds: float) -> None:
        machine.sleep(seconds)

    def spawn(self, work: Callable[..., object], *arguments: Any) -> None:
        def run() -> None:
            try:
                work(*arguments)
            except KazooException as error:
                log.warning("a thread of kazoo ended: %s", error)

        self._client.ensemble.hooks.start(self._client, run, "zookeeper-spawned")


class _Mailbox:
    """Calls one after the other, in a thread that lasts for as long as there are any."""

    def __init__(self, client: MemoryClient, name: str) -> None:
        self._client = client
        self._name = name
        self._calls: deque[Callable[[], object]] = deque()
        self._busy = False

    def put(self, call: Callable[[], object]) -> None:
        self._calls.append(call)
        if not self._busy:
            self._busy = True
            self._client.ensemble.hooks.start(self._client, self._drain, self._name)

    def _drain(self) -> None:
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception:
                log.exception("a callback of ZooKeeper failed")
        self._busy = False


class MemoryClient:
    """One client, made by `stack.zookeeper.session.make_client`."""

    def __init__(self, ensemble: Ensemble, timeout_s: float) -> None:
        self.ensemble = ensemble
        self.process = ensemble.hooks.process()
        self.handler = Handler(self)
        self.session = ensemble.open_session(timeout_s)
        self.state = KazooState.LOST
        # The newest change that this client's server has heard of.
        self.seen = ensemble.tree.zxid
        self._timeout_s = timeout_s
        self.closed = False
        self._live = machine.event()
        self._listeners: list[Callable[[Any], object]] = []
        self._data_watchers: dict[str, dict[Watcher, None]] = {}
        self._child_watchers: dict[str, dict[Watcher, None]] = {}
        self._states = _Mailbox(self, "zookeeper-state")
        self._events = _Mailbox(self, "zookeeper-events")

    # Connection

    def start(self, timeout: float = 15) -> None:  # noqa: ARG002
        self.state = KazooState.CONNECTED
        self.ensemble.clients.append(self)
        self._live.set()
        self.ensemble.hooks.point(self, "start", "/", AFTER)

    def stop(self) -> None:
        if not self.closed:
            self.closed = True
            if self in self.ensemble.clients:
                self.ensemble.clients.remove(self)
            self._live.set()
            self.ensemble.end_session(self.session)

    def close(self) -> None:
        self.stop()

    @property
    def connected(self) -> bool:
        return not self.closed and self.state == KazooState.CONNECTED

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        return (self.session.id, b"")

    def add_listener(self, listener: Callable[[Any], object]) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[Any], object]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def retry(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return KazooRetry(sleep_func=machine.sleep)(work, *arguments)

    def suspend(self) -> None:
        """The connection is gone."""
        if self.state == KazooState.CONNECTED:
            self._live.clear()
            self._become(KazooState.SUSPENDED)
            self._drop_watches()

    def resume(self) -> None:
        """The connection is back, and the session is still there."""
        if self.state == KazooState.SUSPENDED:
            self.catch_up()
            self._become(KazooState.CONNECTED)
            self._live.set()

    def lose(self) -> None:
        """The session is gone; the client goes on with a new one."""
        self._become(KazooState.LOST)
        self._drop_watches()
        self.session = self.ensemble.open_session(self._timeout_s)
        self.catch_up()
        self._become(KazooState.CONNECTED)
        self._live.set()

    def _become(self, state: str) -> None:
        self.state = state

        def tell() -> None:
            for listener in list(self._listeners):
                listener(state)

        self._states.put(tell)

    # Requests

    def reach(self, timeout_s: float | None) -> None:
        """Wait for a connection; KazooTimeoutError if there is none in time."""
        if self.closed:
            raise ConnectionClosedError
        if not self._live.is_set() and not self._live.wait(timeout_s):
            raise KazooTimeoutError("timeout")

    def request(self, operation: str, path: str, act: Callable[[], Any]) -> Any:
        """Let a request take effect and bring its answer, unless something happens on the way."""
        ensemble = self.ensemble
        hooks = ensemble.hooks
        hooks.point(self, operation, path, BEFORE)
        if ensemble.quiet:
            ensemble.tick()
        if self.closed:
            raise ConnectionClosedError
        if self.session.expired:
            self.lose()
            raise SessionExpiredError
        if self.state != KazooState.CONNECTED:
            raise ConnectionLoss
        if operation in hooks.only_ask:
            return act()
        try:
            return act()
        finally:
            hooks.point(self, operation, path, AFTER)

    def changed(self, operation: str, steps: list[Step]) -> Answer:
        def act() -> list[Any]:
            answers = self.ensemble.tree.change(steps, self.session.id)
            # Whoever writes has heard of everything before, and reads what it wrote.
            self.catch_up()
            self.ensemble.spread()
            return answers

        return Answer(self, operation, steps[-1].path if steps else "", act)

    def _changed_one(self, operation: str, step: Step) -> Answer:
        def act() -> Any:
            value = self.ensemble.tree.change_one(step, self.session.id)
            self.catch_up()
            self.ensemble.spread()
            return value

        return Answer(self, operation, step.path, act)

    def transaction(self) -> Transaction:
        return Transaction(self)

    def set_async(self, path: str, value: bytes, version: int = -1) -> Answer:
        return self._changed_one("set", Step("set", path, value, version))

    def delete_async(self, path: str, version: int = -1) -> Answer:
        return self._changed_one("delete", Step("delete", path, version=version))

    def create_async(self, path: str, value: bytes = b"", ephemeral: bool = False) -> Answer:
        return self._changed_one("create", Step("create", path, value, ephemeral=ephemeral))

    def ensure_path_async(self, path: str) -> Answer:
        def act() -> bool:
            names = path.strip("/").split("/")
            for count in range(1, len(names) + 1):
                step = Step("create", "/" + "/".join(names[:count]))
                if self.ensemble.tree.find(step.path) is None:
                    try:
                        self.ensemble.tree.change_one(step, self.session.id)
                    except NodeExistsError:  # pragma: no cover - nobody comes in between
                        continue
            self.catch_up()
            self.ensemble.spread()
            return True

        return Answer(self, "ensure", path, act)

    def sync_async(self, path: str) -> Answer:
        def act() -> str:
            self.catch_up()
            return path

        return Answer(self, "sync", path, act)

    def get_async(self, path: str, watch: Watcher | None = None) -> Answer:
        def act() -> Any:
            node = self.ensemble.tree.get(path, self.seen)
            self._watch(self._data_watchers, path, watch)
            return node.data, node.stat

        return Answer(self, "get", path, act)

    def exists_async(self, path: str, watch: Watcher | None = None) -> Answer:
        def act() -> Any:
            node = self.ensemble.tree.find(path, self.seen)
            self._watch(self._data_watchers, path, watch)
            return None if node is None else node.stat

        return Answer(self, "exists", path, act)

    def get_children_async(self, path: str, watch: Watcher | None = None) -> Answer:
        def act() -> list[str]:
            node = self.ensemble.tree.get(path, self.seen)
            self._watch(self._child_watchers, path, watch)
            return list(node.children)

        return Answer(self, "children", path, act)

    def get(self, path: str, watch: Watcher | None = None) -> Any:
        return self.get_async(path, watch).get()

    def exists(self, path: str, watch: Watcher | None = None) -> Any:
        return self.exists_async(path, watch).get()

    def get_children(self, path: str, watch: Watcher | None = None) -> Any:
        return self.get_children_async(path, watch).get()

    def ensure_path(self, path: str) -> Any:
        return self.ensure_path_async(path).get()

    # Watches

    @staticmethod
    def _watch(watchers: dict[str, dict[Watcher, None]], path: str, watch: Watcher | None) -> None:
        if watch is not None:
            watchers.setdefault(path, {})[watch] = None

    def catch_up(self) -> None:
        """This client's server hears of everything; watches are told before anything new can be read."""
        tree, before = self.ensemble.tree, self.seen
        self.seen = tree.zxid
        if self.state == KazooState.CONNECTED and (self._data_watchers or self._child_watchers):
            for zxid in range(before + 1, self.seen + 1):
                for kind, path in tree.events.get(zxid, ()):
                    if path in self._data_watchers and kind in _ON_DATA:
                        self._fire(self._data_watchers.pop(path), kind, path)
                    if path in self._child_watchers and kind in _ON_CHILDREN:
                        self._fire(self._child_watchers.pop(path), kind, path)

    def _drop_watches(self) -> None:
        watchers = [*self._child_watchers.values(), *self._data_watchers.values()]
        self._child_watchers, self._data_watchers = {}, {}
        for one in watchers:
            self._fire(one, EventType.NONE, None)

    def _fire(self, watchers: dict[Watcher, None], kind: str, path: str | None) -> None:
        for watcher in watchers:
            told = WatchedEvent(kind, KeeperState.CONNECTED, path)
            self._events.put(lambda watcher=watcher, told=told: watcher(told))  # type: ignore[misc]
