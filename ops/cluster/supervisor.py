"""The one process that owns the children of an embedded cluster.

It starts them, asks them whether they serve, starts them again when they fall, takes over those that a
killed supervisor left behind, and writes what it knows to run.json.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from ops.cluster import processes, restart
from ops.cluster.files import KeptFile
from ops.cluster.java import find_java
from ops.cluster.layout import Layout
from ops.cluster.logfile import log_to
from ops.cluster.place import add_place, settings_of
from ops.cluster.restart import Life, State
from ops.cluster.service import Service
from stack.errors import FeedstackError
from stack.runtime.spark_archive import without_archive

log = logging.getLogger("feedstack.supervisor")
_TICK_S = 0.1
# How often a child that serves is asked whether it still does.
_ASK_S = 0.5
_TAIL_BYTES = 20_000


@dataclass
class Child:
    """A service, its process if one runs, and its story so far."""

    service: Service
    life: Life = field(default_factory=Life)
    process: psutil.Process | None = None
    started_at: float = 0.0
    reason: str = ""
    asked_at: float = 0.0
    # How much its files held before its last start: what an earlier life left does not explain this one.
    told_bytes: Mapping[Path, int] = field(default_factory=dict)


class Supervisor:
    """Keeps the services of one data folder running until it is told to stop."""

    def __init__(
        self, layout: Layout, services: Sequence[Service], endpoints: Mapping[str, str] | None = None
    ) -> None:
        self._layout = layout
        self._endpoints = endpoints
        self._children = [Child(service) for service in services]
        self._stop = threading.Event()
        self._run_file = KeptFile(layout.run_file)
        self._endpoints_file = KeptFile(layout.endpoints_file)

    def stop(self) -> None:
        """Ask the loop to end; safe from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Adopt, start and watch until stopped; then stop the children."""
        self._adopt(processes.find(self._layout.data))
        self._write_endpoints()  # before any child looks for them
        with ThreadPoolExecutor(len(self._children), "child") as pool:
            while not self._stop.is_set():
                list(pool.map(self._tend, self._children))
                self._write_state()
                self._stop.wait(_TICK_S)
        self._stop_children()

    def _adopt(self, found: Mapping[str, psutil.Process]) -> None:
        """Take over what a killed supervisor left: the same command goes on, another one is replaced."""
        for child in self._children:
            process = found.get(child.service.name)
            if process is None:
                continue
            if self._runs_same_command(process, child.service) and child.service.answers():
                log.info("adopted %s, pid %d", child.service.name, process.pid)
                child.process, child.started_at = process, process.create_time()
                child.life = restart.started(child.life)
            else:
                log.info("replacing %s, pid %d", child.service.name, process.pid)
                processes.stop(process, child.service.patience_s)

    @staticmethod
    def _runs_same_command(process: psutil.Process, service: Service) -> bool:
        try:
            return without_archive(process.cmdline()[1:]) == without_archive(service.command[1:])
        except psutil.Error:
            return False

    def _tend(self, child: Child) -> None:
        """One look at one child: start it if it is due, note whether it serves or fell."""
        now = time.monotonic()
        if child.life.state is State.FAILED:
            return
        if child.process is None:
            if now >= child.life.start_at:
                self._start(child)
        elif not processes.is_alive(child.process):
            self._bury(child, now)
        elif child.life.state is State.READY and now - child.asked_at < _ASK_S:
            return
        elif child.service.answers():
            child.asked_at = now
            if child.life.state is not State.READY:
                log.info("%s serves", child.service.name)
            child.life, child.reason = restart.answered(child.life, now, child.service.steady_s), ""
        elif child.life.state is State.READY:
            child.life, child.reason = restart.silent(child.life), "it runs, but does not answer"
            log.warning("%s does not answer", child.service.name)

    def _start(self, child: Child) -> None:
        service = child.service
        try:
            service.prepare()
            child.told_bytes = {file: _size(file) for file in (service.log, self._output(service))}
            child.process = psutil.Process(processes.spawn(service.command, self._output(service)))
        except FeedstackError as error:
            child.life, child.reason = restart.failed(child.life), f"{error.message}. {error.hint}"
            log.error("%s cannot start: %s", service.name, child.reason)
        except psutil.NoSuchProcess:  # it ended before it could be looked at
            self._bury(child, time.monotonic())
        except OSError as error:
            child.life, child.reason = restart.fell(child.life, time.monotonic()), str(error)
            log.error("%s cannot start: %s", service.name, error)
        else:
            child.started_at = time.time()
            child.life = restart.started(child.life)
            log.info("started %s, pid %d", service.name, child.process.pid)

    def _bury(self, child: Child, now: float) -> None:
        service, process = child.service, child.process
        with contextlib.suppress(psutil.Error):
            if process is not None:
                process.wait(0)
        child.process = None
        child.life = restart.fell(child.life, now, service.first_delay_s)
        child.reason = service.explain(self._tail(child)) or f"it ended; its log is {service.log}"
        log.warning("%s fell: %s", service.name, child.reason)

    def _output(self, service: Service) -> Path:
        return self._layout.logs / f"{service.name}.out"

    def _tail(self, child: Child) -> str:
        """The end of what the child logged and printed in its last life."""
        text = ""
        for file in (child.service.log, self._output(child.service)):
            size, told = _size(file), child.told_bytes.get(file, 0)
            with contextlib.suppress(OSError), file.open("rb") as stream:
                # A file that is shorter than before was rotated: all of it is new.
                stream.seek(max(size - _TAIL_BYTES, told if told <= size else 0))
                text += stream.read().decode("utf-8", "replace")
        return text

    def _write_state(self) -> None:
        services = {
            child.service.name: {
                "pid": child.process.pid if child.process else None,
                "port": child.service.port,
                "state": str(child.life.state),
                "restarts": child.life.restarts,
                "started_at": child.started_at,
                "reason": child.reason,
                "log": str(child.service.log),
            }
            for child in self._children
        }
        state = {"supervisor": os.getpid(), "services": services}
        self._write_endpoints()
        with contextlib.suppress(OSError):  # a full disk must not end the supervisor
            self._run_file.keep(state)  # last: who sees that all is ready looks for the endpoints

    def _write_endpoints(self) -> None:
        with contextlib.suppress(OSError):
            if self._endpoints is not None:
                self._endpoints_file.keep(self._endpoints)

    def _stop_children(self) -> None:
        """Everything that needs ZooKeeper or Kafka goes first; brokers go together."""
        for prefix in ("runner", "http", "kafka", "zookeeper"):
            group = [
                child for child in self._children if child.service.name.startswith(prefix) and child.process
            ]
            with ThreadPoolExecutor(max(1, len(group)), "stop") as pool:
                list(pool.map(self._stop_child, group))

    def _stop_child(self, child: Child) -> None:
        if child.process is None:
            return
        if not processes.stop(child.process, child.service.patience_s):
            log.warning(
                "%s did not stop within %.0f s and was killed", child.service.name, child.service.patience_s
            )
        log.info("stopped %s", child.service.name)
        child.process = None


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def main(arguments: Sequence[str]) -> None:
    """Run the supervisor in the foreground; `stack up` starts it detached."""
    from ops.cluster import kafka_archive
    from ops.cluster.services import embedded_services

    parser = argparse.ArgumentParser(prog="supervisor")
    add_place(parser)
    options, _ = parser.parse_known_args(arguments)
    settings = settings_of(options)
    layout = Layout(settings.data)
    log_to(layout.logs / "supervisor.log", logging.INFO)
    services, endpoints = embedded_services(settings, layout)
    if settings.kafka is None:
        kafka_archive.begin(
            find_java(settings.embedded.java), processes.mark(layout.data, kafka_archive.NAME)
        )
    supervisor = Supervisor(layout, services, {k: v for k, v in asdict(endpoints).items() if v})
    signal.signal(signal.SIGTERM, lambda *_: supervisor.stop())
    signal.signal(signal.SIGINT, lambda *_: supervisor.stop())
    try:
        supervisor.run()
    finally:
        layout.endpoints_file.unlink(missing_ok=True)
        layout.run_file.unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1:])
