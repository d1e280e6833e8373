"""Containers as Spark jobs of one partition, each in its own thread and job group."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stack.errors import Unavailable
from stack.model.plan import ContainerReport, Ending, Reason
from stack.runtime.containers import OnEnd
from stack.runtime.host import kill_container
from stack.runtime.launch import Launch
from stack.runtime.spark_conf import SparkPlace, spark_conf
from stack.runtime.spark_endings import ending_of
from stack.runtime.spark_jvm import Output, end_jvm, start_gateway

log = logging.getLogger("feedstack.runner")
_STOP_S = 5.0
_ASK_S = 1.0
_GONE_S = 1.0
_WARM_S = 0.05
_CONNECT_S = 5.0


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
    """Makes an executor load our code before the first container needs it.

    A moment long, so that each executor gets one of these and none gets two.
    """
    time.sleep(_WARM_S)
    return numbers


class SparkContainers:
    """One Spark application; see `Containers`. Modules in `meanwhile` are imported while its JVM starts."""

    def __init__(
        self,
        master: str,
        name: str,
        place: SparkPlace,
        output: Output = subprocess.DEVNULL,
        body: Callable[[Iterator[Launch]], Iterator[Ending]] = run_launches,
        *,
        given: Mapping[str, str] | None = None,
        meanwhile: Sequence[str] = (),
    ) -> None:
        self.identity = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._body = body
        self._place = place
        self._closing = False
        self._asked_at = 0.0
        self.warm_at: float | None = None
        self._threads: set[threading.Thread] = set()
        self._context, self._jvm = _start(
            spark_conf(master, name, self.identity, place, given), place, output, meanwhile
        )
        threading.Thread(target=self._keep_warm, name="warm-up", daemon=True).start()

    def _keep_warm(self) -> None:
        """Every new executor loads our code at once, rather than with the first container that it gets."""
        known = ""
        while not self._closing:
            with contextlib.suppress(Exception):  # a container, or `fault`, will tell
                found = self._context._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" ")
                if found != known:
                    self._warm_up(max(1, found.count(" ")))
                    known = found
            time.sleep(_ASK_S)

    def _warm_up(self, executors: int) -> None:
        """One small task per executor; in `local` the driver is the only one."""
        numbers = self._context.parallelize(range(executors), executors)
        numbers.mapPartitions(warm_up).collect()
        if self.warm_at is None:
            self.warm_at = time.monotonic()

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
            return self._end_of_jvm()
        now = time.monotonic()
        if now - self._asked_at < _ASK_S:
            return None
        self._asked_at = now
        try:
            return "Spark ended the application" if self._context._jsc.sc().isStopped() else None
        except Exception as error:
            # A JVM that was killed closes its connections a moment before it is gone.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._jvm.wait(_GONE_S)
                return self._end_of_jvm()
            return f"Spark's JVM does not answer: {error}"

    def _end_of_jvm(self) -> str:
        return f"Spark's JVM ended with code {self._jvm.returncode}"

    def close(self) -> None:
        """Stop Spark; its JVM ends with its input, or is killed. The scratch folder goes."""
        self._closing = True
        stop = threading.Thread(target=self._stop_context, name="stop", daemon=True)
        stop.start()
        stop.join(_STOP_S)
        end_jvm(self._jvm)
        shutil.rmtree(self._place.folder, ignore_errors=True)

    def _stop_context(self) -> None:
        with contextlib.suppress(Exception):
            self._context.stop()


def _group(launch: Launch) -> str:
    return f"{launch.spec.name}.{launch.slot}.{launch.attempt}"


def _start(
    conf: dict[str, str], place: SparkPlace, output: Output, meanwhile: Sequence[str]
) -> tuple[Any, subprocess.Popen[bytes]]:
    _refuse_silent(conf["spark.master"])
    place.folder.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    gateway, jvm = start_gateway(place.java, place.memory, place.words, conf, output, meanwhile=meanwhile)
    from pyspark import SparkConf, SparkContext

    try:
        settings = SparkConf(loadDefaults=False, _jvm=gateway.jvm).setAll(list(conf.items()))
        return SparkContext(conf=settings, gateway=gateway), jvm
    except Exception as error:
        end_jvm(jvm)
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise _unreachable(conf["spark.master"], said[0]) from None


def _refuse_silent(master: str) -> None:
    """Ask a master whether it is there: Spark itself would ask for a minute before it says no."""
    hosts = master.removeprefix("spark://").split(",") if master.startswith("spark://") else []
    why = ""
    for one in hosts:
        host, _, port = one.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
            return
        except OSError as error:
            why = f"{one}: {error.strerror or error}"
    if hosts:
        raise _unreachable(master, why)


def _unreachable(master: str, why: str) -> Unavailable:
    return Unavailable(
        f"Spark at {master} cannot be reached: {why}",
        hint="Check spark.master in stack.toml, and whether that master runs.",
    )
