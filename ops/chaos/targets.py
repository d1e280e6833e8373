"""Finds the processes of a stack, as a fault needs them; every one is known to be ours before it is hit."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable

import psutil

from ops.chaos.schedule import STOPPED, Fault, FaultKind
from ops.chaos.stage import Stage
from ops.cluster import processes, runner_node, zookeeper_node
from ops.cluster.kafka_node import broker_name
from stack.errors import ClusterFault, FeedstackError

_FIND_S = 90.0
_LOOK_S = 0.1


class Targets:
    """Carries faults out."""

    def __init__(self, stage: Stage, clock: Callable[[], float] = time.monotonic) -> None:
        self._stage = stage
        self._clock = clock

    def hit(self, fault: Fault, sleep: Callable[[float], None] = time.sleep) -> str:
        """Do it, with the pause of a process that is stopped; answers what was hit."""
        deadline = self._clock() + _FIND_S
        while True:
            process = self._find(fault, deadline)
            # It may end before it is hit; psutil refuses a pid that has gone to another process.
            with contextlib.suppress(psutil.NoSuchProcess):
                if fault.kind not in STOPPED:
                    process.send_signal(signal.SIGKILL)
                    return f"pid {process.pid}"
                process.send_signal(signal.SIGSTOP)
                try:
                    sleep(fault.stop_s)
                finally:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(signal.SIGCONT)
                return f"pid {process.pid}, for {fault.stop_s:.0f} s"

    def _find(self, fault: Fault, deadline: float) -> psutil.Process:
        """The process to hit. After another fault it may take a while to be there again."""
        while True:
            with contextlib.suppress(psutil.Error, FeedstackError):
                found = self._look(fault)
                if found is not None:
                    return found
            if self._clock() > deadline:
                raise ClusterFault(f"{fault.kind}: after {_FIND_S:.0f} s there is no process to hit")
            time.sleep(_LOOK_S)

    def _look(self, fault: Fault) -> psutil.Process | None:
        if fault.kind in (FaultKind.CONTAINER_KILLED, FaultKind.CONTAINER_STOPPED):
            return self._container(self._stage.names[fault.job], fault.share)
        found = processes.find(self._stage.settings.data)
        names = {
            # On one machine Spark's driver is its executor, too.
            FaultKind.EXECUTOR_KILLED: runner_node.JVM,
            FaultKind.RUNNER_KILLED: runner_node.NAME,
            FaultKind.BROKER_KILLED: broker_name(1),
            FaultKind.BROKER_STOPPED: broker_name(1),
            FaultKind.ZOOKEEPER_KILLED: zookeeper_node.NAME,
        }
        return found.get(names[fault.kind])

    def _container(self, job: str, share: float) -> psutil.Process | None:
        """One of the containers that report themselves; only if the runner's processes have it."""
        runner = processes.find(self._stage.settings.data).get(runner_node.NAME)
        if runner is None:
            return None
        ours = {child.pid: child for child in runner.children(recursive=True)}
        with self._stage.nodes() as nodes:
            reports = nodes.job(job).reports()
        here = [ours[one.pid] for one in reports if one.host == socket.gethostname() and one.pid in ours]
        return here[int(share * len(here))] if here else None
