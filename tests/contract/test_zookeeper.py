"""What the fleet needs of ZooKeeper, in memory and on the real one: nodes, versions, watches, sessions."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator

import pytest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, RolledBackError
from kazoo.recipe.watchers import ChildrenWatch, DataWatch

from stack.settings import read_endpoints
from stack.zookeeper.fleet_session import FleetSession
from stack.zookeeper.memory.ensemble import Ensemble
from stack.zookeeper.nodes import Change, children, delete, ensure, is_own, read
from tests.cluster import conftest as real
from tests.clusters import shared_cluster, wait_for

cluster, make_settings, settings, stack = real.cluster, real.make_settings, real.settings, real.stack
_numbers = itertools.count()
Sessions = Callable[[], FleetSession]


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.cluster)])
def sessions(request: pytest.FixtureRequest) -> Iterator[Sessions]:
    """Makes sessions with one ZooKeeper; all are closed at the end."""
    memory = Ensemble(f"contract-{next(_numbers)}") if request.param == "memory" else None
    hosts = read_endpoints(shared_cluster()).zookeeper if memory is None else memory.hosts
    made: list[FleetSession] = []

    def make() -> FleetSession:
        made.append(FleetSession(hosts).start())
        return made[-1]

    yield make
    for one in made:
        one.close()
    if memory is not None:
        memory.close()


@pytest.fixture
def root() -> str:
    return f"/contract-{os.getpid()}-{next(_numbers)}"


def test_nodes_and_their_versions(sessions: Sessions, root: str) -> None:
    session = sessions()
    assert read(session, root) is None
    assert children(session, root) == []
    ensure(session, f"{root}/a/b")
    ensure(session, f"{root}/a/b")
    assert children(session, f"{root}/a") == ["b"]
    for number in range(3):
        found = read(session, f"{root}/a/b")
        assert found is not None
        assert found[1].version == number
        change = Change(session, "setting")
        change.set(f"{root}/a/b", b"%d" % number, number)
        assert change.commit()
    delete(session, f"{root}/a/b")
    delete(session, f"{root}/a/b")
    assert children(session, f"{root}/a") == []


def test_a_change_happens_as_a_whole_or_not_at_all(sessions: Sessions, root: str) -> None:
    session = sessions()
    ensure(session, root)
    change = Change(session, "trying")
    change.create(f"{root}/a", b"x")
    change.check(root, 7)
    change.create(f"{root}/b", b"x")
    assert not change.commit()
    assert [type(one) for one in change.results[:2]] == [RolledBackError, BadVersionError]
    assert children(session, root) == []
    for path, error in ((f"{root}/none/a", NoNodeError), (root, NodeExistsError)):
        change = Change(session, "trying")
        change.create(path, b"")
        assert not change.commit()
        assert isinstance(change.results[0], error)


def test_ephemeral_nodes_go_with_their_session(sessions: Sessions, root: str) -> None:
    owner, other = sessions(), sessions()
    ensure(owner, root)
    change = Change(owner, "making")
    change.create(f"{root}/e", b"x", ephemeral=True)
    assert change.commit()
    assert is_own(owner, f"{root}/e")
    assert not is_own(other, f"{root}/e")
    owner.close()
    wait_for(lambda: read(other, f"{root}/e") is None, "the end of the node")


def test_watches_tell_of_changes(sessions: Sessions, root: str) -> None:
    session, other = sessions(), sessions()
    ensure(session, root)
    data: list[bytes | None] = []
    names: list[list[str]] = []
    there = threading.Event()

    def on_data(value: bytes | None, _stat: object) -> None:
        data.append(value)
        there.set()

    DataWatch(session.client, f"{root}/a", on_data)
    ChildrenWatch(session.client, root, lambda found: names.append(sorted(found)))
    assert (data, names) == ([None], [[]])
    for step in ("create", "set", "delete"):
        change = Change(other, step)
        if step == "create":
            change.create(f"{root}/a", b"1")
        elif step == "set":
            change.set(f"{root}/a", b"2")
        else:
            change.delete(f"{root}/a")
        count = len(data)
        assert change.commit()
        wait_for(lambda count=count: len(data) > count, step)  # type: ignore[misc]
    assert data == [None, b"1", b"2", None]
    wait_for(lambda: names == [[], ["a"], []], "all children")


def test_a_session_that_is_suspended_too_long_is_lost() -> None:
    ensemble = Ensemble("suspended")
    session = FleetSession(ensemble.hosts, session_s=0.5).start()
    other = FleetSession(ensemble.hosts).start()
    change = Change(session, "making")
    change.create("/e", b"", ephemeral=True)
    assert change.commit()
    ensemble.cut(session.client)
    assert not session.connected
    assert session.lost.wait(5)
    wait_for(lambda: read(other, "/e") is None, "the end of the node")
    other.close()
    ensemble.close()


def test_a_session_that_is_back_in_time_is_not_lost() -> None:
    ensemble = Ensemble("back")
    session = FleetSession(ensemble.hosts).start()
    ensemble.cut(session.client)
    ensemble.mend(session.client)
    assert session.connected
    assert children(session, "/") == []
    session.close()
    ensemble.close()
