"""Whatever happens to containers and runners: no task twice, and in the end every task once."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from stack.model.fleet import JobState
from stack.model.job import Desired
from stack.model.plan import tasks_of
from tests.unit.fleet_world import Container, World, running, spec


def shake(world: World, steps: int) -> None:
    """Random mishaps in random order."""
    chance = world.chance
    weights: dict[Callable[[], object], int] = {
        world.look: 25,
        world.start: 10,
        world.fence: 7,
        world.expire: 3,
        world.take_over: 2,
        lambda: scale(world): 4,
        lambda: wish(world): 2,
        lambda: deploy(world): 1,
        lambda: with_one(world, see_and_work): 33,
        lambda: with_one(world, World.kill): 4,
        lambda: with_one(world, World.freeze): 3,
        lambda: with_one(world, thaw): 3,
    }
    for happen in chance.choices([*weights], [*weights.values()], k=steps):
        happen()
        world.now += chance.choice([0.0, 0.0, 0.1, 0.5, 1.0, 9.0])
        world.check()


def with_one(world: World, happen: Callable[[World, Container], None]) -> None:
    if world.live():
        happen(world, world.chance.choice(world.live()))


def see_and_work(world: World, one: Container) -> None:
    if world.chance.randrange(3):
        world.see(one)
    world.work(one)


def thaw(_world: World, one: Container) -> None:
    one.frozen = False


def scale(world: World) -> None:
    settings_of = spec(containers=world.chance.randrange(1, 5)).settings
    world.entry = replace(world.entry, spec=replace(world.entry.spec, settings=settings_of))


def wish(world: World) -> None:
    wishes = [Desired.RUNNING, Desired.RUNNING, Desired.PAUSED, Desired.DRAINED]
    tries = world.entry.try_number + 1
    world.entry = replace(world.entry, desired=world.chance.choice(wishes), try_number=tries)


def deploy(world: World) -> None:
    version = f"v{world.chance.randrange(9)}"
    world.entry = replace(world.entry, spec=replace(world.entry.spec, version=version))


@settings(max_examples=40)
@given(st.integers(0, 1 << 30))
def test_no_task_is_ever_open_twice_and_all_run_in_the_end(seed: int) -> None:
    chance = random.Random(seed)
    world = World(running(containers=2, partitions=6), chance)
    shake(world, 400)
    for one in world.live():
        one.frozen = False
    back = replace(world.entry, desired=Desired.RUNNING, try_number=world.entry.try_number + 1)
    world.entry = back
    world.settle()
    opened = sorted(task for one in world.live() for task in one.opened)
    assert opened == list(tasks_of(6))
    assert world.status is not None
    assert (world.status.state, world.status.message) == (JobState.RUNNING, "")
    assert len(world.live()) == back.spec.settings.containers
    assert world.memory.holders == {}
    assert world.entry.confirmed
