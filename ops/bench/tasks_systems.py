"""The systems under test: each counts views per user, in processes of its own, watched from outside."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ops.bench.peers.peers import kafka_streams_command, quix_command
from ops.bench.tasks_stage import COUNTS, PARTITIONS, Stage, remove_folder, tree_cpu_s
from stack.kafka.admin import TopicPlan

EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"
_STOP_LIMIT_S = 40.0


@dataclass(frozen=True)
class Task:
    """One counting job to be run: what it reads, and how. Its name is its own in the whole run."""

    name: str
    source: str
    guarantee: str
    commit_ms: int
    workers: int = 1
    latency: bool = False


_numbers = itertools.count(1)


def task_name(work: str, system: System) -> str:
    """A name that no other task of this run has."""
    return f"{work}-{system.name}-{next(_numbers)}"


class Running(Protocol):
    """A job at work."""

    def started_s(self) -> float:
        """When its process began, on this machine's clock."""

    def is_alive(self) -> bool: ...

    def cpu_s(self) -> float:
        """CPU seconds that it has used so far."""

    def restoring_s(self) -> float | None:
        """How long it has restored its state since it was started, if it says so."""

    def stop(self) -> None: ...


class System(Protocol):
    """Something that can run the counting job."""

    name: str

    def make_output(self, task: Task) -> str:
        """Make the topic that the task will write to; its records carry the broker's time."""

    def start(self, task: Task) -> Running:
        """Start the job, or start it again after `stop`."""

    def forget_state(self, task: Task) -> None:
        """Empty the folder with the state of a stopped job."""

    def remove(self, task: Task) -> None:
        """Remove what the job left behind."""


class Peer:
    """A peer: one process with a command line that all peers understand."""

    def __init__(self, name: str, command: Sequence[str], stage: Stage) -> None:
        self.name = name
        self._command = list(command)
        self._stage = stage

    def make_output(self, task: Task) -> str:
        topic = _output(task)
        settings = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
        self._stage.stack.admin.create([TopicPlan(topic, PARTITIONS, settings)])
        return topic

    def start(self, task: Task) -> Running:
        stack = self._stage.stack
        out = stack.schema(COUNTS)
        options = {
            "bootstrap": stack.access.bootstrap,
            "in": stack.topic_of(task.source),
            "out": _output(task),
            "app": task.name,
            "state": str(self._state(task)),
            "guarantee": task.guarantee,
            "commit-ms": str(task.commit_ms),
            "workers": str(task.workers),
            "latency": "yes" if task.latency else "no",
            "in-schema": stack.schema(task.source).text,
            "out-schema": out.text,
            "out-schema-id": str(out.id),
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._state(task).mkdir(parents=True, exist_ok=True)
        return _Process([*self._command, *words], self._stage.scratch / f"{task.name}.log")

    def forget_state(self, task: Task) -> None:
        remove_folder(self._state(task))

    def remove(self, task: Task) -> None:
        self.forget_state(task)
        self._stage.remove_topics(task.name)

    def _state(self, task: Task) -> Path:
        return self._stage.scratch / f"{task.name}-state"


def _output(task: Task) -> str:
    return f"{task.name}-out"


def kafka_streams(stage: Stage) -> System:
    return Peer("kafka-streams", kafka_streams_command(stage.say, stage.settings.embedded.java), stage)


def quix(stage: Stage) -> System:
    return Peer("quix", quix_command(stage.say), stage)


class _Process:
    """A process of its own session, with all its children."""

    def __init__(self, command: Sequence[str], log: Path, clock: Callable[[], float] = time.time) -> None:
        self._log = log
        self._from = log.stat().st_size if log.exists() else 0
        self._started_s = clock()
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )

    def started_s(self) -> float:
        return self._started_s

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def cpu_s(self) -> float:
        return tree_cpu_s(self._process.pid)

    def restoring_s(self) -> float | None:
        begun_ms, ended_ms = self._times_ms("RESTORING"), self._times_ms("RESTORED")
        return (max(ended_ms) - min(begun_ms)) / 1000 if begun_ms and ended_ms else None

    def _times_ms(self, tag: str) -> list[float]:
        """The last word of every printed line that begins with `tag`."""
        with self._log.open("rb") as file:
            file.seek(self._from)
            lines = file.read().decode(errors="replace").splitlines()
        return [float(line.split()[-1]) for line in lines if line.startswith(f"{tag} ")]

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
