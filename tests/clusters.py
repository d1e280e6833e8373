"""Starts the cluster that the tests of one run share, whichever process needs it first."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ops.cluster import control
from ops.cluster.files import locked
from stack.settings import Settings, load_settings

RUN_VARIABLE = "FEEDSTACK_TEST_RUN"


def begin_run() -> None:
    """Choose the folder of this run and how its JVMs compile; worker processes inherit both."""
    # They live for seconds: the optimising compiler would take half of their time and never pay off.
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
    os.environ.setdefault(RUN_VARIABLE, tempfile.mkdtemp(prefix="feedstack-tests-"))


def shared_cluster() -> Settings:
    """The settings of the shared cluster, which runs when this returns."""
    folder = Path(os.environ[RUN_VARIABLE])
    with locked(folder / "start.lock"):
        (folder / "stack.toml").write_text('name = "tests"\n[runner]\nenabled = false\n')
        settings = load_settings(folder / "stack.toml")
        control.up(settings, None, lambda _: None)
    return settings


def end_run() -> None:
    """Stop the shared cluster, if anybody started it, and remove its data."""
    folder = Path(os.environ.pop(RUN_VARIABLE))
    if (folder / "stack.toml").exists():
        control.down(load_settings(folder / "stack.toml"), lambda _: None)
    shutil.rmtree(folder, ignore_errors=True)


def wait_for(condition: Callable[[], object], what: str, limit_s: float = 30.0) -> None:
    """Wait until a condition holds; fail with what was awaited when the time is over."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {limit_s:.0f} s still waiting for {what}")
        time.sleep(0.02)
