"""The runner on a real Kafka and ZooKeeper; its containers are processes that have no work to do."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from stack.connection import Stack
from stack.deploy.jobs import JobsFeed, jobs_feed
from stack.model.fleet import JobState
from stack.model.job import Desired, JobEntry
from stack.model.plan import ContainerReport, TaskId, tasks_of
from stack.runtime.runner import Runner, SparkGone
from stack.zookeeper.fleet import FleetNodes, FleetSession, JobNodes
from tests.cluster.test_fleet import expire
from tests.clusters import wait_for
from tests.fake_container import ProcessContainers
from tests.unit.fleet_world import spec

pytestmark = pytest.mark.cluster
JOB = "count"


class Fleet:
    """A runner in a thread, and what is seen of it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.jobs: JobsFeed = jobs_feed(stack)
        self.session = FleetSession(stack.endpoints.zookeeper).start()
        self.fleet = FleetNodes(self.session, stack.settings.name)
        self.nodes: JobNodes = self.fleet.job(JOB)
        self.runners: list[tuple[Runner, threading.Thread, ProcessContainers]] = []
        self.faults: list[Exception] = []

    def start(self, containers: ProcessContainers | None = None, align: Any = None) -> Runner:
        hosts = containers or ProcessContainers()
        runner = Runner(self.stack, hosts, align=align)

        def run() -> None:
            try:
                runner.run()
            except SparkGone as error:
                self.faults.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.runners.append((runner, thread, hosts))
        return runner

    def put(self, entry: JobEntry) -> None:
        self.jobs.put(entry)

    def change(self, **changes: Any) -> None:
        self.jobs.update(JOB, lambda entry: None if entry is None else replace(entry, **changes))

    def entry(self) -> JobEntry:
        return self.jobs.get(JOB)

    def reports(self) -> dict[int, ContainerReport]:
        return {report.slot: report for report in self.nodes.reports()}

    def opened(self) -> list[TaskId]:
        return sorted(task for report in self.nodes.reports() for task in report.tasks)

    def wait(self, state: JobState, limit_s: float = 20.0) -> None:
        def is_so() -> bool:
            status = self.nodes.status()
            return status is not None and status.state is state

        try:
            wait_for(is_so, f"the state {state}", limit_s)
        except AssertionError:
            raise AssertionError(f"{state} did not come: {self.nodes.status()} {self.nodes.plan()}") from None

    def wait_running(self, containers: int, limit_s: float = 20.0) -> None:
        self.wait(JobState.RUNNING, limit_s)
        wait_for(
            lambda: len(self.reports()) == containers and self.opened() == list(tasks_of(4)),
            f"all tasks in {containers} containers",
            limit_s,
        )

    def wait_next(self, before: ContainerReport) -> None:
        def has_come() -> bool:
            report = self.reports().get(before.slot)
            return report is not None and report.attempt > before.attempt

        wait_for(has_come, f"the next container after {before}")

    def close(self) -> None:
        for runner, _, _ in self.runners:
            runner.stop()
        for _, thread, hosts in self.runners:
            thread.join(20)
            hosts.close()
        self.session.close()


@pytest.fixture
def fleet(stack: Stack) -> Iterator[Fleet]:
    one = Fleet(stack)
    yield one
    one.close()


@pytest.fixture
def running(fleet: Fleet) -> Fleet:
    fleet.put(JobEntry(spec()))
    fleet.start()
    fleet.wait_running(2)
    return fleet


def test_a_job_is_started_confirmed_scaled_paused_drained_and_removed(running: Fleet) -> None:
    fleet = running
    wait_for(lambda: fleet.entry().confirmed, "the confirmation")
    first = {slot: report.attempt for slot, report in fleet.reports().items()}
    fleet.change(spec=spec(containers=4))
    fleet.wait_running(4)
    fleet.change(spec=spec(containers=2))
    fleet.wait_running(2)
    assert {slot: report.attempt for slot, report in fleet.reports().items()} == first
    fleet.change(desired=Desired.PAUSED)
    fleet.wait(JobState.PAUSED)
    assert fleet.reports() == {}
    fleet.change(desired=Desired.RUNNING, try_number=1)
    fleet.wait_running(2)
    fleet.change(desired=Desired.DRAINED)
    fleet.wait(JobState.DRAINED)
    assert fleet.reports() == {}
    fleet.jobs.remove(JOB)
    wait_for(lambda: fleet.fleet.jobs() == [], "the job's nodes to go")


def test_a_killed_container_comes_back_while_the_others_work_on(running: Fleet) -> None:
    before = running.reports()
    begun = time.monotonic()
    os.kill(before[0].pid, signal.SIGKILL)
    running.wait_next(before[0])
    took_s = time.monotonic() - begun
    assert took_s < 3
    running.wait_running(2)
    assert running.reports()[1].pid == before[1].pid


def test_a_container_that_stands_still_is_replaced_and_killed(running: Fleet) -> None:
    before = running.reports()
    os.kill(before[1].pid, signal.SIGSTOP)
    running.wait_next(before[1])
    running.wait_running(2)
    wait_for(lambda: not psutil.pid_exists(before[1].pid), "the end of the old one", 10)
    assert running.reports()[0].pid == before[0].pid


def test_a_new_version_replaces_the_old_one_and_a_bad_one_is_taken_back(running: Fleet) -> None:
    wait_for(lambda: running.entry().confirmed, "the confirmation")
    running.put(JobEntry(spec("v2"), previous=spec("v1"), try_number=1))
    wait_for(lambda: {one.version for one in running.reports().values()} == {"v2"}, "version v2")
    wait_for(lambda: running.entry().confirmed, "the confirmation of v2")
    running.put(JobEntry(spec("bad"), previous=spec("v2"), try_number=2))
    wait_for(lambda: running.entry().rolled_back is not None, "the rollback")
    running.wait_running(2)
    entry = running.entry()
    assert entry.rolled_back == "version bad was taken back: it is bad"
    assert (entry.spec.version, entry.previous, entry.confirmed) == ("v2", None, True)
    assert {one.version for one in running.reports().values()} == {"v2"}


def test_a_first_version_that_is_bad_fails_and_stays_so(fleet: Fleet) -> None:
    fleet.put(JobEntry(spec("bad")))
    fleet.start()
    fleet.wait(JobState.FAILED)
    status = fleet.nodes.status()
    assert status is not None
    assert (status.message, status.hint) == ("it is bad", "Mend it.")
    fleet.put(JobEntry(spec("good"), try_number=1))
    fleet.wait_running(2)


def test_too_few_slots_are_told_and_the_rest_works(fleet: Fleet) -> None:
    fleet.put(JobEntry(spec(containers=3)))
    fleet.start(ProcessContainers(slots=1))
    fleet.wait(JobState.WAITING)
    status = fleet.nodes.status()
    assert status is not None
    assert (status.message, status.slots_wanted, status.slots_ready) == ("waiting for 2 slots", 3, 1)
    wait_for(lambda: fleet.opened() == list(tasks_of(4)), "all tasks in one container")


def test_a_runner_that_is_stopped_leaves_nothing_and_the_next_goes_on(running: Fleet) -> None:
    pids = [report.pid for report in running.reports().values()]
    runner, thread, _ = running.runners[0]
    begun = time.monotonic()
    runner.stop()
    thread.join(15)
    assert not thread.is_alive()
    assert time.monotonic() - begun < 5
    assert running.reports() == {}
    assert running.nodes.leader() is None
    assert running.fleet.runners() == ()
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), "the containers' end")
    running.start()
    running.wait_running(2)


@pytest.mark.parametrize("how", ["expired", "removed"])
def test_a_runner_that_lost_its_place_begins_anew(running: Fleet, how: str) -> None:
    before = running.reports()
    [place] = running.fleet.runners()
    if how == "removed":
        running.fleet.remove_runner(place.id)
    else:
        session = running.runners[0][0].session
        assert session is not None
        expire(session)
    wait_for(lambda: running.reports().keys() == {0, 1} and _all_newer(running, before), "new attempts")
    running.wait_running(2)
    [after] = running.fleet.runners()
    assert after.id != place.id
    leader = running.nodes.leader()
    assert leader is not None
    assert leader.id == after.id


def _all_newer(fleet: Fleet, before: dict[int, ContainerReport]) -> bool:
    now = fleet.reports()
    return all(now[slot].attempt > before[slot].attempt for slot in before if slot in now)


def test_the_second_runner_takes_over_from_one_that_stopped(running: Fleet) -> None:
    running.start()
    wait_for(lambda: len(running.fleet.runners()) == 2, "the second runner")
    leader = running.nodes.leader()
    assert leader is not None
    running.runners[0][0].stop()
    wait_for(
        lambda: (place := running.nodes.leader()) is not None and place.id != leader.id, "the second to lead"
    )
    running.wait_running(2)


def test_without_spark_the_runner_ends_with_a_reason(running: Fleet) -> None:
    _, thread, hosts = running.runners[0]
    hosts.broken = "Spark's JVM ended with code 137"
    thread.join(15)
    assert [str(fault) for fault in running.faults] == ["Spark's JVM ended with code 137"]
    assert running.fleet.runners() == ()


def test_what_was_removed_without_a_runner_is_tidied_up(fleet: Fleet, stack: Stack) -> None:
    fleet.put(JobEntry(spec()))
    runner = fleet.start()
    fleet.wait_running(2)
    runner.stop()
    fleet.runners[0][1].join(15)
    fleet.jobs.remove(JOB)
    fleet.start()
    wait_for(lambda: fleet.fleet.jobs() == [], "the job's nodes to go", 15)


def test_points_are_taken_now_and_then_while_a_job_runs(fleet: Fleet) -> None:
    taken: list[tuple[str, str]] = []
    fleet.put(JobEntry(spec(align_ms=300), try_number=1))
    fleet.start(align=lambda nodes, of_job: taken.append((nodes.job, of_job.version)))
    fleet.wait_running(2)
    wait_for(lambda: len(taken) >= 2, "two points")
    assert set(taken) == {(JOB, "v1")}
    fleet.change(desired=Desired.PAUSED)
    fleet.wait(JobState.PAUSED)
    before = len(taken)
    fleet.change(desired=Desired.RUNNING)
    fleet.wait_running(2)
    wait_for(lambda: len(taken) > before, "one more when it runs again")
