"""Containers as Spark jobs of one partition, each in its own thread and job group."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

from stack.errors import Unavailable
from stack.model.plan import ContainerReport, Ending, Reason
from stack.runtime.containers import OnEnd
from stack.runtime.host import kill_container
from stack.runtime.launch import Launch
from stack.runtime.spark_conf import SparkPlace, spark_conf
from stack.runtime.spark_endings import ending_of

log = logging.getLogger("feedstack.runner")
_JVM_END_S = 5.0
_ASK_S = 1.0


def run_launches(launches: Iterator[Launch]) -> Iterator[Ending]:
    """What an executor runs. Spark's own second attempt, after it lost an executor, does nothing."""
    from pyspark import TaskContext

    from stack.runtime.container import run_container

    context = TaskContext.get()
    for launch in launches:
        if context is not None and context.attemptNumber() > 0:
            yield Ending(Reason.LOST, "its executor was lost")
        else:
            yield run_container(launch)


def warm_up(numbers: Iterator[int]) -> Iterator[int]:
    """Makes an executor load our code before the first container needs it."""
    return numbers


class SparkContainers:
    """One Spark application; see `Containers`."""

    def __init__(
        self,
        master: str,
        name: str,
        place: SparkPlace,
        output: IO[bytes] | int = subprocess.DEVNULL,
        body: Callable[[Iterator[Launch]], Iterator[Ending]] = run_launches,
    ) -> None:
        self.identity = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._body = body
        self._place = place
        self._closing = False
        self._asked_at = 0.0
        self._threads: set[threading.Thread] = set()
        self._context, self._jvm = _start(spark_conf(master, name, self.identity, place), place, output)
        threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()

    def _warm_up(self) -> None:
        with contextlib.suppress(Exception):  # a container will tell
            self._context.parallelize([0], 1).mapPartitions(warm_up).collect()

    def launch(self, launch: Launch, on_end: OnEnd) -> None:
        name = _group(launch)
        thread = threading.Thread(target=self._run, args=(launch, on_end), name=name, daemon=True)
        self._threads = {one for one in self._threads if one.is_alive()} | {thread}
        thread.start()

    def _run(self, launch: Launch, on_end: OnEnd) -> None:
        try:
            # In a thread of its own also on Spark's side: job groups belong to threads.
            self._context.setJobGroup(_group(launch), _group(launch), interruptOnCancel=True)
            [ending] = self._context.parallelize([launch], 1).mapPartitions(self._body).collect()
        except Exception as error:
            ending = ending_of(str(error))
            if not self._closing and ending.reason is Reason.FAILED:
                log.warning("%s: %s", _group(launch), error)
        on_end(ending)

    def cancel(self, launch: Launch, report: ContainerReport | None) -> None:
        if report is not None:
            kill_container(report.host, report.pid, self.identity)

        def run() -> None:
            with contextlib.suppress(Exception):  # whoever cannot cancel has lost Spark, see `fault`
                self._context.cancelJobGroup(_group(launch))

        threading.Thread(target=run, name="cancel", daemon=True).start()

    def fault(self) -> str | None:
        if self._jvm.poll() is not None:
            return f"Spark's JVM ended with code {self._jvm.returncode}"
        now = time.monotonic()
        if now - self._asked_at < _ASK_S:
            return None
        self._asked_at = now
        try:
            return "Spark ended the application" if self._context._jsc.sc().isStopped() else None
        except Exception as error:
            return f"Spark's JVM does not answer: {error}"

    def close(self) -> None:
        """Stop Spark; its JVM ends with its input, or is killed. The scratch folder goes."""
        self._closing = True
        stop = threading.Thread(target=self._stop_context, name="stop", daemon=True)
        stop.start()
        stop.join(_JVM_END_S)
        _end(self._jvm)
        shutil.rmtree(self._place.folder, ignore_errors=True)

    def _stop_context(self) -> None:
        with contextlib.suppress(Exception):
            self._context.stop()


def _group(launch: Launch) -> str:
    return f"{launch.spec.name}.{launch.slot}.{launch.attempt}"


def _start(
    conf: dict[str, str], place: SparkPlace, output: IO[bytes] | int
) -> tuple[Any, subprocess.Popen[bytes]]:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    place.folder.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = SparkConf(loadDefaults=False).setAll(list(conf.items()))
    gateway = None
    try:
        gateway = launch_gateway(settings, {"stdout": output, "stderr": output})
        return SparkContext(conf=settings, gateway=gateway), gateway.proc
    except Exception as error:
        if gateway is not None:
            _end(gateway.proc)
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise Unavailable(
            f"Spark at {conf['spark.master']} cannot be reached: {said[0]}",
            hint="Check spark.master in stack.toml, and whether that master runs.",
        ) from None


def _end(jvm: subprocess.Popen[bytes]) -> None:
    """The JVM ends when its standard input does; one that hangs is killed."""
    with contextlib.suppress(OSError):
        if jvm.stdin is not None:
            jvm.stdin.close()
    try:
        jvm.wait(_JVM_END_S)
    except subprocess.TimeoutExpired:
        jvm.send_signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            jvm.wait(_JVM_END_S)
