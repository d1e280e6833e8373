"""A Spark standalone cluster on this machine: a master and workers as processes, from the pyspark package.

For tests, and to try a `spark://` master without another machine:

    with standalone(folder, java, workers=2, cores=4) as spark:
        ...  # spark.master = "spark://127.0.0.1:…"
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ops.cluster import processes
from ops.cluster.files import write_atomically
from ops.cluster.logging_conf import log4j_properties
from ops.cluster.ports import HOST, free_port, is_free
from stack.errors import ClusterFault
from stack.runtime.spark_jvm import jvm_command, jvm_environment

_START_S = 90.0
_MEMORY = "256m"
# A worker that is silent for so long is dead to the master; it says that it lives every quarter of that.
_WORKER_TIMEOUT_S = 4
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


@dataclass
class Standalone:
    """A running cluster. Its processes may be killed by whoever wants to see what happens."""

    folder: Path
    java: str
    port: int
    cores: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def master(self) -> str:
        """What stack.toml takes as spark.master."""
        return f"spark://{HOST}:{self.port}"

    def start_master(self) -> None:
        """Start the master and wait until it listens."""
        self._start("master", [MASTER, "--host", HOST, "--port", str(self.port), "--webui-port", "0"])
        self._await("master", lambda: not is_free(self.port))

    def start_worker(self, number: int) -> None:
        """Start a worker and wait until it has found the master."""
        name = f"worker-{number}"
        work = self.folder / name
        log = self.folder / f"{name}.log"
        before = log.stat().st_size if log.exists() else 0
        main = [
            WORKER,
            "--host",
            HOST,
            "--cores",
            str(self.cores),
            "--memory",
            "2g",
            "--work-dir",
            str(work),
        ]
        self._start(name, [*main, "--webui-port", "0", self.master])
        self._await(name, lambda: "Successfully registered with master" in _text(log, before))

    def executors(self) -> list[psutil.Process]:
        """The executors of all applications, by worker."""
        found = []
        for process in self.processes.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                children = psutil.Process(process.pid).children(recursive=True)
                found += [child for child in children if _EXECUTOR in _words(child)]
        return found

    def close(self) -> None:
        """Stop everything, with all that it started."""
        for process in reversed(self.processes.values()):
            _end_with_children(process)

    def _start(self, name: str, main: Sequence[str]) -> None:
        conf = self.folder / f"{name}.properties"
        loggers = {"org.apache.spark.deploy": "info"}
        write_atomically(conf, log4j_properties(self.folder / f"{name}.log", "warn", loggers))
        words = [
            processes.mark(self.folder, name),
            f"-Dlog4j2.configurationFile={conf}",
            f"-Dspark.worker.timeout={_WORKER_TIMEOUT_S}",
            "-Dspark.worker.cleanup.enabled=true",
        ]
        with (self.folder / f"{name}.out").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                jvm_command(self.java, _MEMORY, words, main),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=self.folder,
                env={
                    **jvm_environment(processes.child_environment()),
                    "SPARK_LOCAL_DIRS": str(self.folder / "tmp"),
                },
            )

    def _await(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_S
        while not ready():
            if self.processes[name].poll() is not None or time.monotonic() > deadline:
                raise ClusterFault(
                    f"Spark's {name} did not start", hint=f"Its log: {self.folder / name}.log and .out"
                )
            time.sleep(0.05)


@contextlib.contextmanager
def standalone(folder: Path, java: str, workers: int = 2, cores: int = 4) -> Iterator[Standalone]:
    """A master and its workers for the block; each worker gives `cores` containers a place."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Standalone(folder, java, free_port(()), cores)
    try:
        cluster.start_master()
        for number in range(1, workers + 1):
            cluster.start_worker(number)
        yield cluster
    finally:
        cluster.close()


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _text(file: Path, start: int) -> str:
    try:
        return file.read_bytes()[start:].decode("utf-8", "replace")
    except OSError:
        return ""


def _end_with_children(process: subprocess.Popen[bytes]) -> None:
    """Executors are in sessions of their own: they are ended by name, not by group."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
