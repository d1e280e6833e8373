"""What speaks against a rewind, and where tables are cut: values in, values out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stack.engine.rewind import (
    Cut,
    Facts,
    Input,
    Move,
    OutputsChoice,
    StateChoice,
    find_refusals,
    is_settled,
    may_be_first,
    output_cut,
)
from stack.model.checkpoint import REWIND_SLOT, Checkpoint, InputPoint, OutputPoint, StorePoint
from stack.model.plan import TaskId

T0, T1 = TaskId("main", 0), TaskId("main", 1)
NOW = 1_700_000_000_000
HOUR = 3_600_000


def point(task: TaskId = T0, number: int = 1, **changes: Any) -> Checkpoint:
    made = Checkpoint(
        "sum",
        task,
        "v1",
        number,
        NOW - HOUR // 2 + number,
        {"clicks": InputPoint("clicks", "c-id", 2, {task.partition: 10 * number})},
        {"sums": StorePoint("t.sum.sums.changelog", "s-id", 5 * number)},
        slot=0,
        attempt=1,
    )
    return replace(made, **changes)


def facts(**changes: Any) -> Facts:
    moves = [Move(T0, point(number=3), point(number=1))]
    inputs = {"clicks": Input("clicks", "clicks", "c-id", {0: (0, 100), 1: (0, 100)})}
    made = Facts("sum", "v1", moves, HOUR, NOW, inputs, stores={"sums": "s-id"})
    return replace(made, **changes)


def told(**changes: Any) -> tuple[str, str]:
    (refusal,) = find_refusals(facts(**changes))
    return refusal.message, refusal.hint


def test_nothing_speaks_against_a_young_point() -> None:
    assert list(find_refusals(facts())) == []
    move = facts().moves[0]
    assert (move.records, move.deltas) == (20, 10)
    assert Move(T0, None, None).records == Move(T0, None, None).deltas == 0
    assert Move(T0, point(number=2), None).records == 20


CUT = Cut("totals", "totals", "t-id", (5, 5), (9, 9))
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"moves": [Move(T0, None, None)]}, "has not committed anything yet", "nothing to go back from"),
    ({"moves": [Move(T0, point(), point())]}, "stands at that point already", "stack offsets list sum"),
    (
        {"moves": [Move(T0, point(number=3), point(time_ms=NOW - HOUR))]},
        "beyond the horizon of 3600 s",
        "--best-effort",
    ),
    (
        {"inputs": {"clicks": Input("clicks", "clicks", "other", {0: (0, 100)})}},
        "feed 'clicks' was deleted and made anew since then",
        "Go back no further",
    ),
    (
        {"inputs": {"clicks": Input("clicks", "clicks", "c-id", {0: (12, 100)})}},
        "offsets 10 to 11 are gone: retention removed 2 records that task main-0 would read again",
        "Choose a later point",
    ),
    (
        {"inputs": {"clicks": Input("clicks", "clicks", "c-id", {0: (0, 7)})}},
        "ends at 7, before the point at 10",
        "Choose an earlier point",
    ),
    ({"stores": {"sums": "other"}}, "changelog of store 'sums' was deleted", "Choose a later point"),
    ({"other_writers": {"totals": "rival"}}, "also written by job 'rival'", "one writing job"),
    ({"event_outputs": ["told"]}, "writes events to told", "--outputs append"),
    ({"cuts": [replace(CUT, unclear=(1,))]}, "several containers were writing to table 'totals'", "annotate"),
    (
        {"cuts": [CUT], "table_horizons": {"totals": 60_000}},
        "beyond the horizon of table 'totals' (60 s)",
        "--best-effort",
    ),
]


@pytest.mark.parametrize(("changes", "message", "hint"), REFUSED, ids=[one[1][:30] for one in REFUSED])
def test_each_refusal_has_its_message_and_a_hint(changes: dict[str, Any], message: str, hint: str) -> None:
    said = told(**changes)
    assert message in said[0]
    assert hint in said[1]


def test_what_a_person_may_insist_on() -> None:
    old = [Move(T0, point(number=3), point(time_ms=NOW - HOUR))]
    unclear = [replace(CUT, unclear=(0,))]
    for changes in (
        {"moves": old, "best_effort": True},
        {"moves": old, "state": StateChoice.EMPTY},
        {"cuts": unclear, "best_effort": True},
        {"event_outputs": ["told"], "outputs": OutputsChoice.APPEND},
        {"cuts": [CUT], "table_horizons": {"totals": 1}, "best_effort": True},
        {"moves": [Move(T0, point(), point())], "state": StateChoice.EMPTY},
    ):
        assert list(find_refusals(facts(**changes))) == []


def test_all_that_speaks_against_it_is_told_at_once() -> None:
    found = list(find_refusals(facts(stores={"sums": "other"}, event_outputs=["told"])))
    assert len(found) == 2


# Cuts


def commit(task: TaskId, number: int, ends: list[int], **changes: Any) -> Checkpoint:
    wrote = changes.pop("wrote", None)
    outputs = {"totals": OutputPoint("totals", "t-id", tuple(ends), wrote)}
    return point(task, number, outputs=outputs, **changes)


def cut(targets: list[Checkpoint], later: list[Checkpoint], ends: list[int]) -> Cut:
    wanted: dict[TaskId, Checkpoint | None] = {T0: None, T1: None, **{one.task: one for one in targets}}
    return output_cut("totals", ends, wanted, later, ("totals", "t-id"))


def test_one_container_is_cut_where_its_next_commit_began() -> None:
    life = [commit(T0, 1, [0, 0]), commit(T0, 2, [4, 3]), commit(T0, 3, [8, 6])]
    assert cut([life[0]], life, [9, 9]).offsets == (4, 3)
    assert cut([life[1]], life[1:], [9, 9]).offsets == (8, 6)
    assert cut([life[2]], life[2:], [9, 9]).offsets == (9, 9)
    assert cut([], life, [9, 9]).offsets == (0, 0)
    assert not any(cut([one], life, [9, 9]).unclear for one in life)


def test_tasks_of_one_commit_are_not_its_next() -> None:
    now = {"time_ms": NOW}
    life = [
        commit(T0, 1, [0, 0], **now),
        commit(T1, 1, [0, 0], **now),
        commit(T0, 2, [4, 3], time_ms=NOW + 1),
        commit(T1, 2, [4, 3], time_ms=NOW + 1),
    ]
    found = cut(life[:2], life, [9, 9])
    assert (found.offsets, found.unclear, found.span) == ((4, 3), (), 11)


def test_a_clock_that_stands_still_or_goes_back_does_not_matter() -> None:
    for step in (0, -5):
        life = [
            commit(T0, 1, [0, 0], time_ms=NOW),
            commit(T1, 1, [0, 0], time_ms=NOW),
            commit(T0, 2, [4, 3], time_ms=NOW + step),
            commit(T1, 2, [4, 3], time_ms=NOW + step),
        ]
        assert cut(life[:2], life, [9, 9]).offsets == (4, 3)


def test_two_containers_with_partitions_of_their_own_are_clear() -> None:
    mine, other = {"wrote": frozenset({0})}, {"wrote": frozenset({1}), "slot": 1}
    life = [
        commit(T0, 1, [0, 0], **mine),
        commit(T1, 1, [2, 0], **other),
        commit(T0, 2, [3, 4], **mine),
        commit(T1, 2, [5, 6], **other),
    ]
    found = cut(life[:2], life, [9, 9])
    assert (found.offsets, found.unclear) == ((3, 6), ())


def test_two_containers_that_write_among_each_other_are_unclear() -> None:
    life = [
        commit(T0, 1, [0, 0], slot=0),
        commit(T1, 1, [2, 2], slot=1),
        commit(T0, 2, [3, 3], slot=0),
        commit(T1, 2, [6, 6], slot=1),
    ]
    assert cut(life[:2], life, [9, 9]).unclear == (0, 1)
    # Both stood still before the next one began.
    still = [*life[:2], commit(T0, 2, [6, 6], slot=0), commit(T1, 2, [6, 6], slot=1)]
    found = cut(still[:2], still, [9, 9])
    assert (found.offsets, found.unclear) == ((6, 6), ())


def test_a_slot_that_was_restarted_tells_as_well() -> None:
    life = [commit(T0, 5, [0, 0]), commit(T0, 6, [4, 4], attempt=2, time_ms=NOW - HOUR)]
    assert cut([life[0]], life, [9, 9]).offsets == (4, 4)


def test_an_earlier_rewind_bounds_what_stood_before_it() -> None:
    none = {"slot": REWIND_SLOT, "wrote": frozenset(), "attempt": 0}
    life = [
        commit(T0, 1, [0, 0]),
        commit(T0, 2, [4, 4]),
        commit(T0, 3, [6, 6], **none),  # its intent
        commit(T0, 4, [8, 8], **none),  # where it landed, behind its corrections
        commit(T0, 5, [9, 9], attempt=2),
    ]
    assert cut([life[1]], life[1:], [12, 12]).offsets == (6, 6)
    assert cut([life[2]], life[2:], [12, 12]).offsets == (6, 6)
    assert cut([life[3]], life[3:], [12, 12]).offsets == (8, 8)
    assert not cut([life[1]], life[1:], [12, 12]).unclear


def test_commits_from_before_the_feed_was_written_say_nothing() -> None:
    life = [point(T0, 1), commit(T0, 2, [0, 0]), commit(T0, 3, [4, 4])]
    assert cut([life[0]], life, [9, 9]).offsets == (0, 0)


def test_later_commits_are_settled_when_every_task_has_committed_behind_the_cut() -> None:
    one = Cut("totals", "totals", "t-id", (4, 4), (9, 9))
    targets: dict[TaskId, Checkpoint | None] = {T0: None, T1: None}
    short, long = commit(T0, 2, [3, 5]), commit(T0, 3, [4, 5])
    other = commit(T1, 2, [0, 0], slot=1)
    assert not is_settled([short, other], targets, [one])
    assert not is_settled([other, long], targets, [one])
    assert is_settled([short, other, long, other], targets, [one])
    # Partitions may be told of one by one; a feed that was made anew tells nothing.
    assert is_settled([commit(T1, 1, [0, 4]), commit(T0, 1, [4, 0]), other], targets, [one])
    remade = replace(one, topic_id="other")
    assert not is_settled([short, other, long, other], targets, [remade])
    # No transaction lasts that long.
    assert is_settled([long, commit(T0, 4, [4, 5], time_ms=long.time_ms + HOUR)], targets, [one])


def test_a_task_that_came_just_before_the_point_tells_with_the_next_commit() -> None:
    mine, none = {"wrote": frozenset({0})}, {"wrote": frozenset[int]()}
    life = [
        commit(T0, 1, [0, 0], **mine),  # three records and a marker
        commit(T0, 2, [0, 0], slot=1, **none),  # elsewhere now, by a container that asked before them
        commit(T0, 3, [4, 0], slot=1, **mine),
    ]
    assert may_be_first(life[1], 0)
    assert not may_be_first(life[2], 1)
    targets: dict[TaskId, Checkpoint | None] = {T0: life[1]}
    found = output_cut("totals", [9, 0], targets, life[1:], ("totals", "t-id"), firsts={T0})
    assert (found.offsets, found.unclear) == ((4, 0), ())


def test_a_commit_with_the_number_of_an_intent_is_not_part_of_it() -> None:
    got_in = commit(T0, 2, [4, 4])
    intent = commit(T0, 2, [6, 6], slot=REWIND_SLOT, wrote=frozenset(), attempt=0)
    assert cut([intent], [got_in, intent], [9, 9]).unclear == (0, 1)


def test_a_table_that_was_made_anew_is_refused() -> None:
    move = Move(T0, commit(T0, 3, [6, 6]), commit(T0, 1, [0, 0]))
    assert list(find_refusals(facts(moves=[move], cuts=[CUT]))) == []
    message, _ = told(moves=[move], cuts=[replace(CUT, topic_id="other")])
    assert message == "table feed 'totals' was deleted and made anew since then: what it held is gone"
    found = output_cut("totals", [3, 3], {T0: move.then}, [], ("totals", "other"))
    assert found.offsets == (0, 0)
