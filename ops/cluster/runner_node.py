"""The runner as a child process: a Spark application that hosts the stack's jobs."""

from __future__ import annotations

import sys
from pathlib import Path

from ops.cluster.files import make_empty
from ops.cluster.layout import Layout
from ops.cluster.place import place_words
from ops.cluster.probes import is_fresh
from ops.cluster.processes import mark
from ops.cluster.service import Service
from stack.settings import Settings

NAME = "runner"
# What a runner starts beside itself, by the name on its mark.
JVM, ARCHIVE = "runner-jvm", "runner-archive"
_STALE_S = 5.0


def alive_file(layout: Layout) -> Path:
    """The file that a runner touches as long as it decides."""
    return layout.temporary(NAME) / "alive"


def runner_service(layout: Layout, settings: Settings) -> Service:
    """The runner of this stack; it waits for Kafka and ZooKeeper by itself."""
    command = [sys.executable, "-m", "ops.runner", mark(layout.data, NAME), *place_words(settings)]
    alive = alive_file(layout)
    return Service(
        name=NAME,
        port=0,
        command=command,
        log=layout.logs / "runner.log",
        prepare=lambda: make_empty(layout.temporary(NAME)),
        answers=lambda: is_fresh(alive, _STALE_S),
        explain=_explain,
        patience_s=25.0,
        # Jobs stand still meanwhile.
        first_delay_s=0.0,
        steady_s=5.0,
    )


def _explain(tail: str) -> str | None:
    for line in reversed(tail.splitlines()):
        if line.startswith("feedstack: "):
            return line.removeprefix("feedstack: ")
    return None
