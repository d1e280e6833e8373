"""When a wait is over, and how: values in, verdicts out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stack.deploy.watch import (
    Verdict,
    View,
    judge_gone,
    judge_running,
    judge_scaled,
    judge_stopped,
    too_late,
    wait,
)
from stack.errors import BadInput, LostOwnership, Unavailable
from stack.model.fleet import JobState, JobStatus
from stack.model.job import Desired, JobEntry
from stack.model.plan import ContainerReport, TaskReport, TaskState, tasks_of
from tests.unit.test_deploy_checks import SPEC

NEW = JobEntry(SPEC, try_number=1)
RUNNING = JobStatus(JobState.RUNNING, version="one", slots_wanted=1, slots_ready=1, try_number=1)


def report(
    state: TaskState = TaskState.RUNNING, version: str = "one", tasks: int = 4, note: str = ""
) -> ContainerReport:
    return ContainerReport(
        0, 1, 1, version, "r", "h", 1, tasks={task: TaskReport(state, note=note) for task in tasks_of(tasks)}
    )


def said(state: JobState, message: str = "", wanted: int = 0, ready: int = 0) -> JobStatus:
    """What the runner says of the first try."""
    return JobStatus(state, message, version="one", slots_wanted=wanted, slots_ready=ready, try_number=1)


running = judge_running(SPEC)


def test_a_job_runs_when_all_its_tasks_do_and_it_has_committed() -> None:
    view = View(NEW, RUNNING, (report(),), 1)
    assert running(view) == Verdict("all tasks run; waiting for the first commit", 4, 4)
    done = running(replace(view, entry=replace(NEW, confirmed=True)))
    assert (done.done, done.ready, done.wanted) == (True, 4, 4)


@pytest.mark.parametrize(
    ("view", "says"),
    [
        (View(NEW), "no runner is there to take it"),
        (View(NEW, RUNNING), "no runner is there to take it"),
        (View(NEW, runners=1), "waiting for its runner"),
        (View(NEW, said(JobState.STARTING), runners=1), "starting"),
        (
            View(NEW, said(JobState.WAITING, wanted=3, ready=1), runners=1),
            "waiting for 2 slots",
        ),
        (
            View(NEW, said(JobState.WAITING, "waiting for 9 slots"), runners=1),
            "waiting for 9 slots",
        ),
        (View(NEW, replace(RUNNING, version="zero"), runners=1), "version zero is being stopped"),
        (View(NEW, RUNNING, (report(version="zero"),), 1), "0 of 4 tasks run"),
        (
            View(NEW, RUNNING, (report(TaskState.RESTORING, note="40 %"),), 1),
            "0 of 4 tasks run (main-0 restoring: 40 %, main-1 restoring: 40 % and 2 more)",
        ),
        (View(NEW, replace(RUNNING, slots_wanted=2), (report(),), 1), "4 of 4 tasks run"),
    ],
)
def test_what_a_wait_waits_for_is_said(view: View, says: str) -> None:
    verdict = running(view)
    assert verdict.line == says
    assert not verdict.done
    assert verdict.error is None


def test_a_version_that_was_taken_back_is_an_error_with_the_reason() -> None:
    old = JobEntry(replace(SPEC, version="zero"), confirmed=True, rolled_back="version one made no commit")
    error = running(View(old, RUNNING, (), 1)).error
    assert isinstance(error, BadInput)
    assert "version one made no commit" in error.message
    assert "Version zero runs on" in error.hint


def test_a_failed_job_is_an_error_with_the_place() -> None:
    failed = replace(said(JobState.FAILED, "boom"), hint="mend it", place="views p1@7")
    error = running(View(NEW, failed, (), 1)).error
    assert isinstance(error, BadInput)
    assert (error.message, error.hint) == ("job 'count' fails: boom (views p1@7)", "mend it")


def test_what_was_said_of_an_earlier_try_is_no_answer() -> None:
    view = View(replace(NEW, try_number=2), said(JobState.FAILED, "boom"), (), 1)
    assert running(view) == Verdict("waiting for its runner", 0, 4)
    assert running(replace(view, entry=NEW)).error is not None


@pytest.mark.parametrize(
    "entry",
    [None, replace(NEW, desired=Desired.PAUSED), JobEntry(replace(SPEC, version="two"))],
)
def test_somebody_elses_change_ends_the_wait(entry: JobEntry | None) -> None:
    assert isinstance(running(View(entry, RUNNING, (), 1)).error, LostOwnership)


def test_a_job_is_stopped_when_its_containers_are_gone_and_its_runner_says_so() -> None:
    judge = judge_stopped(SPEC, Desired.PAUSED)
    entry = replace(NEW, desired=Desired.PAUSED)
    paused = said(JobState.PAUSED)
    assert judge(View(entry, RUNNING, (report(),), 1)).line == "1 container is still there"
    assert judge(View(entry, RUNNING, (), 1)).line == "waiting for its runner"
    assert not judge(View(entry, paused, (report(),), 1)).done
    assert judge(View(entry, paused, (), 1)).done
    assert judge(View(entry, RUNNING, (), 0)).done
    assert isinstance(judge(View(NEW, paused, (), 1)).error, LostOwnership)
    assert isinstance(judge(View(entry, said(JobState.FAILED, "x"), (), 1)).error, BadInput)


def test_a_drain_needs_a_runner_and_a_fresh_answer() -> None:
    drained = said(JobState.DRAINED)
    judge = judge_stopped(SPEC, Desired.DRAINED)
    entry = replace(NEW, desired=Desired.DRAINED, try_number=2)
    assert not judge(View(entry, RUNNING, (), 0)).done
    assert not judge(View(entry, drained, (), 1)).done
    assert judge(View(entry, replace(drained, try_number=2), (), 1)).done


def test_a_job_is_scaled_when_it_has_so_many_containers() -> None:
    spec = replace(SPEC, settings=replace(SPEC.settings, containers=2))
    judge, entry = judge_scaled(spec), JobEntry(spec, confirmed=True)
    half = (report(tasks=2), replace(report(tasks=4), slot=1, tasks=dict(list(report().tasks.items())[2:])))
    two = replace(RUNNING, slots_wanted=2, slots_ready=2)
    assert judge(View(entry, two, half, 1)).done
    assert not judge(View(entry, RUNNING, (report(),), 1)).done
    assert judge(View(entry, RUNNING, (report(),), 1)).line == "1 of 2 containers, 4 of 4 tasks run"
    waiting = said(JobState.WAITING, "waiting for 1 slot", wanted=2, ready=1)
    assert judge(View(entry, waiting, (report(),), 1)).line == "waiting for 1 slot"
    assert isinstance(judge(View(NEW, two, half, 1)).error, LostOwnership)


def test_a_job_is_gone_when_its_containers_are() -> None:
    judge = judge_gone("count")
    assert not judge(View(None, RUNNING, (report(),), 1)).done
    assert judge(View(None)).done
    assert isinstance(judge(View(NEW)).error, LostOwnership)


def test_a_wait_shows_each_verdict_and_ends_in_time() -> None:
    moments = iter(range(100))
    verdicts = [Verdict("a"), Verdict("b"), Verdict("c", done=True)]
    shown: list[str] = []

    def go(limit_s: float, seen: list[Verdict]) -> Verdict:
        left = iter(seen)
        return wait(
            lambda: View(None),
            lambda _: next(left),
            timeout_s=limit_s,
            show=lambda one: shown.append(one.line),
            late=too_late("count", limit_s),
            clock=lambda: float(next(moments)),
            sleep=lambda _: None,
        )

    assert go(10, verdicts).line == "c"
    assert shown == ["a", "b"]
    with pytest.raises(Unavailable, match="'count', after 2 s: a"):
        go(2, [Verdict("a")] * 9)
    with pytest.raises(BadInput, match="boom"):
        go(2, [Verdict("a", error=BadInput("boom"))])
