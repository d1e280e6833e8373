"""The jobs feed: entries as they are stored, found and changed; and lines of logs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stack.deploy.jobs import JobsFeed
from stack.deploy.logs import LogLine, line_from_bytes, line_to_bytes
from stack.deploy.operate import ask, refuse_running, resume, scale
from stack.deploy.watch import View
from stack.errors import BadInput, CorruptState, NotFound
from stack.model.fleet import JobState, JobStatus
from stack.model.job import Desired, JobEntry
from stack.model.ledger import MemoryLedger
from stack.model.plan import ContainerReport
from tests.unit.test_deploy_checks import SPEC

ENTRY = JobEntry(SPEC, confirmed=True, previous=replace(SPEC, version="zero"), try_number=2)


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


@pytest.fixture
def jobs(ledger: MemoryLedger) -> JobsFeed:
    feed = JobsFeed(ledger)
    feed.put(ENTRY)
    return feed


def test_an_entry_comes_back_as_it_was_written(jobs: JobsFeed) -> None:
    assert jobs.get("count") == ENTRY
    assert jobs.entries() == {"count": ENTRY}
    assert jobs.find("nothing") is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [("cuont", "Did you mean count?"), ("zzz", "There are: count."), ("left/count", "count")],
)
def test_a_job_that_is_not_there_brings_the_nearest_names(jobs: JobsFeed, name: str, hint: str) -> None:
    with pytest.raises(NotFound) as caught:
        jobs.get(name)
    assert hint in caught.value.hint


def test_without_any_job_the_hint_is_to_deploy_one() -> None:
    with pytest.raises(NotFound) as caught:
        JobsFeed(MemoryLedger()).get("count")
    assert "stack jobs deploy" in caught.value.hint


def test_how_stores_of_a_version_were_coded_is_remembered_until_state_is_gone(
    jobs: JobsFeed, ledger: MemoryLedger
) -> None:
    assert jobs.codecs("count", SPEC.version) is None
    jobs.note_stores(SPEC)
    jobs.note_stores(replace(SPEC, version="two", stores=()))
    expected = {one.name: (str(one.key), str(one.value)) for one in SPEC.stores}
    assert jobs.codecs("count", SPEC.version) == expected
    assert jobs.codecs("count", "two") == {}
    assert jobs.entries() == {"count": ENTRY}
    ledger.update(lambda _: {f"version/count/{SPEC.version}": "3"})
    assert jobs.codecs("count", SPEC.version) is None
    jobs.remove("count")
    assert jobs.codecs("count", "two") == {}
    jobs.forget("count")
    assert jobs.codecs("count", "two") is None
    assert dict(ledger.entries()) == {}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"spec": 3}', '"x"', "null"])
def test_an_entry_that_cannot_be_read_does_not_hide_the_others(
    jobs: JobsFeed, ledger: MemoryLedger, text: str
) -> None:
    ledger.update(lambda _: {"broken": text})
    entries, faults = jobs.look()
    assert list(entries) == ["count"]
    assert "'broken'" in faults["broken"].message
    with pytest.raises(CorruptState, match="'broken' in the jobs feed cannot be read"):
        jobs.entries()
    assert jobs.get("count") == ENTRY
    jobs.update("broken", lambda before: before)
    assert "broken" in jobs.names()
    jobs.update("broken", lambda _: JobEntry(replace(SPEC, name="broken")))
    assert jobs.get("broken").spec.name == "broken"


def test_an_entry_under_another_name_is_corrupt(jobs: JobsFeed, ledger: MemoryLedger) -> None:
    ledger.update(lambda texts: {"other": texts["count"]})
    with pytest.raises(CorruptState, match="it describes the job 'count'"):
        jobs.get("other")


def test_a_removed_job_leaves_word_of_its_state_until_that_is_gone(jobs: JobsFeed) -> None:
    jobs.remove("count")
    assert jobs.entries() == {}
    assert jobs.left("count") == ENTRY
    assert jobs.confirmed("count") == SPEC
    again = replace(SPEC, version="two")
    jobs.put(JobEntry(again))
    assert jobs.confirmed("count") == SPEC
    jobs.put(JobEntry(again, confirmed=True))
    assert jobs.confirmed("count") == again
    jobs.remove("count")
    jobs.forget("count")
    assert jobs.confirmed("count") is None
    jobs.remove("count")
    jobs.forget("count")


def test_asking_twice_is_no_news(jobs: JobsFeed) -> None:
    entry, news = ask(jobs, "count", Desired.PAUSED)
    assert (entry.desired, news) == (Desired.PAUSED, True)
    assert ask(jobs, "count", Desired.PAUSED) == (entry, False)
    with pytest.raises(NotFound):
        ask(jobs, "other", Desired.PAUSED)


def test_resume_raises_the_try_where_there_is_a_need(jobs: JobsFeed) -> None:
    assert resume(jobs, "count", View(ENTRY)) == (ENTRY, False)
    failed = View(ENTRY, JobStatus(JobState.FAILED))
    assert resume(jobs, "count", failed)[0].try_number == 3
    ask(jobs, "count", Desired.DRAINED)
    entry, news = resume(jobs, "count", View(jobs.get("count")))
    assert (entry.desired, entry.try_number, news) == (Desired.RUNNING, 5, True)


def test_scale_changes_the_containers_and_nothing_else(jobs: JobsFeed) -> None:
    entry, news = scale(jobs, "count", 4)
    assert news
    assert entry == replace(ENTRY, spec=replace(SPEC, settings=replace(SPEC.settings, containers=4)))
    assert scale(jobs, "count", 4) == (entry, False)
    with pytest.raises(BadInput, match="has 4 tasks"):
        scale(jobs, "count", 5)


def test_only_a_job_that_works_is_protected_from_removal() -> None:
    report = ContainerReport(0, 1, 1, "one", "r", "h", 1)
    with pytest.raises(BadInput, match="'count' is running") as caught:
        refuse_running(View(ENTRY, reports=(report,)), "count")
    assert "--yes" in caught.value.hint
    refuse_running(View(ENTRY), "count")
    refuse_running(View(replace(ENTRY, desired=Desired.PAUSED), reports=(report,)), "count")


def test_a_line_of_the_logs_comes_back_and_junk_does_not() -> None:
    line = LogLine(1, "count", 0, 2, "INFO", "größe \ud800")
    assert line_from_bytes(line_to_bytes(replace(line, text="größe"))) == replace(line, text="größe")
    assert line_from_bytes(line_to_bytes(line)) == replace(line, text="größe ?")
    for junk in (b"", b"[]", b"{}", b"\xff", b'{"time_ms": "x"}'):
        assert line_from_bytes(junk) is None
