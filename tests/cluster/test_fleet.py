"""Plans, containers, releases and leadership on a real ZooKeeper."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ops.cluster.ports import free_port
from stack.errors import LostOwnership, Unavailable
from stack.model.fleet import JobState, JobStatus, RunnerPlace
from stack.model.plan import ContainerReport, Plan, SlotPlan, TaskId, TaskReport, TaskState
from stack.runtime.launch import Launch
from stack.runtime.membership import Membership
from stack.settings import Endpoints, Settings
from stack.zookeeper.fleet import FleetNodes, FleetSession, JobNodes
from stack.zookeeper.lead import JobLead, bury_dead_runners
from tests.clusters import wait_for
from tests.unit.fleet_world import spec

pytestmark = pytest.mark.cluster
TASK, OTHER = TaskId("main", 0), TaskId("main", 1)
NewSession = Callable[[], FleetSession]


@pytest.fixture
def new_session(cluster: Endpoints) -> Iterator[NewSession]:
    opened: list[FleetSession] = []

    def make() -> FleetSession:
        opened.append(FleetSession(cluster.zookeeper).start())
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def new_nodes(new_session: NewSession, settings: Settings) -> Callable[[], JobNodes]:
    return lambda: JobNodes(new_session(), settings.name, "count")


def report(slot: int = 0, attempt: int = 1, **more: Any) -> ContainerReport:
    return dataclasses.replace(ContainerReport(slot, attempt, 0, "v1", "r1", "here", 1), **more)


def place(name: str) -> RunnerPlace:
    return RunnerPlace(name, "here", 1, 1.0)


def a_plan(generation: int = 1) -> Plan:
    return Plan(generation, "v1", {0: SlotPlan(1, (TASK,)), 1: SlotPlan(1, (OTHER,))}, {TASK: 1, OTHER: 1})


def test_one_leads_and_writes_and_everybody_reads(new_nodes: Callable[[], JobNodes]) -> None:
    nodes, other = new_nodes(), new_nodes()
    assert (nodes.plan(), nodes.status(), nodes.leader(), nodes.reports(), nodes.released()) == (
        *[None] * 3,
        (),
        {},
    )
    lead, second = JobLead(nodes, place("r1")), JobLead(other, place("r2"))
    assert lead.claim()
    assert lead.claim()
    assert not second.claim()
    lead.write_plan(a_plan())
    status = JobStatus(JobState.RUNNING, "fine", generation=1, runner="r1")
    lead.write_status(status)
    lead.mark_released({TASK: 1, OTHER: 1})
    lead.mark_released({TASK: 3, OTHER: 0})
    assert other.plan(fresh=True) == a_plan()
    assert other.status() == status
    assert other.leader() == place("r1")
    assert other.released() == {TASK: 3, OTHER: 1}
    lead.renounce()
    assert second.claim()
    with pytest.raises(LostOwnership):
        lead.write_plan(a_plan(9))


def test_a_leader_who_was_deposed_cannot_write_even_if_its_session_lives(
    new_nodes: Callable[[], JobNodes],
) -> None:
    nodes, other = new_nodes(), new_nodes()
    lead, second = JobLead(nodes, place("r1")), JobLead(other, place("r2"), lambda one: one.id == "r1")
    assert lead.claim()
    lead.write_plan(a_plan(1))
    assert second.claim()
    second.write_plan(a_plan(2))
    for write in (
        lambda: lead.write_plan(a_plan(3)),
        lambda: lead.write_status(JobStatus(JobState.FAILED)),
        lambda: lead.mark_released({TASK: 9}),
    ):
        with pytest.raises(LostOwnership, match="another runner leads"):
            write()
    lead.renounce()
    assert other.leader() == place("r2")
    assert other.plan() == a_plan(2)
    assert other.released() == {}


def test_many_claim_and_one_wins(new_nodes: Callable[[], JobNodes]) -> None:
    leads = [JobLead(new_nodes(), place(f"r{number}")) for number in range(4)]
    won: queue.Queue[bool] = queue.Queue()
    begin = threading.Barrier(len(leads))

    def run(lead: JobLead) -> None:
        begin.wait()
        won.put(lead.claim())

    threads = [threading.Thread(target=run, args=(lead,)) for lead in leads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won.get() for _ in leads) == [False, False, False, True]


def test_a_container_reports_and_a_newer_attempt_takes_its_place(
    new_nodes: Callable[[], JobNodes],
) -> None:
    old, new, watcher = new_nodes(), new_nodes(), new_nodes()
    changes: queue.Queue[None] = queue.Queue()
    watcher.watch_members(lambda: changes.put(None))
    changes.get(timeout=5)
    old.register(report(attempt=1))
    old.register(report(attempt=1))
    changes.get(timeout=5)
    tasks = {TASK: TaskReport(TaskState.RESTORING, 12, "half way")}
    old.update_report(report(commits=3, tasks=tasks))
    assert watcher.reports() == (report(commits=3, tasks=tasks),)
    old.release(TASK, 2)
    new.register(report(attempt=2))
    changes.get(timeout=5)
    assert watcher.reports() == (report(attempt=2),)
    with pytest.raises(LostOwnership, match="newer attempt"):
        old.update_report(report(commits=4))
    with pytest.raises(LostOwnership, match="newer attempt"):
        old.release(TASK, 9)
    with pytest.raises(LostOwnership, match="attempt 2 is there"):
        old.register(report(attempt=1))
    with pytest.raises(LostOwnership, match="another process"):
        old.register(report(attempt=2))
    assert watcher.released() == {TASK: 2}
    new.unregister()
    assert watcher.reports() == ()


def test_releases_only_rise_and_are_seen(new_nodes: Callable[[], JobNodes]) -> None:
    nodes, watcher = new_nodes(), new_nodes()
    seen: queue.Queue[dict[TaskId, int]] = queue.Queue()
    watcher.watch_released(lambda: seen.put(watcher.released()))
    assert seen.get(timeout=5) == {}
    nodes.register(report())
    nodes.release(TASK, 4)
    assert seen.get(timeout=5) == {TASK: 4}
    nodes.release(TASK, 3)
    nodes.release(OTHER, 4)
    wait_for(lambda: seen.get(timeout=5) == {TASK: 4, OTHER: 4}, "both releases")


def test_a_release_that_could_not_be_read_at_first_still_reaches_a_container(
    new_nodes: Callable[[], JobNodes], new_session: NewSession, settings: Settings, cluster: Endpoints
) -> None:
    """ZooKeeper tells of a change once. If it goes away before the container has read what it is about,
    the container must ask again by itself, or its task stays closed for ever."""
    runner = place("r1")
    FleetNodes(new_session(), settings.name).register_runner(runner)
    membership = Membership(Launch(settings, cluster, spec(), 1, 1, runner.id), new_session())
    own = membership._nodes
    membership.join(report(slot=1), lambda: report(slot=1))
    try:
        assert membership.released == {}
        fails, read = [True], own.released

        def released() -> dict[TaskId, int]:
            if fails:
                fails.pop()
                raise Unavailable("ZooKeeper went away")
            return read()

        own.released = released  # type: ignore[method-assign]
        nodes = new_nodes()
        nodes.register(report())
        nodes.release(TASK, 4)
        wait_for(lambda: membership.released == {TASK: 4}, "the release", limit_s=5)
        assert not fails
    finally:
        membership.leave()


def test_a_watched_plan_survives_a_dropped_connection(new_nodes: Callable[[], JobNodes]) -> None:
    nodes, watcher = new_nodes(), new_nodes()
    lead = JobLead(nodes, place("r1"))
    assert lead.claim()
    seen: queue.Queue[int] = queue.Queue()
    watcher.watch_plan(lambda plan: seen.put(plan.generation))
    lead.write_plan(a_plan(1))
    assert seen.get(timeout=5) == 1
    watcher.session.client._connection._socket.shutdown(2)
    lead.write_plan(a_plan(2))
    assert seen.get(timeout=10) == 2
    assert not watcher.session.lost.is_set()


def test_a_closed_session_takes_its_nodes_with_it(
    new_nodes: Callable[[], JobNodes], new_session: NewSession, settings: Settings
) -> None:
    fleet = FleetNodes(new_session(), settings.name)
    runner = new_session()
    FleetNodes(runner, settings.name).register_runner(place("r1"))
    FleetNodes(runner, settings.name).register_runner(place("r1"))
    gone = threading.Event()
    fleet.watch_runner("r1", gone.set)
    assert fleet.runners() == (place("r1"),)
    assert not gone.is_set()
    runner.close()
    assert gone.wait(5)
    assert fleet.runners() == ()


def test_dead_runners_of_this_host_are_buried(new_session: NewSession, settings: Settings) -> None:
    fleet = FleetNodes(new_session(), settings.name)
    for name in ("r1", "r2"):
        FleetNodes(new_session(), settings.name).register_runner(place(name))
    assert bury_dead_runners(fleet, lambda one: one.id == "r1") == ["r1"]
    assert fleet.runners() == (place("r2"),)


def test_an_expired_session_is_told_once_and_nothing_more_is_written(
    cluster: Endpoints, settings: Settings, new_nodes: Callable[[], JobNodes]
) -> None:
    told: queue.Queue[None] = queue.Queue()
    with FleetSession(cluster.zookeeper, on_lost=lambda: told.put(None)).start() as session:
        nodes = JobNodes(session, settings.name, "count")
        nodes.register(report())
        expire(session)
        told.get(timeout=10)
        assert session.lost.is_set()
        with pytest.raises(LostOwnership, match="session is lost"):
            nodes.update_report(report())
        assert told.empty()
    wait_for(lambda: new_nodes().reports() == (), "the container's node to go", 10)


def expire(session: FleetSession) -> None:
    """End a session behind its owner's back: connect with its identity and close."""
    from kazoo.client import KazooClient

    twin = KazooClient(session.hosts, client_id=session.client.client_id)
    twin.start()
    twin.stop()
    twin.close()


def test_suspended_for_longer_than_the_session_counts_as_lost(cluster: Endpoints) -> None:
    told = threading.Event()
    with FleetSession(cluster.zookeeper, told.set, session_s=2.0).start() as session:
        session.client.set_hosts("127.0.0.1:1")  # it stays alone from now on
        session.client._connection._socket.shutdown(2)
        assert told.wait(10)
        assert not session.connected


def test_a_path_after_the_hosts_is_made(cluster: Endpoints, settings: Settings) -> None:
    with FleetSession(f"{cluster.zookeeper}/{settings.name}/below").start() as session:
        fleet = FleetNodes(session, "s")
        fleet.register_runner(place("r1"))
        assert fleet.runners() == (place("r1"),)
        assert JobLead(fleet.job("count"), place("r1")).claim()
        assert fleet.jobs() == ["count"]


def test_nobody_there_is_told_in_time() -> None:
    with pytest.raises(Unavailable, match="cannot be reached"):
        FleetSession(f"127.0.0.1:{free_port(())}").start(limit_s=0.5)


def test_a_job_that_is_removed_leaves_nothing(
    new_nodes: Callable[[], JobNodes], new_session: NewSession, settings: Settings
) -> None:
    nodes = new_nodes()
    lead = JobLead(nodes, place("r1"))
    assert lead.claim()
    lead.write_plan(a_plan())
    lead.mark_released({TASK: 1, OTHER: 1})
    new_nodes().register(report())
    fleet = FleetNodes(new_session(), settings.name)
    assert fleet.jobs() == ["count"]
    lead.remove_job()
    assert fleet.jobs() == []
    assert lead.claim()
