"""A chaos run: load, faults by their schedule, drain, verdict."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ops.chaos.chain import SIZES, deploy_chain, open_chain
from ops.chaos.reading import VerifierFault
from ops.chaos.rewinds import Rewinds
from ops.chaos.schedule import FaultKind, Round, Size, schedule
from ops.chaos.stage import Say, Stage
from ops.chaos.targets import Targets
from ops.chaos.traffic import Traffic
from ops.chaos.verdict import Finding, Kind, Report
from stack.errors import ClusterFault, FeedstackError

_QUIET_S = 1.5
_TWO, _BACK = "two at a time", "went back"


@dataclass(frozen=True)
class Plan:
    """What a run is asked to do."""

    seed: int
    records: int
    faults: int
    long: bool = False
    rewinds: int = 0


@dataclass
class Outcome:
    """What a run has come to: faults by kind, rewinds, the gaps that they made, and the verdict."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    rewinds: Counter[str] = field(default_factory=Counter)
    gaps_s: dict[str, list[float]] = field(default_factory=dict)
    scaled: int = 0
    took_s: float = 0.0
    report: Report = field(default_factory=Report)
    logs: Path | None = None

    def as_json(self) -> dict[str, Any]:
        report = self.report
        return {
            "seed": self.seed,
            "exact": report.is_exact,
            "lost": report.count(Kind.LOST),
            "doubled": report.count(Kind.DOUBLED),
            "faults": dict(self.faults),
            "scaled": self.scaled,
            "rewinds": dict(self.rewinds),
            "gaps_s": {kind: {"median": median, "worst": worst} for kind, median, worst in gaps(self.gaps_s)},
            "records": dict(report.records),
            "keys": report.keys,
            "commits": report.commits,
            "findings": [
                {"kind": str(one.kind), "feed": one.feed, "key": one.key, "message": one.message}
                for one in report.findings
            ],
            "checked": list(report.checked),
            "logs": None if self.logs is None else str(self.logs),
            "took_s": round(self.took_s, 1),
        }


def gaps(gaps_s: Mapping[str, list[float]]) -> list[tuple[str, float, float]]:
    """Median and worst gap of each kind, in seconds."""
    return [
        (kind, round(statistics.median(found), 1), round(max(found), 1))
        for kind, found in sorted(gaps_s.items())
    ]


class Subject(Protocol):
    """What a run puts to the test: jobs that are deployed, and their load. To be closed."""

    def start(self) -> None:
        """Begin to write, and wait until the jobs do their work."""

    def outage_s(self, since: float) -> float:
        """Wait until the jobs have recovered, and tell how long that took."""

    def judge(self, records: int, say: Say) -> Report:
        """Write up to so many records, let the jobs come to rest, and say what is wrong."""

    def close(self) -> None:
        """Write no more."""


def run(plan: Plan, say: Say) -> Outcome:
    """Make a run with the chain of counting jobs, on a stack of its own."""

    def deploy(stage: Stage) -> Subject:
        deploy_chain(stage, say)
        return Traffic(stage, plan.seed)

    return run_on(open_chain(say), deploy, SIZES, plan, say)


def run_on(
    stages: contextlib.AbstractContextManager[Stage],
    deploy: Callable[[Stage], Subject],
    sizes: Sequence[Size],
    plan: Plan,
    say: Say,
) -> Outcome:
    """Make a run on a stage, with the jobs that `deploy` puts up there.

    ClusterFault if it cannot be brought to its end.
    """
    begun = time.monotonic()
    outcome = Outcome(plan.seed)
    with stages as stage:
        try:
            with contextlib.closing(deploy(stage)) as subject:
                _Run(stage, subject, outcome, say).carry_out(plan, sizes)
        except (FeedstackError, VerifierFault) as error:
            message = error.message if isinstance(error, FeedstackError) else str(error)
            hint = error.hint if isinstance(error, FeedstackError) else ""
            states = stage.states()
            raise ClusterFault(
                f"seed {plan.seed}: {message} ({states})",
                hint=f"{hint} Logs are kept in {stage.keep_logs()}.".lstrip(),
            ) from error
        if not outcome.report.is_exact:
            outcome.logs = stage.keep_logs()
    outcome.took_s = time.monotonic() - begun
    return outcome


class _Run:
    """One run on its stage."""

    def __init__(self, stage: Stage, subject: Subject, outcome: Outcome, say: Say) -> None:
        self._stage = stage
        self._subject = subject
        self._outcome = outcome
        self._say = say
        self._targets = Targets(stage)
        self._rewinds = Rewinds(stage, say)
        self._outcome.rewinds = self._rewinds.counts

    def carry_out(self, plan: Plan, sizes: Sequence[Size]) -> None:
        """From the first record to the verdict."""
        with contextlib.closing(self._rewinds):
            self._hit(plan, sizes)
        self._outcome.report = self._with_rewinds(self._subject.judge(plan.records, self._say))

    def _hit(self, plan: Plan, sizes: Sequence[Size]) -> None:
        self._subject.start()
        for one in schedule(plan.seed, plan.faults, sizes, plan.long, plan.rewinds):
            if plan.rewinds:
                self._rewinds.name_points()
            self._round(one)

    def _with_rewinds(self, report: Report) -> Report:
        """What was told to be done must have left its checkpoints."""
        missing = self._outcome.rewinds["done"] - report.rewinds
        if missing <= 0:
            return report
        said = f"{missing} more were done than have left checkpoints"
        return replace(report, findings=(*report.findings, Finding(Kind.REWIND, "", "", said, missing)))

    def _round(self, one: Round) -> None:
        time.sleep(_QUIET_S)
        if one.scale is not None:
            job = self._stage.names[one.scale.job]
            self._stage.scale(job, one.scale.containers)
            self._outcome.scaled += 1
            self._say(f"{job} is scaled to {one.scale.containers}")
        begun = time.monotonic()
        hits: list[str] = []
        going = self._rewinds.begin(one.rewind) if one.rewind is not None and one.rewind.is_first else None
        for fault in one.faults:
            if hits or one.scale is not None or going is not None:
                time.sleep(fault.after_s)
            begun = begun if hits or going is not None else time.monotonic()
            hits.append(f"{fault.kind} ({self._targets.hit(fault)})")
            self._outcome.faults[fault.kind] += 1
        if one.rewind is not None:
            hits.append((going or self._rewinds.begin(one.rewind)).wait())
        gap_s = self._subject.outage_s(begun)
        kind = str(one.faults[0].kind) if len(one.faults) == 1 else _TWO
        kind = kind if one.rewind is None else _BACK
        self._outcome.gaps_s.setdefault(kind, []).append(gap_s)
        self._say(f"{', '.join(hits)}: recovered after {gap_s:.1f} s")


def fault_rows(outcome: Outcome) -> list[tuple[str, int | None, float | None, float | None]]:
    """A row of the answer for each kind of fault: how often, and the gaps that it made."""
    made = {kind: (median, worst) for kind, median, worst in gaps(outcome.gaps_s)}
    rows: list[tuple[str, int | None, float | None, float | None]] = [
        (kind, outcome.faults[kind], *made.get(kind, (None, None))) for kind in FaultKind
    ]
    rows += [(kind, len(outcome.gaps_s[kind]), *made[kind]) for kind in (_TWO, _BACK) if kind in made]
    return rows
