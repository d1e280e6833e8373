"""Imports the code of a job in a process of its own and tells what it declares.

`python -m stack.deploy.inspect FOLDER` prints the declaration, or what is wrong with it, as JSON.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stack.deploy.apart import Said, answer_apart, run_apart
from stack.errors import BadConfig
from stack.model.job import MAIN_STAGE, InputSpec
from stack.tasks.declare import Job
from stack.tasks.load import JOB_FILE, load_job

TIME_LIMIT_S = 20.0


@dataclass(frozen=True)
class DeclaredHandler:
    """A handler of a job, as its code declares it."""

    name: str
    inputs: tuple[InputSpec, ...]
    stores: tuple[str, ...]
    batch: bool
    stage: str = MAIN_STAGE


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

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages in the order in which records pass them: the first, then those behind as they stand in
        the code."""
        return tuple(dict.fromkeys([MAIN_STAGE, *(handler.stage for handler in self.handlers)]))

    def stage_of(self, store: str) -> str:
        """The stage whose tasks have a store."""
        return next(handler.stage for handler in self.handlers if store in handler.stores)


def declared_of(job: Job) -> Declared:
    """What a job that is at hand declares."""
    handlers = (
        DeclaredHandler(one.name, one.inputs, one.stores, one.batch, one.stage) for one in job.handlers
    )
    return Declared(job.name, tuple(handlers))


def inspect(
    folder: Path, limit_s: float = TIME_LIMIT_S, clock: Callable[[], float] = time.monotonic
) -> Declared:
    """What the job in a folder declares; BadConfig says why it cannot be told."""
    said = run_apart(__name__, [str(folder.absolute())], limit_s, clock)
    if not said.in_time:
        raise BadConfig(
            f"{JOB_FILE} did not finish importing within {limit_s:.0f} s",
            hint="Move work out of module level, into a task or an @job.open hook.",
        )
    return _understood(said)


def _understood(said: Said) -> Declared:
    try:
        tree = said.tree()
        return Declared(
            tree["name"],
            tuple(
                DeclaredHandler(
                    one["name"],
                    tuple(InputSpec(**spec) for spec in one["inputs"]),
                    tuple(one["stores"]),
                    one["batch"],
                    one["stage"],
                )
                for one in tree["handlers"]
            ),
        )
    except (ValueError, KeyError, TypeError):
        raise BadConfig(
            f"{JOB_FILE} ends the process while it is imported, {said.end()}",
            hint="Only declare at module level; leave the process to the stack.",
        ) from None


def _declaration(job: Job) -> dict[str, Any]:
    return {
        "name": job.name,
        "handlers": [
            {
                "name": one.name,
                "inputs": [asdict(spec) for spec in one.inputs],
                "stores": list(one.stores),
                "batch": one.batch,
                "stage": one.stage,
            }
            for one in job.handlers
        ],
    }


def main(folder: Path) -> None:
    """Answer on standard output."""
    answer_apart(lambda: _declaration(load_job(folder)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
