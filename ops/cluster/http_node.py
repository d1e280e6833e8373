"""Our HTTP service as a child process: the schema registry and the routes beside it."""

from __future__ import annotations

import sys

from ops.cluster.layout import Layout
from ops.cluster.place import place_words
from ops.cluster.probes import answers_health
from ops.cluster.processes import mark
from ops.cluster.service import Service
from stack.settings import Settings

NAME = "http"


def http_service(layout: Layout, settings: Settings, port: int) -> Service:
    """The service on the loopback; it waits for Kafka by itself, so that all children start at once."""
    place = place_words(settings)
    command = [sys.executable, "-m", "ops.service", mark(layout.data, NAME), *place, "--port", str(port)]
    log = layout.logs / "http.log"
    return Service(
        NAME, port, command, log, lambda: None, lambda: answers_health(port), _explain, patience_s=5.0
    )


def _explain(tail: str) -> str | None:
    if "address already in use" in tail.lower():
        return "its port was taken by another process; run `stack up` again, or name a port in stack.toml"
    for line in reversed(tail.splitlines()):
        if line.startswith("feedstack: "):
            return line.removeprefix("feedstack: ")
    return None
