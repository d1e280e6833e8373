"""Our own engine as a system under test: a job folder, deployed and driven with `stack jobs` as by anyone."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from ops.bench.tasks_stage import Stage, remove_folder, tree_cpu_s
from ops.bench.tasks_systems import Task
from ops.cluster import processes
from stack.deploy.logs import JobLogs
from stack.errors import ClusterFault

_RUNNER = "runner"
# The word on the command line of every Python process that Spark forks.
_WORKER = "pyspark.worker"
_COMMAND_LIMIT_S = 180.0
_LOG_LINES = 1_000
_RESTORED = re.compile(r"restored (\d+) records in ([0-9.]+) s")

BY_RECORD = '''"""Counts page views per user, a record at a time."""

from stack import Feed, Job

views, counts = Feed("{source}"), Feed("{output}")
job = Job("{name}")


@job.task(views, store="counts")
def count(view, ctx):
    user = view["user"]
    number = ctx.state.get(user, 0) + 1
    ctx.state[user] = number
    ctx.emit(counts, {{"user": user, "count": number}}, key=user)
'''
BY_BATCH = '''"""Counts page views per user, a batch at a time; every record has its output all the same."""

import numpy as np
import pyarrow as pa

from stack import Feed, Job

views, counts = Feed("{source}"), Feed("{output}")
job = Job("{name}")


@job.task(views, store="counts", batch=True)
def count(batch, ctx):
    users = batch.column("user").dictionary_encode()
    index, names = users.indices.to_numpy(), users.dictionary
    before = np.array(ctx.state.get_many(names, 0))
    # The place of each view among those of its user in this batch.
    order = np.argsort(index, kind="stable")
    totals = np.bincount(index)
    place = np.empty(len(index), np.int64)
    place[order] = np.arange(len(index)) - np.repeat(np.cumsum(totals) - totals, totals)
    ctx.state.set_many(names, before + totals)
    columns = [batch.column("user"), pa.array(before[index] + place + 1)]
    ctx.emit_batch(counts, pa.RecordBatch.from_arrays(columns, names=["user", "count"]))
'''
_SETTINGS = """containers = {workers}
guarantee = "{guarantee}"
metrics = {metrics}
{commits}
[stores.counts]
key = "str"
value = "int"
"""


class Ours:
    """The task engine of the stack that the benchmark runs on."""

    def __init__(self, name: str, stage: Stage, code: str, metrics: bool = True) -> None:
        self.name = name
        self._stage = stage
        self._code = code
        self._metrics = metrics
        self._deployed: set[str] = set()

    def make_output(self, task: Task) -> str:
        self._stage.add_derived(_output(task), by=task.name, source=task.source)
        return self._stage.stack.topic_of(_output(task))

    def start(self, task: Task) -> OwnJob:
        if task.name in self._deployed:
            return OwnJob(self._stage, task, ["resume", task.name])
        self._deployed.add(task.name)
        return OwnJob(self._stage, task, ["deploy", str(self._write_job(task))])

    def forget_state(self, task: Task) -> None:
        remove_folder(self.state_folder(task))

    def state_folder(self, task: Task) -> Path:
        """Where the containers of a task keep their state."""
        return self._stage.settings.data / "state" / task.name

    def remove(self, task: Task) -> None:
        _Command(self._stage, ["remove", task.name, "--state", "--yes"]).wait()
        self.forget_state(task)
        self._stage.remove_feed(_output(task))
        self._stage.remove_topics(task.name)

    def _write_job(self, task: Task) -> Path:
        folder = self._stage.scratch / task.name
        folder.mkdir()
        code = self._code.format(name=task.name, source=task.source, output=_output(task))
        (folder / "job.py").write_text(code, encoding="utf-8")
        # In the latency run the engine chooses when to commit, as it does by default.
        commits = "" if task.latency else f"commit_max_ms = {task.commit_ms}\n"
        settings = _SETTINGS.format(
            workers=task.workers,
            guarantee=task.guarantee,
            metrics=str(self._metrics).lower(),
            commits=commits,
        )
        (folder / "job.toml").write_text(settings, encoding="utf-8")
        return folder


def _output(task: Task) -> str:
    return f"{task.name}-out"


class _Command:
    """A command of `stack jobs` at work."""

    def __init__(self, stage: Stage, words: Sequence[str]) -> None:
        self._words = list(words)
        self.begun_s = time.time()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ops", "--config", str(stage.settings.file), "jobs", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.created_s = float(psutil.Process(self._process.pid).create_time())

    def has_failed(self) -> bool:
        return self._process.poll() not in (None, 0)

    def wait(self) -> None:
        """Wait for its end; ClusterFault with what it said if it failed."""
        said, _ = self._process.communicate(timeout=_COMMAND_LIMIT_S)
        if self._process.returncode != 0:
            raise ClusterFault(f"`stack jobs {' '.join(self._words)}` failed: {said.strip()}")


class OwnJob:
    """A job that the stack runs for us. What starts it is not waited for: outputs may come before it ends."""

    def __init__(self, stage: Stage, task: Task, words: Sequence[str]) -> None:
        self._stage = stage
        self._task = task
        self._cpu_before_s = self._runner_cpu_s()
        self._command = _Command(stage, words)
        self._stopped = False

    def started_s(self) -> float:
        """When the first container began. A process's age is known on another clock than ours, which may be
        off by a second; the command that we started tells how much."""
        ages = [self._command.created_s, *self._containers_s()]
        found = min((age for age in ages[1:] if age >= ages[0]), default=ages[0])
        return self._command.begun_s + found - ages[0]

    def _containers_s(self) -> list[float]:
        """When the Python processes below the runner began."""
        found: list[float] = []
        runner = self._runner()
        if runner is not None:
            for child in runner.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if _WORKER in child.cmdline():
                        found.append(float(child.create_time()))
        return found

    def is_alive(self) -> bool:
        return not self._command.has_failed()

    def cpu_s(self) -> float:
        return self._runner_cpu_s() - self._cpu_before_s

    def _runner_cpu_s(self) -> float:
        runner = self._runner()
        return tree_cpu_s(runner.pid) if runner else 0.0

    def _runner(self) -> psutil.Process | None:
        return processes.find(self._stage.settings.data).get(_RUNNER)

    def restoring_s(self) -> float | None:
        """From the first begin to the last end of what the containers say they have restored."""
        spans = self._restored()
        return max(end for _, end in spans) - min(begin for begin, _ in spans) if spans else None

    def restored_from_to(self) -> tuple[float, float]:
        """When its longest restore began and ended."""
        return max(self._restored(), key=lambda span: span[1] - span[0])

    def _restored(self) -> list[tuple[float, float]]:
        lines, _ = JobLogs(self._stage.stack, self._task.name).last(_LOG_LINES)
        spans = []
        for line in lines:
            told = _RESTORED.search(line.text)
            if told and line.time_ms / 1000 >= self._command.begun_s:
                spans.append((line.time_ms / 1000 - float(told[2]), line.time_ms / 1000))
        return spans

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._command.wait()
        _Command(self._stage, ["pause", self._task.name]).wait()
