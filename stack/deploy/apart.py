"""Runs code that users wrote in a process of its own: with a time limit, and nothing of it stays behind.

The child answers with one JSON object on standard output. Whatever it starts is ended with it, and whatever
the code prints is not the answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stack
from stack.errors import BadConfig

_MAX_ANSWER_BYTES = 1 << 20
_KEPT_NOISE_BYTES = 4 << 10
_LOOK_S = 0.05


@dataclass(frozen=True)
class Said:
    """What a child said: its answer, the end of everything else, and how it ended."""

    answer: bytes
    noise: bytes
    code: int
    in_time: bool

    def tree(self) -> dict[str, Any]:
        """The answer; BadConfig if it tells a fault, ValueError if there is none that could be read."""
        tree = json.loads(self.answer)
        if not isinstance(tree, dict):
            raise ValueError("the answer is no object")
        if "error" in tree:
            raise BadConfig(tree["error"], hint=tree["hint"])
        return tree

    def end(self) -> str:
        """How it ended, with its last words, for people."""
        last = self.noise.decode("utf-8", "replace").strip().splitlines()[-3:]
        told = "".join(f"\n    {line}" for line in last)
        if self.code < 0:
            return f"by signal {signal.Signals(-self.code).name}{told}"
        return f"with exit code {self.code}{told}"


def run_apart(
    module: str, words: Sequence[str], limit_s: float, clock: Callable[[], float] = time.monotonic
) -> Said:
    """Run a module of ours in a process of its own, and listen to it for so long."""
    child = subprocess.Popen(
        # Without the folder of this call on its path: a file there must not stand for a module of ours.
        [sys.executable, "-P", "-m", module, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": _python_path()},
        start_new_session=True,
    )
    with child:
        try:
            answer, noise, ended = _listen(child, clock() + limit_s, clock)
        finally:
            # The group is the child's own: nothing that the code has started stays.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
    return Said(answer, noise, code, ended)


def answer_apart(make: Callable[[], dict[str, Any]]) -> None:
    """The child's part: answer what is made, or the fault that was raised, and end.

    From then on standard output is standard error to everybody else.
    """
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)
        try:
            tree = make()
        except BadConfig as error:
            tree = {"error": error.message, "hint": error.hint}
        answer.write(json.dumps(tree).encode())
    # Threads that the code has started are not waited for.
    os._exit(0)


def _listen(
    child: subprocess.Popen[bytes], deadline: float, clock: Callable[[], float]
) -> tuple[bytes, bytes, bool]:
    """The answer, the end of everything else it said, and whether it ended in time."""
    said: dict[Any, bytes] = {child.stdout: b"", child.stderr: b""}
    ended = False
    with selectors.DefaultSelector() as selector:
        for stream in said:
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ)
        while clock() < deadline:
            # Looked at before reading: what it said last is then still read.
            ended = child.poll() is not None
            ready = selector.select(0 if ended else _LOOK_S) if selector.get_map() else []
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                is_answer = key.fileobj is child.stdout
                kept = said[key.fileobj] + data
                said[key.fileobj] = kept[:_MAX_ANSWER_BYTES] if is_answer else kept[-_KEPT_NOISE_BYTES:]
            if ended and not ready:
                break
            if not ready and not selector.get_map():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_LOOK_S)
    return said[child.stdout], said[child.stderr], ended


def _python_path() -> str:
    """Where the child finds this very package, installed or not, and what this process finds by variable."""
    own = str(Path(stack.__file__).resolve().parents[1])
    return os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])
