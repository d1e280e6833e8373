"""Plays the runner by hand: writes plans and starts containers as processes of their own, without Spark."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from stack import Stack
from stack.deploy.deploy import deploy
from stack.model.fleet import RunnerPlace
from stack.model.job import JobSpec
from stack.model.plan import Ending, Plan, SlotPlan, TaskId, job_tasks
from stack.runtime.launch import Launch
from stack.zookeeper.fleet import FleetNodes, FleetSession, JobNodes
from stack.zookeeper.lead import JobLead


def run_and_tell(launch: Launch, ends: Any) -> None:
    """What the process of a container does."""
    from stack.runtime.container import run_container

    ends.put((launch.slot, launch.attempt, run_container(launch)))


class HandFleet:
    """One job whose plan a test writes. Containers are processes that it can kill."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self.spec: JobSpec = deploy(stack, folder).entry.spec
        self.session = FleetSession(stack.endpoints.zookeeper).start()
        fleet = FleetNodes(self.session, stack.settings.name)
        self.place = RunnerPlace(
            f"hand-{os.getpid()}-{time.time_ns()}", socket.gethostname(), os.getpid(), 0.0
        )
        fleet.register_runner(self.place)
        self.nodes: JobNodes = fleet.job(self.spec.name)
        self.lead = JobLead(self.nodes, self.place)
        assert self.lead.claim()
        # What the containers that are started from now on run; a test may plant a fault.
        self.main: Callable[[Launch, Any], None] = run_and_tell
        self.generation = 0
        self.attempts: dict[int, int] = {}
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["stack.runtime.container", "tests.fleets"])
        self._ends = self._context.SimpleQueue()
        self.processes: dict[int, BaseProcess] = {}
        self.tasks: dict[int, tuple[TaskId, ...]] = {}
        self.since: dict[TaskId, int] = {}
        self.endings: dict[tuple[int, int], Ending] = {}

    def plan(self, tasks: dict[int, tuple[TaskId, ...]] | int, drain: int = 0, release: bool = True) -> None:
        """Write a plan: tasks per slot, or a number of slots that share them all."""
        self.generation += 1
        if isinstance(tasks, int):
            every = job_tasks(self.spec)
            tasks = {slot: every[slot::tasks] for slot in range(tasks)}
        owners = {task: slot for slot, mine in self.tasks.items() for task in mine}
        fresh = [task for slot, mine in tasks.items() for task in mine if owners.get(task) != slot]
        new = [task for task in fresh if task not in owners]
        self.since.update(dict.fromkeys(fresh, self.generation))
        self.tasks = dict(tasks)
        if release:
            self.lead.mark_released(dict.fromkeys(new, self.generation))
        for slot in tasks:
            self.attempts.setdefault(slot, 1)
        self._write(drain)

    def _write(self, drain: int = 0) -> None:
        slots = {slot: SlotPlan(self.attempts[slot], mine) for slot, mine in self.tasks.items()}
        self.lead.write_plan(Plan(self.generation, self.spec.version, slots, self.since, drain))

    def start(self, slot: int = 0, data: Path | None = None) -> BaseProcess:
        """Start the container of a slot; a later start is a new attempt. `data`: as if on another machine."""
        if slot in self.processes:
            self.attempts[slot] += 1
            self._write()
        settings = self.stack.settings if data is None else replace(self.stack.settings, data=data)
        launch = Launch(settings, self.stack.endpoints, self.spec, slot, self.attempts[slot], self.place.id)
        process = self._context.Process(target=self.main, args=(launch, self._ends), daemon=True)
        process.start()
        self.processes[slot] = process
        return process

    def kill(self, slot: int = 0) -> None:
        """kill -9."""
        process = self.processes[slot]
        process.kill()
        process.join(10)

    def ending(self, slot: int = 0, limit_s: float = 30.0) -> Ending:
        """How the last attempt of a slot ended."""
        process = self.processes[slot]
        process.join(limit_s)
        assert not process.is_alive(), f"container {slot} has not ended after {limit_s} s"
        while not self._ends.empty():
            found, attempt, ending = self._ends.get()
            self.endings[found, attempt] = ending
        return self.endings[slot, self.attempts[slot]]

    def redeploy(self, folder: Path) -> None:
        """Take a new version of the code."""
        self.spec = deploy(self.stack, folder).entry.spec

    def with_settings(self, **changes: Any) -> None:
        """Change settings of the job for the containers that are started from now on."""
        self.spec = replace(self.spec, settings=replace(self.spec.settings, **changes))

    def close(self) -> None:
        """Stop everything."""
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
                process.join(10)
        self.session.close()

    def __enter__(self) -> HandFleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
