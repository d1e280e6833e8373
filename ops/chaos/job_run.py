"""A chaos run with a job of the user's: synthetic load, faults, and what must hold at the end."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ops.chaos import calm, invariant
from ops.chaos.candidate import Candidate
from ops.chaos.progress import Progress
from ops.chaos.remains import LeftJob, Remains, examine
from ops.chaos.run import Outcome, Plan, Subject, run_on
from ops.chaos.stage import Say, Stage, stage_on
from ops.chaos.synthetic import Loads
from ops.chaos.verdict import Finding, Report
from ops.cluster.temporary import temporary_stack
from stack.settings import Settings

# A job catches up within this, or the run has failed; the longest a fault may take is part of it.
_RECOVER_S = 120.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class JobPlan:
    """What is asked of a run besides faults: how it is fed, and what it is compared with."""

    keys: int
    rate: float
    against_calm: bool = False


def run_job(
    candidate: Candidate,
    stages: contextlib.AbstractContextManager[Stage],
    plan: Plan,
    job_plan: JobPlan,
    say: Say,
) -> Outcome:
    """Make a run on a stage that has the feeds; ClusterFault if it cannot be brought to its end."""

    def deploy(stage: Stage) -> Subject:
        for one in candidate.jobs:
            stage.deploy(one.folder, say)
        return _JobTraffic(stage, candidate, job_plan, plan.seed)

    sizes = [one.size for one in candidate.jobs]
    return run_on(stages, deploy, sizes, plan, say)


@contextlib.contextmanager
def open_stage(candidate: Candidate, settings: Settings, say: Say) -> Iterator[Stage]:
    """A temporary stack with the user's feeds. Of the user's settings it has those of Java and Spark."""
    lines = ""
    if settings.embedded.java:
        lines += f"[embedded]\njava = {json.dumps(settings.embedded.java)}\n"
    if settings.spark_conf:
        pairs = (f"{json.dumps(key)} = {json.dumps(value)}" for key, value in settings.spark_conf.items())
        lines += "\n".join(["[spark.conf]", *pairs, ""])
    with (
        temporary_stack("chaos", say, lines, schemas=candidate.schemas) as own,
        stage_on(own, candidate.names) as stage,
    ):
        yield stage


class _JobTraffic:
    """Load and checks of one run."""

    def __init__(self, stage: Stage, candidate: Candidate, plan: JobPlan, seed: int) -> None:
        self._stage = stage
        self._candidate = candidate
        self._plan = plan
        self._loads = Loads(stage.stack, candidate.sources, keys=plan.keys, rate=plan.rate, seed=seed)
        self._progress = Progress(stage, candidate.jobs, _RECOVER_S)

    def start(self) -> None:
        """Begin to write, and wait until the jobs have handled something."""
        self._loads.start()
        self._await_written(1)
        self._progress.await_handled()

    def outage_s(self, since: float) -> float:
        """Wait until everything that is written by now is committed, and tell how long that took."""
        self._progress.await_handled()
        return time.monotonic() - since

    def judge(self, records: int, say: Say) -> Report:
        """Write up to so many records, let the jobs come to rest, and look at what they have left."""
        self._await_written(records)
        self._loads.stop()
        acknowledged = self._loads.acknowledged
        count = sum(one.total() for one in acknowledged.values())
        say(f"the load has ended after {count:,} records; draining")
        self._stage.drain_all()
        self.close()
        say("checking")
        report = examine(self._remains(), acknowledged)
        return self._with_more(report, say)

    def _with_more(self, report: Report, say: Say) -> Report:
        """The report with what the user's invariant and a calm run have to say."""
        candidate, job = self._candidate, self._candidate.job
        findings: list[Finding] = list(report.findings)
        checked = [*report.checked]
        if candidate.check is not None:
            findings += invariant.check(
                self._stage.stack, candidate.check, job.folder, outputs=job.outputs, inputs=list(job.inputs)
            )
            checked.append(f"invariant: {_short(candidate.check)}")
        if self._plan.against_calm:
            findings += calm.differences(self._stage, candidate, say)
            checked.append(calm.CHECKED)
        return replace(report, findings=tuple(findings), checked=tuple(checked))

    def _remains(self) -> Remains:
        stage = self._stage
        jobs = tuple(
            LeftJob(one.name, one.inputs, one.outputs, one.declared.store_names, one.tasks)
            for one in self._candidate.jobs
        )
        state = stage.settings.data / "state"
        kafka = stage.stack.endpoints.kafka
        return Remains(kafka, stage.settings.name, jobs, state, stage.settings.topic_prefix)

    def _await_written(self, records: int) -> None:
        while self._loads.written < records:
            self._loads.refuse_failed()
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Write and follow no longer."""
        self._loads.close()
        self._progress.close()


def _short(file: Path) -> Path:
    """A path as a person in this folder would write it."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file
