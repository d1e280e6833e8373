"""Commands that go back in a chaos run, without a cluster: killed, refused, failed, repeated."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from ops.chaos.rewinds import Going
from ops.chaos.schedule import Rewind, RewindStep, Way
from stack.errors import ClusterFault

# What the command does the next time stands in a file, a line for each time.
SCRIPT = """
import pathlib, sys, time
file = pathlib.Path(sys.argv[1])
words, *rest = file.read_text().splitlines()
file.write_text("\\n".join(rest))
with open(file.with_name("asked"), "a") as asked:
    asked.write(sys.argv[2] + " ")
print("  bringing state and tables back", file=sys.stderr, flush=True)
if words == "hang":
    time.sleep(60)
print(words, file=sys.stderr)
sys.exit(0 if words == "done" else 1)
"""


def go(folder: Path, *does: str, killed_at: RewindStep | None = None) -> tuple[str, Counter[str], str]:
    """What came of it, how it was counted, and which points were asked for."""
    file = folder / "does"
    file.write_text("\n".join(does))
    one = Rewind(0, Way.TIME, 5.0, 0.5, True, killed_at)
    counts: Counter[str] = Counter()
    command = [sys.executable, "-c", SCRIPT, str(file)]
    said = Going(command, lambda attempt: f"point-{attempt}", one, counts, lambda _: None).wait()
    return said, +counts, (folder / "asked").read_text().strip()


def test_a_command_that_was_killed_is_repeated(tmp_path: Path) -> None:
    said, counts, asked = go(tmp_path, "hang", "done", killed_at=RewindStep.UNDOING)
    assert said == "went back to point-0, killed while it was bringing"
    assert counts == {"killed": 1, "done": 1}
    assert asked == "point-0 point-0"


def test_a_point_that_is_refused_gives_way_to_another(tmp_path: Path) -> None:
    refused = '{"kind": "BadInput", "error": "several containers", "hint": ""}'
    away = '{"kind": "Unavailable", "error": "Kafka is away", "hint": ""}'
    said, counts, asked = go(tmp_path, refused, away, "done")
    assert said == "went back to point-1"
    assert counts == {"refused": 1, "done": 1}
    assert asked == "point-0 point-1 point-1"


def test_whoever_waits_hears_of_a_failure() -> None:
    def fail(_: int) -> str:
        raise ClusterFault("there is no point")

    going = Going([], fail, Rewind(0, Way.TIME, 5.0, 0.5, True), Counter(), lambda _: None)
    with pytest.raises(ClusterFault, match="there is no point"):
        going.wait()
    going.stop()
