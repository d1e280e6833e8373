"""Alarms on their way to a webhook: a few tries each, and nobody waits for it."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest

from ops.service.alarms import Webhook, alarm_text
from stack.model.freshness import Freshness, FreshnessState
from stack.settings import Secret
from tests.clusters import wait_for

STALE = Freshness("users", 7, FreshnessState.ALARM, 30_000, 300_000, 90_500, 0.625, 3)


class Other:
    """The other side: answers what it is told to."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.heard: list[dict[str, Any]] = []
        self.pauses_s: list[float] = []

    def post(self, address: str, body: bytes, timeout_s: float) -> int:
        assert (address, timeout_s) == ("https://here/hook", 5.0)
        self.heard.append(json.loads(body))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answers", "tries", "says"),
    [
        ((204,), 1, ""),
        ((OSError("no route to https://here/hook"), 200), 2, ""),
        ((503, TimeoutError(), 200), 3, ""),
        ((503, 500, 404), 3, "it answered 404"),
        ((503, 500, OSError("https://here/hook")), 3, "could not be posted to the webhook: OSError"),
    ],
)
def test_an_alarm_is_posted_a_few_times_at_most(
    answers: tuple[Any, ...], tries: int, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = Other(*answers)
    with caplog.at_level(logging.WARNING, "feedstack.alarms"):
        hook = Webhook("https://here/hook", other.post, other.pauses_s.append)
        hook.tell({"feed": "users"})
        hook.close()
    assert other.heard == [{"feed": "users"}] * tries
    assert other.pauses_s == [1.0, 5.0][: tries - 1]
    assert says in caplog.text
    assert bool(caplog.text) == bool(says)
    # The address may be a secret.
    assert "here/hook" not in caplog.text


def test_a_secret_that_is_missing_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_HOOK", raising=False)
    hook = Webhook(Secret("alarms.webhook", "env", "NO_SUCH_HOOK"), Other().post, lambda _: None)
    hook.tell({})
    hook.close()
    assert "the environment variable NO_SUCH_HOOK is not set" in caplog.text


def test_whoever_tells_an_alarm_never_waits(caplog: pytest.LogCaptureFixture) -> None:
    gate, entered = threading.Event(), threading.Event()

    def post(_address: str, _body: bytes, _timeout_s: float) -> int:
        entered.set()
        gate.wait(30)
        return 200

    hook = Webhook("https://here/hook", post)
    hook.tell({})
    wait_for(entered.is_set, "the first post")
    for _ in range(101):
        hook.tell({})
    assert caplog.text.count("this one is not posted") == 1
    hook.close()
    gate.set()


def test_an_alarm_is_a_sentence() -> None:
    assert alarm_text(STALE) == (
        "feed 'users' was staler than 30s for 62% of the last 5m; now it is 1m30s500ms behind"
    )
    fresh = Freshness("users", 7, FreshnessState.FRESH, 30_000, 300_000, 0)
    assert alarm_text(fresh) == "the alarm of feed 'users' is over"
    gone = Freshness("users", 7, FreshnessState.UNKNOWN, 30_000, 300_000, why="it has no objective any more")
    assert alarm_text(gone) == "the alarm of feed 'users' is over: it has no objective any more"
