"""Rows of a file to a feed: what happens to the bad ones, line numbers, and going on in the middle."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.errors import BadInput, BadRecord
from stack.feeds import produce
from stack.feeds.avro.schema import parse_avro
from stack.feeds.produce import (
    DeadRows,
    LineMemory,
    OnBad,
    Produced,
    at_line,
    check_rows,
    dead_feed,
    write_rows,
)
from stack.feeds.rows import rows as rows_module
from stack.feeds.writer import FeedWriter
from stack.kafka.writer import LogWriter

SCHEMA = parse_avro(
    '{"type": "record", "name": "V", "fields": '
    '[{"name": "user", "type": "string"}, {"name": "n", "type": "int", "default": 0}]}'
)


class FakeWriter:
    """Refuses users called 'bad'; counts flushes."""

    def __init__(self) -> None:
        self.pending: list[Any] = []
        self.delivered: list[str] = []
        self.flushes = 0

    def encode(self, value: Any) -> dict[str, Any]:
        if value["user"] == "bad":
            raise BadRecord("its user is bad", hint="Choose another.", field="user")
        return {"value": value}

    def write_encoded(self, records: Iterable[dict[str, Any]]) -> None:
        self.pending += [one["value"]["user"] for one in records]

    def flush(self) -> None:
        self.flushes += 1
        self.delivered += self.pending
        self.pending = []


class Run:
    """One call of write_rows with everything around it, and what came of it."""

    def __init__(self, data: str | bytes, form: str = "jsonl", from_line: int = 1) -> None:
        raw = data.encode() if isinstance(data, str) else data
        self.memory = LineMemory(io.BytesIO(raw), from_line)
        self.rows = self.memory.rows(form, SCHEMA)
        self.writer = FakeWriter()
        self.dead: list[tuple[int, str]] = []
        self.reported: list[Produced] = []

    def write(self, on_bad: OnBad) -> Produced:
        def dead(line: int, fault: BadRecord) -> None:
            assert fault.message
            self.dead.append((line, self.memory.since(line).decode("utf-8", "replace")))

        return write_rows(self.rows, cast(FeedWriter, self.writer), on_bad, dead, self.report)

    def check(self) -> Produced:
        return check_rows(self.rows, cast(FeedWriter, self.writer), self.report)

    def report(self, seen: Produced) -> None:
        self.reported.append(Produced(seen.rows, seen.written, seen.bad, seen.first_fault))


def lines(*users: str) -> str:
    return "".join(json.dumps({"user": user}) + "\n" for user in users)


@pytest.mark.parametrize("policy", OnBad)
def test_good_rows_are_written_in_order_and_flushed(policy: OnBad) -> None:
    run = Run(lines("ada", "bob", "cleo"))
    assert run.write(policy) == Produced(rows=3, written=3, bad=0, first_fault="")
    assert run.writer.delivered == ["ada", "bob", "cleo"]
    assert run.dead == []


def test_stop_delivers_what_came_before_and_says_where_to_go_on() -> None:
    run = Run(lines("ada", "bob", "bad", "cleo"))
    with pytest.raises(BadRecord) as caught:
        run.write(OnBad.STOP)
    assert caught.value.message == "line 3: its user is bad (records written before it: 2)"
    assert caught.value.hint == (
        "Choose another. Mend it and go on with --from-line 3, or choose --on-bad skip or dead."
    )
    assert caught.value.field == "user"
    assert run.writer.delivered == ["ada", "bob"]


def test_stop_stops_at_a_row_that_cannot_be_read_too() -> None:
    run = Run(lines("ada") + "{nonsense\n" + lines("cleo"))
    with pytest.raises(BadRecord, match="line 2: the line is not JSON"):
        run.write(OnBad.STOP)
    assert run.writer.delivered == ["ada"]


def test_skip_passes_over_bad_rows_and_remembers_the_first_fault() -> None:
    run = Run(lines("ada", "bad") + "nonsense\n" + lines("cleo"))
    assert run.write(OnBad.SKIP) == Produced(rows=4, written=2, bad=2, first_fault="line 2: its user is bad")
    assert run.writer.delivered == ["ada", "cleo"]
    assert run.dead == []


def test_dead_keeps_bad_rows_as_they_came() -> None:
    run = Run('{"user":  "ada"}\n{"user":  "bad"}\r\n\n{"user": "open\n{"user": "cleo"}\n"last"')
    seen = run.write(OnBad.DEAD)
    assert (seen.written, seen.bad) == (2, 3)
    assert run.dead == [(2, '{"user":  "bad"}'), (4, '{"user": "open'), (6, '"last"')]
    assert run.writer.delivered == ["ada", "cleo"]


def test_a_line_that_is_not_utf8_is_kept_byte_for_byte() -> None:
    run = Run(b'{"user": "ada"}\n{"user": "caf\xe9"}\n{"user": "bob"}\n')
    for line, value in run.rows:
        if isinstance(value, BadRecord):
            assert (line, run.memory.since(line)) == (2, b'{"user": "caf\xe9"}')
            break
    else:
        pytest.fail("the bad line did not come")


def test_line_numbers_count_blank_lines() -> None:
    with pytest.raises(BadRecord, match=r"^line 5: "):
        Run("\n" + lines("ada") + "\n\n" + lines("bad")).write(OnBad.STOP)


def test_checking_writes_nothing_and_names_the_line() -> None:
    run = Run(lines("ada", "bad"))
    with pytest.raises(BadRecord) as caught:
        run.check()
    assert (caught.value.message, caught.value.hint) == (
        "line 2: its user is bad (nothing was written)",
        "Choose another. Mend it, or choose --on-bad skip or dead.",
    )
    assert (run.writer.pending, run.writer.delivered, run.writer.flushes) == ([], [], 0)


def test_checking_good_rows_counts_them() -> None:
    run = Run(lines("ada", "bob"))
    assert run.check().rows == 2
    assert run.writer.pending == []


def test_progress_is_told_every_thousand_rows_and_at_the_end() -> None:
    run = Run(lines(*["ada"] * 1999, "bad", *["bob"] * 500))
    run.write(OnBad.SKIP)
    assert [(seen.rows, seen.written) for seen in run.reported] == [(1000, 1000), (2000, 1999), (2500, 2499)]
    checked = Run(lines(*["ada"] * 2500))
    checked.check()
    assert [seen.rows for seen in checked.reported] == [1000, 2000]


def test_no_rows_are_no_fault() -> None:
    run = Run("")
    assert run.write(OnBad.STOP) == Produced()
    assert run.writer.flushes == 1


# Going on in the middle.


@pytest.mark.parametrize(
    ("from_line", "users"),
    [(1, ["ada", "bob", "cleo"]), (2, ["bob", "cleo"]), (3, ["cleo"]), (4, []), (400, [])],
)
def test_json_lines_go_on_at_the_line_that_is_named(from_line: int, users: list[str]) -> None:
    run = Run(lines("ada", "bob", "cleo"), from_line=from_line)
    run.write(OnBad.STOP)
    assert run.writer.delivered == users


@pytest.mark.parametrize(
    ("from_line", "users"),
    [(1, ["ada", "bob", "cleo"]), (2, ["ada", "bob", "cleo"]), (3, ["bob", "cleo"]), (4, ["cleo"]), (5, [])],
)
def test_csv_goes_on_at_the_line_that_is_named_with_its_header(from_line: int, users: list[str]) -> None:
    run = Run("user,n\nada,1\nbob,2\ncleo,3\n", "csv", from_line)
    run.write(OnBad.STOP)
    assert run.writer.delivered == users


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_lines_keep_their_numbers_when_going_on(form: str) -> None:
    rows = ["ada", "bob", "bad", "cleo"]
    data = lines("zoe", *rows) if form == "jsonl" else "user\n" + "".join(f"{user}\n" for user in rows)
    with pytest.raises(BadRecord, match=r"^line 4: .*written before it: 1\)"):
        Run(data, form, from_line=3).write(OnBad.STOP)


def test_what_was_bad_before_the_line_is_not_looked_at_again() -> None:
    run = Run("nonsense\n" + lines("bad", "ada"), from_line=3)
    assert run.write(OnBad.STOP).written == 1


@given(st.lists(st.sampled_from(["ada", "bob", "bad"]), max_size=12), st.sampled_from(["jsonl", "csv"]))
def test_stopping_mending_and_going_on_delivers_every_row_once(users: list[str], form: str) -> None:
    """What a person does: at each fault mend that line and go on where the hint says."""
    delivered: list[str] = []
    line, now = 1, list(users)
    while True:
        text = lines(*now) if form == "jsonl" else "user\n" + "".join(f"{user}\n" for user in now)
        run = Run(text, form, line)
        try:
            run.write(OnBad.STOP)
        except BadRecord as fault:
            line = int(fault.hint.partition("--from-line ")[2].partition(",")[0])
            now[line - (1 if form == "jsonl" else 2)] = "mended"
        else:
            break
        finally:
            delivered += run.writer.delivered
    assert delivered == now
    assert "bad" not in delivered


# CSV rows over several lines.


def test_a_csv_row_of_several_lines_is_kept_whole() -> None:
    run = Run('user,n\nada,1\n"b\no\nb",x\ncleo,3\n', "csv")
    seen = run.write(OnBad.DEAD)
    assert run.dead == [(3, '"b\no\nb",x')]
    assert (seen.written, run.writer.delivered) == (2, ["ada", "cleo"])


def test_a_long_csv_row_of_many_lines_is_kept_whole() -> None:
    cell = "\n".join(str(number) for number in range(1000))
    run = Run(f'user,n\n"{cell}",x\nada,1\n', "csv")
    run.write(OnBad.DEAD)
    assert run.dead == [(2, f'"{cell}",x')]


def test_of_a_quote_that_never_closes_only_its_own_line_is_kept() -> None:
    users = [f"user-{number}" for number in range(600)]
    rows = "".join(f"{user},{'x' if number == 300 else 1}\n" for number, user in enumerate(users))
    run = Run(f'user,n\n"ada,1\n{rows}', "csv")
    run.write(OnBad.DEAD)
    assert run.dead == [(2, '"ada,1'), (303, "user-300,x")]
    assert run.writer.delivered == [user for user in users if user != "user-300"]


def test_a_row_that_the_writer_refuses_is_kept_as_it_came_too() -> None:
    run = Run('user,n\n"bad"  ,1\n"bad",1\n"a\nb",2\n', "csv")
    run.write(OnBad.DEAD)
    assert (3, '"bad",1') in run.dead
    assert run.writer.delivered[-1] == "a\nb"


def test_the_memory_holds_no_more_than_the_row_at_hand() -> None:
    run = Run(lines(*["ada"] * 5000))
    most = 0
    for _ in run.rows:
        most = max(most, len(run.memory._kept))
    assert most == 1


def test_a_line_that_is_too_long_is_bad_and_never_held_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "MAX_LINE_BYTES", 50)
    monkeypatch.setattr(rows_module, "MAX_LINE_BYTES", 50)
    run = Run(lines("ada", "x" * 200_000, "bob"))
    seen = run.write(OnBad.DEAD)
    assert (seen.bad, seen.first_fault) == (1, "line 2: the line has more than 50 bytes")
    assert [(line, len(text)) for line, text in run.dead] == [(2, 51)]
    assert run.writer.delivered == ["ada", "bob"]


def test_a_header_that_does_not_fit_stops_before_any_row() -> None:
    for policy in OnBad:
        run = Run("name\nada\n", "csv")
        with pytest.raises(BadInput, match="the column 'name'"):
            run.write(policy)
        assert run.writer.delivered == []


def test_a_fault_may_be_told_with_its_line_only() -> None:
    fault = at_line(7, BadRecord("it is odd", hint="Make it even.", field="n"))
    assert (fault.message, fault.hint, fault.field) == ("line 7: it is odd", "Make it even.", "n")


def test_a_dead_row_carries_its_cause() -> None:
    written: list[tuple[str, bytes, list[tuple[str, bytes]]]] = []

    class FakeLog:
        def write_one(self, topic: str, value: bytes, headers: list[tuple[str, bytes]]) -> None:
            written.append((topic, value, headers))

    write: Callable[..., None] = DeadRows(cast(LogWriter, FakeLog()), "shop.views.dead", "views.csv").write
    write(3, b"raw", BadRecord("it is odd", field="n"))
    write(4, b"", BadRecord("not JSON"))
    assert written[0] == (
        "shop.views.dead",
        b"raw",
        [("cause", b"it is odd"), ("field", b"n"), ("source", b"views.csv"), ("line", b"3")],
    )
    assert dict(written[1][2])["field"] == b""


def test_the_dead_feed_is_named_after_its_feed() -> None:
    assert dead_feed("page-views") == "page-views.dead"
