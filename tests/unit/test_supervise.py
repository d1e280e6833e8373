"""What a runner does about a job: starts, ends, faults, versions, pauses, scaling."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from stack.engine.ownership import may_open
from stack.engine.planning import after_reports, next_plan, owners, releasable
from stack.engine.supervise import supervise
from stack.engine.supervision import (
    CancelSlot,
    Facts,
    FenceSlot,
    LaunchSlot,
    MarkReleased,
    Memory,
    RollBack,
    recall,
)
from stack.model.fleet import JobState
from stack.model.job import Desired, JobEntry
from stack.model.plan import (
    ContainerReport,
    Ending,
    Plan,
    Reason,
    TaskId,
    TaskReport,
    TaskState,
    job_tasks,
    tasks_of,
)
from tests.unit.fleet_world import World, running, spec


@pytest.fixture
def world() -> World:
    return World(running(), random.Random(1))


@pytest.fixture
def settled(world: World) -> World:
    world.settle(2)
    assert state(world) == (JobState.RUNNING, "")
    world.orders.clear()
    return world


def state(world: World) -> tuple[JobState, str]:
    assert world.status is not None
    return world.status.state, world.status.message


def launches(world: World) -> list[tuple[int, int]]:
    return [(one.slot, one.attempt) for one in world.orders if isinstance(one, LaunchSlot)]


def opened(world: World) -> list[TaskId]:
    return sorted(task for one in world.live() for task in one.opened)


def resume(world: World, desired: Desired = Desired.RUNNING) -> None:
    world.entry = replace(world.entry, desired=desired, try_number=world.entry.try_number + 1)


def test_a_new_job_is_planned_released_launched_and_confirmed(world: World) -> None:
    orders = world.look()
    assert [type(order).__name__ for order in orders] == [
        "WritePlan",
        "LaunchSlot",
        "LaunchSlot",
        "MarkReleased",
        "SetStatus",
    ]
    assert world.plan is not None
    assert world.plan.since == dict.fromkeys(tasks_of(4), 1)
    assert world.released == dict.fromkeys(tasks_of(4), 1)
    assert state(world) == (JobState.STARTING, "0 of 4 tasks run")
    world.settle(2)
    assert opened(world) == list(tasks_of(4))
    assert world.entry.confirmed
    world.orders.clear()
    world.settle(2)
    assert world.orders == []


def test_a_killed_container_is_started_at_once_in_its_own_place(settled: World) -> None:
    settled.kill(settled.live()[0])
    orders = settled.look()
    assert [type(order).__name__ for order in orders] == ["WritePlan", "LaunchSlot", "SetStatus"]
    assert state(settled) == (JobState.STARTING, "container 0 ended (killed) and is started again")
    settled.settle(1)
    assert opened(settled) == list(tasks_of(4))
    assert not any(isinstance(order, MarkReleased | FenceSlot) for order in settled.orders)


def test_one_that_keeps_ending_early_waits_longer_each_time(world: World) -> None:
    world.settle(1)
    world.bad = Ending(Reason.LOST, "no luck")
    begun = world.now
    starts = []
    while world.now < begun + 40:
        world.orders.clear()
        world.look()
        starts += [world.now for slot, _ in launches(world) if slot == 0]
        world.start()
        for one in world.live():
            world.see(one)
            one.commits = 0
            if one.opened:
                world.finish(one, world.bad)
            else:
                one.opened.add(TaskId("main", 0))
        world.now += 0.05
    gaps = [round(later - earlier, 1) for earlier, later in itertools.pairwise(starts)]
    assert gaps[0] < 0.7
    assert gaps[-1] >= 8
    assert gaps == sorted(gaps)


def test_the_same_fault_three_times_is_a_failure_until_somebody_resumes(settled: World) -> None:
    settled.bad = Ending(Reason.FAILED, "boom", "Mend it.", place="views-0 at 7")
    settled.settle(20)
    assert state(settled) == (JobState.FAILED, "boom (3 times in a row)")
    assert settled.status is not None
    assert (settled.status.hint, settled.status.place) == ("Mend it.", "views-0 at 7")
    assert settled.live() == []
    assert settled.at_rest()
    settled.take_over()
    settled.orders.clear()
    settled.settle(5)
    assert launches(settled) == []
    assert state(settled)[0] is JobState.FAILED
    settled.bad = None
    resume(settled)
    settled.settle(3)
    assert state(settled) == (JobState.RUNNING, "")


def test_a_fault_that_no_retry_mends_fails_at_once(settled: World) -> None:
    settled.bad = Ending(Reason.FAILED, "the feed is gone", retry=False)
    settled.settle(2)
    assert state(settled) == (JobState.FAILED, "the feed is gone")
    assert launches(settled) == []


def test_changing_faults_are_a_failure_too_in_the_end(settled: World) -> None:
    for number in range(40):
        settled.bad = Ending(Reason.FAILED, f"memory is at {number}")
        settled.settle(1)
    assert state(settled)[0] is JobState.FAILED


def test_a_version_that_fails_is_taken_back(settled: World) -> None:
    old = settled.entry.spec
    settled.entry = JobEntry(spec("v2"), previous=old, try_number=1)
    settled.bad = Ending(Reason.FAILED, "boom", retry=False)
    settled.bad_version = "v2"
    settled.settle(5)
    assert RollBack("v2", "boom") in settled.orders
    assert settled.entry.spec == old
    assert settled.entry.rolled_back == "boom"
    assert state(settled) == (JobState.RUNNING, "")
    assert settled.plan is not None
    assert settled.plan.version == "v1"


def test_a_version_that_makes_no_commit_in_time_is_taken_back(settled: World) -> None:
    settled.idle = True
    settled.entry = JobEntry(spec("v2", deploy_limit_ms=5_000), previous=settled.entry.spec, try_number=1)
    settled.settle(9)
    back = [order for order in settled.orders if isinstance(order, RollBack)]
    assert [order.reason for order in back] == ["version v2 made no commit within 5 s"]
    settled.settle(3)
    assert state(settled) == (JobState.RUNNING, "")


def test_a_first_version_that_makes_no_commit_fails(world: World) -> None:
    world.idle = True
    world.entry = JobEntry(spec(deploy_limit_ms=5_000))
    world.settle(9)
    assert state(world) == (JobState.FAILED, "version v1 made no commit within 5 s")
    assert world.live() == []


def test_waiting_for_slots_is_no_fault_of_a_version(world: World) -> None:
    world.cores = 0
    world.settle(100)
    assert state(world) == (JobState.WAITING, "waiting for 2 slots")
    assert not world.entry.confirmed
    world.cores = 9
    world.settle(3)
    assert state(world) == (JobState.RUNNING, "")


def test_tasks_of_a_container_without_a_slot_go_to_the_others(world: World) -> None:
    world.cores = 1
    world.settle(5)
    assert len(opened(world)) == 2
    world.settle(10)
    assert opened(world) == list(tasks_of(4))
    assert state(world) == (JobState.WAITING, "waiting for 1 slot")
    world.cores = 2
    world.settle(3)
    assert state(world) == (JobState.RUNNING, "")
    assert [len(one.opened) for one in world.live()] == [2, 2]


def test_scaling_moves_only_what_must_move(settled: World) -> None:
    def moved(containers: int) -> int:
        before = owners(settled.plan)
        settled.entry = replace(settled.entry, spec=spec(containers=containers))
        settled.settle(3)
        assert state(settled) == (JobState.RUNNING, "")
        assert opened(settled) == list(tasks_of(4))
        assert len(settled.live()) == containers
        return sum(before[task] != slot for task, slot in owners(settled.plan).items())

    first = [one.attempt for one in settled.live()]
    assert (moved(4), moved(2)) == (2, 2)
    assert [one.attempt for one in settled.live()] == first
    assert not any(isinstance(order, FenceSlot | CancelSlot) for order in settled.orders)


def test_more_containers_than_tasks_are_not_started(world: World) -> None:
    world.entry = running(containers=9, partitions=3)
    world.settle(2)
    assert len(world.live()) == 3


def test_pause_and_resume(settled: World) -> None:
    resume(settled, Desired.PAUSED)
    settled.look()
    assert state(settled) == (JobState.STOPPING, "2 containers are still running")
    settled.settle(1)
    assert state(settled) == (JobState.PAUSED, "")
    assert settled.live() == []
    assert settled.at_rest()
    resume(settled)
    settled.settle(2)
    assert state(settled) == (JobState.RUNNING, "")


def test_drain_ends_when_all_is_read_and_is_not_repeated(settled: World) -> None:
    resume(settled, Desired.DRAINED)
    settled.look()
    assert settled.plan is not None
    assert settled.plan.drain
    settled.kill(settled.live()[0])
    settled.settle(2)
    assert state(settled) == (JobState.DRAINED, "")
    assert settled.live() == []
    settled.orders.clear()
    settled.take_over()
    settled.settle(2)
    assert launches(settled) == []
    assert state(settled) == (JobState.DRAINED, "")
    resume(settled)
    settled.settle(2)
    assert state(settled) == (JobState.RUNNING, "")
    assert not settled.plan or not settled.plan.drain


def test_stages_are_drained_one_after_the_other() -> None:
    """The next one once all tasks of those before say that they are drained, also to another runner."""
    two = replace(spec(partitions=2), later_stages=(("late", 2),))
    entry = JobEntry(two, desired=Desired.DRAINED, confirmed=True)

    def look(memory: Memory, drained: set[TaskId]) -> Memory:
        running, done = TaskState.RUNNING, TaskState.DRAINED
        states = {task: done if task in drained else running for task in job_tasks(two)}
        reports: tuple[ContainerReport, ...] = ()
        if memory.plan is not None:
            reports = tuple(
                ContainerReport(
                    slot,
                    one.attempt,
                    memory.plan.generation,
                    "v1",
                    "r",
                    "h",
                    1,
                    tasks={task: TaskReport(states[task]) for task in one.tasks},
                )
                for slot, one in memory.plan.slots.items()
            )
        return supervise(memory, Facts(now=1.0, time_ms=1, entry=entry, reports=reports)).memory

    def drains(memory: Memory) -> int:
        return -1 if memory.plan is None else memory.plan.drain

    memory = look(Memory(), set())
    assert drains(memory) == 1
    first = {TaskId("main", 0), TaskId("main", 1)}
    memory = look(memory, {TaskId("main", 0), TaskId("late", 0)})
    assert drains(memory) == 1
    memory = look(recall(memory.plan, {}, None), first)
    assert drains(memory) == 2
    assert drains(look(memory, set(job_tasks(two)))) == 2


def test_a_new_version_starts_when_the_old_one_has_stopped(settled: World) -> None:
    settled.entry = JobEntry(spec("v2"), previous=settled.entry.spec, try_number=1)
    settled.look()
    assert state(settled) == (JobState.STOPPING, "version v1 stops, then v2 starts")
    assert launches(settled) == []
    settled.settle(2)
    assert {one.version for one in settled.live()} == {"v2"}
    assert state(settled) == (JobState.RUNNING, "")
    assert settled.entry.confirmed


def test_changed_settings_start_the_same_version_again(settled: World) -> None:
    settled.entry = replace(settled.entry, spec=spec(commit_max_ms=77))
    settled.settle(2)
    assert len(launches(settled)) == 2
    assert state(settled) == (JobState.RUNNING, "")


def test_a_container_that_stands_still_is_replaced_and_its_spark_job_cancelled(settled: World) -> None:
    old = settled.live()[0]
    settled.freeze(old)
    settled.look()
    assert launches(settled) == []
    settled.now += 0.6
    settled.look()
    assert settled.plan is not None
    attempt = settled.plan.slots[old.slot].attempt
    assert launches(settled) == [(old.slot, attempt)]
    assert CancelSlot(old.slot, old.attempt) in settled.orders
    settled.settle(2)
    assert sorted(task for one in settled.live() if not one.frozen for task in one.opened) == list(
        tasks_of(4)
    )


def test_a_container_that_does_not_stop_is_killed_and_fenced(settled: World) -> None:
    old = settled.live()[1]
    settled.entry = replace(settled.entry, spec=spec(containers=1))
    settled.look()
    old.frozen = True
    settled.settle(29)
    assert not any(isinstance(order, CancelSlot | FenceSlot) for order in settled.orders)
    assert len(opened(settled)) == 4
    settled.settle(15)
    assert CancelSlot(old.slot, old.attempt) in settled.orders
    assert FenceSlot(old.slot) in settled.orders
    settled.check()
    assert len(next(one for one in settled.live() if not one.frozen).opened) == 4


def test_a_removed_job_stops_and_then_leaves_nothing(settled: World) -> None:
    settled.listed = False
    settled.look()
    assert state(settled) == (JobState.STOPPING, "it is being removed")
    assert not settled.removed
    settled.settle(1)
    assert settled.removed
    assert settled.live() == []


def test_a_runner_that_ends_stops_its_containers_cleanly(settled: World) -> None:
    while not settled.at_rest():
        settled.look(stopping=True)
        for one in settled.live():
            settled.see(one)
            settled.work(one)
    assert not any(isinstance(order, CancelSlot | FenceSlot) for order in settled.orders)
    assert settled.look(stopping=True) == ()
    settled.take_over()
    settled.settle(2)
    assert state(settled) == (JobState.RUNNING, "")


def test_the_next_runner_gives_every_slot_a_new_attempt(settled: World) -> None:
    assert settled.plan is not None
    before = settled.plan
    settled.take_over()
    settled.look()
    assert settled.plan.generation == before.generation + 1
    assert {one.attempt for one in settled.plan.slots.values()} == {settled.plan.generation}
    assert owners(settled.plan) == owners(before)
    assert settled.plan.since == before.since
    settled.settle(2)
    assert opened(settled) == list(tasks_of(4))


def test_the_next_runner_fences_a_slot_that_it_does_not_need(settled: World) -> None:
    frozen = settled.live()[1]
    settled.freeze(frozen)
    settled.take_over()
    settled.entry = replace(settled.entry, spec=spec(containers=1))
    settled.settle(2)
    assert FenceSlot(frozen.slot) in settled.orders
    assert len(next(one for one in settled.live() if not one.frozen).opened) == 4


def test_a_task_planned_on_before_it_was_opened_is_not_opened_on_the_way() -> None:
    task = TaskId("main", 0)
    first = next_plan(None, {}, {0: (task,), 1: (), 2: ()}, [0, 1, 2], version="v")
    assert first is not None
    second = next_plan(first, {}, {0: (), 1: (task,), 2: ()}, [], version="v")
    assert second is not None
    third = next_plan(second, second.holders, {0: (), 1: (), 2: (task,)}, [], version="v")
    assert third is not None
    assert third.holders == {task: frozenset({0, 1})}
    # Container 0 missed the second plan and releases the task by the third; container 1 knows the second.
    released = {task: third.since[task]}
    assert not may_open(second, 1, task, released)
    assert may_open(third, 2, task, released)


def test_what_a_runner_recalls_of_tasks_on_their_way() -> None:
    task, other = tasks_of(2)
    plan = Plan(5, "v", since={task: 5, other: 4}, holders={task: frozenset({3}), other: frozenset({2})})
    assert recall(plan, {task: 3, other: 4}, None).holders == {task: frozenset({3})}


def test_a_container_that_still_lists_a_task_still_has_it() -> None:
    task, other = tasks_of(2)
    first = next_plan(None, {}, {0: (task, other), 1: ()}, [0, 1], version="v")
    assert first is not None
    second = next_plan(first, {}, {0: (), 1: (task, other)}, [], version="v")
    assert second is not None
    tasks = {task: TaskReport(TaskState.RUNNING)}
    said = ContainerReport(0, first.slots[0].attempt, second.generation, "v", "r", "h", 1, tasks=tasks)
    held = after_reports(second.holders, second, [said])
    assert held == {task: frozenset({0})}
    assert releasable(held, second, {}) == {other: second.generation}
    assert after_reports(held, second, [replace(said, tasks={})]) == {}
    assert after_reports(second.holders, second, [replace(said, generation=1, tasks={})]) == second.holders
