"""Chaos for a user's job on a real stack: an exact one passes, one that forgets is found."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Sequence

import pytest
from rocksdict import Options, Rdict

from ops.chaos import invariant
from ops.chaos.candidate import Candidate, find_candidate
from ops.chaos.job_run import JobPlan, run_job
from ops.chaos.remains import LeftJob, Remains, examine
from ops.chaos.run import Outcome, Plan
from ops.chaos.schedule import FaultKind, Size, schedule
from ops.chaos.stage import stage_on
from ops.chaos.verdict import Kind
from ops.cluster import control
from stack import Stack
from stack.kafka.writer import LogWriter
from stack.settings import Endpoints, Settings, load_settings
from tests.cluster.job_world import CLICK, SETTINGS, TALLY

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
FEED = """
[feeds.{name}]
kind = "{kind}"
for = "test"
owner = "test"
schema = "{schema}.avsc"
key = "user"
partitions = 2
retention = "forever"
{origin}
"""
COUNT = """
from stack import Feed, Job

job, output = Job("{name}"), Feed("{output}")


@job.task(Feed("{source}"), store="counts")
def count(record, ctx):
    number = ctx.state.get(record["user"], 0) + 1
    ctx.state[record["user"]] = number
    ctx.emit(output, {{"user": record["user"], "count": number}})
"""
# Well until its process ends: what it knows lies beside its state, and is not kept.
FORGETFUL = COUNT.replace("ctx.state", "counts").replace("\n\n@job", "\ncounts = {{}}\n\n\n@job")
CHECK = """
from collections import Counter


def check(outputs, inputs):
    counts = Counter()
    for record in outputs["{output}"]:
        counts[record.key] += 1
        assert record.value["count"] == counts[record.key], f"{{record.key}} has {{record.value['count']}}"
    views = Counter(record.key for record in inputs)
    assert counts == views
"""
JOBS = {"count": ("clicks", "tallies", COUNT), "forget": ("tallies", "lapses", FORGETFUL)}


@pytest.fixture(scope="module")
def project(cluster: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A project of two jobs, and a stack of its own with a runner on the shared Kafka."""
    folder = tmp_path_factory.mktemp("project")
    schemas = folder / "schemas"
    schemas.mkdir()
    (schemas / "click.avsc").write_text(CLICK)
    (schemas / "tally.avsc").write_text(TALLY)
    feeds = [FEED.format(name="clicks", kind="source", schema="click", origin="")]
    for name, (source, output, code) in JOBS.items():
        origin = f'by = "{name}"\ninputs = ["{source}"]'
        feeds.append(FEED.format(name=output, kind="derived", schema="tally", origin=origin))
        made = folder / "jobs" / name
        made.mkdir(parents=True)
        (made / "job.py").write_text(code.format(name=name, source=source, output=output))
        (made / "job.toml").write_text(SETTINGS)
        (made / "invariant.py").write_text(CHECK.format(output=output))
    (schemas / "catalog.toml").write_text("".join(feeds))
    unique = f"chaos-{os.getpid()}"
    (folder / "stack.toml").write_text(
        f'name = "{unique}"\n[kafka]\nbootstrap = "{cluster.kafka}"\ntopic_prefix = "{unique}."\n'
        f'[zookeeper]\nhosts = "{cluster.zookeeper}"\n'
    )
    settings = load_settings(folder / "stack.toml")
    try:
        control.up(settings, None, lambda _: None)
        yield settings
    finally:
        control.down(settings, lambda _: None)


def seed_of(sizes: Sequence[Size]) -> int:
    """A seed whose only fault is that a container of the last job is killed."""
    for seed in itertools.count():
        [one] = schedule(seed, 1, sizes)
        if one.faults[0].kind is FaultKind.CONTAINER_KILLED and one.faults[0].job == len(sizes) - 1:
            return seed
    raise AssertionError


@pytest.fixture(scope="module")
def candidate(project: Settings) -> Candidate:
    return find_candidate(project, "forget")


@pytest.fixture(scope="module")
def outcome(project: Settings, candidate: Candidate) -> Iterator[Outcome]:
    """One kill under load."""
    plan = Plan(seed_of([one.size for one in candidate.jobs]), records=1_000, faults=1)
    stages = stage_on(project, candidate.names)
    made = run_job(candidate, stages, plan, JobPlan(20, 1_000, against_calm=True), lambda _: None)
    yield made
    if made.logs is not None:
        shutil.rmtree(made.logs)


def test_a_job_that_forgets_is_found_by_its_invariant_and_by_a_calm_run(
    outcome: Outcome, candidate: Candidate
) -> None:
    report = outcome.report
    assert outcome.faults == {FaultKind.CONTAINER_KILLED: 1}
    assert set(report.records) == {"clicks", "tallies", "lapses"}
    assert min(report.records.values()) == max(report.records.values()) >= 1_000
    # What holds for every job does so here, too: of both jobs everything was handled, once.
    assert {one.kind for one in report.findings} == {Kind.INVARIANT, Kind.DIFFERENT}
    said, different = report.findings[:2]
    assert "invariant.py, line 9: user-" in said.message
    assert "'count': 1}, in a calm run {" in different.message
    assert report.checked[-2] == f"invariant: {candidate.check}"
    assert outcome.logs is not None
    assert (outcome.logs / "forget.log").exists()


@pytest.mark.usefixtures("outcome")
def test_a_job_that_remembers_passes_and_what_is_added_later_is_found(project: Settings) -> None:
    folder = project.root / "jobs" / "count"
    file = folder / "invariant.py"
    state = project.data / "state"
    job = LeftJob("count", {"clicks": False}, ("tallies",), ("counts",), 2)
    with Stack.connect(project) as stack:
        where = Remains(stack.endpoints.kafka, project.name, (job,), state, project.topic_prefix)
        assert invariant.check(stack, file, folder, outputs=["tallies"], inputs=["clicks"]) == []
        spoil(stack)
        found = {one.kind: one for one in examine(where, {"clicks": {"ada": 1}}).findings}
    assert "partition 1" in found[Kind.UNDECODABLE].message
    assert found[Kind.ORDER].message == "stands in partitions 0, 1"
    assert {Kind.LOST, Kind.DOUBLED, Kind.OFFSET} <= found.keys()
    assert found[Kind.STATE].message == "on disk, but not in the changelog"


def spoil(stack: Stack) -> None:
    """Write what no job would: rubbish, a key at two places, a record that nobody read, state of nothing."""
    store = Rdict(str(stack.settings.data / "state/count/counts/0/db"), Options(raw_mode=True))
    store[b"ghost"] = b"\0" * 8
    store.close()
    writer = LogWriter(stack.access)
    writer.write(stack.topic_of("tallies"), [{"key": b"bob", "value": b"rubbish"}], 1)
    with stack.writer("tallies") as feed:
        tally = feed.encode({"user": "bob", "count": 1})
    writer.write(stack.topic_of("tallies"), [tally], 0)
    writer.write(stack.topic_of("clicks"), [{"key": b"bob", "value": b""}], 0)
    writer.flush()
    writer.close()
