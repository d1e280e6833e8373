"""Leading a job: one runner at a time, and whoever was deposed cannot write any more.

A claim makes the ephemeral leader node and raises the version of the job's own node, in one change. That
version is the term; every later change of the leader asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from stack.errors import LostOwnership, Unavailable
from stack.model.fleet import JobStatus, RunnerPlace, runner_to_json, status_to_json
from stack.model.plan import Plan, TaskId, plan_to_json
from stack.zookeeper.fleet import FleetNodes, JobNodes, write_released
from stack.zookeeper.nodes import Change, children, delete, ensure, is_own, read, to_bytes

IsDead = Callable[[RunnerPlace], bool]


class JobLead:
    """One runner's claim to one job. LostOwnership from any change means: stop leading, at once."""

    def __init__(self, nodes: JobNodes, place: RunnerPlace, is_dead: IsDead = lambda _: False) -> None:
        self.nodes = nodes
        self._session = nodes.session
        self._place = place
        self._is_dead = is_dead
        self._path = f"{nodes.root}/leader"
        self.term: int | None = None
        self._written: set[str] = set()

    def claim(self) -> bool:
        """Become the leader if nobody is, or if the one who was is known to be dead."""
        ensure(self._session, self.nodes.root)
        data = to_bytes(runner_to_json(self._place))
        term = self._version_of_job()
        leader = self.nodes.leader()
        if leader is not None and leader.id == self._place.id and is_own(self._session, self._path):
            self.term = term
            return True
        if leader is not None and not self._is_dead(leader):
            return False
        change = Change(self._session, f"claiming job {self.nodes.job}")
        if leader is not None:
            change.delete(self._path)
        change.set(self.nodes.root, self._place.id.encode(), term)
        change.create(self._path, data, ephemeral=True)
        if change.commit():
            self.term = term + 1
            return True
        # Either somebody else was quicker, or it was made and the answer was lost: the next look tells.
        return False

    def write_plan(self, plan: Plan) -> None:
        """Tell the containers what to do."""
        self._write(f"{self.nodes.root}/plan", to_bytes(plan_to_json(plan)))

    def write_status(self, status: JobStatus) -> None:
        """Tell everybody how the job is doing."""
        self._write(f"{self.nodes.root}/status", to_bytes(status_to_json(status)))

    def mark_released(self, generations: Mapping[TaskId, int]) -> None:
        """Release tasks on behalf of containers that are fenced, or that never had them open."""
        self.nodes.prepare()
        if generations and not write_released(self._session, self.nodes.root, generations, self._guard):
            self._deposed()

    def renounce(self) -> None:
        """Stop leading: the next runner need not wait for this one's session to end."""
        if self.term is None:
            return
        change = Change(self._session, f"renouncing job {self.nodes.job}")
        self._guard(change)
        change.delete(self._path)
        change.commit()
        self.term = None

    def remove_job(self) -> None:
        """Remove every node of a job that is no more, the leader's last."""
        for folder in ("containers", "released"):
            for name in children(self._session, f"{self.nodes.root}/{folder}"):
                delete(self._session, f"{self.nodes.root}/{folder}/{name}")
            delete(self._session, f"{self.nodes.root}/{folder}")
        change = Change(self._session, f"removing job {self.nodes.job}")
        self._guard(change)
        for name in ("plan", "status"):
            if read(self._session, f"{self.nodes.root}/{name}") is not None:
                change.delete(f"{self.nodes.root}/{name}")
        change.delete(self._path)
        change.delete(self.nodes.root)
        self.term = None
        if not change.commit():
            self._deposed()

    def _version_of_job(self) -> int:
        found = read(self._session, self.nodes.root)
        if found is None:
            raise Unavailable(f"{self.nodes.root} was removed just now")
        return int(found[1].version)

    def _guard(self, change: Change) -> None:
        if self.term is None:
            self._deposed()
        change.check(self.nodes.root, self.term)

    def _write(self, path: str, data: bytes) -> None:
        # Nobody but the leader makes or removes what it writes.
        exists = path in self._written or read(self._session, path) is not None
        for _ in range(2):
            change = Change(self._session, f"writing {path}")
            self._guard(change)
            if exists:
                change.set(path, data)
            else:
                change.create(path, data)
            if change.commit():
                self._written.add(path)
                return
            if isinstance(change.results[0], (BadVersionError, NoNodeError)):
                break
            # A lost answer was asked for again, and the node is there by now.
            exists = isinstance(change.results[1], NodeExistsError)
        self._deposed()

    def _deposed(self) -> NoReturn:
        self.term = None
        raise LostOwnership(f"another runner leads job {self.nodes.job} now")


def bury_dead_runners(nodes: FleetNodes, is_dead: IsDead) -> list[str]:
    """Remove the nodes of runners that are known to be dead, so that their containers learn it at once."""
    dead = [place.id for place in nodes.runners() if is_dead(place)]
    for runner in dead:
        nodes.remove_runner(runner)
    return dead
