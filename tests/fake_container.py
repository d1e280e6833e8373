"""Containers for tests of the runner: they keep all rules of a fleet, but have no work to do.

The version of the job tells how one behaves: `bad…` fails, `mute…` never commits, `deaf…` does not stop.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from typing import Any

from stack.engine.ownership import is_current, may_open, release_generation
from stack.errors import LostOwnership
from stack.kafka.config import kafka_access
from stack.kafka.writer import LogWriter
from stack.model.job import transactional_id
from stack.model.plan import (
    ContainerReport,
    Ending,
    Plan,
    Reason,
    TaskId,
    TaskReport,
    TaskState,
)
from stack.runtime.containers import OnEnd
from stack.runtime.host import IDENTITY_VARIABLE, kill_container
from stack.runtime.launch import Launch
from stack.zookeeper.fleet import FleetNodes, FleetSession


def run_fake(launch: Launch) -> Ending:
    """One container, from its launch to its ending."""
    stack, job = launch.settings.name, launch.spec.name
    access = kafka_access(launch.settings, launch.endpoints)
    gone = threading.Event()
    try:
        with (
            LogWriter(access, transactional_id(stack, job, launch.slot)) as writer,
            FleetSession(launch.endpoints.zookeeper).start() as session,
        ):
            writer.init_transactions()
            fleet = FleetNodes(session, stack)
            fleet.watch_runner(launch.runner, gone.set)
            return _Fake(launch, fleet).run(gone)
    except LostOwnership as error:
        return Ending(Reason.FENCED, error.message)


class _Fake:
    def __init__(self, launch: Launch, fleet: FleetNodes) -> None:
        self.launch = launch
        self.nodes = fleet.job(launch.spec.name)
        self.opened: set[TaskId] = set()
        self.report = ContainerReport(
            launch.slot,
            launch.attempt,
            0,
            launch.spec.version,
            launch.runner,
            socket.gethostname(),
            os.getpid(),
        )

    def run(self, gone: threading.Event) -> Ending:
        self.nodes.register(self.report)
        while not gone.is_set():
            plan = self.nodes.plan(fresh=True)
            if plan is not None:
                ending = self.obey(plan)
                if ending is not None:
                    return ending
            time.sleep(0.05)
        return Ending(Reason.ORPHANED, "the runner is gone")

    def obey(self, plan: Plan) -> Ending | None:
        launch, version = self.launch, self.launch.spec.version
        current = is_current(plan, launch.slot, launch.attempt)
        if current is False:
            return Ending(Reason.FENCED, "another attempt is planned")
        if version.startswith("bad"):
            return Ending(Reason.FAILED, "it is bad", "Mend it.", retry=False)
        mine = plan.slots[launch.slot].tasks if current else ()
        if version.startswith("deaf"):
            mine = tuple(self.opened) or mine
        for task in sorted(self.opened - set(mine)):
            self.nodes.release(task, release_generation(plan, task))
            self.opened.discard(task)
        if not current and not version.startswith("deaf"):
            return Ending(Reason.STOPPED)
        released = self.nodes.released()
        self.opened.update(task for task in mine if may_open(plan, launch.slot, task, released))
        self.tell(plan.generation)
        if plan.drain and self.opened == set(mine):
            for task in sorted(self.opened):
                self.nodes.release(task, release_generation(plan, task))
            return Ending(Reason.DRAINED)
        return None

    def tell(self, generation: int) -> None:
        mute = self.launch.spec.version.startswith("mute")
        report = replace(
            self.report,
            generation=generation,
            commits=0 if mute else int(bool(self.opened)),
            tasks={task: TaskReport(TaskState.RUNNING, 1) for task in self.opened},
        )
        if report != self.report:
            self.nodes.update_report(report)
            self.report = report


def _main(launch: Launch, identity: str, end: Any) -> None:
    os.environ[IDENTITY_VARIABLE] = identity
    end.send(run_fake(launch))


class ProcessContainers:
    """Containers as processes of this machine, without Spark. `slots` bounds how many run at once."""

    def __init__(self, slots: int = 99) -> None:
        self.identity = f"test-{os.getpid()}-{time.time_ns()}"
        os.environ[IDENTITY_VARIABLE] = self.identity
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.fake_container"])
        self._slots = threading.Semaphore(slots)
        self.broken: str | None = None
        self.warm_at: float | None = time.monotonic()
        self.processes: dict[tuple[str, int, int], BaseProcess] = {}

    def launch(self, launch: Launch, on_end: OnEnd) -> None:
        threading.Thread(target=self._run, args=(launch, on_end), daemon=True).start()

    def _run(self, launch: Launch, on_end: OnEnd) -> None:
        with self._slots:
            ours, theirs = self._context.Pipe(duplex=False)
            process = self._context.Process(target=_main, args=(launch, self.identity, theirs), daemon=True)
            process.start()
            theirs.close()
            self.processes[launch.spec.name, launch.slot, launch.attempt] = process
            try:
                ending = ours.recv()
            except EOFError:
                ending = Ending(Reason.LOST, "its process was killed")
            process.join()
        on_end(ending)

    def cancel(self, launch: Launch, report: ContainerReport | None) -> None:
        if report is not None:
            kill_container(report.host, report.pid, self.identity)
        process = self.processes.get((launch.spec.name, launch.slot, launch.attempt))
        if process is not None:
            process.kill()

    def fault(self) -> str | None:
        return self.broken

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
