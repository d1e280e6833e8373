"""Jobs that go back, as the verifier judges them: random lives that are exact, and lives with one fault."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.chaos.turns import Records, Span, Turn, judge_landings, judge_life, turns_of
from ops.chaos.verdict import Finding, Kind, Point, judge_points
from ops.chaos.verdict import Partition as Bounds

KEYS = "ab"


@dataclass
class Life:
    """One task that counts: its input, its output and changelog as logs, and its checkpoints."""

    inputs: list[str]
    fault: str = ""
    output: list[tuple[str, int]] = field(default_factory=list)
    changelog: list[tuple[str, int]] = field(default_factory=list)
    state: dict[str, int] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    read: int = 0

    def commit(self, count: int) -> None:
        """Handle some inputs, and commit."""
        changed: dict[str, int] = {}
        for key in self.inputs[self.read : self.read + count]:
            changed[key] = self.state[key] = self.state.get(key, 0) + 1
            self.output.append((key, self.state[key]))
        self.read = min(len(self.inputs), self.read + count)
        self.changelog += changed.items()
        self._point()
        # The marker of the transaction.
        self.output.append(("", 0))
        self.changelog.append(("", 0))

    def _point(self, **more: object) -> None:
        point = Point(len(self.points) + 1, self.read, len(self.changelog), 1_000 * len(self.points))
        self.points.append(replace(point, output_end=len(self.output), **more))  # type: ignore[arg-type]

    def go_back(self, number: int) -> None:
        """To the checkpoint of that number."""
        # Whatever the changelog had after it was written: markers do not count.
        target = self.points[number - 1]
        self._point(is_intent=True)
        then: dict[str, int] = {}
        for key in self.inputs[: target.offset]:
            then[key] = then.get(key, 0) + 1
        for key, value in self.state.items():
            if then.get(key, 0) == value:
                continue
            if self.fault != "correction":
                self.output.append((key, then.get(key, 0)))
            if self.fault != "state":
                self.changelog.append((key, then.get(key, 0)))
        if self.fault != "inputs":
            self.read = target.offset
        if self.fault != "state":
            self.state = then
        self._point(is_landing=True, asked=f"main-0#{number}")

    def findings(self) -> list[Finding]:
        turns, found = turns_of(self.points), list[Finding]()
        for key in KEYS:
            places = [at for at, one in enumerate(self.inputs) if one == key]
            for log, name, is_output in ((self.output, "out", True), (self.changelog, "log", False)):
                own = [(at, value) for at, (one, value) in enumerate(log) if one == key]
                records = Records([value for _, value in own], [at for at, _ in own])
                found += judge_life(name, key, records, places, turns, is_output=is_output)
        found += judge_landings("in", "job x, task 0", self.points, turns, {})
        end = len(self.inputs)
        bounds = Bounds(end - 1, end), Bounds(len(self.changelog) - 2, len(self.changelog))
        return found + judge_points("in", "job x, task 0", self.points, *bounds)


def lived(inputs: str, steps: list[tuple[int, int]], fault: str = "") -> Life:
    """Commits of so many records, each followed by a way back to one before unless that is 0."""
    life = Life(list(inputs), fault)
    for count, back in steps:
        life.commit(count)
        if back:
            life.go_back(1 + back % len(life.points))
    life.commit(len(inputs))
    return life


@given(st.text(KEYS, max_size=30), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8))
def test_lives_with_rewinds_are_exact(inputs: str, steps: list[tuple[int, int]]) -> None:
    assert lived(inputs, steps).findings() == []


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        ("correction", {Kind.REWIND}),
        ("state", {Kind.REWIND, Kind.LOST, Kind.DOUBLED, Kind.STATE}),
        ("inputs", {Kind.REWIND, Kind.LOST, Kind.DOUBLED, Kind.STATE}),
    ],
)
def test_a_rewind_that_leaves_something_out_is_found(fault: str, kinds: set[Kind]) -> None:
    steps = [(4, 0), (6, 0), (3, 1)]
    assert lived("abababaabbabba", steps).findings() == []
    found = {one.kind for one in lived("abababaabbabba", steps, fault).findings()}
    assert found == kinds


def test_findings_tell_what_was_and_what_should_be() -> None:
    turn = Turn(5, stood=6, goes_on=2, output=Span(10, 14), changelog=Span(0, 0), asked="")
    inputs = [0, 1, 2, 3, 4, 5, 6]

    def told(numbers: list[int], offsets: list[int]) -> list[str]:
        records = Records(numbers, offsets)
        return [str(one) for one in judge_life("visits", "ada", records, inputs, [turn], is_output=True)]

    first, again = [1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 7]
    places, later = [*range(6)], [*range(20, 25)]
    assert told([*first, 2, *again], [*places, 11, *later]) == []
    assert told([*first, *again], [*places, *later]) == [
        "rewind: visits, ada: goes back from 6 to 6, then it had 2 inputs"
    ]
    assert told([*first, 3, 2, *again], [*places, 11, 12, *later]) == [
        "rewind: visits, ada: becomes 3 on the way back to 2"
    ]
    assert told([*first, 2, *again[:-1]], [*places, 11, *later[:-1]]) == [
        "lost: visits, ada: of 3 to 7 there is no 7"
    ]


def test_a_task_goes_on_where_it_was_asked_to() -> None:
    points = [Point(1, 10, 0, 1_000), Point(2, 20, 0, 2_000), Point(3, 30, 0, 3_000)]

    def told(goes_on: int, asked: str, task: str = "task 0") -> str:
        turn = Turn(5, 30, goes_on, Span(0, 0), Span(0, 0), asked)
        found = judge_landings("in", task, points, [turn], {"calm": 20})
        return " ".join(one.message for one in found)

    assert told(20, "main-0#2") == told(20, "@calm") == told(20, "1970-01-01T00:00:02.500Z") == ""
    assert told(0, "1970-01-01T00:00:00.500Z") == ""
    assert told(10, "main-0#2") == "asked to go back to main-0#2, which is 20, it goes on at 10"
    assert told(10, "@calm").endswith("which is 20, it goes on at 10")
    assert told(30, "1970-01-01T00:00:02.500Z").endswith("which is 20, it goes on at 30")
    # What another task was asked says nothing of this one; but it goes to a commit of its own.
    assert told(10, "main-1#2") == ""
    assert told(11, "main-1#2") == told(11, "") == "goes back to 11, where it has never committed"
