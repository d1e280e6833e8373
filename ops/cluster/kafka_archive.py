"""An archive of the classes that a broker loads when it starts: with it a start takes two thirds of the time.

Made once per Java and Kafka, beside whatever else runs, by `python -m ops.cluster.kafka_archive`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from ops.cluster.jars import cache_folder, kafka_folder
from ops.cluster.java import Java, find_java
from ops.cluster.kafka_node import broker_name, controller_name, kafka_service
from ops.cluster.layout import Layout, new_cluster
from ops.cluster.ports import free_port
from ops.cluster.service import Service
from stack.errors import FeedstackError
from stack.runtime.daemon import die_with_parent
from stack.runtime.spark_archive import archive_of, draft_of, make_in_background, making, recording_words

NAME = "kafka-archive"
_START_S = 120.0
_END_S = 120.0


def kafka_archive(java: Java) -> Path:
    """Where the archive is, or would be."""
    return archive_of(cache_folder(), kafka_folder().name, java.command, kafka_folder())


def begin(java: Java, mark: str) -> None:
    """Make it if there is none, in a process that can be found by `mark`."""
    make_in_background(kafka_archive(java), java.command, mark, __name__)


def make(file: Path, java: Java, wait: bool = False) -> None:
    """Start a broker of nobody's, wait until it answers, end it, and keep what it has loaded."""
    with making(file, wait) as place:
        if place is not None:
            _run_once(_broker(place, java), draft_of(file), place)


def _run_once(service: Service, draft: Path, place: Path) -> None:
    service.prepare()
    service.log.parent.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [service.command[0], *recording_words(draft), *service.command[1:]],
        stdin=subprocess.DEVNULL,
        cwd=place,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - there is one thread here
    )
    try:
        deadline = time.monotonic() + _START_S
        while not service.answers() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        process.terminate()
        process.wait(_END_S)
    finally:
        process.kill()
        process.wait()


def _broker(folder: Path, java: Java) -> Service:
    ports = {broker_name(1): free_port(())}
    ports[controller_name(1)] = free_port(ports.values())
    cluster = replace(new_cluster(1), ports=ports)
    return kafka_service(Layout(folder), java, kafka_folder(), cluster, node=1, heap_bytes=256 << 20)


if __name__ == "__main__":
    os.nice(19)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with contextlib.suppress(FeedstackError, OSError, subprocess.TimeoutExpired):
        make(Path(sys.argv[1]), find_java(sys.argv[2]))
