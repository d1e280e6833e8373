"""The verifier of chaos runs, on real feeds: it passes what is exact, and finds every planted fault."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import pytest

from ops.chaos.reading import VerifierFault
from ops.chaos.verdict import Kind, Report
from ops.chaos.verifier import Chain, Step, verify
from stack import Stack
from stack.model.startpoint import AtAnnotation
from stack.offsets.naming import name_point, where_it_stands
from tests import planted
from tests.cluster.job_world import JobWorld
from tests.cluster.test_rewind import TABLE, Rewinds
from tests.clusters import wait_for
from tests.fleets import HandFleet, run_and_tell
from tests.planted import CLICKS, USER

pytestmark = pytest.mark.cluster
STEP = Step("count", "clicks", "tallies")


@pytest.fixture
def world(stack: Stack) -> JobWorld:
    return JobWorld(stack)


@pytest.fixture
def fleet(world: JobWorld, stack: Stack) -> Iterator[HandFleet]:
    with HandFleet(stack, world.folder) as fleet:
        fleet.plan(1)
        yield fleet


def chain_of(world: JobWorld) -> Chain:
    settings = world.stack.settings
    return Chain(world.stack.endpoints.kafka, settings.name, (STEP,), settings.topic_prefix)


def settled(world: JobWorld, fleet: HandFleet, clicks: Counter[str]) -> Report:
    """The verdict when everything was read and the container has ended in good order."""
    ends = world.stack.admin.ends(world.stack.topic_of("clicks"), range(2))

    def is_read() -> bool:
        points = world.checkpoints()
        return len(points) == 2 and all(
            point.inputs["clicks"].offsets[task.partition] >= ends[task.partition] - 1
            for task, point in points.items()
        )

    wait_for(is_read, "all clicks to be read")
    fleet.plan({})
    fleet.ending()
    return verify(chain_of(world), clicks, limit_s=30)


def keys_of(report: Report, kind: Kind) -> set[tuple[str, str]]:
    return {(one.feed, one.key) for one in report.findings if one.kind is kind}


def test_an_exact_run_passes_and_a_missing_input_does_not(world: JobWorld, fleet: HandFleet) -> None:
    clicks = world.click(200)
    fleet.start()
    wait_for(lambda: world.outputs() > 50, "outputs to flow")
    fleet.kill()
    clicks += world.click(200)
    fleet.start()
    report = settled(world, fleet, clicks)
    assert report.findings == ()
    assert report.records == {"clicks": 400, "tallies": 400}
    assert (report.keys, report.commits > 1) == (10, True)
    promised = verify(chain_of(world), clicks + Counter({USER: 1, "nobody": 2}))
    assert keys_of(promised, Kind.LOST) == {("clicks", USER), ("clicks", "nobody")}
    assert promised.count(Kind.LOST) == 3


@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        (planted.drop_record, {Kind.LOST, Kind.STATE}),
        (planted.double_output, {Kind.DOUBLED}),
        (planted.skip_delta, {Kind.STATE}),
    ],
)
def test_a_fault_of_one_record_is_found(
    world: JobWorld, fleet: HandFleet, plant: Callable[[], None], kinds: set[Kind]
) -> None:
    clicks = world.click(10 * CLICKS)
    fleet.main = partial(planted.run, plant)
    fleet.start()
    report = settled(world, fleet, clicks)
    assert {one.kind for one in report.findings} == kinds
    assert all(report.count(kind) == 1 for kind in kinds)
    [key] = {one.key for one in report.findings}
    assert key in clicks if plant is not planted.skip_delta else key == USER
    changelog = f"{world.stack.settings.name}.count.counts.changelog"
    feeds = {Kind.STATE: changelog}
    assert all(one.feed == feeds.get(one.kind, "tallies") for one in report.findings)
    assert key in str(report.findings[0])


def test_an_offset_that_is_lost_counts_a_record_twice(world: JobWorld, fleet: HandFleet) -> None:
    clicks = world.click(10 * CLICKS)
    fleet.main = partial(planted.run, planted.lose_offset)
    fleet.start()
    report = settled(world, fleet, clicks)
    assert keys_of(report, Kind.OFFSET) == {
        ("clicks", "job count, task 0"),
        ("clicks", "job count, task 1"),
    }
    # What it found comes true with the next start.
    fleet.main = run_and_tell
    fleet.plan(1)
    fleet.start()
    repeated = 10 * CLICKS + 2
    wait_for(lambda: sum(map(len, world.tallies().values())) >= repeated, "the repeated records")
    report = settled(world, fleet, clicks)
    assert report.count(Kind.DOUBLED) == 2
    assert {feed for feed, _ in keys_of(report, Kind.DOUBLED)} == {"tallies"}


def test_without_transactions_a_crash_doubles(world: JobWorld, fleet: HandFleet) -> None:
    clicks = world.click(10 * CLICKS)
    fleet.start()
    world.await_exact(clicks)
    fleet.kill()
    clicks += world.click(10 * CLICKS)
    fleet.main = partial(planted.run, planted.without_transactions)
    fleet.start().join(30)
    written = sum(map(len, world.tallies().values())) - 10 * CLICKS
    assert written > 0
    fleet.main = run_and_tell
    fleet.start()
    report = settled(world, fleet, clicks)
    assert report.count(Kind.DOUBLED) == written
    assert report.count(Kind.LOST) == 0
    assert {feed for feed, _ in keys_of(report, Kind.DOUBLED)} == {"tallies"}


def gone_back(stack: Stack, plant: Callable[[], AbstractContextManager[None]]) -> Report:
    """The verdict on a job that went back twice: once as it should, once with a fault."""
    world = JobWorld(stack, derived=TABLE)
    with HandFleet(stack, world.folder) as fleet:
        rewinds, clicks = Rewinds(world, fleet), Counter[str]()
        for number in range(3):
            clicks += world.click(10 * CLICKS)
            rewinds.run()
            rewinds.await_read()
            rewinds.stop()
            stand = where_it_stands(stack, fleet.spec, is_still=True)
            name_point(stack, fleet.spec, stand, f"round-{number}", {}, by="me")
        rewinds.rewind(AtAnnotation("round-1"), "@round-1")
        rewinds.run()
        rewinds.await_read()
        rewinds.stop()
        with plant():
            rewinds.rewind(AtAnnotation("round-0"), "@round-0")
        clicks += world.click(10 * CLICKS)
        rewinds.run()
        return settled(world, fleet, clicks)


def test_a_job_that_went_back_is_exact(stack: Stack) -> None:
    report = gone_back(stack, contextlib.nullcontext)
    assert report.findings == ()
    assert report.rewinds == 2
    assert report.records["clicks"] == 40 * CLICKS
    # What was read again was written again, and each key was corrected twice.
    assert report.records["tallies"] == 40 * CLICKS + 10 * CLICKS + 20 * CLICKS + 2 * 10


@pytest.mark.parametrize(
    ("plant", "feeds"),
    [
        (planted.leave_correction_out, {"tallies"}),
        (planted.leave_state, {"tallies", "changelog"}),
        (planted.leave_inputs, {"tallies", "changelog", "clicks"}),
    ],
)
def test_a_rewind_that_leaves_something_out_is_found(
    stack: Stack, plant: Callable[[], AbstractContextManager[None]], feeds: set[str]
) -> None:
    report = gone_back(stack, plant)
    assert {one.feed.rpartition(".")[2] for one in report.findings} == feeds
    assert report.count(Kind.REWIND) >= 2
    is_counted = plant is planted.leave_correction_out
    assert is_counted == (not report.count(Kind.LOST) and not report.count(Kind.DOUBLED))


def test_what_cannot_be_read_proves_nothing(world: JobWorld) -> None:
    with pytest.raises(VerifierFault, match=r"checkpoints cannot be read"):
        verify(chain_of(world))
