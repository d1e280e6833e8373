"""Lets jobs go back while they are hit: by the command, a process of its own that may be killed, too."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ops.chaos.schedule import Rewind, Way
from ops.chaos.stage import Say, Stage, patiently
from stack.deploy.aligning import stand_of
from stack.errors import ClusterFault
from stack.machine import time_ms
from stack.model.startpoint import format_time
from stack.offsets.index import CheckpointIndex
from stack.offsets.naming import name_point

_LIMIT_S, _PATIENCE_S = 180.0, 60.0
_AGAIN_S = 0.5
_STILL_S = 5.0
_NEWEST = 4_000
_NAMES = 4
# What the command says of points that it does not go back to. Another one is tried then.
_REFUSED = ("BadInput", "NotFound")


class Rewinds:
    """The rewinds of one run, and how they went: done, killed on their way, refused. To be closed."""

    def __init__(self, stage: Stage, say: Say, clock_ms: Callable[[], int] = time_ms) -> None:
        self._stage = stage
        self._say = say
        self._clock_ms = clock_ms
        self._began_ms = clock_ms()
        self._names: list[str] = []
        self._last: Going | None = None
        self.counts: Counter[str] = Counter(done=0, killed=0, refused=0)

    def name_points(self) -> None:
        """Give the points where all jobs stand now a name."""
        name = f"round-{len(self._names) + 1}"
        for job in self._stage.names:
            patiently(partial(self._name_point, job, name))
        self._names.append(name)

    def _name_point(self, job: str, name: str) -> None:
        spec = self._stage.jobs.get(job).spec
        stack = self._stage.stack
        with self._stage.nodes() as nodes:
            # Under faults not all may come to stand still: then it is a point of commits as any other.
            stand = stand_of(stack, nodes.job(job), spec, _STILL_S)
        name_point(stack, spec, stand, name, {}, by="chaos")

    def begin(self, one: Rewind) -> Going:
        """Begin to go back."""
        job = self._stage.names[one.job]
        self._last = Going(
            self._command(job), lambda attempt: self._point(job, one, attempt), one, self.counts, self._say
        )
        return self._last

    def _command(self, job: str) -> list[str]:
        """As a person would type it, but for the point."""
        file = str(self._stage.settings.file)
        words = ["rewind", job, "--reason", "chaos", "--yes", "--json", "--to"]
        return [sys.executable, "-m", "ops", "--config", file, *words]

    def _point(self, job: str, one: Rewind, attempt: int) -> str:
        """What is typed after --to; a later attempt chooses another one."""
        age_s = (self._clock_ms() - self._began_ms) / 1000
        since_ms = self._clock_ms() - int(1000 * min(one.back_s, 0.8 * age_s) / (attempt + 1))
        if one.way is Way.NAME and attempt < _NAMES and self._names:
            names = self._names[-_NAMES:]
            return f"@{names[(int(one.share * len(names)) + attempt) % len(names)]}"
        commits = patiently(lambda: self._commits(job, since_ms)) if one.way is Way.COMMIT else []
        return commits[int(one.share * len(commits))] if commits else format_time(since_ms)

    def _commits(self, job: str, since_ms: int) -> list[str]:
        with CheckpointIndex(self._stage.stack) as index:
            index.refresh()
            rows = index.newest(job, _NEWEST)
            return [f"{row.task}#{row.number}" for row in rows if row.time_ms >= since_ms]

    def close(self) -> None:
        """Go no further."""
        if self._last is not None:
            self._last.stop()


class Going:
    """One rewind, repeated until it is done, in a thread of its own: faults come meanwhile."""

    def __init__(
        self,
        command: list[str],
        point: Callable[[int], str],
        one: Rewind,
        counts: Counter[str],
        say: Say,
    ) -> None:
        self._command = command
        self._point = point
        self._one = one
        self._counts = counts
        self._say = say
        self._kill = one.killed_at
        self._process: subprocess.Popen[str] | None = None
        self._is_stopped = False
        self._failure: str | None = None
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="rewind", daemon=True)
        self._thread.start()

    def wait(self) -> str:
        """Until it is done: what it did, for people. ClusterFault if it does not come to its end."""
        self._thread.join(_LIMIT_S + _PATIENCE_S)
        if self._thread.is_alive() or self._failure is not None:
            raise ClusterFault(f"a rewind does not come to its end: {self._failure or 'it goes on'}")
        return self._said

    def stop(self) -> None:
        """Do not go on."""
        self._is_stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        try:
            self._go(time.monotonic() + _LIMIT_S)
        # Whoever waits for it must hear of it.
        except Exception as error:
            self._failure = str(error) or type(error).__name__

    def _go(self, deadline: float) -> None:
        refusals, killed = 0, ""
        point = self._point(refusals)
        while True:
            code, kind, text = self._once(point)
            if code == 0:
                break
            if time.monotonic() > deadline or self._is_stopped:
                raise ClusterFault(f"to {point}: {text}")
            if code < 0:
                killed = f", killed while it was {self._one.killed_at}"
                self._counts["killed"] += 1
            elif kind in _REFUSED:
                self._say(f"refused: {text}")
                refusals += 1
                self._counts["refused"] += 1
                point = self._point(refusals)
            else:
                time.sleep(_AGAIN_S)
        self._counts["done"] += 1
        self._said = f"went back to {point}{killed}"

    def _once(self, point: str) -> tuple[int, str, str]:
        """Run the command to its end, or kill it; its exit code, and what it told of an error."""
        folder = Path(__file__).resolve().parents[2]
        last = ""
        with subprocess.Popen(
            [*self._command, point], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder
        ) as process:
            self._process = process
            for line in process.stderr or ():
                last = line.strip() or last
                if self._kill is not None and line.strip().startswith(self._kill):
                    time.sleep(self._one.killed_after_s)
                    if process.poll() is None:
                        process.kill()
                        self._kill = None
        try:
            told = json.loads(last)
            return process.returncode, str(told["kind"]), str(told["error"])
        except (ValueError, KeyError, TypeError):
            return process.returncode, "", last
