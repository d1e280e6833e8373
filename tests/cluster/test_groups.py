"""Offsets of consumers outside the stack on a real Kafka: turns, mirrors, the commands, and over HTTP."""

from __future__ import annotations

import json
import multiprocessing
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError

import pytest
import uvicorn
from confluent_kafka import Consumer

from ops.service.app import create_app
from ops.service.offsets_routes import OffsetsDesk, offsets_router
from stack import AtOffsets, Latest, Oldest, Outdated, Stack
from stack.deploy.lag import commit_lags
from stack.kafka.writer import LogWriter
from stack.model.job import group_name
from stack.model.place import Place
from stack.model.plan import TaskState
from stack.model.startpoint import AtAnnotation
from stack.offsets.audit import read_audit
from stack.offsets.naming import name_point, where_it_stands
from stack.settings import Settings
from tests.cluster import test_commands, test_rewind
from tests.cluster.test_commands import Run
from tests.cluster.test_rewind import Rewinds
from tests.clusters import wait_for
from tests.kafka_tools import GroupRow, group_rows

pytestmark = pytest.mark.cluster
run = test_commands.run
rewinds = test_rewind.rewinds
VIEWS = [{"user": f"u{n}", "page": "/", "ms": 1_700_000_000_000 + n, "load": 1.0} for n in range(300)]


@pytest.fixture
def group(filled: Stack) -> str:
    """A group of this test's own, since Kafka's groups are shared by all stacks; and views to be read."""
    with filled.writer("views") as writer:
        writer.write_many(VIEWS)
    return f"g-{filled.settings.name}"


def ends(stack: Stack) -> dict[int, int]:
    return stack.admin.ends(stack.topic_of("views"), range(3))


def shown(stack: Stack, group: str) -> dict[Place, GroupRow]:
    """What the stack says, as Kafka's tool would print it."""
    found = commit_lags(stack, stack.offsets(group).fetch())
    return {
        (one.topic, one.partition): GroupRow(one.committed or 0, one.end, one.records or 0) for one in found
    }


def test_kafkas_own_tool_prints_what_was_committed_forwards_and_back(filled: Stack, group: str) -> None:
    offsets = filled.offsets(group)
    done = offsets.commit({"views": {0: 10, 1: 5}}, version="3f2a")
    assert (done.number, done.mirrored, done.mirror_fault) == (1, True, "")
    assert group_rows(filled.endpoints.kafka, group) == shown(filled, group)
    offsets.commit({"views": {0: 2, 2: 7}}, reason="once more")
    rows = group_rows(filled.endpoints.kafka, group)
    assert rows == shown(filled, group)
    assert [row.committed for _, row in sorted(rows.items())] == [2, 5, 7]
    assert sum(row.lag for row in rows.values()) == 300 - 14


def test_a_group_with_consumers_at_work_is_left_alone_and_that_is_told(filled: Stack, group: str) -> None:
    topic = filled.topic_of("views")
    settings = {"group.id": group, "bootstrap.servers": filled.access.bootstrap, "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        wait_for(lambda: consumer.poll(0.1) is not None and consumer.assignment(), "the consumer")
        done = filled.offsets(group).commit({"views": {0: 10}})
        assert not done.mirrored
        assert "consumers are at work in Kafka's group" in done.mirror_fault
        assert filled.admin.committed(group) == {}
        assert filled.offsets(group).fetch().offsets == {"views": {0: 10}}
    finally:
        consumer.close()
    wait_for(lambda: filled.offsets(group).commit({"views": {0: 11}}).mirrored, "the group to be left")
    assert filled.admin.committed(group) == {(topic, 0): 11}
    # An ordinary consumer of that group goes on where the stack says.
    consumer = Consumer({**settings, "auto.offset.reset": "latest"})
    consumer.subscribe([topic])
    try:
        found: list[int] = []

        def first() -> bool:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.offset())
            return bool(found)

        wait_for(first, "the first record")
        assert found == [11]
    finally:
        consumer.close()


def _commit_many(settings: Settings, group: str, partition: int, count: int, told: Any) -> None:
    with Stack.connect(settings) as stack:
        offsets = stack.offsets(group)
        numbers = [offsets.commit({"views": {partition: one}}).number for one in range(1, count + 1)]
    told.put(numbers)


def test_processes_that_commit_at_once_lose_nothing(filled: Stack, group: str) -> None:
    context = multiprocessing.get_context("forkserver")
    told = context.SimpleQueue()
    processes = [
        context.Process(target=_commit_many, args=(filled.settings, group, number, 15, told))
        for number in range(3)
    ]
    for one in processes:
        one.start()
    numbers = [number for _ in processes for number in told.get()]
    for one in processes:
        one.join(30)
    assert sorted(numbers) == list(range(1, 46))
    history = filled.offsets(group).history(100)
    assert [one.number for one in history] == list(range(45, 0, -1))
    assert history[0].offsets == {"views": {0: 15, 1: 15, 2: 15}}
    topic = filled.topic_of("views")
    assert filled.admin.committed(group) == {(topic, number): 15 for number in range(3)}
    entries = [one for one in read_audit(filled) if one.job == group]
    assert [one.after["commit"] for one in entries] == list(range(1, 46))
    assert [one.before.get("commit", 0) for one in entries] == list(range(45))


def _hang_before_the_end(settings: Settings, group: str, told: Any) -> None:
    """A process that has written everything of its commit but the end."""

    def hang(self: LogWriter) -> None:
        self.flush()
        told.put("written")
        time.sleep(600)

    setattr(LogWriter, "commit", hang)  # noqa: B010 - a method of another kind
    with Stack.connect(settings) as stack:
        stack.offsets(group).commit({"views": {0: 9}}, name="half")


def test_a_commit_that_was_killed_leaves_nothing_and_holds_nobody_up(filled: Stack, group: str) -> None:
    filled.offsets(group).commit({"views": {0: 1}})
    context = multiprocessing.get_context("forkserver")
    told = context.SimpleQueue()
    process = context.Process(target=_hang_before_the_end, args=(filled.settings, group, told))
    process.start()
    assert told.get() == "written"
    process.kill()
    process.join(10)
    began = time.monotonic()
    assert filled.offsets(group).commit({"views": {1: 2}}).number == 2
    assert time.monotonic() - began < 8
    assert [one.offsets for one in filled.offsets(group).history()] == [
        {"views": {0: 1, 1: 2}},
        {"views": {0: 1}},
    ]
    assert [one.after["commit"] for one in read_audit(filled) if one.job == group] == [1, 2]


def test_of_two_who_begin_at_the_same_place_one_is_told(filled: Stack, group: str) -> None:
    filled.offsets(group).commit({"views": {0: 1}})

    def commit(offset: int) -> int | None:
        with Stack.connect(filled.settings) as stack:
            try:
                return stack.offsets(group).commit({"views": {0: offset}}, expect=1).number
            except Outdated:
                return None

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(commit, range(2, 6)))
    assert sorted(done, key=bool) == [None, None, None, 2]
    (winner,) = [offset for offset, number in zip(range(2, 6), done, strict=True) if number]
    assert filled.offsets(group).fetch().offsets == {"views": {0: winner}}


def test_a_reader_goes_on_where_it_was_and_everything_is_read_once(filled: Stack, group: str) -> None:
    seen: list[str] = []
    while True:
        with Stack.connect(filled.settings) as stack, stack.reader("views") as reader:
            offsets = stack.offsets(group)
            last = offsets.newest()
            reader.seek(Oldest() if last is None else last.startpoint("views"), until=Latest())
            if reader.done:
                break
            batch = reader.read(70, timeout_s=10)
            seen += [record.value["user"] for record in batch.records()]
            offsets.commit({"views": reader.positions}, step=str(len(seen)))
    assert sorted(seen) == sorted(str(view["user"]) for view in VIEWS)
    found = filled.offsets(group).fetch(step="70")
    with filled.reader("views") as reader:
        reader.seek(found.startpoint("views"), until=AtOffsets(ends(filled)))
        assert sum(1 for _ in reader.records()) == 300 - 70


def test_a_feed_that_was_made_anew_is_noticed(filled: Stack, group: str) -> None:
    from tests.cluster.conftest import apply

    offsets = filled.offsets(group)
    offsets.commit({"views": {0: 3}})
    filled.admin.delete([filled.topic_of("views")])
    with pytest.raises(Outdated, match="feed 'views' is gone since commit 1"):
        offsets.fetch()
    apply(filled)
    with pytest.raises(Outdated, match="feed 'views' was deleted and made anew"):
        offsets.fetch()


def test_the_commands(group: str, run: Run) -> None:
    assert run("offsets", "fetch", "--json").json == []
    first = run("offsets", "commit", group, "views:p0=3,p1=4", "version=3f2a", "--name", "then", "--json")
    assert (first.json["commit"], first.json["mirrored"]) == (1, True)
    told = run("offsets", "commit", group, "views:latest", "url=http://x", "--expect", "1", "--reason", "why")
    assert f"commit 2 of {group} url=http://x: views:p0=" in told.out
    assert run("offsets", "fetch", group, "version=3f2a", "--json").json["offsets"] == {
        "views": {"0": 3, "1": 4}
    }
    newest = run("offsets", "fetch", group)
    assert "commit 2 of" in newest.out
    assert {line.split()[-1] for line in newest.out.splitlines()[2:]} == {"0"}
    for way in (["--to", "@then"], ["--name", "then"], ["--to", "#1"], ["--to", "p0=5"]):
        assert run("offsets", "fetch", group, *way, "--json").json["commit"] == 1, way
    assert run("offsets", "fetch", group, "--at", "-0s", "--json").json["commit"] == 2
    assert "@then version=3f2a" in run("offsets", "fetch", group, "--list").out
    assert [one["group"] for one in run("offsets", "fetch", "--json").json] == [group]
    assert group in run("offsets", "fetch").out
    named = run("offsets", "commit", group, "--name", "here", "--no-mirror", "--json").json
    assert (named["commit"], named["mirrored"]) == (3, False)
    audit = run("audit", group, "--json").json
    assert [one["after"]["commit"] for one in audit] == [1, 2, 3]
    assert "why" in run("audit", group).out
    for words, message in (
        (("commit", group, "views:p9=1"), "has no partition 9"),
        (("commit", group, "views:p0=99999"), "before 99999"),
        (("commit", group, "vews:p0=1"), "vews"),
        (("commit", group, "views:p0=1", "views:p1=1"), "named twice"),
        (("commit", group, "views"), "'views' is not key=value"),
        (("commit", group, "views:p0=1", "--expect", "2"), "commit 2 is not the newest"),
        (("commit", group), "needs something to say"),
        (("fetch", group, "a=b", "--to", "latest"), "in one way"),
        (("fetch", group, "--list", "--to", "#1"), "--list"),
        (("fetch", "nobody"), "has no commit at all"),
    ):
        done = run("offsets", *words)
        assert done.code == 1, words
        assert message in done.err, done.err
    assert run("offsets", "fetch", group, "--json").json["commit"] == 3


SLOW = test_rewind.ONE.replace("def count(click, ctx):", "def count(click, ctx):\n    time.sleep(0.02)")


def test_after_a_rewind_the_tool_prints_what_jobs_show_tells(rewinds: Rewinds, run: Run) -> None:
    stack = rewinds.stack
    name = group_name(stack.settings.name, "count")

    def told() -> dict[Place, GroupRow]:
        rows = run("jobs", "show", "count", "--json").json["lag"]
        return {
            (row["topic"], row["partition"]): GroupRow(row["committed"], row["end"], row["records"])
            for row in rows
            if row["feed"] == "clicks"
        }

    def printed() -> dict[Place, GroupRow]:
        topic = stack.topic_of("clicks")
        return {at: row for at, row in group_rows(stack.endpoints.kafka, name).items() if at[0] == topic}

    def lag() -> int:
        return sum(row.lag for row in told().values())

    rewinds.click(100)
    rewinds.run()
    rewinds.await_read()
    stand = where_it_stands(stack, rewinds.fleet.spec, is_still=False)
    name_point(stack, rewinds.fleet.spec, stand, "then", {}, by="me")
    rewinds.click(200)
    rewinds.await_read()
    rewinds.stop()
    assert lag() == 0
    # It went back, and does not run yet.
    rewinds.rewind(AtAnnotation("then"))
    assert lag() == 200
    assert printed() == told()
    # Whoever runs lets the group follow, wherever it stood.
    ends_now = {at: row.end for at, row in told().items()}
    stack.admin.move_group(name, ends_now)
    rewinds.world.write_job("import time\n" + SLOW)
    rewinds.fleet.redeploy(rewinds.world.folder)
    rewinds.run()
    wait_for(lambda: rewinds.fleet.nodes.reports() and running(rewinds), "the tasks to run")
    wait_for(lambda: 0 < lag() <= 200, "the group to go back", limit_s=2.5)
    # It has read some, and not all.
    wait_for(lambda: lag() < 190, "some clicks")
    rewinds.stop()
    assert 0 < lag() < 190
    assert printed() == told()
    # It has caught up.
    rewinds.run()
    rewinds.await_read()
    wait_for(lambda: lag() == 0, "the group to follow to the end", limit_s=10)
    assert printed() == told()


def running(rewinds: Rewinds) -> bool:
    states = [one.state for report in rewinds.fleet.nodes.reports() for one in report.tasks.values()]
    return states == [TaskState.RUNNING] * 2


@pytest.fixture
def url(stack: Stack) -> Iterator[str]:
    """The address of the service on this test's stack."""
    desk = OffsetsDesk(stack)
    app = create_app(stack.registry, offsets_router(desk))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            wait_for(lambda: server.started, "the service")
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
            desk.close()


def ask(url: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def test_over_http_many_clients_at_once(url: str, group: str, filled: Stack) -> None:
    def commit(number: int) -> tuple[int, int]:
        name = f"{group}-{number % 4}"
        status, told = ask(f"{url}/offsets/groups/{name}/commits", {"offsets": {"views": {"0": number}}})
        return status, told["commit"]

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(commit, range(40)))
    assert {status for status, _ in done} == {200}
    assert sorted(number for _, number in done) == sorted(list(range(1, 11)) * 4)
    _, groups = ask(f"{url}/offsets/groups")
    assert [(one["group"], one["commit"]) for one in groups] == [(f"{group}-{n}", 10) for n in range(4)]
    status, refused = ask(f"{url}/offsets/groups/{group}-0/commits", {"offsets": {"views": {"0": 10**6}}})
    assert status == 422
    assert "before 1000000" in refused["message"]
    status, stale = ask(
        f"{url}/offsets/groups/{group}-0/commits", {"offsets": {"views": {"0": 1}}, "expect": 3}
    )
    assert (status, "look" in stale["hint"] or "shows" in stale["hint"]) == (409, True)
    # What a command or a program commits is seen by the service, and the other way round.
    filled.offsets(f"{group}-0").commit({"views": {1: 1}}, version="program")
    _, found = ask(f"{url}/offsets/groups/{group}-0?version=program")
    assert found["commit"] == 11
    _, told = ask(f"{url}/audit?job={group}-0&limit=2")
    assert [one["after"]["commit"] for one in told] == [10, 11]


def test_points_of_a_job_over_http(rewinds: Rewinds, url: str) -> None:
    rewinds.click(50)
    rewinds.run()
    rewinds.await_read()
    job = f"{url}/offsets/jobs/count"
    body = {"name": "here", "annotations": {"ticket": "OPS-17"}, "by": "ada", "reason": "before a release"}
    status, named = ask(f"{job}/points", body)
    assert (status, named["name"], set(named["commits"])) == (200, "here", {"main-0", "main-1"})
    _, points = ask(job)
    assert "@here" in {one["point"] for one in points}
    for question in (
        "name=here",
        "to=@here",
        "ticket=OPS-17",
        "at=-0s",
        f"version={rewinds.fleet.spec.version}",
    ):
        status, found = ask(f"{job}/point?{question}")
        assert (status, set(found["checkpoints"])) == (200, {"main-0", "main-1"}), question
    _, found = ask(f"{job}/point?name=here")
    offsets = [one["inputs"][0]["offsets"][0]["offset"] for one in found["checkpoints"].values()]
    assert sum(offsets) == 50
    for path, given, wanted in (
        (f"{job}/point?name=hree", None, 404),
        (f"{job}/point", None, 422),
        (f"{job}/points", {"name": "a b"}, 422),
        (f"{job}/points", {}, 422),
        (f"{job}/points", {"nam": "x"}, 422),
        (f"{url}/offsets/jobs/cuont/points", {"name": "x"}, 404),
    ):
        status, told = ask(path, given)
        assert (status, bool(told["message"])) == (wanted, True), path
    _, entries = ask(f"{url}/audit?what=annotate")
    (entry,) = entries
    assert (entry["job"], entry["by"], entry["reason"]) == (
        "count",
        "ada over HTTP from 127.0.0.1",
        "before a release",
    )
    rewinds.stop()
