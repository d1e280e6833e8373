"""Chaos without a cluster: what the verifier judges, what the schedule promises, how an outcome is told."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ops.chaos import run as chaos_run
from ops.chaos.flow import longest_silence_s
from ops.chaos.run import Outcome, Plan
from ops.chaos.schedule import LEAST_FAULTS, STOPPED, Fault, FaultKind, Size, schedule
from ops.chaos.targets import Targets
from ops.chaos.verdict import (
    Finding,
    Kind,
    Partition,
    Point,
    Report,
    judge_deltas,
    judge_mirror,
    judge_outputs,
    judge_points,
    judge_source,
    judge_spread,
)
from ops.cli.root import root
from stack.errors import ClusterFault
from tests.clusters import wait_for

COUNTS = st.integers(0, 30)


def kinds(findings: list[Finding]) -> dict[Kind, int]:
    return {one.kind: one.count for one in findings}


@given(COUNTS)
def test_one_to_n_is_exact(inputs: int) -> None:
    assert judge_outputs("f", "k", range(1, inputs + 1), inputs) == []


@given(st.lists(st.integers(-3, 40), max_size=40), COUNTS)
def test_whatever_came_is_told_as_lost_doubled_or_out_of_order(numbers: list[int], inputs: int) -> None:
    wanted = list(range(1, inputs + 1))
    found = kinds(judge_outputs("f", "k", numbers, inputs))
    missing, surplus = Counter(wanted) - Counter(numbers), Counter(numbers) - Counter(wanted)
    assert found.get(Kind.LOST, 0) == missing.total()
    assert found.get(Kind.DOUBLED, 0) == surplus.total()
    assert (Kind.ORDER in found) == (numbers != wanted and not missing and not surplus)
    assert bool(found) == (numbers != wanted)


def test_findings_name_the_feed_the_key_and_the_numbers() -> None:
    [lost, doubled] = judge_outputs("visits", "ada", [1, 3, 3, 9], 4)
    assert str(lost) == "lost: visits, ada: of 1 to 4 there is no 2, 4"
    assert str(doubled) == "doubled: visits, ada: 3 more than once and 9 where there are 4 inputs"
    [order] = judge_outputs("visits", "ada", [2, 1], 2)
    assert str(order) == "out of order: visits, ada: 2 comes where 1 belongs"
    [many] = judge_outputs("visits", "ada", [], 9)
    assert many.message == "of 1 to 9 there is no 1, 2, 3, 4, 5 and 4 more"


def test_deltas_rise_to_the_number_of_inputs() -> None:
    assert judge_deltas("c", "k", [2, 5, 9], 9) == []
    assert judge_deltas("c", "k", [], 0) == []
    assert [one.message for one in judge_deltas("c", "k", [2, 5], 9)] == ["ends at 5, inputs are 9"]
    assert [one.message for one in judge_deltas("c", "k", [5, 5, 9], 9)] == ["goes from 5 to 5"]
    assert [one.message for one in judge_deltas("c", "k", [], 1)] == ["ends at 0, inputs are 1"]


def test_source_keys_and_groups() -> None:
    assert judge_source("f", {"a": 2}, {"a": 2}) == []
    findings = judge_source("f", {"a": 1, "b": 3}, {"a": 2, "b": 1, "c": 4})
    assert [(one.kind, one.key, one.count) for one in findings] == [
        (Kind.LOST, "a", 1),
        (Kind.DOUBLED, "b", 2),
        (Kind.LOST, "c", 4),
    ]
    assert judge_spread("f", "k", {2}) == []
    assert judge_spread("f", "k", {2, 0})[0].message == "stands in partitions 0, 2"
    points = [Point(1, 5, 0), Point(2, 7, 0)]
    assert judge_mirror("f", "t", 7, 9, points) == []
    assert judge_mirror("f", "t", 9, 9, points) == []
    assert judge_mirror("f", "t", -1, 9, []) == []
    for wrong in (-1, 5, 10):
        assert judge_mirror("f", "t", wrong, 9, points)[0].kind is Kind.OFFSET


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([Point(1, 4, 3), Point(2, 10, 8)], None),
        ([], "has inputs but no checkpoint"),
        ([Point(1, 4, 3), Point(3, 10, 8)], "checkpoint 3 follows 1"),
        ([Point(1, 4, 3), Point(1, 10, 8)], "checkpoint 1 follows 1"),
        ([Point(1, 10, 8), Point(2, 9, 8)], "the input goes back from 10 to 9"),
        ([Point(1, 10, 9), Point(2, 10, 8)], "the changelog goes back from 9 to 8"),
        ([Point(1, 9, 8)], "continues at 9"),
        ([Point(1, 13, 8)], "continues at 13"),
        ([Point(1, 10, 7)], "the changelog end at 7"),
        ([Point(1, 10, 12)], "the changelog end at 12"),
    ],
)
def test_checkpoints(points: list[Point], said: str | None) -> None:
    findings = judge_points("f", "t", points, Partition(9, 12), Partition(7, 11))
    assert [one.kind for one in findings] == [Kind.OFFSET] * len(findings)
    assert bool(findings) == (said is not None)
    assert said is None or said in " ".join(one.message for one in findings)
    assert judge_points("f", "t", [], Partition(-1, 0), Partition(-1, 0)) == []


@given(st.integers(0, 10_000), st.integers(LEAST_FAULTS, 60), st.booleans())
def test_a_schedule_has_every_kind_twice_and_is_the_same_for_a_seed(
    seed: int, faults: int, long: bool
) -> None:
    jobs = (Size(2, 4), Size(2, 4))
    rounds = schedule(seed, faults, jobs, long)
    assert rounds == schedule(seed, faults, jobs, long)
    made = [fault for one in rounds for fault in one.faults]
    counts = Counter(fault.kind for fault in made)
    assert len(made) == faults
    assert all(counts[kind] >= 2 for kind in FaultKind)
    assert all(1 <= len(one.faults) <= 2 for one in rounds)
    assert all((fault.stop_s > 0) == (fault.kind in STOPPED) for fault in made)
    # Longer than a session with ZooKeeper lasts.
    assert all(fault.stop_s > 6 for fault in made if fault.kind is FaultKind.CONTAINER_STOPPED)
    sizes = [2, 2]
    for one in rounds:
        if one.scale is not None:
            assert one.scale.containers != sizes[one.scale.job]
            assert 1 <= one.scale.containers <= 3
            sizes[one.scale.job] = one.scale.containers


@given(st.integers(0, 10_000), st.integers(1, 8))
def test_rewinds_are_mixed_in_and_change_nothing_else(seed: int, rewinds: int) -> None:
    jobs = (Size(2, 4), Size(2, 4))
    rounds = schedule(seed, 20, jobs, rewinds=rewinds)
    assert rounds == schedule(seed, 20, jobs, rewinds=rewinds)
    assert [replace(one, rewind=None) for one in rounds] == schedule(seed, 20, jobs)
    made = [one.rewind for one in rounds if one.rewind is not None]
    assert len(made) == rewinds
    assert rounds[0].rewind is None
    assert sum(one.killed_at is not None for one in made) == (rewinds + 1) // 2
    assert all(one.job in (0, 1) and 2 <= one.back_s <= 45 and 0 <= one.share < 1 for one in made)


@pytest.mark.parametrize(
    ("since", "until", "silence_s"),
    [
        (2.5, 4.5, 1.0),
        (4.5, 8.5, 4.0),
        (7.0, 9.5, 4.0),
        (0.0, 1.0, 1.0),
        (9.5, 12.0, 3.0),
        (20.0, 21.0, 12.0),
    ],
)
def test_silence_is_that_of_the_span(since: float, until: float, silence_s: float) -> None:
    arrivals = [1.0, 2.0, 3.0, 4.0, 5.0, 9.0]
    assert longest_silence_s(arrivals, since, until) == silence_s
    assert longest_silence_s([], since, until) == until - since


def outcome(*findings: Finding) -> Outcome:
    made = Outcome(7, scaled=3, took_s=201.0)
    made.faults.update({FaultKind.CONTAINER_KILLED: 2, FaultKind.RUNNER_KILLED: 1})
    made.rewinds.update(done=5, killed=2, refused=1)
    made.gaps_s = {"container killed": [1.2, 3.44], "two at a time": [9.0], "went back": [8.0, 4.0]}
    made.report = Report({"clicks": 300_000, "visits": 300_000}, 2_000, 12_000, findings)
    return made


def test_an_exact_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Plan] = []

    def run(plan: Plan, _: object) -> Outcome:
        asked.append(plan)
        return outcome()

    monkeypatch.setattr(chaos_run, "run", run)
    done = CliRunner().invoke(root, ["chaos", "--seed", "7"])
    assert asked == [Plan(7, 300_000, 20, rewinds=5)]
    assert "went back 5 times, killed on the way 2 times, 1 point refused" in done.stdout
    assert done.exit_code == 0
    assert "lost 0, doubled 0" in done.stdout
    lines = {line.split("  ")[0]: line.split() for line in done.stdout.splitlines()}
    assert lines["container killed"][-3:] == ["2", "2.3", "3.4"]
    assert lines["runner killed"][-1] == "1"
    assert lines["two at a time"][-3:] == ["1", "9.0", "9.0"]
    assert lines["went back"][-3:] == ["2", "6.0", "8.0"]
    told = json.loads(CliRunner().invoke(root, ["chaos", "--long", "--json"]).stdout)
    assert (asked[1].records, asked[1].faults, asked[1].long) == (3_000_000, 120, True)
    assert asked[1].rewinds == 30
    assert told["rewinds"] == {"done": 5, "killed": 2, "refused": 1}
    assert (told["exact"], told["lost"], told["faults"]["container killed"]) == (True, 0, 2)
    assert told["gaps_s"]["container killed"] == {"median": 2.3, "worst": 3.4}


def test_a_run_that_is_not_exact_ends_with_one_and_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [Finding(Kind.LOST, "visits", f"user-{number}", "gone", 2) for number in range(25)]
    monkeypatch.setattr(chaos_run, "run", lambda *_: outcome(*findings))
    done = CliRunner().invoke(root, ["chaos", "--seed", "7"])
    assert done.exit_code == 1
    assert "lost 50, doubled 0" in done.stdout
    assert "lost: visits, user-0: gone" in done.stdout
    assert "and 5 more findings" in done.stdout
    assert "`stack chaos --seed 7`" in done.stdout


class Sleepers(Targets):
    """Targets that are processes of this test: each look finds the next one."""

    def __init__(self, found: list[psutil.Process | None]) -> None:
        self._found = found
        self._clock = iter(range(0, 10_000, 10)).__next__

    def _look(self, _fault: Fault) -> psutil.Process | None:
        return self._found.pop(0) if self._found else None


@pytest.fixture
def sleepers() -> Iterator[list[psutil.Popen]]:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = [psutil.Popen(command) for _ in range(2)]
    yield started
    for one in started:
        if one.is_running():
            one.kill()
        one.wait(10)


def test_a_killed_process_is_gone_and_one_that_ended_before_is_not_counted(
    sleepers: list[psutil.Popen],
) -> None:
    gone, alive = (psutil.Process(one.pid) for one in sleepers)
    sleepers[0].kill()
    sleepers[0].wait(10)
    said = Sleepers([None, gone, alive]).hit(Fault(FaultKind.CONTAINER_KILLED, 0, 0, 0))
    assert said == f"pid {alive.pid}"
    assert sleepers[1].wait(10) == -signal.SIGKILL


def test_a_stopped_process_goes_on_afterwards(sleepers: list[psutil.Popen]) -> None:
    process = psutil.Process(sleepers[0].pid)
    asked: list[float] = []

    def sleep(seconds: float) -> None:
        asked.append(seconds)
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED, "the process to stand still", 10)

    said = Sleepers([process]).hit(Fault(FaultKind.CONTAINER_STOPPED, 0, 0, 0, 9.0), sleep)
    assert said == f"pid {process.pid}, for 9 s"
    assert asked == [9.0]
    wait_for(lambda: process.status() != psutil.STATUS_STOPPED, "the process to go on", 10)


def test_nobody_to_hit_is_told() -> None:
    with pytest.raises(ClusterFault, match="runner killed: after 90 s there is no process to hit"):
        Sleepers([]).hit(Fault(FaultKind.RUNNER_KILLED, 0, 0, 0))
