"""What user code reaches besides the value: state, outputs, the record's place, the clock, counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from stack.errors import BadConfig
from stack.machine import time_ms
from stack.model.metrics import counter_fault
from stack.model.plan import TaskId
from stack.tasks.declare import Feed

__all__ = ["Context", "Portion"]


class Portion(Protocol):
    """Records of one partition that are being handled; details are decoded when they are asked for."""

    feed: str
    partition: int

    def key(self, index: int) -> Any: ...

    def offset(self, index: int) -> int: ...

    def timestamp_ms(self, index: int) -> int: ...

    def headers(self, index: int) -> tuple[tuple[str, bytes | None], ...]: ...

    def keys(self) -> list[Any]: ...


class Sink(Protocol):
    """Where emitted values go: one feed of the job."""

    def add(self, place: int, value: Any, key: Any, timestamp_ms: int | None) -> None: ...

    def add_batch(self, batch: Any, key: str | None) -> None: ...


class Sinks(Protocol):
    """The feeds that the job may write."""

    def find(self, feed: Feed | str) -> Any: ...


class Context:
    """Handed to every handler beside the value. One per task; user code must not keep it for later.

    `state` is the handler's first store, `store(name)` any of them.
    """

    def __init__(
        self,
        job: str,
        version: str,
        task: TaskId,
        stores: Mapping[str, Any],
        sinks: Sinks,
        *,
        clock_ms: Callable[[], int] = time_ms,
    ) -> None:
        self.job = job
        self.version = version
        self.task = str(task)
        self.state: Any = None
        self.counters: dict[str, int] = {}
        # The place of the record at hand within its portion; written by the loop, read on demand.
        self.index = 0
        self.portion: Portion | None = None
        # For batch handlers: the keys of deletions, which a batch of rows cannot hold.
        self.deleted: list[Any] = []
        self.commit_requested = False
        self._stores = dict(stores)
        self._sinks = sinks
        self._known: dict[Any, Any] = {}
        self._clock_ms = clock_ms

    def emit(self, feed: Feed | str, value: Any, key: Any = None, timestamp: int | None = None) -> None:
        """Write a value to a feed of the job. None deletes the key of a table feed.

        Without `key` the feed's key field is taken, without `timestamp` (milliseconds) its event time.
        """
        sink = self._known.get(feed)
        if sink is None:
            sink = self._known[feed] = self._sinks.find(feed)
        sink.add(self.index, value, key, timestamp)

    def emit_batch(self, feed: Feed | str, batch: Any, key: str | None = None) -> None:
        """Write an Arrow batch to a feed; `key` names the column of the keys, by default the key field."""
        self._sinks.find(feed).add_batch(batch, key)

    def store(self, name: str) -> Any:
        """A store of the job by its name."""
        try:
            return self._stores[name]
        except KeyError:
            known = ", ".join(sorted(self._stores)) or "none"
            raise BadConfig(
                f"job {self.job!r} has no store {name!r}; it has: {known}",
                hint=f'Name it in a task: @job.task(..., stores=("{name}",)).',
            ) from None

    def request_commit(self) -> None:
        """Ask for a commit soon, rather than when it is due."""
        self.commit_requested = True

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter of the task; `stack jobs show` prints their sums."""
        held = self.counters.get(name)
        if held is None:
            self._refuse_counter(name)
        self.counters[name] = (held or 0) + amount

    def _refuse_counter(self, name: str) -> None:
        """The name of a counter is seen by whoever watches the job: it must be one, and the only one."""
        fault = counter_fault(name, self.counters)
        if fault is not None:
            raise BadConfig(
                f"job {self.job!r} cannot count {name!r}: {fault}",
                hint="Choose another name for the counter.",
            )

    @property
    def now(self) -> int:
        """The wall clock in milliseconds."""
        return self._clock_ms()

    @property
    def feed(self) -> str:
        """The feed that the record at hand came from."""
        return self._at().feed

    @property
    def partition(self) -> int:
        """The partition that the record at hand came from."""
        return self._at().partition

    @property
    def key(self) -> Any:
        """The key of the record at hand."""
        return self._at().key(self.index)

    @property
    def keys(self) -> list[Any]:
        """The keys of the batch at hand."""
        return self._at().keys()

    @property
    def offset(self) -> int:
        """The offset of the record at hand; of a batch, that of its first record."""
        return self._at().offset(self.index)

    @property
    def timestamp(self) -> int:
        """The time of the record at hand in milliseconds; of a batch, that of its first record."""
        return self._at().timestamp_ms(self.index)

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers of the record at hand."""
        return self._at().headers(self.index)

    def _at(self) -> Portion:
        if self.portion is None:
            raise BadConfig("there is no record at hand: this is not a handler", hint="Ask in a handler.")
        return self.portion
