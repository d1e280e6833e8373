"""The process from which Spark forks containers. What is heavy is imported once, before any fork.

Spark runs it as `python -m stack.runtime.daemon pyspark.worker` and speaks to it over its standard input
and output, so nothing may print here. Only imports, no threads: a thread would not survive the fork, but
its locks would. A container ends with this process, however it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

_PRELOADED = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "confluent_kafka",
    "rocksdict",
    "kazoo.client",
    "fastavro",
    "pyruhvro",
    "psutil",
    "pyspark.worker",
    "stack.runtime.container",
    "stack.runtime.spark_containers",
)
# Few jobs need it, and it takes half a second: it comes later, for the containers that are forked then.
_LATE = "pandas"
_LATE_S = 15
_PR_SET_PDEATHSIG = 1


def preload() -> None:
    """Import what containers need, without starting a thread and without a word."""
    # Both would start threads when they are loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    # Spark puts its zipped copy of pyspark in front: slow to import from, and the same as ours.
    sys.path[:] = [place for place in sys.path if not place.endswith("pyspark.zip")]
    _import(*_PRELOADED)


def preload_late(after_s: int = _LATE_S) -> None:
    """Import the rest when nobody waits for a container any more: by an alarm, since a thread must not be."""
    signal.signal(signal.SIGALRM, lambda *_: _import(_LATE))
    signal.alarm(after_s)


def _import(*names: str) -> None:
    with contextlib.redirect_stdout(sys.stderr):
        for name in names:
            # What is missing is told by the container that needs it.
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()


def die_with_parent() -> None:
    """Let the kernel end this process when its parent ends; containers watch their parent elsewhere."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _with_parent(worker: Callable[..., int]) -> Callable[..., int]:
    def run(*arguments: Any) -> int:
        die_with_parent()
        return worker(*arguments)

    return run


def main() -> None:
    """Preload, then serve as Spark's own daemon does."""
    preload()
    preload_late()
    from pyspark import daemon

    daemon.worker = _with_parent(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
