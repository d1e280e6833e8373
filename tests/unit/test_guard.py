"""Errors of records: undone, found, treated alone; everything else is as if they had never been there."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.errors import BadConfig, BadRecord, Retryable, Unavailable
from stack.kafka.inputs import Portion
from stack.kafka.reader import RawBatch
from stack.kafka.writer import MAX_RECORD_BYTES
from stack.model.dead import LETTER, Kind, letter_headers
from stack.model.job import ErrorPolicy, OnError
from stack.runtime.faults import OverMemory, OverTime, RecordFault
from tests.unit.work_world import BACK, PLACE, WorkWorld, click

SKIP = ErrorPolicy(OnError.SKIP)
NO_BYTES = b"rubbish"


def count(click: Any, ctx: Any) -> None:
    """Count clicks per user; what a click is worth decides how it fails, always after its effects."""
    number = ctx.state.get(click["user"], 0) + 1
    ctx.state[click["user"]] = number
    ctx.count("clicks")
    kind = click["n"] % 1_000
    ctx.emit("tallies", {"user": click["user"], "count": "many" if kind == 998 else number})
    if kind == 999:
        raise ValueError("nines are bad")


def count_batch(batch: Any, ctx: Any) -> None:
    assert len(ctx.keys) == batch.num_rows + len(ctx.deleted)
    for row in batch.to_pylist():
        count(row, ctx)
    for _ in ctx.deleted:
        ctx.count("deleted")


def exact(numbers: list[int]) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """The outputs and the state that good clicks lead to."""
    counts: Counter[str] = Counter()
    outputs = []
    for number in numbers:
        counts[f"user-{number % 5}"] += 1
        outputs.append((f"user-{number % 5}", counts[f"user-{number % 5}"]))
    return outputs, dict(counts)


NUMBERS = st.lists(st.integers(0, 300) | st.just(998) | st.just(999) | st.just(-1), max_size=200)


@pytest.mark.parametrize("batch", [False, True])
@settings(max_examples=60, deadline=None)
@given(NUMBERS, st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_everything_else_is_exact(batch: bool, numbers: list[int], cuts: list[int]) -> None:
    world = WorkWorld(count_batch if batch else count, batch=batch)
    places, start = [], 0
    for size in cuts * (len(numbers) // sum(cuts) + 1):
        own = numbers[start : start + size]
        if own:
            world.give([NO_BYTES if number < 0 else click(number) for number in own])
            places += own
            world.run()
        start += size
    kinds = {-1: Kind.UNDECODABLE, 998: Kind.REFUSED, 999: Kind.CODE}
    bad = [(offset, kinds[number]) for offset, number in enumerate(places) if number in kinds]
    good = [number for number in places if number not in kinds]
    outputs, counts = exact(good)
    assert sorted((one.offset, one.kind) for one in world.letters()) == bad
    assert world.tallies() == outputs
    assert world.counts() == counts
    assert world.task.context.counters.get("clicks", 0) == len(good)
    assert (world.guard.errors, world.guard.dead, world.guard.skipped) == (len(bad), len(bad), 0)
    assert world.task.positions[PLACE] == len(places)
    assert world.work.handled == len(places)


def test_a_dead_letter_is_the_record_with_all_that_is_known_of_its_end() -> None:
    world = WorkWorld(count)
    headers = [("trace", b"7"), ("feedstack.attempt", b"2"), ("feedstack.letter", b"0/5")]
    world.give([click(1), click(999)], key=b"user-4", headers=headers)
    world.run()
    (letter,) = world.letters()
    assert (letter.feed, letter.partition, letter.offset, letter.timestamp_ms) == (
        "clicks",
        0,
        1,
        1_700_000_000_001,
    )
    assert (letter.key, letter.value, letter.headers) == (b"user-4", click(999), (("trace", b"7"),))
    assert (letter.kind, letter.cause) == (Kind.CODE, "ValueError: nines are bad")
    assert "raise ValueError" in letter.line
    assert letter.line.startswith("test_guard.py, line ")
    assert (letter.task, letter.version, letter.attempt) == ("main-0", "v1", 3)
    assert letter.time_ms > 1_700_000_000_000


def test_skipped_records_are_counted_and_gone() -> None:
    world = WorkWorld(count, SKIP)
    world.give([click(1), click(999), NO_BYTES, click(2)])
    world.run()
    assert world.letters() == []
    assert world.tallies() == exact([1, 2])[0]
    assert (world.guard.errors, world.guard.dead, world.guard.skipped) == (2, 0, 2)


def test_deletions_are_handled_beside_bad_rows() -> None:
    world = WorkWorld(count_batch, batch=True)
    world.give([click(1), None, None, NO_BYTES, click(999), None, click(2)])
    world.run()
    assert [(one.offset, one.kind) for one in world.letters()] == [(3, Kind.UNDECODABLE), (4, Kind.CODE)]
    assert world.tallies() == exact([1, 2])[0]
    assert world.task.context.counters == {"clicks": 2, "deleted": 3}


def test_what_may_pass_is_tried_again_and_leaves_one_effect() -> None:
    seen: Counter[int] = Counter()

    def flaky(click: Any, ctx: Any) -> None:
        seen[click["n"]] += 1
        ctx.state[click["user"]] = ctx.state.get(click["user"], 0) + 1
        if click["n"] == 3 and seen[3] < 5:
            raise [Retryable("later"), ConnectionError(), TimeoutError()][seen[3] % 3]
        ctx.emit("tallies", {"user": click["user"], "count": ctx.state[click["user"]]})

    world = WorkWorld(flaky, ErrorPolicy(OnError.STOP, retries=5, backoff_ms=100))
    world.give([click(number, "ada") for number in range(6)])
    began = world.now
    world.run()
    assert world.tallies() == [("ada", number) for number in range(1, 7)]
    assert world.guard.errors == 0
    # The first time it was not alone; then 100, 200 and 400 ms were waited.
    assert world.guard.retried == 3
    assert world.now - began == pytest.approx(0.7, abs=0.01)


def test_a_record_that_waits_keeps_nobody_from_committing() -> None:
    def never(_click: Any, _ctx: Any) -> None:
        raise Retryable("the warehouse is closed")

    world = WorkWorld(never, ErrorPolicy(OnError.DEAD_LETTER, retries=50, backoff_ms=1_000, limit_ms=10_000))
    world.give([click(0)])
    began = world.now
    waits = []
    while world.work:
        before = world.now
        world.work.step()
        waits.append(world.now - before)
    assert max(waits) <= 0.051
    # 1 + 2 + 4 s; the next 8 s would go past the limit for a record.
    assert world.now - began == pytest.approx(7, abs=0.1)
    (letter,) = world.letters()
    assert letter.cause == "the warehouse is closed"
    assert world.guard.retried == 3


@pytest.mark.parametrize("error", [BadConfig("no such store"), Unavailable("away"), MemoryError()])
def test_what_no_record_is_to_blame_for_ends_the_container(error: Exception) -> None:
    def fails(_click: Any, _ctx: Any) -> None:
        raise error

    world = WorkWorld(fails, SKIP)
    world.give([click(1)])
    with pytest.raises(RecordFault) as caught:
        world.run()
    assert "clicks, partition 0, offset 0: fails failed" in caught.value.ending.message


def test_a_policy_of_stop_ends_with_the_first_fault_after_its_retries() -> None:
    world = WorkWorld(count, ErrorPolicy(OnError.STOP, retries=2))
    world.give([click(1), click(2), click(999)])
    with pytest.raises(RecordFault) as caught:
        world.run()
    assert "offset 2: count failed: ValueError: nines are bad" in caught.value.ending.message
    assert world.guard.retried == 0


def test_a_record_that_takes_too_long_is_treated_once_and_the_others_go_on() -> None:
    calls: Counter[int] = Counter()

    def slow(click: Any, ctx: Any) -> None:
        calls[click["n"]] += 1
        ctx.state[click["user"]] = ctx.state.get(click["user"], 0) + 1
        if click["n"] == 3:
            verdict = OverTime("has kept one record for more than 1 s")
            verdicts.append(verdict)
            raise verdict

    verdicts: list[OverTime] = []
    world = WorkWorld(slow)
    world.give([click(number) for number in range(10)])
    world.run()
    (letter,) = world.letters()
    assert (letter.kind, letter.cause) == (Kind.TIME, "slow has kept one record for more than 1 s")
    assert sum(world.counts().values()) == 9
    assert calls[3] == 1
    assert verdicts[0].lifted


def test_a_container_that_grows_too_large_ends() -> None:
    def greedy(_click: Any, _ctx: Any) -> None:
        raise OverMemory("has made the container grow")

    world = WorkWorld(greedy, SKIP)
    world.give([click(1)])
    with pytest.raises(RecordFault, match="has made the container grow"):
        world.run()


def test_a_record_too_large_to_copy_is_kept_in_part() -> None:
    world = WorkWorld(count)
    large = b"x" * 1_040_000
    world.give([large], key=b"k" * 10, headers=[("trace", b"t" * 100)])
    world.run()
    (letter,) = world.letters()
    assert (letter.full_bytes, letter.key, letter.headers) == (1_040_000, b"k" * 10, (("trace", b"t" * 100),))
    assert letter.value is not None
    assert large.startswith(letter.value)
    assert 990_000 < len(letter.value) < MAX_RECORD_BYTES


def test_a_record_whose_headers_are_too_large_is_kept_without_them() -> None:
    world = WorkWorld(count)
    world.give([NO_BYTES], key=b"k" * 600_000, headers=[("trace", b"t" * 600_000)])
    world.run()
    (letter,) = world.letters()
    assert (letter.value, letter.headers, letter.full_bytes) == (NO_BYTES, (), len(NO_BYTES))


def test_emitting_batches_from_a_record_blames_the_right_record() -> None:
    import pyarrow as pa

    def emits(click: Any, ctx: Any) -> None:
        counts: list[Any] = [1, 2, "many" if click["n"] == 7 else 3]
        kind = pa.string() if click["n"] == 7 else pa.int64()
        columns = {
            "user": ["a", "b", "c"],
            "count": pa.array(list(map(str, counts)) if click["n"] == 7 else counts, kind),
        }
        ctx.emit_batch("tallies", pa.record_batch(columns))

    world = WorkWorld(emits)
    world.give([click(number) for number in range(10)])
    world.run()
    assert [one.offset for one in world.letters()] == [7]
    assert len(world.tallies()) == 27


def give_back(world: WorkWorld, *letters: Any, feed: str | None = None) -> None:
    """What a redrive to the job does."""
    messages = [
        Message(
            topic=BACK[0],
            partition=0,
            offset=index,
            key=letter.key,
            value=letter.value,
            headers=[
                *(
                    (name, feed.encode() if feed and name == "feedstack.feed" else text)
                    for name, text in letter_headers(letter)
                ),
                (LETTER, b"0/0"),
            ],
            timestamp=(1, 5),
        )
        for index, letter in enumerate(letters)
    ]
    world.work.add(Portion(BACK, RawBatch(messages), len(messages)), [world.task])


def test_a_redriven_record_is_as_it_was_and_dies_with_one_attempt_more() -> None:
    seen = []

    def look(click: Any, ctx: Any) -> None:
        seen.append((ctx.feed, ctx.partition, ctx.offset, ctx.timestamp, ctx.headers, click["n"]))
        if click["n"] == 999:
            raise ValueError("again")

    world = WorkWorld(look)
    world.give([click(0), click(999)], headers=[("trace", b"7")])
    world.run()
    (letter,) = world.letters()
    give_back(world, letter)
    world.run()
    assert seen[-1] == ("clicks", 0, 1, 1_700_000_000_001, (("trace", b"7"),), 999)
    (again,) = world.letters()
    assert (again.offset, again.attempt, again.headers) == (1, 2, (("trace", b"7"),))
    assert (world.task.positions[BACK], world.task.positions[PLACE]) == (1, 2)


@pytest.mark.parametrize("policy", [ErrorPolicy(OnError.DEAD_LETTER), ErrorPolicy()])
def test_a_redriven_record_of_a_feed_that_is_no_input_any_more(policy: ErrorPolicy) -> None:
    world = WorkWorld(count)
    world.give([click(999)])
    world.run()
    (letter,) = world.letters()
    other = WorkWorld(count, policy)
    give_back(other, letter, letter, feed="gone")
    if policy.guards:
        other.run()
        assert [one.cause for one in other.letters()] == ["the job does not read feed 'gone' any more"] * 2
        assert other.task.positions[BACK] == 2
    else:
        with pytest.raises(RecordFault, match="the job does not read feed 'gone' any more"):
            other.run()
    assert other.tallies() == []


def test_bad_state_is_an_error_of_its_record() -> None:
    def wrong(click: Any, ctx: Any) -> None:
        ctx.state[click["user"]] = "text" if click["n"] == 2 else click["n"]

    world = WorkWorld(wrong)
    world.give([click(number, f"u{number}") for number in range(4)])
    world.run()
    (letter,) = world.letters()
    assert (letter.offset, letter.kind) == (2, Kind.CODE)
    assert "store 'counts' has int values, got str" in letter.cause
    assert world.counts() == {"u0": 0, "u1": 1, "u3": 3}


def test_bad_records_of_code_are_told_by_their_message() -> None:
    def strict(_click: Any, _ctx: Any) -> None:
        raise BadRecord("not for us")

    world = WorkWorld(strict)
    world.give([click(0)])
    world.run()
    assert [one.cause for one in world.letters()] == ["not for us"]


def test_code_that_catches_everything_does_not_hide_the_fault_of_another_record() -> None:
    def careless(click: Any, ctx: Any) -> None:
        ctx.emit("tallies", {"user": click["user"], "count": "many" if click["n"] == 2 else click["n"]})
        try:
            # A time of its own: what was emitted before is encoded here.
            ctx.emit("tallies", {"user": click["user"], "count": 0}, timestamp=1_700_000_000_000)
        except Exception:
            ctx.count("caught")

    world = WorkWorld(careless)
    world.give([click(number) for number in range(5)])
    world.run()
    assert [(one.offset, one.kind) for one in world.letters()] == [(2, Kind.REFUSED)]
    assert [count for _, count in world.tallies()] == [0, 0, 1, 0, 3, 0, 4, 0]
    assert world.task.context.counters == {}
