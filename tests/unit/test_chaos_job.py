"""Chaos for a user's job, without a cluster: what is told beforehand, what a check says, what is judged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from ops.chaos import candidate as chaos_candidate
from ops.chaos import invariant, job_run
from ops.chaos.calm import _feeds
from ops.chaos.candidate import Candidate, Member, find_candidate
from ops.chaos.invariant import Feeds, _function, _outcome
from ops.chaos.job_run import JobPlan
from ops.chaos.load import Load, Made
from ops.chaos.progress import has_passed
from ops.chaos.remains import judge_state
from ops.chaos.run import Outcome, Plan
from ops.chaos.schedule import FaultKind, Size, schedule
from ops.chaos.twins import Digest, first_difference, judge_digests
from ops.chaos.verdict import Finding, Kind, Report
from ops.cli import main
from ops.cli.root import root
from stack.deploy.inspect import Declared
from stack.deploy.settings import JobFile
from stack.errors import BadConfig, BadInput, NotDelivered, NotFound
from stack.model.record import Record
from stack.settings import Settings, load_settings
from tests.clusters import wait_for

PROJECT = Path(__file__).resolve().parents[2]
TWICE = """
[feeds.twice]
kind = "derived"
for = "test"
owner = "test"
schema = "user-views.avsc"
key = "user"
partitions = 4
retention = "forever"
by = "{by}"
inputs = ["views-per-user"]
"""
JOB = """
from stack import Feed, Job

job = Job("{name}")


@job.task(Feed("{feed}"))
def each(value, ctx):
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Settings:
    """A project with the example feeds and jobs."""
    shutil.copytree(PROJECT / "schemas", tmp_path / "schemas")
    shutil.copytree(PROJECT / "jobs", tmp_path / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "stack.toml").write_text('name = "project"\n')
    return load_settings(tmp_path / "stack.toml")


def add_job(project: Settings, name: str, feed: str, folder: str | None = None) -> Path:
    made = project.root / "jobs" / (folder or name)
    made.mkdir(parents=True)
    (made / "job.py").write_text(JOB.format(name=name, feed=feed))
    return made


def test_a_job_is_found_with_the_jobs_whose_feeds_it_reads(project: Settings) -> None:
    catalogue = project.schemas / "catalog.toml"
    catalogue.write_text(catalogue.read_text() + TWICE.format(by="second"))
    add_job(project, "second", "views-per-user", folder="another")
    found = find_candidate(project, "second")
    assert found.names == ("count-views", "second")
    assert [one.spec.name for one in found.sources] == ["page-views"]
    assert (found.job.outputs, found.job.tasks, found.check) == (("twice",), 4, None)
    assert [one.size for one in found.jobs] == [Size(2, 4), Size(1, 4)]
    own = find_candidate(project, str(project.root / "jobs" / "count-views"))
    assert own.names == ("count-views",)
    assert own.check == project.root / "jobs" / "count-views" / "invariant.py"
    assert _feeds(own) == {"views-per-user": True}


def test_a_job_that_cannot_be_run_is_told_before_anything_starts(project: Settings) -> None:
    with pytest.raises(NotFound, match="no job 'count-view'") as caught:
        find_candidate(project, "count-view")
    assert "Did you mean count-views?" in caught.value.hint
    add_job(project, "lonely", "nowhere")
    with pytest.raises(BadConfig, match="the catalogue has no such feed") as refused:
        find_candidate(project, "lonely")
    assert "Nothing was started" in refused.value.hint
    broken = add_job(project, "broken", "page-views")
    (broken / "job.py").write_text("import missing_module\n")
    with pytest.raises(BadConfig, match="needs the module 'missing_module'"):
        find_candidate(project, "broken")
    with pytest.raises(NotFound, match=r"there is no file .*nothing\.py"):
        find_candidate(project, "count-views", Path("nothing.py"))
    shutil.rmtree(project.root / "jobs")
    reader = add_job(project, "reader", "views-per-user")
    with pytest.raises(NotFound, match="which job 'count-views' writes; that is not there"):
        find_candidate(project, str(reader))


def test_a_feed_without_synthetic_records_is_told(project: Settings) -> None:
    schema = project.schemas / "page-view.avsc"
    tree = json.loads(schema.read_text())
    tree["fields"].append({"name": "next", "type": "PageView"})
    schema.write_text(json.dumps(tree))
    with pytest.raises(BadInput, match="feed 'page-views' can get no synthetic records"):
        find_candidate(project, "count-views")


def run_command(project: Settings, *words: str) -> Result:
    return CliRunner().invoke(root, ["--config", str(project.file), "chaos", *words])


def test_options_that_do_not_go_together_are_refused(
    project: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "are for --job" in run_command(project, "--keys", "3").output
    assert "at least 14" in run_command(project, "--faults", "3").output
    settings = project.root / "jobs" / "count-views" / "job.toml"
    settings.write_text(settings.read_text().replace("exactly-once", "at-least-once"))
    with pytest.raises(SystemExit) as left:
        main(["--config", str(project.file), "chaos", "--job", "count-views", "--against-calm"])
    assert left.value.code == 1
    assert "may repeat outputs" in capsys.readouterr().err


def test_the_answer_of_a_run(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member(project.root, Declared("count-views", ()), JobFile(), (), 4)
    candidate = Candidate((member,), {}, project.schemas)
    monkeypatch.setattr(chaos_candidate, "find_candidate", lambda *_: candidate)
    asked: list[tuple[str, Plan, JobPlan]] = []
    outcome = Outcome(7, took_s=60.0, report=Report({"page-views": 9}, 3, 4, checked=("state: well",)))

    def run_job(candidate: Candidate, _stages: Any, plan: Plan, job_plan: JobPlan, _say: Any) -> Outcome:
        asked.append((candidate.job.name, plan, job_plan))
        return outcome

    monkeypatch.setattr(job_run, "run_job", run_job)
    done = run_command(project, "--job", "count-views", "--seed", "7", "--faults", "2", "--keys", "5")
    assert asked == [("count-views", Plan(7, 50_000, 2), JobPlan(5, 500))]
    assert done.exit_code == 0
    assert "recovered: median s" in done.stdout
    assert done.stdout.endswith("state: well\nnothing is wrong\n")
    outcome.report = Report(findings=(Finding(Kind.INVARIANT, "", "", "line 3: no"),), checked=("x",))
    outcome.logs = Path("/kept")
    done = run_command(project, "--job", "count-views", "--long", "--against-calm")
    assert done.exit_code == 1
    assert (asked[1][1].records, asked[1][2].against_calm) == (500_000, True)
    assert "invariant: line 3: no\n1 thing is wrong\nlogs are kept in /kept\n" in done.stdout
    assert f"`stack chaos --job count-views --seed {asked[1][1].seed} --long`" in done.stdout
    done = run_command(project, "--job", "count-views", "--seed", "7", "--faults", "2")
    assert "`stack chaos --job count-views --seed 7 --faults 2` for the same faults" in done.stdout
    told = json.loads(run_command(project, "--job", "count-views", "--json").stdout)
    assert (told["exact"], told["findings"][0]["message"], told["logs"]) == (False, "line 3: no", "/kept")


class Given(Feeds):
    """Records in hand."""

    def __init__(self, *counts: int) -> None:
        self.names = ("counts",)
        self._records = [Record("counts", 0, at, 0, "ada", {"n": n}) for at, n in enumerate(counts)]

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)


def said_by(tmp_path: Path, code: str) -> dict[str, Any]:
    file = tmp_path / "invariant.py"
    file.write_text(code)
    return _outcome(_function(file), file, Given(1, 2, 4), Given(1))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("pass", []),
        ("assert [one.value['n'] for one in outputs] == [1, 2, 4]", []),
        ("assert False, 'ada: 4 is wrong'", ["invariant.py, line 2: ada: 4 is wrong"]),
        ("assert len(list(outputs)) == 1", ["invariant.py, line 2: assert len(list(outputs)) == 1"]),
        ("return ['one', 'two']", ["one", "two"]),
        ("return 'only one'", ["only one"]),
        ("yield 'one'; assert False, 'two'", ["one", "invariant.py, line 2: two"]),
    ],
)
def test_what_a_check_says(tmp_path: Path, body: str, said: list[str]) -> None:
    assert said_by(tmp_path, f"def check(outputs, inputs):\n    {body}\n") == {"said": said, "more": 0}


def test_many_sentences_are_counted(tmp_path: Path) -> None:
    told = said_by(tmp_path, "def check(outputs, inputs):\n    return map(str, range(1000))\n")
    assert (len(told["said"]), told["more"]) == (100, 900)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("check = 3", "has no function check"),
        ("def check(outputs): ...", "does not take two arguments: too many positional arguments"),
        ("def check(outputs, inputs, more): ...", "does not take two arguments: missing a required"),
        ("def check(outputs, inputs: ...", "line 1 is not Python"),
        ("import missing_module", "invariant.py needs the module 'missing_module'"),
        ("1 / 0", "invariant.py fails while it is imported: ZeroDivisionError"),
        ("def check(outputs, inputs): return False", "answers False, which says nothing"),
        ("def check(outputs, inputs): raise ValueError('x')", r"at fault itself: ValueError: x \(invariant"),
        ("def check(outputs, inputs): outputs['views']", "there is no feed 'views' here, but counts"),
        ("def check(outputs, inputs): raise SystemExit(0)", "at fault itself: SystemExit: 0"),
    ],
)
def test_a_check_that_is_at_fault_itself(tmp_path: Path, code: str, told: str) -> None:
    with pytest.raises(BadConfig, match=told):
        said_by(tmp_path, f"{code}\n")


def test_a_check_runs_in_a_process_of_its_own_with_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "invariant.py"
    (tmp_path / "beside.py").write_text("def check(outputs, inputs): ...\n")
    file.write_text("from beside import check\nprint('noise')\n")
    invariant.examine(file, tmp_path)
    file.write_text("import os; os._exit(3)\n")
    with pytest.raises(BadConfig, match="ends the process that it runs in, with exit code 3"):
        invariant.examine(file, tmp_path)
    file.write_text("while True: pass\n")
    with pytest.raises(BadConfig, match="did not finish importing within 2 s"):
        invariant.examine(file, tmp_path, limit_s=2)


def test_nobody_waits_for_a_load_that_has_ended() -> None:
    def make() -> Made:
        raise BadInput("no more numbers")

    load = Load("127.0.0.1:1", "views", make, rate=1_000)
    load.refuse_failed()
    load.start()
    wait_for(lambda: load.has_failed, "the load to end")
    with pytest.raises(NotDelivered, match="the load of views has ended: no more numbers"):
        load.refuse_failed()
    load.abandon()


@given(st.integers(0, 10_000), st.integers(1, 13), st.integers(1, 4))
def test_a_short_schedule_has_as_many_faults_as_asked_for(seed: int, faults: int, most: int) -> None:
    rounds = schedule(seed, faults, [Size(1, most)])
    made = [fault.kind for one in rounds for fault in one.faults]
    assert len(made) == faults
    assert faults < len(FaultKind) or set(made) == set(FaultKind)
    assert all(one.scale is None or 1 <= one.scale.containers <= most for one in rounds)


def test_a_task_has_passed_the_ends_of_its_inputs() -> None:
    derived = frozenset({"counts"})
    ends = {"views": {0: 10}, "counts": {0: 8, 1: 0}}
    assert has_passed({"views": {0: 10}, "counts": {0: 8}}, ends, derived)
    # The last place of a derived feed holds the mark of a commit.
    assert has_passed({"views": {0: 10}, "counts": {0: 7}}, ends, derived)
    assert not has_passed({"views": {0: 9}, "counts": {0: 8}}, ends, derived)
    assert not has_passed({"views": {0: 10}, "counts": {0: 6}}, ends, derived)
    assert not has_passed({}, ends, derived)


def test_a_store_is_what_its_changelog_says() -> None:
    assert list(judge_state("c", "task 0", {b"a": b"1"}, {b"a": b"1"})) == []
    found = judge_state("c", "task 0", {b"a": b"1", b"b": b"2"}, {b"a": b"3", b"d": b"4"})
    assert [str(one) for one in found] == [
        "state: c, task 0, a: another value on disk than in the changelog",
        "state: c, task 0, b: on disk, but not in the changelog",
        "state: c, task 0, d: in the changelog, but not on disk",
    ]
    many = {str(number).encode(): b"" for number in range(9)}
    assert [one.count for one in judge_state("c", "t", many, {})] == [1, 1, 1, 1, 1, 4]


def digest(*bodies: bytes) -> Digest:
    made = Digest()
    for body in bodies:
        made.add(body)
    return made


@pytest.mark.parametrize(
    ("own", "calm", "kind"),
    [
        ((b"1", b"2"), (b"1", b"2"), None),
        ((b"1",), (b"1", b"2"), Kind.LOST),
        ((b"1", b"2", b"2"), (b"1", b"2"), Kind.DOUBLED),
        ((b"1", b"1"), (b"1", b"2"), Kind.DIFFERENT),
        ((b"2", b"1"), (b"1", b"2"), Kind.ORDER),
        ((), (b"1",), Kind.LOST),
    ],
)
def test_outputs_are_those_of_a_calm_run(own: tuple[bytes], calm: tuple[bytes], kind: Kind | None) -> None:
    judged: Callable[[bool], list[Kind]] = lambda ordered: [  # noqa: E731
        one.kind
        for one in judge_digests("f", {b"k": digest(*own)} if own else {}, {b"k": digest(*calm)}, ordered)
    ]
    assert judged(True) == ([] if kind is None else [kind])
    assert judged(False) == ([] if kind in (None, Kind.ORDER) else [kind])


def test_the_first_difference_is_told() -> None:
    assert first_difference([1, 2], [1, 2]) == ""
    assert first_difference([1, 1], [1, 2]) == "record 2 is 1, in a calm run 2"
    assert first_difference([1], [1, 2]) == "record 2 is nothing, in a calm run 2"
