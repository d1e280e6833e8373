"""Runs a runner of one stack in the foreground: `python -m ops.runner --config FILE`.

Jobs stand still until it is there. What takes long to load is imported while Spark's JVM starts.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ops.cluster.files import write_atomically
from ops.cluster.jars import cache_folder
from ops.cluster.java import find_java
from ops.cluster.layout import Layout
from ops.cluster.logfile import leave, log_to
from ops.cluster.logging_conf import log4j_properties
from ops.cluster.place import add_console, add_place, settings_of
from ops.cluster.processes import mark
from ops.cluster.runner_node import ARCHIVE, JVM, NAME, alive_file
from stack.errors import FeedstackError, Unavailable
from stack.runtime.host import is_dead, this_place
from stack.runtime.spark_archive import archive_file, archive_words, make_in_background
from stack.runtime.spark_conf import SparkPlace
from stack.runtime.spark_containers import SparkContainers
from stack.settings import Settings, read_endpoints

if TYPE_CHECKING:
    from stack.connection import Stack
    from stack.model.job import JobSpec
    from stack.zookeeper.fleet import JobNodes
    from stack.zookeeper.turn import Turn

log = logging.getLogger("feedstack.runner")
_MEANWHILE = ("stack.connection", "stack.runtime.runner")
_ENDPOINTS_LIMIT_S = 30.0


def main(arguments: list[str]) -> int:
    """Run until told to stop; a fault is one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m ops.runner")
    add_place(parser)
    add_console(parser)
    options, _ = parser.parse_known_args(arguments)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    try:
        settings = settings_of(options)
        layout = Layout(settings.data)
        log_to(None if options.console else layout.logs / "runner.log", logging.INFO, 10 << 20)
        logging.getLogger("py4j").setLevel(logging.WARNING)
        with _output(layout, options.console) as output:
            spark_log = None if options.console else layout.logs / "spark.log"
            run = _run_alone if settings.runner_alone else _run
            return run(settings, layout, spark_log, output)
    except FeedstackError as error:
        sys.stderr.write(f"feedstack: {error.message}. {error.hint}\n")
        return 1


@contextlib.contextmanager
def _output(layout: Layout, console: bool) -> Iterator[int]:
    """Where what Spark prints goes."""
    if console:
        yield sys.stderr.fileno()
        return
    with (layout.logs / "spark.out").open("ab") as file:
        yield file.fileno()


def _run_alone(settings: Settings, layout: Layout, spark_log: Path | None, output: int) -> int:
    """Wait until no other runner works; end as soon as another one does."""
    from stack.zookeeper.turn import Turn

    for name in _MEANWHILE:  # there is time now
        importlib.import_module(name)
    alive = alive_file(layout)
    place = this_place(f"{os.getpid()}-{secrets.token_hex(4)}", settings.spark_master)
    with contextlib.closing(Turn(read_endpoints(settings).zookeeper, settings.name, place, is_dead)) as turn:
        signal.signal(signal.SIGTERM, lambda *_: turn.stop())
        signal.signal(signal.SIGINT, lambda *_: turn.stop())
        if not turn.wait(alive.touch):
            return 0
        signal.signal(signal.SIGTERM, _leave)
        signal.signal(signal.SIGINT, _leave)
        return _run(settings, layout, spark_log, output, turn)


def _run(
    settings: Settings, layout: Layout, spark_log: Path | None, output: int, turn: Turn | None = None
) -> int:
    with (
        contextlib.closing(_containers(settings, layout, spark_log, output)) as containers,
        _connected(settings) as stack,
    ):
        from stack.runtime.runner import Runner

        runner = Runner(stack, containers, alive_file(layout), align=_aligning(stack))
        signal.signal(signal.SIGTERM, lambda *_: runner.stop())
        signal.signal(signal.SIGINT, lambda *_: runner.stop())
        if turn is not None:
            threading.Thread(target=turn.keep, args=(runner.stop,), name="turn", daemon=True).start()
        runner.run()
    return 0


def _aligning(stack: Stack) -> Callable[[JobNodes, JobSpec], None]:
    from stack.deploy.aligning import needs_aligned_points, take_aligned_point

    def align(nodes: JobNodes, spec: JobSpec) -> None:
        if needs_aligned_points(stack, spec):
            name = take_aligned_point(stack, nodes, spec)
            log.info("%s: %s", spec.name, f"@{name} is taken" if name else "its tasks did not stand still")

    return align


def _containers(settings: Settings, layout: Layout, spark_log: Path | None, output: int) -> SparkContainers:
    conf = layout.conf / NAME / "log4j2.properties"
    write_atomically(conf, log4j_properties(spark_log, "warn", {}))
    folder = layout.temporary(NAME) / f"spark-{os.getpid()}"
    java = find_java(settings.embedded.java).command
    archive = archive_file(cache_folder(), java)
    words = archive_words(archive)
    place = SparkPlace(folder, java, conf, (mark(layout.data, JVM), *words), words)
    containers = SparkContainers(
        settings.spark_master,
        settings.name,
        place,
        output,
        given=settings.spark_conf,
        meanwhile=_MEANWHILE,
    )
    make_in_background(archive, java, mark(layout.data, ARCHIVE))
    return containers


def _connected(settings: Settings) -> Stack:
    """The supervisor writes the addresses down right after it has started its children."""
    from stack.connection import Stack

    deadline = time.monotonic() + _ENDPOINTS_LIMIT_S
    while True:
        try:
            return Stack.connect(settings)
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _leave(*_: object) -> None:
    """Told to stop before the runner is there."""
    raise SystemExit(0)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
