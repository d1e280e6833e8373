"""Waits, with a bar on a terminal, until a job has become what was asked for."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from ops.cli.output import note, progress

if TYPE_CHECKING:
    from stack.deploy.operate import JobWatch
    from stack.deploy.watch import Judge, Verdict

_MOST_TITLE = 100
timeout_option = click.option(
    "--timeout", type=click.FloatRange(1), metavar="S", help="Seconds to wait; the work goes on after them."
)


def wait_for(watch: JobWatch, name: str, judge: Judge, timeout_s: float) -> Verdict:
    """Wait until the judge is content; where there is no terminal, each new line is told once."""
    from stack.deploy.watch import too_late, wait

    shown: set[str] = set()
    with progress(name, None, "tasks") as bar:

        def show(verdict: Verdict) -> None:
            bar.show(verdict.ready, verdict.wanted or None, f"{name}: {verdict.line}"[:_MOST_TITLE])
            if verdict.line not in shown and not sys.stderr.isatty():
                note(verdict.line)
            shown.add(verdict.line)

        return wait(
            lambda: watch.look(name),
            judge,
            timeout_s=timeout_s,
            show=show,
            late=too_late(name, timeout_s),
            clock=time.monotonic,
            sleep=time.sleep,
        )
