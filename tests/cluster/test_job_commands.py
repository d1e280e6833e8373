"""The commands of jobs as a person types them, with a runner that only says what a runner would say."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stack import Stack
from stack.deploy.jobs import JobsFeed, jobs_feed
from stack.deploy.logs import LogLine, line_to_bytes
from stack.kafka.writer import LogWriter
from stack.model.fleet import JobState, JobStatus, RunnerPlace
from stack.model.job import Desired, JobEntry, changelog_name, logs_name
from stack.model.plan import ContainerReport, Plan, SlotPlan, TaskReport, TaskState, tasks_of
from stack.settings import Settings
from stack.zookeeper.fleet import FleetNodes, FleetSession
from stack.zookeeper.lead import JobLead
from tests.cluster import test_commands
from tests.cluster.conftest import apply
from tests.cluster.test_commands import Done, Run
from tests.cluster.test_deploy import CODE

pytestmark = pytest.mark.cluster
PLACE = RunnerPlace("r1", "here", 1, 1.0)
run = test_commands.run


class ToyRunner:
    """Leads one job: containers are nodes in ZooKeeper, and every version commits, unless told otherwise."""

    def __init__(self, settings: Settings) -> None:
        self.stack = Stack.connect(settings)
        self.jobs: JobsFeed = jobs_feed(self.stack)
        self.verdict: JobStatus | None = None
        self.take_back = ""
        self._session = FleetSession(self.stack.endpoints.zookeeper).start()
        self._nodes = FleetNodes(self._session, settings.name)
        self._nodes.register_runner(PLACE)
        self._lead = JobLead(self._nodes.job("last-view"), PLACE)
        self._sessions: dict[int, FleetSession] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        seen: JobEntry | None = None
        while not self._stop.wait(0.05):
            entry = self.jobs.find("last-view")
            if entry != seen:
                seen = entry
                self._follow(entry)

    def _follow(self, entry: JobEntry | None) -> None:
        if entry is None:
            self._run_containers(None, 0)
            return
        if self.take_back and entry.previous is not None:
            back = replace(
                entry, spec=entry.previous, previous=None, confirmed=True, rolled_back=self.take_back
            )
            self.jobs.put(back)
            return
        self._lead.claim()
        count = entry.spec.settings.containers if entry.desired is Desired.RUNNING else 0
        self._run_containers(entry, 0 if self.verdict else count)
        states = {Desired.PAUSED: JobState.PAUSED, Desired.DRAINED: JobState.DRAINED}
        status = self.verdict or JobStatus(states.get(entry.desired, JobState.RUNNING))
        self._lead.write_status(
            replace(
                status,
                version=entry.spec.version,
                slots_wanted=count,
                slots_ready=count,
                runner=PLACE.id,
                try_number=entry.try_number,
            )
        )
        if count and not entry.confirmed and not self.verdict:
            self.jobs.put(replace(entry, confirmed=True, previous=None))

    def _run_containers(self, entry: JobEntry | None, count: int) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions = {}
        if entry is None or not count:
            return
        tasks = tasks_of(entry.spec.partitions)
        shares = {slot: tasks[slot::count] for slot in range(count)}
        self._lead.write_plan(
            Plan(1, entry.spec.version, {slot: SlotPlan(1, one) for slot, one in shares.items()})
        )
        for slot, share in shares.items():
            session = self._sessions[slot] = FleetSession(self.stack.endpoints.zookeeper).start()
            report = ContainerReport(
                slot=slot,
                attempt=1,
                generation=1,
                version=entry.spec.version,
                runner=PLACE.id,
                host="here",
                pid=100 + slot,
                commits=3,
                records=7,
                records_per_s=50.4,
                memory_bytes=64 << 20,
                tasks={task: TaskReport(TaskState.RUNNING, 5) for task in share},
                counters={"late": 2},
            )
            FleetNodes(session, self.stack.settings.name).job("last-view").register(report)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for session in [*self._sessions.values(), self._session]:
            session.close()
        self.stack.close()


@pytest.fixture
def runner(filled: Stack, settings: Settings) -> Iterator[ToyRunner]:
    toy = ToyRunner(settings)
    yield toy
    toy.close()


@pytest.fixture
def folder(settings: Settings, filled: Stack) -> Path:
    made = settings.root / "jobs" / "last-view"
    made.mkdir(parents=True)
    (made / "job.py").write_text(CODE)
    (made / "job.toml").write_text("containers = 2\n")
    return made


def version_of(done: Done) -> str:
    return str(done.json["version"])


def test_a_job_from_deploy_to_removal(run: Run, runner: ToyRunner, folder: Path, stack: Stack) -> None:
    done = run("jobs", "deploy", str(folder))
    assert done.code == 0, done.err
    assert "last-view: version " in done.out
    assert "runs: 3 of 3 tasks" in done.out
    again = run("jobs", "deploy", str(folder), "--json")
    assert (again.json["job"], again.json["changed"], again.json["waited"]) == ("last-view", False, True)
    row = {
        "job": "last-view",
        "version": version_of(again),
        "state": "running",
        "containers": "2/2",
        "tasks": "3/3",
        "lag": 15,
        "records/s": 101,
        "message": "",
    }
    assert run("jobs", "list", "--json").json == [row]
    assert "last-view" in run("jobs", "list").out
    shown = run("jobs", "show", "last-view")
    changelog = changelog_name(stack.settings.name, "last-view", "last")
    for part in (
        "last-view: running",
        "outputs     users",
        f"changelog {changelog}",
        "main-2",
        "64 MB",
        "late",
    ):
        assert part in shown.out
    about = run("jobs", "show", "last-view", "--json").json
    assert about["counters"] == {"late": 4}
    assert about["plan"]["slots"]["0"]["tasks"] == ["main-0", "main-2"]
    assert run("jobs", "scale", "last-view", "3").out == "last-view has 3 containers\n"
    assert run("jobs", "scale", "last-view", "3").out == "last-view had 3 containers already\n"
    assert run("jobs", "pause", "last-view").out == "last-view is paused\n"
    assert run("jobs", "pause", "last-view").out == "last-view was paused already\n"
    assert "will have 1 container" in run("jobs", "scale", "last-view", "1").out
    assert run("jobs", "resume", "last-view").out == "last-view runs\n"
    assert run("jobs", "resume", "last-view", "--json").json["changed"] is False
    refused = run("jobs", "remove", "last-view")
    assert (refused.code, "is running" in refused.err, "--yes" in refused.err) == (1, True, True)
    assert run("jobs", "drain", "last-view", "--json").json["desired"] == "drained"
    assert "its state stays" in run("jobs", "remove", "last-view").out
    assert "no job is deployed yet" in run("jobs", "list").out
    gone = run("jobs", "remove", "last-view", "--state", "--json")
    assert gone.json == {"job": "last-view", "removed": True, "deleted": [changelog]}
    assert run("jobs", "remove", "last-view", "--state").code == 1


def test_a_version_that_is_taken_back_is_an_error_with_its_reason(
    run: Run,
    runner: ToyRunner,
    folder: Path,
) -> None:
    first = version_of(run("jobs", "deploy", str(folder), "--json"))
    runner.take_back = "version x was taken back: it made no commit within 60 s"
    (folder / "job.py").write_text(CODE + "# worse\n")
    done = run("jobs", "deploy", str(folder))
    assert done.code == 1
    assert "it made no commit within 60 s" in done.err
    assert f"Version {first} runs on" in done.err
    assert "it made no commit within 60 s" in run("jobs", "show", "last-view").out


def test_a_job_that_fails_is_told_with_place_and_hint(run: Run, runner: ToyRunner, folder: Path) -> None:
    runner.verdict = JobStatus(JobState.FAILED, "KeyError: 'user'", "mend it", place="views p0@12")
    done = run("jobs", "deploy", str(folder))
    assert done.code == 1
    assert "fails: KeyError: 'user' (views p0@12)" in done.err
    assert "mend it" in done.err
    shown = run("jobs", "show", "last-view").out
    assert "last-view: failed" in shown
    assert "KeyError: 'user' (views p0@12)" in shown
    runner.verdict = None
    assert run("jobs", "resume", "last-view").out == "last-view runs\n"


def test_slots_that_are_short_are_told(run: Run, runner: ToyRunner, folder: Path) -> None:
    runner.verdict = JobStatus(JobState.WAITING, "waiting for 2 slots", "add workers")
    done = run("jobs", "deploy", str(folder), "--timeout", "2")
    assert done.code == 1
    assert "'last-view', after 2 s: waiting for 2 slots" in done.err
    assert "stack jobs show last-view" in done.err
    assert "last-view: waiting for 2 slots" in run("jobs", "list").out


def test_without_a_runner_a_deploy_says_so(run: Run, folder: Path) -> None:
    assert run("jobs", "deploy", str(folder), "--no-wait").code == 0
    done = run("jobs", "deploy", str(folder), "--timeout", "1")
    assert (done.code, "no runner is there to take it" in done.err) == (1, True)
    assert run("jobs", "list", "--json").json[0]["state"] == "no runner"
    assert "main-0             not running" in run("jobs", "show", "last-view").out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", "lost-view"], "there is no job 'lost-view'"),
        (["pause", "lost-view"], "there is no job 'lost-view'"),
        (["resume", "lost-view"], "No job is deployed yet"),
        (["scale", "lost-view", "2"], "there is no job"),
        (["logs", "lost-view"], "there is no job"),
        (["remove", "lost-view", "--state"], "there is no job"),
        (["deploy", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_mistakes_are_named(run: Run, settings: Settings, words: list[str], says: str) -> None:
    done = run("jobs", *words)
    assert done.code == 1
    assert says in done.err
    assert "Traceback" not in done.err


def test_a_broken_entry_is_shown_and_can_be_removed(run: Run, filled: Stack) -> None:
    filled.ledger(f"_{filled.settings.name}.jobs").update(lambda _: {"last-view": "{"})
    assert run("jobs", "list", "--json").json[0]["state"] == "unreadable"
    assert "cannot be read" in run("jobs", "list").out
    assert run("jobs", "show", "last-view").code == 1
    assert run("jobs", "remove", "last-view", "--yes").code == 0
    assert run("jobs", "list", "--json").json == []


def test_logs_are_found_from_the_end_backwards(run: Run, filled: Stack, folder: Path) -> None:
    assert run("jobs", "deploy", str(folder), "--no-wait").code == 0
    assert "last-view has said nothing yet" in run("jobs", "logs", "last-view").err
    lines = [LogLine(number, "last-view", number % 2, 1, "info", f"line {number}") for number in range(40)]
    noise = [LogLine(number, "other", 0, 1, "info", "noise") for number in range(3_000)]
    records = [{"key": one.job.encode(), "value": line_to_bytes(one)} for one in [*lines, *noise]]
    with LogWriter(filled.access) as writer:
        writer.write(logs_name(filled.settings.name), [*records, {"key": b"last-view", "value": b"junk"}])
    found = run("jobs", "logs", "last-view", "--lines", "3")
    assert [line.split()[-1] for line in found.out.splitlines()] == ["37", "38", "39"]
    of_one = run("jobs", "logs", "last-view", "--container", "1", "--json", "--lines", "2")
    assert [json.loads(line)["text"] for line in of_one.out.splitlines()] == ["line 37", "line 39"]


def test_a_catalogue_that_says_nothing_of_the_job_is_noted(run: Run, filled: Stack, folder: Path) -> None:
    file = filled.settings.schemas / "catalog.toml"
    file.write_text(file.read_text().replace('by = "last-view"\n', ""))
    apply(filled)
    done = run("jobs", "deploy", str(folder), "--no-wait")
    assert 'no feed of the catalogue says by = "last-view"' in done.err
