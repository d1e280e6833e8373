"""Whom alarms are told: the log, the alarms feed, and a webhook where the settings name one."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from stack.errors import FeedstackError
from stack.kafka.writer import LogWriter
from stack.model.duration import format_duration
from stack.model.freshness import (
    Freshness,
    FreshnessState,
    alarms_name,
    freshness_key,
    freshness_to_bytes,
    freshness_to_json,
)
from stack.settings import Secret

log = logging.getLogger("feedstack.alarms")
_MOST_WAITING = 100
_ANSWER_S = 5.0
_PAUSES_S = (1.0, 5.0)
Post = Callable[[str, bytes, float], int]
"""Posts a body to an address within so many seconds; answers the status, raises OSError otherwise."""


def post(address: str, body: bytes, timeout_s: float) -> int:
    """Post JSON; the settings take no other scheme than http and https."""
    headers = {"Content-Type": "application/json", "User-Agent": "feedstack"}
    request = urllib.request.Request(address, body, headers, method="POST")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return int(error.code)


class Webhook:
    """Posts alarms from its own thread, each a few times at most; nobody waits for it."""

    def __init__(
        self,
        address: str | Secret,
        send: Post = post,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._address = address
        self._send = send
        self._sleep = sleep
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        self._thread.start()

    def tell(self, body: dict[str, Any]) -> None:
        """Post it soon; what comes faster than the other side takes it is lost, and logged."""
        try:
            self._waiting.put_nowait(json.dumps(body, ensure_ascii=False).encode())
        except queue.Full:
            log.error("the webhook has not taken %d alarms: this one is not posted", _MOST_WAITING)

    def close(self, timeout_s: float = _ANSWER_S) -> None:
        """Post what waits, but not for longer than that."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (body := self._waiting.get()) is not None:
            fault = self._tried(body)
            for pause_s in _PAUSES_S if fault else ():
                self._sleep(pause_s)
                fault = self._tried(body)
                if not fault:
                    break
            if fault:
                # Without the address, which may be a secret.
                log.error("an alarm could not be posted to the webhook: %s", fault)

    def _tried(self, body: bytes) -> str:
        """Post once; what went wrong, or nothing."""
        try:
            address = self._address.reveal() if isinstance(self._address, Secret) else self._address
            status = self._send(address, body, _ANSWER_S)
        except FeedstackError as error:
            return error.message
        except (OSError, ValueError) as error:
            return type(error).__name__
        return "" if 200 <= status < 300 else f"it answered {status}"


class Alarms:
    """Tells when a feed's alarm begins and when it ends; each once."""

    def __init__(self, stack: str, webhook: Webhook | None) -> None:
        self._stack = stack
        self._webhook = webhook

    def tell(self, one: Freshness, writer: LogWriter) -> None:
        """Tell everybody; what cannot be told to one is told to the others all the same."""
        text = alarm_text(one)
        log.warning("%s", text)
        if self._webhook is not None:
            is_on = one.state is FreshnessState.ALARM
            about = {"stack": self._stack, "alarm": is_on, "text": text, **freshness_to_json(one)}
            self._webhook.tell(about)
        writer.write_one(alarms_name(self._stack), freshness_to_bytes(one), freshness_key(one.feed))
        writer.flush()

    def close(self) -> None:
        """Let the last ones go out."""
        if self._webhook is not None:
            self._webhook.close()


def alarm_text(one: Freshness) -> str:
    """The alarm as a sentence."""
    if one.state is not FreshnessState.ALARM:
        return f"the alarm of feed {one.feed!r} is over" + (f": {one.why}" if one.why else "")
    now = "" if one.staleness_ms is None else f"; now it is {format_duration(one.staleness_ms)} behind"
    return (
        f"feed {one.feed!r} was staler than {format_duration(one.objective_ms)} for {one.share:.0%} of the "
        f"last {format_duration(one.window_ms)}{now}"
    )
