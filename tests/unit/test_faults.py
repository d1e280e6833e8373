"""What an error of a record means: policy and history in, the next step out."""

from __future__ import annotations

import pytest

from stack.engine.faults import Answer, Step, answer_error
from stack.errors import CorruptState
from stack.model.dead import DeadLetter, Kind, attempt_of, letter_fields, letter_headers, letter_of
from stack.model.job import ErrorPolicy, JobSettings, OnError

LAST = {OnError.STOP: Step.STOP, OnError.DEAD_LETTER: Step.DEAD_LETTER, OnError.SKIP: Step.SKIP}
PATIENT = ErrorPolicy(OnError.DEAD_LETTER, retries=3, backoff_ms=100, limit_ms=1_000)


@pytest.mark.parametrize("on_error", OnError)
@pytest.mark.parametrize("kind", Kind)
def test_without_retries_the_policy_decides_at_once(on_error: OnError, kind: Kind) -> None:
    assert answer_error(ErrorPolicy(on_error), kind, True, 0, 0) == Answer(LAST[on_error])


def test_waits_double_until_the_retries_are_used_up() -> None:
    answers = [answer_error(PATIENT, Kind.CODE, True, retries, 0) for retries in range(4)]
    assert answers == [
        Answer(Step.RETRY, 100),
        Answer(Step.RETRY, 200),
        Answer(Step.RETRY, 400),
        Answer(Step.DEAD_LETTER),
    ]


def test_a_wait_that_would_go_past_the_limit_is_not_begun() -> None:
    assert answer_error(PATIENT, Kind.CODE, True, 2, 600) == Answer(Step.RETRY, 400)
    assert answer_error(PATIENT, Kind.CODE, True, 2, 601) == Answer(Step.DEAD_LETTER)


@pytest.mark.parametrize("kind", [Kind.UNDECODABLE, Kind.REFUSED, Kind.TIME])
def test_only_what_code_raised_may_pass(kind: Kind) -> None:
    assert answer_error(PATIENT, kind, True, 0, 0).step is Step.DEAD_LETTER


def test_an_error_that_will_not_pass_is_not_tried_again() -> None:
    assert answer_error(PATIENT, Kind.CODE, False, 0, 0).step is Step.DEAD_LETTER


def test_an_input_may_have_a_policy_of_its_own() -> None:
    settings = JobSettings(
        on_error=OnError.SKIP, retries=2, inputs_on_error={"clicks": OnError.DEAD_LETTER}, record_limit_ms=7
    )
    assert settings.errors_of("clicks") == ErrorPolicy(OnError.DEAD_LETTER, 2, 100, 7)
    assert settings.errors_of("views").on_error is OnError.SKIP
    assert settings.keeps_dead_letters
    assert not JobSettings(on_error=OnError.SKIP).keeps_dead_letters
    assert not JobSettings().errors_of("clicks").guards
    assert JobSettings(retries=1).errors_of("clicks").guards


LETTER = DeadLetter(
    feed="clicks",
    partition=1,
    offset=17,
    timestamp_ms=1_700_000_000_000,
    kind=Kind.CODE,
    cause="ValueError: größer",
    line="job.py, line 3",
    task="main-1",
    version="abc",
    time_ms=1_700_000_000_500,
    attempt=2,
    key=b"k",
    value=None,
    headers=(("trace", b"7"), ("empty", None)),
)


def test_headers_bring_a_letter_back_as_it_was() -> None:
    assert letter_of(b"k", None, letter_headers(LETTER)) == LETTER
    assert attempt_of(letter_headers(LETTER)) == 2
    assert attempt_of([("feedstack.attempt", b"many"), ("x", b"1")]) == 0


def test_long_causes_are_cut() -> None:
    from dataclasses import replace

    found = letter_of(None, None, letter_headers(replace(LETTER, cause="x" * 9_000, line="y" * 9_000)))
    assert (len(found.cause), len(found.line)) == (2_000, 400)


@pytest.mark.parametrize("headers", [(), (("feedstack.kind", b"odd"),)])
def test_other_records_are_no_letters(headers: tuple[tuple[str, bytes], ...]) -> None:
    rest = [one for one in letter_headers(LETTER) if one[0] != "feedstack.kind"] if headers else []
    with pytest.raises(CorruptState, match="a dead letter cannot be read"):
        letter_of(None, b"", (*rest, *headers))


def test_expressions_see_the_fields_of_a_letter() -> None:
    from stack.model.dead import LETTER_SCHEMA
    from stack.model.expression import check_against, compile_expression, parse_expression

    def fits(text: str) -> bool:
        expression = parse_expression(text)
        check_against(expression, LETTER_SCHEMA)
        return bool(compile_expression(expression)(letter_fields(LETTER, redriven=False), {}))

    assert fits("kind = 'code' and feed = 'clicks' and attempt >= 2 and cause like 'ValueError%'")
    assert fits("time > '2023-11-14T00:00Z' and timestamp = 1700000000000 and not redriven")
    assert not fits("kind in ('undecodable', 'time') or offset > 17")
