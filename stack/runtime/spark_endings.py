"""How a container ended, from what Spark says about its job."""

from __future__ import annotations

import re

from stack.model.plan import Ending, Reason

_KILLED = "Python worker exited unexpectedly"
_CANCELLED = re.compile(r"JOB_CANCELLED|Job \S+ cancelled|SparkContext was shut down")
_EXECUTOR = ("ExecutorLostFailure", "executor lost", "Executor heartbeat timed out")
_PYTHON_FAULT = re.compile(r"^\s*(\w+(?:\.\w+)*(?:Error|Exception|Exit)): ?(.*)$", re.MULTILINE)
_SAID = re.compile(r"Error from python worker:\s*(.*?)(?:\n\s*PYTHONPATH was|\Z)", re.DOTALL)
_MOST_CHARACTERS = 4_000


def ending_of(text: str) -> Ending:
    """What an error of a Spark job means for its container.

    A container that can speak returns its ending. So this is about processes that were killed, about
    executors that are gone, and about executors on which our code cannot be run at all.
    """
    if _CANCELLED.search(text):
        return Ending(Reason.LOST, "it was cancelled")
    said = _SAID.search(text)
    if said:
        return _unable(said.group(1), text)
    if _KILLED in text:
        return Ending(Reason.LOST, "its process was killed")
    if any(sign in text for sign in _EXECUTOR):
        return Ending(Reason.LOST, "its executor was lost")
    if "PythonException" in text or "Traceback (most recent call last)" in text:
        return _unable(text, text)
    return Ending(Reason.LOST, _first_line(text), detail=text[:_MOST_CHARACTERS])


def _unable(said: str, text: str) -> Ending:
    faults = [f"{name}: {rest}".strip() for name, rest in _PYTHON_FAULT.findall(said)]
    faults = [one for one in faults if not one.startswith(("pyspark.", "org.apache.", "py4j."))]
    return Ending(
        Reason.FAILED,
        f"Spark cannot run our code on its executors: {faults[-1] if faults else _first_line(said)}",
        hint="Executors need the same Python and packages as the runner, at the same place.",
        detail=text[:_MOST_CHARACTERS],
    )


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else "Spark ended it without a word"
