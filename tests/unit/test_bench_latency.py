"""Latency in turns: which windows are quiet, whose turn it is, when it ends and what counts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from ops.bench.tasks_findings import findings
from ops.bench.tasks_latency import Latency, latencies_ms, percentile
from ops.bench.tasks_probe import (
    HELD_UP_LIMIT_MS,
    STOLEN_LIMIT,
    Disturbance,
    HeldUp,
    Probe,
    hold_ups,
    naps_late_ms,
    worst_of,
)
from ops.bench.tasks_stage import NOISY
from ops.bench.tasks_turns import BOUND, counting, next_turns

NAMES = ["ours", "kafka-streams", "quix"]


@dataclass(frozen=True)
class Seen:
    system: str
    quiet: bool = True


def window(system: str, p99_ms: float, held_up_ms: float = 1.0, other_load: float = 0.0) -> Latency:
    return Latency(
        system=system,
        guarantee="exactly-once",
        sent=10_000,
        answered=10_000,
        p50_ms=p99_ms / 3,
        p95_ms=p99_ms / 2,
        p99_ms=p99_ms,
        max_ms=p99_ms * 2,
        disturbance=Disturbance(other_load, HeldUp(held_up_ms, 0.0, True), stolen=0.0, compiling=0.0),
    )


def test_others_may_use_a_little_of_the_machine() -> None:
    calm = Disturbance(NOISY, HeldUp(HELD_UP_LIMIT_MS - 0.1, 40.0, True), stolen=0.0, compiling=0.0)
    assert calm.quiet
    assert not replace(calm, other_load=NOISY + 0.001).quiet


def test_what_was_compiled_does_not_decide_and_what_was_stolen_does() -> None:
    calm = Disturbance(0.0, HeldUp(1.0, 0.0, True), stolen=STOLEN_LIMIT - 0.001, compiling=0.5)
    assert calm.quiet
    assert not replace(calm, stolen=STOLEN_LIMIT).quiet


def test_a_core_that_stood_still_is_a_disturbance() -> None:
    assert not Disturbance(0.0, HeldUp(HELD_UP_LIMIT_MS, 15.0, True), stolen=0.0, compiling=0.0).quiet


def test_a_window_tells_what_it_suffered() -> None:
    told = window("ours", 80.0, held_up_ms=50.04, other_load=0.12345).as_json()
    assert (told["held_up"]["longest_ms"], told["other_load"], told["quiet"]) == (50.0, 0.123, False)


def test_a_bad_result_does_not_make_a_window_disturbed() -> None:
    assert window("ours", 5_000.0).quiet


def test_short_delays_do_not_add_up() -> None:
    assert hold_ups([0.1, 4.9, 6.0, 30.0], real_time=True) == HeldUp(30.0, 36.0, True)
    assert hold_ups([], real_time=False) == HeldUp(0.0, 0.0, False)


def test_the_worst_core_speaks_for_the_machine() -> None:
    cores = [HeldUp(30.0, 30.0, True), HeldUp(8.0, 80.0, True)]
    assert worst_of(cores) == HeldUp(30.0, 80.0, True)
    assert not worst_of([*cores, HeldUp(0.0, 0.0, False)]).real_time


def test_naps_are_late_by_what_goes_beyond_them() -> None:
    times_s = iter([10.0, 10.001, 10.022, 10.0225])
    ends = iter([False, False, False, True])
    late = list(naps_late_ms(lambda: next(ends), lambda: next(times_s), lambda _: None))
    assert late == [pytest.approx(0, abs=1e-6), pytest.approx(20), 0.0]


def test_the_probe_watches_again_and_again() -> None:
    with Probe() as probe:
        for _ in range(2):
            probe.begin()
            assert probe.held_up().longest_ms >= 0


def test_rounds_go_one_way_and_back() -> None:
    assert next_turns(NAMES, [], 0, wanted=3) == NAMES
    assert next_turns(NAMES, [Seen(name) for name in NAMES], 1, wanted=3) == NAMES[::-1]


def test_whoever_has_enough_quiet_windows_has_no_more_turns() -> None:
    taken = [Seen("ours"), Seen("ours"), Seen("quix"), Seen("quix", quiet=False)]
    assert next_turns(NAMES, taken, 2, wanted=2) == ["kafka-streams", "quix"]


def test_a_machine_that_is_never_quiet_does_not_keep_the_run_going() -> None:
    taken: list[Seen] = []
    number = 0
    while turns := next_turns(NAMES, taken, number, wanted=3):
        taken += [Seen(name, quiet=False) for name in turns]
        number += 1
    assert number == BOUND * 3
    assert len(taken) == len(NAMES) * BOUND * 3


def test_disturbed_windows_count_only_for_want_of_quiet_ones() -> None:
    quiet, loud = [Seen("ours"), Seen("ours")], [Seen("ours", quiet=False)]
    assert counting(quiet + loud, wanted=2) == (quiet, "")
    windows, said = counting(quiet + loud, wanted=3)
    assert windows == quiet + loud
    assert said == "2 of 3 windows of ours were quiet, not 3: all count"
    assert counting([], wanted=3) == ([], "")


def test_findings_are_medians_of_quiet_windows() -> None:
    runs = [
        *(window("ours", p99_ms) for p99_ms in (80.0, 60.0, 70.0)),
        window("ours", 300.0, held_up_ms=50.0),
        window("ours", 400.0, other_load=0.5),
        *(window("kafka-streams", p99_ms) for p99_ms in (90.0, 105.0, 100.0)),
    ]
    found = {(one.name, one.against): one for one in findings(runs, quiet_windows=3)}
    beside = found["latency, exactly-once: p99_ms", "kafka-streams"]
    assert (beside.ours, beside.other, beside.note, beside.passes) == (70.0, 100.0, "", True)
    assert found["latency, exactly-once: p99_ms", "the limit"].passes


def test_findings_say_that_the_machine_was_not_quiet() -> None:
    runs = [window("ours", 80.0), window("ours", 120.0, held_up_ms=50.0), window("kafka-streams", 100.0)]
    found = {one.against: one for one in findings(runs, quiet_windows=2) if "p99" in one.name}
    assert found["the limit"].ours == 100.0
    assert found["the limit"].note == "1 of 2 windows of ours were quiet, not 2: all count"
    assert "1 of 1 windows of kafka-streams were quiet" in found["kafka-streams"].as_row()[-1]
    assert found["the limit"].as_json()["note"]


def test_a_record_is_answered_by_the_first_count_that_has_it() -> None:
    sent = [("a", 1.0), ("a", 1.010), ("b", 2.0), ("c", 3.0)]
    answers = {"a": [(2, 1.030)], "b": [(1, 2.005), (1, 2.004)]}
    assert [round(one) for one in latencies_ms(sent, answers)] == [4, 20, 30]
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
