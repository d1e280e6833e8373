"""The engine on twins: a share of the seeds, exact replay, every crash point, every planted bug."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ops.cli.root import root
from ops.simulation.kernel import Kernel, Process, Stuck
from ops.simulation.planted import BUGS, Bug, planted
from ops.simulation.points import CRASH_POINTS, CrashPoint
from ops.simulation.run import run_crash, run_seed
from ops.simulation.series import run_series
from ops.simulation.themes import THEMES

# `make simulate` runs them all.
_SHARE = 120
_REPLAY = """
from ops.simulation.run import run_seed
print([(one.digest, one.steps, one.fault) for one in map(run_seed, range(40, 52))])
"""


def test_a_share_of_the_seeds() -> None:
    series = run_series(range(_SHARE))
    assert series.wrong == []
    assert series.faults > _SHARE


def test_a_seed_replays_exactly_whatever_the_order_of_sets() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", _REPLAY],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(told) == 1


def test_the_story_does_not_change_the_run() -> None:
    quiet, told = run_seed(7), run_seed(7, told=True)
    assert (quiet.digest, quiet.steps, quiet.seconds) == (told.digest, told.steps, told.seconds)
    assert told.story
    assert not quiet.story


@pytest.mark.parametrize("point", CRASH_POINTS, ids=lambda one: f"{one.kind}-{one.name}")
def test_a_crash_there_is_as_the_table_says(point: CrashPoint) -> None:
    verdict, fate = run_crash(point)
    assert verdict.fault is None
    assert fate is point.fate


@pytest.mark.parametrize("bug", BUGS, ids=lambda one: one.name)
def test_a_planted_bug_is_noticed(bug: Bug) -> None:
    if bug.seed is None:
        pytest.xfail("no seed is known that notices it")
    assert run_seed(bug.seed).fault is None
    with planted(bug.name):
        assert run_seed(bug.seed).fault is not None
    assert run_seed(bug.seed).fault is None


def test_themes_make_up_all_runs() -> None:
    assert sum(theme.share for theme in THEMES) == 100


def test_the_command_tells_a_story() -> None:
    done = CliRunner().invoke(root, ["simulate", "--seed", "3"])
    assert done.exit_code == 0
    assert "deploys count v1" in done.stdout
    assert "all is well" in done.stdout


def test_the_command_counts_runs() -> None:
    done = CliRunner().invoke(root, ["simulate", "--seeds", "3"])
    assert done.exit_code == 0
    assert done.stdout.startswith("3 runs")


def test_the_command_names_the_seed_of_a_wrong_run() -> None:
    bug = BUGS[0]
    with planted(bug.name):
        done = CliRunner().invoke(root, ["simulate", "--first", str(bug.seed), "--seeds", "1"])
    assert done.exit_code == 1
    assert f"stack simulate --seed {bug.seed}" in done.stdout


def test_threads_go_on_in_the_order_of_their_time() -> None:
    import random

    kernel = Kernel(random.Random(1), 100.0, 1000)
    process, seen = Process("p", "container"), []

    def wait(seconds: float) -> None:
        kernel.wait(seconds)
        seen.append(seconds)
        kernel.finished = seconds == 3

    for seconds in (3, 1, 2):
        kernel.start(lambda seconds=seconds: wait(seconds), "t", process)  # type: ignore[misc]
    kernel.start(lambda: kernel.wait(50), "last", process)
    kernel.run()
    kernel.close()
    assert seen == [1, 2, 3]


def test_a_killed_process_never_goes_on() -> None:
    import random

    kernel = Kernel(random.Random(1), 100.0, 1000)
    process, seen = Process("p", "container"), []

    def work() -> None:
        try:
            kernel.wait(5)
            seen.append("went on")
        finally:
            seen.append("was taken down")

    kernel.start(work, "t", process)
    kernel.start(lambda: kernel.kill(process), "killer", Process("q", "container"), 1.0)
    with pytest.raises(Stuck):
        kernel.run()
    assert seen == []
    kernel.close()
    assert seen == ["was taken down"]
