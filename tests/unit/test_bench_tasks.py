"""The arithmetic of `stack bench tasks`: what a figure says of what was seen."""

from __future__ import annotations

from ops.bench.tasks_findings import findings
from ops.bench.tasks_metrics import MetricsCost
from ops.bench.tasks_recovery import Memory, Recovery
from ops.bench.tasks_sibling import Sibling, rate_per_s
from ops.bench.tasks_takeover import Takeover
from ops.chaos.flow import longest_silence_s
from ops.cli import stories

ARRIVALS = [(10.0, 100), (10.1, 100), (10.8, 50), (11.0, 50), (12.0, 400)]
TIMES = [at for at, _ in ARRIVALS]


def sibling(during: float, gap: float) -> Sibling:
    return Sibling(
        system="ours",
        guarantee="exactly-once",
        keys=1_000_000,
        restoring_s=4.0,
        during_per_s=during,
        alone_per_s=80_000.0,
        longest_gap_s=gap,
        other_load=0.0,
        right=True,
    )


def test_a_rate_counts_what_came_within_its_time() -> None:
    assert rate_per_s(ARRIVALS, 10.0, 11.0) == 200
    assert rate_per_s(ARRIVALS, 11.0, 12.0) == 400
    assert rate_per_s([], 11.0, 12.0) == 0


def test_a_gap_that_reaches_into_the_time_counts_whole() -> None:
    assert round(longest_silence_s(TIMES, 10.0, 10.5), 3) == 0.7
    assert round(longest_silence_s(TIMES, 10.9, 11.5), 3) == 1.0
    assert longest_silence_s([], 10.0, 13.0) == 3.0


def test_findings_name_their_bars() -> None:
    found = {
        one.name: one for one in findings([sibling(30_000, 0.3), sibling(50_000, 0.4), sibling(60_000, 0.6)])
    }
    assert found["beside a restore: rate"].ratio == 0.625
    assert found["beside a restore: rate"].passes
    assert found["beside a restore: longest gap"].ratio == 1.25
    slow = {one.name: one.passes for one in findings([sibling(39_000, 0.51)])}
    assert slow == {"beside a restore: rate": False, "beside a restore: longest gap": False}


def test_the_worst_kill_and_the_growth_have_limits() -> None:
    killed = Recovery("ours", "exactly-once", 100_000, (1.0, 2.0, 7.0), 0.0)
    grown = Memory("ours", "exactly-once", 5_000_000, 100 << 20, 120 << 20, 0.0)
    assert [one.passes for one in findings([killed, grown])] == [True, False, False]


def test_metrics_are_judged_pair_by_pair() -> None:
    # The machine was twice as slow in the second pair, for both.
    pairs = [(98.0, 100.0), (48.0, 50.0), (100.0, 99.0)]
    runs = [MetricsCost("ours", "exactly-once", 9, *pair, *pair, 0.0, True) for pair in pairs]
    rate, per_cpu_s = findings(runs)
    assert (round(rate.ratio, 3), rate.passes, per_cpu_s.bar) == (0.98, True, None)
    dear = [MetricsCost("ours", "exactly-once", 9, 96.0, 100.0, 96.0, 100.0, 0.0, True)]
    assert [one.passes for one in findings(dear)] == [False, True]


def test_each_kill_on_a_cluster_has_its_limit() -> None:
    killed = {"executor": 3.0, "worker": 9.9, "runner": 11.0}
    runs = [Takeover("ours", "exactly-once", what, silent, 0.0, True) for what, silent in killed.items()]
    assert {one.name.rpartition(" ")[2]: one.passes for one in findings(runs)} == {
        "executor": True,
        "worker": True,
        "runner": False,
    }


def test_the_command_knows_all_that_can_be_measured() -> None:
    from ops.bench.tasks import GUARANTEES, SYSTEMS, WORKS

    assert tuple(SYSTEMS) == stories._SYSTEMS
    assert (WORKS, GUARANTEES) == (stories._WORKS, stories._GUARANTEES)
