"""The nodes of one job: its plan, its containers, what they released, and how it is doing.

/feedstack/<stack>/jobs/<job>                     its version is the leader's term, see `lead`
                             /leader              ephemeral: the runner that leads the job
                             /plan                who runs what; the leader writes it
                             /status              how the job is doing; the leader writes it
                             /containers/<slot>.<attempt>   ephemeral: what a container says of itself
                             /released/<task>     up to which generation nobody else has the task open
                             /still               ephemeral: somebody asks its tasks to stand still
/feedstack/<stack>/runners/<id>                   ephemeral: a runner and its process

A container's node carries the attempt, so that whatever an older attempt still writes can be refused: a
new attempt removes the nodes of the older ones, and a release counts only while its container's node is
there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from kazoo.exceptions import BadVersionError, NoNodeError
from kazoo.recipe.watchers import ChildrenWatch, DataWatch

from stack.errors import LostOwnership, Unavailable
from stack.model.fleet import (
    JobStatus,
    RunnerPlace,
    runner_from_json,
    runner_to_json,
    status_from_json,
)
from stack.model.plan import (
    ContainerReport,
    Plan,
    TaskId,
    plan_from_json,
    report_from_json,
    report_to_json,
)
from stack.model.stillness import StillRequest, request_from_json, request_to_json
from stack.zookeeper.fleet_session import FleetSession
from stack.zookeeper.nodes import (
    Change,
    bounded,
    children,
    delete,
    ensure,
    is_own,
    parsed,
    parser,
    read,
    read_parsed,
    to_bytes,
)
from stack.zookeeper.session import stack_node

__all__ = ["FleetNodes", "FleetSession", "JobNodes"]
T = TypeVar("T")
# How often a change that met another one is tried again.
_TRIES = 50
_plan, _report = parser(plan_from_json), parser(report_from_json)
_status, _runner = parser(status_from_json), parser(runner_from_json)
_still_request = parser(request_from_json)


class JobNodes:
    """Everything in ZooKeeper about one job, as containers, commands and runners see it.

    Callbacks are called from a thread of the session, first for what is there now and then after every
    change; several changes may come as one. They must not wait, and must not raise: a change is told once.
    """

    def __init__(self, session: FleetSession, stack: str, job: str) -> None:
        self.session = session
        self.job = job
        self.root = f"{stack_node(stack)}/jobs/{job}"
        self._own: str | None = None
        self._closed = False
        self._prepared = False

    def close(self) -> None:
        """Call nobody back any more."""
        self._closed = True

    # What anybody may read.

    def plan(self, fresh: bool = False) -> Plan | None:
        """The plan; `fresh` asks the server to catch up first, so that no older one is seen."""
        if fresh:
            self.session.ask(
                f"looking for the plan of {self.job}", lambda: self.session.client.sync_async(self.root)
            )
        return self._read("plan", _plan)

    def status(self) -> JobStatus | None:
        """What the job's runner said last; it stays when the runner goes."""
        return self._read("status", _status)

    def leader(self) -> RunnerPlace | None:
        """The runner that leads the job now."""
        return self._read("leader", _runner)

    def reports(self) -> tuple[ContainerReport, ...]:
        """What the containers that are there say of themselves, by slot and attempt."""
        names = children(self.session, f"{self.root}/containers")
        found = [self._read(f"containers/{name}", _report) for name in names]
        there = [one for one in found if one is not None]
        return tuple(sorted(there, key=lambda one: (one.slot, one.attempt)))

    def _read(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        return read_parsed(self.session, f"{self.root}/{name}", parse)

    def released(self) -> dict[TaskId, int]:
        """Per task the generation up to which no earlier owner has it open."""
        generations = {}
        for name in children(self.session, f"{self.root}/released"):
            found = read(self.session, f"{self.root}/released/{name}")
            if found is not None:
                generations[TaskId.parse(name)] = int(found[0])
        return generations

    # What tells of changes.

    def watch_plan(self, callback: Callable[[Plan], None]) -> None:
        """Call back with every plan; not at all while there is none."""

        def on_data(data: bytes | None, _stat: Any, _event: Any = None) -> bool:
            if data is not None and not self._closed:
                callback(parsed(_plan, data, f"{self.root}/plan"))
            return not self._closed

        self._watch("plan", lambda: DataWatch(self.session.client, f"{self.root}/plan", on_data))

    def watch_released(self, callback: Callable[[], None]) -> None:
        """Call back whenever a task was released.

        Without the releases: reading them here may fail, and nobody would call a second time.
        """
        self.prepare()

        def on_data(_data: bytes | None, _stat: Any, _event: Any = None) -> bool:
            if not self._closed:
                callback()
            return not self._closed

        self._watch("releases", lambda: DataWatch(self.session.client, f"{self.root}/released", on_data))

    def watch_members(self, callback: Callable[[], None]) -> None:
        """Call back whenever a container came or went."""
        self.prepare()
        path = f"{self.root}/containers"

        def on_children(_names: list[str]) -> bool:
            if not self._closed:
                callback()
            return not self._closed

        self._watch("containers", lambda: ChildrenWatch(self.session.client, path, on_children))

    def watch_still_request(self, callback: Callable[[StillRequest | None], None]) -> None:
        """Call back with every request to stand still, and with None when there is none any more."""
        path = f"{self.root}/still"

        def on_data(data: bytes | None, _stat: Any) -> bool:
            if not self._closed:
                callback(None if data is None else parsed(_still_request, data, path))
            return not self._closed

        self._watch("requests", lambda: DataWatch(self.session.client, path, on_data))

    def _watch(self, what: str, begin: Callable[[], object]) -> None:
        bounded(f"watching the {what} of {self.job}", begin)

    # What somebody writes who takes a point of the whole job.

    def request_stillness(self, request: StillRequest) -> bool:
        """Ask tasks to stand still, for as long as the session lasts; False if somebody else does already.

        Another request under the same id takes the place of the first.
        """
        path, data = f"{self.root}/still", to_bytes(request_to_json(request))
        change = Change(self.session, f"asking {self.job} to stand still")
        if is_own(self.session, path):
            change.set(path, data)
        else:
            self.prepare()
            change.create(path, data, ephemeral=True)
        return change.commit() or is_own(self.session, path)

    def asks_for_stillness(self) -> bool:
        """Whether the request of this session still stands."""
        return is_own(self.session, f"{self.root}/still")

    def end_stillness(self) -> None:
        """Let everybody go on."""
        delete(self.session, f"{self.root}/still")

    # What a container writes.

    def register(self, report: ContainerReport) -> None:
        """Announce a container; nodes of older attempts of its slot go at once.

        LostOwnership if a newer attempt is there. To be called once the container has fenced its
        predecessors in Kafka: a registered container counts as the only one of its slot.
        """
        self.prepare()
        doing = f"registering container {report.slot} of {self.job}"
        own = f"{self.root}/containers/{report.slot}.{report.attempt}"
        data = to_bytes(report_to_json(report))
        for _ in range(_TRIES):
            older = []
            for name in children(self.session, f"{self.root}/containers"):
                slot, _, attempt = name.partition(".")
                if int(slot) != report.slot:
                    continue
                if int(attempt) > report.attempt:
                    raise LostOwnership(
                        f"{doing}: attempt {attempt} is there already, this is {report.attempt}"
                    )
                if int(attempt) < report.attempt:
                    older.append(f"{self.root}/containers/{name}")
                elif is_own(self.session, own):
                    self._own = own
                    return
                else:
                    raise LostOwnership(f"{doing}: another process has attempt {report.attempt}")
            change = Change(self.session, doing)
            for path in older:
                change.delete(path)
            change.create(own, data, ephemeral=True)
            if change.commit():
                self._own = own
                return
        raise Unavailable(f"{doing}: others keep changing the same nodes")

    def update_report(self, report: ContainerReport) -> None:
        """Say how the container is doing; LostOwnership if a newer attempt has removed its node."""
        own = self._own_path()
        try:
            data = to_bytes(report_to_json(report))
            self.session.ask(f"reporting to {own}", lambda: self.session.client.set_async(own, data))
        except NoNodeError:
            raise LostOwnership(f"{own} was removed: a newer attempt took over") from None

    def release(self, task: TaskId, generation: int) -> None:
        """Say that this container has the task committed and closed, as the plan of a generation asks.

        LostOwnership if a newer attempt has taken this container's place: it answers for its tasks then.
        """
        own = self._own_path()

        def guard(change: Change) -> None:
            change.check(own)

        if not write_released(self.session, self.root, {task: generation}, guard):
            raise LostOwnership(f"{own} was removed: a newer attempt took over")

    def unregister(self) -> None:
        """Remove the container's node at once rather than with its session."""
        own, self._own = self._own_path(), None
        delete(self.session, own)

    def _own_path(self) -> str:
        if self._own is None:
            raise LostOwnership(f"no container of {self.job} is registered here")
        return self._own

    def prepare(self) -> None:
        """Make the folders that others are made in. They stay for as long as somebody leads the job."""
        if not self._prepared:
            for name in ("containers", "released"):
                ensure(self.session, f"{self.root}/{name}")
            self._prepared = True


class FleetNodes:
    """The runners and jobs of one stack."""

    def __init__(self, session: FleetSession, stack: str) -> None:
        self.session = session
        self.stack = stack
        self.root = stack_node(stack)

    def job(self, name: str) -> JobNodes:
        """The nodes of one job."""
        return JobNodes(self.session, self.stack, name)

    def jobs(self) -> list[str]:
        """Every job that has nodes."""
        return children(self.session, f"{self.root}/jobs")

    def runners(self) -> tuple[RunnerPlace, ...]:
        """The runners that are there."""
        paths = [f"{self.root}/runners/{name}" for name in children(self.session, f"{self.root}/runners")]
        found = [read_parsed(self.session, path, _runner) for path in paths]
        return tuple(one for one in found if one is not None)

    def register_runner(self, place: RunnerPlace) -> None:
        """Announce a runner for as long as the session lasts."""
        ensure(self.session, f"{self.root}/runners")
        path = f"{self.root}/runners/{place.id}"
        change = Change(self.session, f"registering runner {place.id}")
        change.create(path, to_bytes(runner_to_json(place)), ephemeral=True)
        if not change.commit() and not is_own(self.session, path):
            raise LostOwnership(f"another process is runner {place.id}")

    def remove_runner(self, runner: str) -> None:
        """Take a runner's node away, of one that is known to be dead."""
        delete(self.session, f"{self.root}/runners/{runner}")

    def watch_runners(self, callback: Callable[[], None]) -> None:
        """Call back whenever a runner came or went."""
        ensure(self.session, f"{self.root}/runners")
        path = f"{self.root}/runners"
        begin = lambda: ChildrenWatch(self.session.client, path, lambda _: callback())  # noqa: E731
        bounded("watching the runners", begin)

    def watch_runner(self, runner: str, on_gone: Callable[[], None]) -> None:
        """Call back when a runner is gone, at once if it is gone already."""

        def on_data(data: bytes | None, _stat: Any, _event: Any = None) -> None:
            if data is None:
                on_gone()

        path = f"{self.root}/runners/{runner}"
        bounded("watching the runner", lambda: DataWatch(self.session.client, path, on_data))


def write_released(
    session: FleetSession, root: str, generations: Mapping[TaskId, int], guard: Callable[[Change], None]
) -> bool:
    """Raise the generations of tasks, never lower them; False if the guard does not hold any more."""
    for _ in range(_TRIES):
        change = Change(session, f"releasing tasks at {root}")
        guard(change)
        steps = 0
        for task, generation in generations.items():
            path = f"{root}/released/{task}"
            found = read(session, path)
            if found is None:
                change.create(path, str(generation).encode())
            elif int(found[0]) < generation:
                change.set(path, str(generation).encode(), found[1].version)
            else:
                continue
            steps += 1
        if not steps:
            return True
        # The folder's own change is what a watch sees.
        change.set(f"{root}/released", b"")
        if change.commit():
            return True
        if isinstance(change.results[0], (NoNodeError, BadVersionError)):
            return False
    raise Unavailable(f"releasing tasks at {root}: others keep changing the same nodes")


@contextlib.contextmanager
def open_fleet(hosts: str, stack: str) -> Iterator[FleetNodes]:
    """The nodes of a stack, in a session that lives as long as the block."""
    with FleetSession(hosts).start() as session:
        yield FleetNodes(session, stack)
