"""What a commit promises and how state comes back: the same scenarios in the kit and on the real parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stack.testing import POINTS
from tests.cluster.job_world import COUNT, SETTINGS
from tests.contract.job_worlds import Counting, KitCounting, RealCounting

AT_LEAST_ONCE = 'guarantee = "at-least-once"\n' + SETTINGS
MakeWorld = Callable[[str], Counting]


@pytest.fixture(params=["kit", pytest.param("real", marks=pytest.mark.cluster)])
def make_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeWorld]:
    """Makes the world of a test, with these settings of the job."""
    if request.param == "kit":
        yield lambda settings: KitCounting(tmp_path, COUNT, settings)
        return
    stack = request.getfixturevalue("stack")
    made: list[RealCounting] = []

    def make(settings: str) -> Counting:
        made.append(RealCounting(stack, tmp_path, COUNT, settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def exact(clicks: Counter[str]) -> dict[str, list[int]]:
    return {user: list(range(1, count + 1)) for user, count in clicks.items()}


def assert_exact(world: Counting, clicks: Counter[str]) -> None:
    assert world.tallies() == exact(clicks)
    assert world.counts() == clicks


def assert_together(world: Counting) -> None:
    """Whatever is visible of outputs is in the state, and the other way round."""
    tallies = world.tallies()
    assert {user: counts[-1] for user, counts in tallies.items()} == world.counts()
    assert all(counts == list(range(1, len(counts) + 1)) for counts in tallies.values())


@pytest.mark.timeout(400)  # ten lives, each a process that imports everything
def test_exactly_once_through_a_crash_at_every_point(make_world: MakeWorld) -> None:
    world = make_world(SETTINGS)
    clicks = world.click(40)
    world.run()
    assert_exact(world, clicks)
    for number, point in enumerate(POINTS, 1):
        clicks += world.click(30, first=1_000 * number)
        world.crash(point)
        assert_together(world)
    world.run()
    assert_exact(world, clicks)


def test_at_least_once_repeats_outputs_at_most_and_its_state_is_exact(make_world: MakeWorld) -> None:
    world = make_world(AT_LEAST_ONCE)
    clicks = world.click(40)
    world.run()
    for number, point in enumerate(("outputs", "commit.deltas", "commit.flush", "commit.commit"), 1):
        clicks += world.click(30, first=1_000 * number)
        world.crash(point)
    world.run()
    assert world.counts() == clicks
    assert {user: sorted(set(counts)) for user, counts in world.tallies().items()} == exact(clicks)


def test_what_crashed_before_its_first_commit_begins_at_the_beginning(make_world: MakeWorld) -> None:
    world = make_world(SETTINGS)
    clicks = world.click(20)
    world.crash("commit.flush")
    assert world.tallies() == {}
    assert world.counts() == {}
    world.run()
    assert_exact(world, clicks)


def test_a_crash_between_commit_and_stores_is_healed_by_the_changelog(make_world: MakeWorld) -> None:
    world = make_world(SETTINGS)
    clicks = world.click(20)
    world.crash("commit.commit")
    assert sum(world.counts().values()) > 0
    assert_together(world)
    clicks += world.click(20, first=7)
    world.run()
    assert_exact(world, clicks)


def test_a_restart_in_good_order_goes_on_with_its_state(make_world: MakeWorld) -> None:
    world = make_world(SETTINGS)
    clicks = world.click(20)
    world.run()
    world.stop()
    clicks += world.click(20, first=3)
    world.run()
    assert_exact(world, clicks)


def test_on_another_machine_the_state_comes_from_the_changelog(make_world: MakeWorld) -> None:
    world = make_world(SETTINGS)
    clicks = world.click(50)
    world.run()
    world.crash_at_rest(lose_disk=True)
    clicks += world.click(50, first=5)
    world.run()
    assert_exact(world, clicks)


def test_after_an_aborted_commit_everything_is_done_again(make_world: MakeWorld) -> None:
    world = make_world(SETTINGS)
    clicks = world.click(25)
    world.run()
    clicks += world.click(25, first=4)
    world.run_with_abort()
    assert_exact(world, clicks)


def test_a_rewind_brings_state_and_inputs_back(make_world: MakeWorld) -> None:
    world = make_world(SETTINGS)
    before = world.click(5)
    world.run()
    world.name("then")
    after = before + world.click(40, first=3)
    world.run()
    assert world.counts() == after
    world.rewind("then")
    assert world.counts() == before
    world.run()
    assert world.counts() == after
    # Events were not unwritten: what was read again is there again.
    assert sum(map(len, world.tallies().values())) == 5 + 40 + 40
    world.rewind("then")
    world.crash_at_rest(lose_disk=True)
    world.run()
    assert world.counts() == after
