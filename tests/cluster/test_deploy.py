"""Deploying on a real Kafka: code, topics, schemas, entries; what is refused, and that nothing changed."""

from __future__ import annotations

import functools
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stack import Stack
from stack.deploy.code import PIECE_BYTES, CodeFeed, code_feed, code_folder
from stack.deploy.deploy import Deployed, deploy
from stack.deploy.inspect import Declared, inspect
from stack.deploy.jobs import jobs_feed
from stack.deploy.operate import remove_state
from stack.errors import BadConfig, CorruptState, NotFound
from stack.kafka.reader import LogReader
from stack.kafka.writer import LogWriter
from stack.model.checkpoint import checkpoint_key
from stack.model.job import CodePlace, JobEntry, changelog_name, code_name, logs_name
from stack.model.plan import tasks_of
from stack.offsets.checkpoints import checkpoint_partition, checkpoints_topic
from stack.tasks.load import load_job
from tests.cluster.conftest import CATALOGUE, apply

pytestmark = pytest.mark.cluster

CODE = """
from stack import Feed, Job
job = Job("last-view")
@job.task(Feed("views"), store="last")
def keep(view, ctx):
    ctx.state[view["user"]] = view
    ctx.emit(Feed("users"), view)
"""
PutUp = Callable[..., Deployed]


@pytest.fixture(autouse=True)
def inspect_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same code declares the same: a process is started for each code once, not for each deploy."""
    monkeypatch.setattr(
        "stack.deploy.deploy.inspect", lambda place: _inspected((place / "job.py").read_text())
    )


@functools.cache
def _inspected(code: str) -> Declared:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "job.py").write_text(code)
        return inspect(Path(place))


@pytest.fixture
def folder(filled: Stack) -> Path:
    made = filled.settings.root / "jobs" / "last-view"
    made.mkdir(parents=True)
    (made / "job.py").write_text(CODE)
    return made


@pytest.fixture
def put_up(filled: Stack, folder: Path) -> PutUp:
    """Writes files into the job's folder and deploys it."""

    def run(**files: str) -> Deployed:
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)
        return deploy(filled, folder)

    return run


def faults_of(put_up: PutUp, **files: str) -> tuple[str, ...]:
    with pytest.raises(BadConfig) as caught:
        put_up(**files)
    assert "Nothing was changed" in caught.value.hint
    return caught.value.faults


def confirm(stack: Stack, name: str = "last-view") -> None:
    """What a runner does when a version has committed."""
    jobs_feed(stack).update(name, lambda one: replace(one, confirmed=True, previous=None) if one else None)


def setting(stack: Stack, topic: str, key: str) -> str:
    return stack.admin.settings([topic])[topic][key]


# The code feed


@pytest.fixture
def codes(stack: Stack) -> CodeFeed:
    return code_feed(stack)


def test_code_of_many_pieces_comes_back_whole(codes: CodeFeed) -> None:
    small, large = b"small", bytes(range(256)) * (PIECE_BYTES // 100)
    places = [codes.store(small), codes.store(large), codes.store(small[::-1])]
    assert [codes.read(place) for place in places] == [small, large, small[::-1]]
    assert places[1].size_bytes == len(large)
    assert places[1].first_offset > places[0].last_offset


def test_code_is_found_where_a_later_copy_stands(codes: CodeFeed) -> None:
    place = codes.store(b"code")
    moved = replace(place, first_offset=place.last_offset + 5, last_offset=place.last_offset + 6)
    assert codes.read(moved) == b"code"


def test_what_is_not_there_or_not_itself_is_told(codes: CodeFeed, stack: Stack) -> None:
    with pytest.raises(NotFound, match="is not in the code feed any more"):
        codes.read(CodePlace("0" * 64, 0, 1, 10))
    place = codes.store(b"code")
    with pytest.raises(NotFound):
        codes.read(replace(place, sha256="0" * 64))
    with LogWriter(stack.access) as writer:
        writer.write(
            code_name(stack.settings.name), [{"key": f"{place.sha256}/0".encode(), "value": b"evil"}]
        )
    end = stack.admin.ends(code_name(stack.settings.name), [0])[0]
    with pytest.raises(CorruptState, match="is not what was stored there"):
        codes.read(replace(place, first_offset=end - 1, last_offset=end - 1))


def test_a_sweep_takes_what_nobody_needs_and_leaves_what_is_young(codes: CodeFeed) -> None:
    kept, dropped = codes.store(b"kept"), codes.store(b"dropped")
    assert codes.sweep(lambda: [kept]) == 0
    assert codes.sweep(lambda: [kept], age_ms=-60_000) == 1
    assert codes.still_holds(kept)
    assert not codes.still_holds(dropped)
    assert codes.sweep(lambda: [kept], age_ms=-60_000) == 0


def test_many_may_store_at_once(stack: Stack) -> None:
    places: dict[int, CodePlace] = {}

    def store(number: int) -> None:
        places[number] = code_feed(stack).store(f"code {number}".encode() * 1000)

    threads = [threading.Thread(target=store, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert code_feed(stack).read(places[number]) == f"code {number}".encode() * 1000


# Deploying


def test_a_deploy_makes_topics_stores_code_and_writes_the_entry(put_up: PutUp, filled: Stack) -> None:
    deployed = put_up(job__toml='horizon = "2h"\n[stores.last]\nvalue = "json"\n', helper__py="X = 1\n")
    entry, name = deployed.entry, filled.settings.name
    assert jobs_feed(filled).get("last-view") == entry
    assert (entry.confirmed, entry.previous, entry.try_number) == (False, None, 1)
    assert (entry.spec.outputs, entry.spec.partitions) == (("users",), 3)
    changelog = changelog_name(name, "last-view", "last")
    found = filled.admin.describe([changelog, checkpoints_topic(name), logs_name(name)])
    assert [found[one].partitions for one in (changelog, checkpoints_topic(name), logs_name(name))] == [
        3,
        8,
        1,
    ]
    for topic in (changelog, checkpoints_topic(name)):
        assert setting(filled, topic, "cleanup.policy") == "compact"
        assert setting(filled, topic, "message.timestamp.type") == "LogAppendTime"
        assert setting(filled, topic, "min.compaction.lag.ms") == "7200000"
        assert setting(filled, topic, "delete.retention.ms") == "86400000"
    job = load_job(code_folder(filled, entry.spec.code), "last-view")
    assert job.store_names == ("last",)


def test_the_same_again_changes_nothing_but_the_try(put_up: PutUp, filled: Stack) -> None:
    first = put_up().entry
    again = put_up()
    assert again.is_same
    assert again.entry == replace(first, try_number=2)


def test_a_new_version_keeps_the_confirmed_one_to_go_back_to(put_up: PutUp, filled: Stack) -> None:
    first = put_up().entry.spec
    confirm(filled)
    second = put_up(job__py=CODE + "# changed\n").entry
    assert (second.previous, second.confirmed, second.try_number) == (first, False, 2)
    assert second.spec.version != first.version
    third = put_up(job__py=CODE + "# changed again\n").entry
    assert third.previous == first
    back = put_up(job__py=CODE).entry
    # The code of the first version is still named by the entry: it is not stored again.
    assert back.spec.code == first.code
    with_settings = put_up(job__toml="commit_max_ms = 900\n").entry
    assert with_settings.spec.version == first.version
    assert with_settings.previous == first


def test_code_that_was_swept_is_stored_again(put_up: PutUp, filled: Stack) -> None:
    first = put_up().entry.spec.code
    assert code_feed(filled).sweep(list, age_ms=-60_000) == 1
    second = put_up().entry.spec.code
    assert second.first_offset > first.last_offset
    assert code_feed(filled).still_holds(second)


def test_the_checkpoints_are_kept_for_the_longest_horizon(put_up: PutUp, filled: Stack, folder: Path) -> None:
    topic = checkpoints_topic(filled.settings.name)
    put_up(job__toml='horizon = "3h"')
    other = folder.parent / "idle"
    other.mkdir()
    (other / "job.py").write_text(CODE.replace("last-view", "idle"))
    deploy(filled, other)
    assert setting(filled, topic, "min.compaction.lag.ms") == str(3 * 3_600_000)
    put_up(job__toml='horizon = "90m"')
    assert setting(filled, topic, "min.compaction.lag.ms") == str(90 * 60_000)


def test_all_that_speaks_against_a_deploy_is_told_and_nothing_was_changed(
    put_up: PutUp, filled: Stack
) -> None:
    before = filled.admin.topic_names()
    faults = faults_of(
        put_up,
        job__py=CODE.replace('Feed("views")', 'Feed("vews"), Feed("users")'),
        job__toml="containers = 3\n[stores.lost]\n",
    )
    told = "\n".join(faults)
    for part in (
        "stores.lost: no task of the code names this store; did you mean last?",
        "input 'vews': the catalogue has no such feed; did you mean views?",
        "'users' is an input and an output of the job",
        "'users' is declared as made of 'views', which the code does not read",
    ):
        assert part in told
    # Other tests make topics of their own meanwhile.
    made = {name for name in filled.admin.topic_names() - before if filled.settings.name in name}
    assert made <= {f"_{filled.settings.name}.jobs"}
    assert jobs_feed(filled).entries() == {}


def test_inputs_of_different_counts_are_refused_by_name(put_up: PutUp, filled: Stack) -> None:
    file = filled.settings.schemas / "catalog.toml"
    more = CATALOGUE.replace("[feeds.views]", "[feeds.clicks]").replace("partitions = 3", "partitions = 5")
    file.write_text(CATALOGUE + more.partition("[feeds.users]")[0])
    apply(filled)
    faults = faults_of(put_up, job__py=CODE.replace('Feed("views")', 'Feed("views"), Feed("clicks")'))
    assert any("views has 3, clicks has 5" in fault for fault in faults)


def test_a_second_writer_of_a_feed_is_refused(put_up: PutUp, filled: Stack) -> None:
    put_up()
    file = filled.settings.schemas / "catalog.toml"
    file.write_text(file.read_text().replace("last-view", "newest-view"))
    apply(filled)
    (fault,) = faults_of(put_up, job__py=CODE.replace("last-view", "newest-view"))
    assert "feed 'users' is written by job 'last-view', which is deployed" in fault


def test_a_feed_without_its_topic_is_refused(put_up: PutUp, filled: Stack) -> None:
    filled.admin.delete([filled.topic_of("views")])
    assert any("feed 'views': its topic was deleted" in fault for fault in faults_of(put_up))


def test_inputs_that_grew_are_refused_while_there_is_state(put_up: PutUp, filled: Stack) -> None:
    put_up()
    confirm(filled)
    filled.admin.grow(filled.topic_of("views"), 4)
    (fault,) = faults_of(put_up)
    assert "views: now 4 partitions, but the job's state was made for 3" in fault
    jobs_feed(filled).remove("last-view")
    assert len(faults_of(put_up)) == 1
    remove_state(filled, jobs_feed(filled), "last-view")
    assert put_up().entry.spec.partitions == 4


AVRO = '[stores.last]\nvalue = "avro"\nschema = "last.avsc"\n'


def schema(*fields: str) -> str:
    return f'{{"type": "record", "name": "Last", "fields": [{", ".join(fields)}]}}'


def test_a_store_may_only_change_so_that_old_values_can_be_read(put_up: PutUp, filled: Stack) -> None:
    page, load = '{"name": "page", "type": "string"}', '{"name": "load", "type": "double", "default": 0}'
    put_up(job__toml=AVRO, last__avsc=schema(page))
    confirm(filled)
    subject = f"{changelog_name(filled.settings.name, 'last-view', 'last')}-value"
    assert filled.registry.latest(subject).version == 1
    put_up(last__avsc=schema(page, load))
    confirm(filled)
    assert filled.registry.latest(subject).version == 2
    (fault,) = faults_of(put_up, last__avsc=schema(load, '{"name": "user", "type": "string"}'))
    assert "store 'last': Last.user" in fault
    (fault,) = faults_of(put_up, job__toml='[stores.last]\nvalue = "str"\n')
    assert "its values were avro, now str" in fault
    assert filled.registry.latest(subject).version == 2
    renamed = CODE.replace('"last"', '"newest"')
    entry = put_up(job__py=renamed, job__toml='[stores.newest]\nvalue = "str"\n').entry
    assert [one.name for one in entry.spec.stores] == ["newest"]


def test_a_store_is_remembered_after_its_job_was_removed(put_up: PutUp, filled: Stack) -> None:
    put_up()
    confirm(filled)
    jobs_feed(filled).remove("last-view")
    (fault,) = faults_of(put_up, job__toml='[stores.last]\nvalue = "int"\n')
    assert "its values were json, now int" in fault


def test_state_is_removed_with_all_its_traces(put_up: PutUp, filled: Stack) -> None:
    put_up(job__toml=AVRO, last__avsc=schema('{"name": "page", "type": "string"}'))
    confirm(filled)
    name, jobs = filled.settings.name, jobs_feed(filled)
    keys = [checkpoint_key("last-view", task) for task in tasks_of(3)]
    partition = checkpoint_partition("last-view")
    with LogWriter(filled.access) as writer:
        writer.write(checkpoints_topic(name), [{"key": key, "value": b"{}"} for key in keys], partition)
    state = filled.settings.data / "state" / "last-view" / "last"
    state.mkdir(parents=True)
    jobs.remove("last-view")
    changelog = changelog_name(name, "last-view", "last")
    assert remove_state(filled, jobs, "last-view") == (changelog,)
    assert changelog not in filled.admin.topic_names()
    assert f"{changelog}-value" not in filled.registry.state().subjects()
    with LogReader(filled.access, checkpoints_topic(name)) as reader:
        reader.assign({partition: 3}, {partition: 6})
        last = reader.read(timeout_s=10)
    assert dict(zip(last.keys, last.values, strict=True)) == dict.fromkeys(keys)
    assert not state.exists()
    assert jobs.confirmed("last-view") is None
    assert remove_state(filled, jobs, "last-view") == ()


def test_a_job_whose_entry_cannot_be_read_is_deployed_anew(put_up: PutUp, filled: Stack) -> None:
    filled.ledger(f"_{filled.settings.name}.jobs").update(lambda _: {"last-view": "{"})
    with pytest.raises(CorruptState) as caught:
        jobs_feed(filled).get("last-view")
    assert "stack jobs remove last-view --yes" in caught.value.hint
    assert isinstance(put_up().entry, JobEntry)
    assert jobs_feed(filled).get("last-view").try_number == 1
