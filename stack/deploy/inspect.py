"""Imports the code of a job in a process of its own and tells what it declares.

`python -m stack.deploy.inspect FOLDER` prints the declaration, or what is wrong with it, as JSON. The code
runs with a time limit; whatever it starts is ended with it, and whatever it prints is not the answer.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import stack
from stack.errors import BadConfig
from stack.model.job import InputSpec
from stack.tasks.declare import Job
from stack.tasks.load import JOB_FILE, load_job

TIME_LIMIT_S = 20.0
_MAX_ANSWER_BYTES = 1 << 20
_KEPT_NOISE_BYTES = 4 << 10
_LOOK_S = 0.05


@dataclass(frozen=True)
class DeclaredHandler:
    """A handler of a job, as its code declares it."""

    name: str
    inputs: tuple[InputSpec, ...]
    stores: tuple[str, ...]
    batch: bool


@dataclass(frozen=True)
class Declared:
    """What the code of a job declares."""

    name: str
    handlers: tuple[DeclaredHandler, ...]

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        return tuple(one for handler in self.handlers for one in handler.inputs)

    @property
    def store_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for handler in self.handlers for name in handler.stores))


def inspect(
    folder: Path, limit_s: float = TIME_LIMIT_S, clock: Callable[[], float] = time.monotonic
) -> Declared:
    """What the job in a folder declares; BadConfig says why it cannot be told."""
    child = subprocess.Popen(
        # Without the folder of this call on its path: a file there must not stand for a module of ours.
        [sys.executable, "-P", "-m", __name__, str(folder.absolute())],
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
    if not ended:
        raise BadConfig(
            f"{JOB_FILE} did not finish importing within {limit_s:.0f} s",
            hint="Move work out of module level, into a task or an @job.open hook.",
        )
    return _understood(answer, noise, code)


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


def _understood(answer: bytes, noise: bytes, code: int) -> Declared:
    try:
        tree = json.loads(answer)
        if "error" in tree:
            raise BadConfig(tree["error"], hint=tree["hint"])
        return Declared(
            tree["name"],
            tuple(
                DeclaredHandler(
                    one["name"],
                    tuple(InputSpec(**spec) for spec in one["inputs"]),
                    tuple(one["stores"]),
                    one["batch"],
                )
                for one in tree["handlers"]
            ),
        )
    except (ValueError, KeyError, TypeError):
        last = noise.decode("utf-8", "replace").strip().splitlines()[-3:]
        told = "".join(f"\n    {line}" for line in last)
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        raise BadConfig(
            f"{JOB_FILE} ends the process while it is imported, {how}{told}",
            hint="Only declare at module level; leave the process to the stack.",
        ) from None


def _python_path() -> str:
    """Where the child finds this very package, installed or not, and what this process finds by variable."""
    own = str(Path(stack.__file__).resolve().parents[1])
    return os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])


def _declaration(job: Job) -> dict[str, Any]:
    return {
        "name": job.name,
        "handlers": [
            {
                "name": one.name,
                "inputs": [asdict(spec) for spec in one.inputs],
                "stores": list(one.stores),
                "batch": one.batch,
            }
            for one in job.handlers
        ],
    }


def main(folder: Path) -> None:
    """Answer on standard output; from then on it is standard error to everybody else."""
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)
        try:
            tree = _declaration(load_job(folder))
        except BadConfig as error:
            tree = {"error": error.message, "hint": error.hint}
        answer.write(json.dumps(tree).encode())
    # Threads that the code has started are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
