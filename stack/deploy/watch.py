"""Whether a job has become what a person asked for: pure judgements over what is seen of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stack.errors import BadInput, FeedstackError, LostOwnership, Unavailable
from stack.model.fleet import JobState, JobStatus
from stack.model.job import Desired, JobEntry, JobSpec
from stack.model.plan import ContainerReport, TaskState, job_tasks


@dataclass(frozen=True)
class View:
    """What is seen of a job at one moment: entry, what its runner says, what its containers say."""

    entry: JobEntry | None
    status: JobStatus | None = None
    reports: tuple[ContainerReport, ...] = ()
    runners: int = 0


@dataclass(frozen=True)
class Verdict:
    """How far a job is: a line for people, and done, or the error that ended it."""

    line: str
    ready: int = 0
    wanted: int = 0
    done: bool = False
    error: FeedstackError | None = None


Judge = Callable[[View], Verdict]


def judge_running(spec: JobSpec) -> Judge:
    """Until a version runs in all its tasks and has committed."""

    def judge(view: View) -> Verdict:
        error = _taken_away(view.entry, spec)
        if error is not None or view.entry is None:
            return Verdict("", error=error)
        status, ready, wanted = _answer(view), running_tasks(view, spec.version), len(job_tasks(spec))
        if status is None:
            line = "waiting for its runner" if view.runners else "no runner is there to take it"
            return Verdict(line, ready, wanted)
        if status.state is JobState.FAILED:
            return Verdict(status.message, ready, wanted, error=_failure(spec, status))
        if status.version != spec.version or status.state is not JobState.RUNNING:
            return Verdict(status.message or _state_line(status, spec), ready, wanted)
        if ready < wanted or status.slots_ready < status.slots_wanted:
            return Verdict(f"{ready} of {wanted} tasks run{_notes(view)}", ready, wanted)
        if not view.entry.confirmed:
            return Verdict("all tasks run; waiting for the first commit", ready, wanted)
        return Verdict(f"{wanted} of {wanted} tasks run", ready, wanted, done=True)

    return judge


def judge_stopped(spec: JobSpec, desired: Desired) -> Judge:
    """Until a job is paused or drained: its containers have committed and are gone."""
    goal = JobState.PAUSED if desired is Desired.PAUSED else JobState.DRAINED

    def judge(view: View) -> Verdict:
        if view.entry is None or view.entry.desired is not desired:
            return Verdict("", error=_changed(spec.name))
        status = _answer(view)
        left = len(view.reports)
        if status is not None and status.state is goal and not left:
            return Verdict(str(goal), done=True)
        if status is not None and status.state is JobState.FAILED:
            return Verdict(status.message, error=_failure(spec, status))
        if not view.runners and not left:
            return Verdict(
                "no runner is there; it stays stopped when one comes", done=goal is JobState.PAUSED
            )
        word = "container is" if left == 1 else "containers are"
        return Verdict(f"{left} {word} still there{_notes(view)}" if left else "waiting for its runner")

    return judge


def judge_scaled(spec: JobSpec) -> Judge:
    """Until a job runs all its tasks in as many containers as its settings say."""
    wanted, tasks = spec.settings.containers, len(job_tasks(spec))

    def judge(view: View) -> Verdict:
        if view.entry is None or view.entry.spec.settings.containers != wanted:
            return Verdict("", error=_changed(spec.name))
        version = view.entry.spec.version
        status, there, ready = _answer(view), len(view.reports), running_tasks(view, version)
        if status is not None and status.state is JobState.FAILED:
            return Verdict(status.message, error=_failure(spec, status))
        line = f"{there} of {wanted} containers, {ready} of {tasks} tasks run{_notes(view)}"
        is_so = status is not None and status.slots_wanted == wanted <= status.slots_ready
        if status is not None and status.message and not is_so:
            line = status.message
        return Verdict(line, ready, tasks, done=is_so and there == wanted and ready >= tasks)

    return judge


def judge_gone(name: str) -> Judge:
    """Until no container of a removed job is left."""

    def judge(view: View) -> Verdict:
        if view.entry is not None:
            return Verdict("", error=_changed(name))
        left = len(view.reports)
        return Verdict(f"{left} of its containers are still there" if left else "gone", done=not left)

    return judge


def running_tasks(view: View, version: str) -> int:
    """How many tasks run this version."""
    return sum(
        one.state is TaskState.RUNNING
        for report in view.reports
        if report.version == version
        for one in report.tasks.values()
    )


def _taken_away(entry: JobEntry | None, spec: JobSpec) -> FeedstackError | None:
    """Why a version that was asked for will not come to run."""
    if entry is None:
        return _changed(spec.name)
    if entry.rolled_back is not None:
        return BadInput(
            f"job {spec.name!r}: {entry.rolled_back}",
            hint=f"Version {entry.spec.version} runs on. `stack jobs logs {spec.name}` prints what was said.",
        )
    if entry.spec.version != spec.version:
        return LostOwnership(
            f"job {spec.name!r}: somebody deployed version {entry.spec.version} meanwhile",
            hint=f"`stack jobs show {spec.name}` tells how it is doing.",
        )
    return None if entry.desired is Desired.RUNNING else _changed(spec.name)


def _changed(name: str) -> FeedstackError:
    return LostOwnership(
        f"job {name!r} was changed or removed by someone meanwhile",
        hint="`stack jobs list` shows what there is.",
    )


def _failure(spec: JobSpec, status: JobStatus) -> FeedstackError:
    return BadInput(
        f"job {spec.name!r} fails: {failure_text(status)}",
        hint=status.hint or f"`stack jobs logs {spec.name}` prints what the code said.",
    )


def failure_text(status: JobStatus) -> str:
    """What a runner says, with the record that is to blame, unless that is part of it."""
    is_told = not status.place or status.place in status.message
    return status.message if is_told else f"{status.message} ({status.place})"


def _answer(view: View) -> JobStatus | None:
    """What a runner says of the job as it was asked for last; not what one said before, or before it died."""
    if view.status is None or view.entry is None or not view.runners:
        return None
    return view.status if view.status.try_number >= view.entry.try_number else None


def _state_line(status: JobStatus, spec: JobSpec) -> str:
    if status.state is JobState.WAITING:
        missing = max(1, status.slots_wanted - status.slots_ready)
        return f"waiting for {missing} slot{'' if missing == 1 else 's'}"
    if status.version and status.version != spec.version:
        return f"version {status.version} is being stopped"
    return str(status.state)


def _notes(view: View) -> str:
    """What tasks say that are on their way, shortened."""
    notes = [
        f"{task} {one.state}{': ' if one.note else ''}{one.note}"
        for report in view.reports
        for task, one in report.tasks.items()
        if one.state is not TaskState.RUNNING
    ]
    more = f" and {len(notes) - 2} more" if len(notes) > 2 else ""
    return f" ({', '.join(notes[:2])}{more})" if notes else ""


def wait(
    look: Callable[[], View],
    judge: Judge,
    *,
    timeout_s: float,
    show: Callable[[Verdict], None],
    late: Callable[[Verdict], FeedstackError],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    every_s: float = 0.25,
) -> Verdict:
    """Look again and again until it is so; raises the verdict's error, or `late` when the time is over."""
    begun = clock()
    while True:
        waited_s = clock() - begun
        verdict = judge(look())
        if verdict.error is not None:
            raise verdict.error
        if verdict.done:
            return verdict
        show(verdict)
        if waited_s > timeout_s:
            raise late(verdict)
        sleep(every_s)


def too_late(name: str, timeout_s: float) -> Callable[[Verdict], FeedstackError]:
    """What to raise when a job did not become so in time."""

    def late(verdict: Verdict) -> FeedstackError:
        return Unavailable(
            f"job {name!r}, after {timeout_s:.0f} s: {verdict.line}",
            hint=f"The wait is over, the work goes on: `stack jobs show {name}` tells how far it is.",
        )

    return late
