"""Records that fail, on real Kafka and RocksDB: all others are exact; each is kept once, comes back once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stack import Stack
from stack.connection import Stack as Connection
from stack.deploy import redrive as redriving
from stack.deploy.dead import DeadFeed, Found, filter_letters
from stack.deploy.redrive import Redrive, To
from stack.feeds.avro.codec import RecordEncoder
from stack.feeds.avro.schema import parse_avro
from stack.kafka.reader import LogReader
from stack.kafka.writer import LogWriter
from stack.model.dead import Kind
from stack.model.job import dead_name
from stack.model.partitioner import partition_of
from stack.model.plan import Reason
from stack.settings import Settings, read_endpoints
from tests.cluster import test_commands
from tests.cluster.conftest import apply
from tests.cluster.job_world import CLICK, SETTINGS, JobWorld
from tests.cluster.test_commands import Run
from tests.clusters import wait_for
from tests.fleets import HandFleet

pytestmark = pytest.mark.cluster
run = test_commands.run

KEEP = 'on_error = "dead-letter"\n' + SETTINGS
CODE = """
from stack import Feed, Job

clicks, tallies = Feed("clicks"), Feed("tallies")
job = Job("count")


@job.task(clicks, store="counts")
def count(click, ctx):
    number = ctx.state.get(click["user"], 0) + 1
    ctx.state[click["user"]] = number
    ctx.count("clicks")
    told = "many" if BROKEN and click["n"] % 100 == 13 else number
    ctx.emit(tallies, {"user": click["user"], "count": told})
    if BROKEN and click["n"] % 100 == 7:
        raise ValueError("sevens are bad")
"""
BATCH = """
from stack import Feed, Job

clicks, tallies = Feed("clicks"), Feed("tallies")
job = Job("count")


@job.task(clicks, store="counts", batch=True)
def count(batch, ctx):
    assert ctx.keys == batch.column("user").to_pylist()
    for click in batch.to_pylist():
        number = ctx.state.get(click["user"], 0) + 1
        ctx.state[click["user"]] = number
        told = "many" if BROKEN and click["n"] % 100 == 13 else number
        ctx.emit(tallies, {"user": click["user"], "count": told})
        if BROKEN and click["n"] % 100 == 7:
            raise ValueError("sevens are bad")
"""
HALF = parse_avro('{"type":"record","name":"Click","fields":[{"name":"user","type":"string"}]}')


def broken(code: str) -> str:
    return "BROKEN = True\n" + code


def mended(code: str) -> str:
    return "BROKEN = False\n" + code


class Clicks:
    """Clicks of which 1 % are undecodable as the schema is now, and the others by their number."""

    def __init__(self, world: JobWorld) -> None:
        self.world = world
        stack = world.stack
        half = stack.registry.register("half-a-click-value", HALF).id
        self._half = RecordEncoder(HALF, half)
        self._whole = RecordEncoder(parse_avro(CLICK), stack.schema("clicks").id)
        self.good: Counter[str] = Counter()
        self.all: Counter[str] = Counter()
        self.bad = 0
        self._number = 0

    def write(self, count: int, users: int = 20) -> None:
        with LogWriter(self.world.stack.access) as writer:
            for number in range(self._number, self._number + count):
                user = f"user-{number % users}"
                kind = number % 100
                value = self._half.encode({"user": user}) if kind == 1 else None
                value = value or self._whole.encode({"user": user, "n": number})
                writer.write_one(
                    self.world.stack.topic_of("clicks"),
                    value,
                    user.encode(),
                    headers=[("number", str(number).encode())],
                    partition=partition_of(user.encode(), 2),
                )
                self.all[user] += 1
                if kind in (1, 7, 13):
                    self.bad += 1
                else:
                    self.good[user] += 1
        self._number += count

    def make_readable(self) -> None:
        """What was undecodable becomes readable by a new version of the schema."""
        file = self.world.stack.settings.schemas / "click.avsc"
        file.write_text(CLICK.replace('"type":"long"', '"type":"long","default":0'))
        apply(self.world.stack)


def letters(stack: Stack) -> list[Found]:
    return list(DeadFeed(stack, "count").letters())


def assert_each_once(clicks: Clicks, stack: Stack) -> list[Found]:
    """Every bad record is in the dead feed, once, as it was."""
    found = letters(stack)
    numbers = Counter(int(dict(one.letter.headers)["number"] or b"") for one in found)
    assert set(numbers.values()) <= {1}
    kinds = {1: Kind.UNDECODABLE, 7: Kind.CODE, 13: Kind.REFUSED}
    assert len(found) == clicks.bad
    for one in found:
        number = int(dict(one.letter.headers)["number"] or b"")
        assert one.letter.kind is kinds[number % 100]
        assert one.letter.key == f"user-{number % 20}".encode()
        assert (one.letter.attempt, one.redriven) == (1, False)
    return found


@pytest.fixture
def world(stack: Stack) -> JobWorld:
    return JobWorld(stack, code=broken(CODE), settings=KEEP)


@pytest.fixture
def fleet(world: JobWorld, stack: Stack) -> Iterator[HandFleet]:
    with HandFleet(stack, world.folder) as fleet:
        yield fleet


def chaotic(fleet: HandFleet, world: JobWorld, clicks: Clicks, lives: int, count: int) -> None:
    """Write clicks while the container is killed again and again."""
    fleet.plan(1)
    fleet.start()
    for _ in range(lives):
        before = world.outputs()
        clicks.write(count)
        wait_for(lambda before=before: world.outputs() > before + 100, "outputs to flow")  # type: ignore[misc]
        fleet.kill()
        fleet.start()


def mend(fleet: HandFleet, world: JobWorld, clicks: Clicks, code: str = CODE, settings: str = KEEP) -> None:
    """Deploy the version that takes everything."""
    fleet.plan({})
    assert fleet.ending().reason is Reason.STOPPED
    clicks.make_readable()
    world.write_job(mended(code), settings)
    fleet.redeploy(world.folder)
    fleet.plan(1)
    fleet.start()


def test_bad_records_are_kept_once_and_come_back_once_through_kills(
    world: JobWorld, fleet: HandFleet, run: Run
) -> None:
    clicks = Clicks(world)
    chaotic(fleet, world, clicks, lives=3, count=2_000)
    world.await_exact(clicks.good)
    assert world.counts() == clicks.good
    found = assert_each_once(clicks, world.stack)
    one = next(each.letter for each in found if each.letter.kind is Kind.CODE)
    assert (one.cause, one.version) == ("ValueError: sevens are bad", fleet.spec.version)
    assert one.line.startswith("job.py, line ")
    # Nothing is brought back as long as its feed cannot read it.
    refused = run("dead", "redrive", "count")
    assert refused.code == 1
    assert "60 dead letters of job 'count' cannot be redriven, and none was" in refused.err
    assert "feed 'clicks' cannot read it with version 1 of its schema" in refused.err
    mend(fleet, world, clicks)
    redrive_in_pieces(world.stack.settings)
    fleet.kill()
    done = run("dead", "redrive", "count", "--json")
    assert done.code == 0, done.err
    assert done.json["redriven"] + done.json["redriven_before"] == clicks.bad
    assert 0 < done.json["redriven"] < clicks.bad
    fleet.start()
    world.await_exact(clicks.all)
    assert world.counts() == clicks.all
    assert all(each.redriven for each in letters(world.stack))
    again = run("dead", "redrive", "count")
    assert again.code == 1
    assert "nothing is left to redrive" in again.err
    # What was redriven is never read again, not even by the next life.
    fleet.kill()
    fleet.start()
    clicks.write(100)
    clicks.good, clicks.all = Counter(clicks.all), Counter(clicks.all)
    world.await_exact(clicks.all)


def _die_half_way(settings: Settings, when: str) -> None:
    """A redrive in small portions that kills itself in its third transaction, before or after the commit."""
    redriving._MOST_RECORDS = 7
    commits = 0
    commit = LogWriter.commit

    def dying(self: Any) -> None:
        nonlocal commits
        commits += 1
        if commits == 3 and when == "before":
            self.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        commit(self)
        if commits == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    LogWriter.commit = dying  # type: ignore[method-assign]
    with Connection(settings, read_endpoints(settings)) as stack:
        one = Redrive(stack, "count", To.JOB, filter_letters(None))
        one.run(one.plan())


def redrive_in_pieces(settings: Settings) -> None:
    """Two redrives that are killed."""
    context = multiprocessing.get_context("forkserver")
    for when in ("before", "after"):
        process = context.Process(target=_die_half_way, args=(settings, when))
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("how", ["batch", "at-least-once"])
def test_the_same_by_batch_and_at_least_once(stack: Stack, run: Run, how: str) -> None:
    code = BATCH if how == "batch" else CODE
    settings = KEEP if how == "batch" else 'guarantee = "at-least-once"\n' + KEEP
    world = JobWorld(stack, code=broken(code), settings=settings)
    with HandFleet(stack, world.folder) as fleet:
        clicks = Clicks(world)
        chaotic(fleet, world, clicks, lives=2, count=1_000)
        wait_for(lambda: world.counts() == clicks.good, "all good clicks counted")
        wait_for(lambda: len(letters(stack)) >= clicks.bad, "all dead letters")
        assert_each_once(clicks, stack)
        mend(fleet, world, clicks, code, settings)
        source = run("dead", "redrive", "count", "--to", "source", "--where", "kind = 'code'", "--json")
        assert source.code == 0, source.err
        assert source.json["redriven"] == clicks.bad // 3
        assert run("dead", "redrive", "count", "--json").json["redriven"] == clicks.bad - clicks.bad // 3
        wait_for(lambda: world.counts() == clicks.all, "all clicks counted")
        if how == "batch":
            world.await_exact(clicks.all)
    # To the source they went as they had been, and say whence they came.
    headers = [
        dict(one.headers) for one in records(world, "clicks") if "feedstack.letter" in dict(one.headers)
    ]
    assert len(headers) == clicks.bad // 3
    assert {one["feedstack.attempt"] for one in headers} == {b"1"}
    assert all((one["feedstack.letter"] or b"").startswith(b"count ") and one["number"] for one in headers)


def records(world: JobWorld, feed: str) -> list[Any]:
    from stack import Latest, Oldest

    with world.stack.reader(feed) as reader:
        reader.seek(Oldest(), until=Latest())
        return list(reader.records())


def test_a_record_that_fails_again_is_a_new_letter_with_one_attempt_more(
    world: JobWorld, fleet: HandFleet, run: Run
) -> None:
    world.click(30)
    fleet.plan(1)
    fleet.start()
    wait_for(lambda: len(letters(world.stack)) == 2, "two dead letters")
    (code,) = [one for one in letters(world.stack) if one.letter.kind is Kind.CODE]
    plan = run("dead", "redrive", "count", code.name, "--plan")
    assert plan.out == (
        "1 record of clicks to job count (code 1)\n1 record would go back; nothing was changed\n"
    )
    assert not any(one.redriven for one in letters(world.stack))
    assert run("dead", "redrive", "count", code.name).out.endswith("1 record went back\n")
    wait_for(lambda: len(letters(world.stack)) == 3, "the letter to come again")
    again = next(one for one in letters(world.stack) if one.letter.attempt == 2)
    assert (again.letter.place, again.letter.key) == (code.letter.place, code.letter.key)
    rows = run("dead", "list", "count", "--json").json
    assert sorted((row["kind"], row["records"], row["redriven"]) for row in rows) == [
        ("code", 2, 1),
        ("refused", 1, 0),
    ]
    assert "sevens are bad" in run("dead", "list").out
    assert run("dead", "list", "--where", "attempt = 2", "--json").json[0]["records"] == 1
    shown = run("dead", "show", "count", again.name, "--json").json
    assert shown["value"]["n"] == 7
    assert (shown["attempt"], shown["redriven"], shown["line"][:7]) == (2, False, "job.py,")
    text = run("dead", "show", "count", again.name).out
    assert "ValueError: sevens are bad" in text
    assert "code, attempt 2" in text
    wait_for(lambda: "dead" in run("jobs", "show", "count").out, "the count of dead letters")
    assert run("jobs", "show", "count", "--json").json["errors"] == {"dead": 3, "errors": 3}


HANGS = ('while click["n"] == 5: pass', 'click["n"] == 5 and time.sleep(600)')


@pytest.mark.parametrize("line", HANGS)
def test_a_record_that_hangs_is_kept_and_the_job_goes_on(stack: Stack, line: str) -> None:
    code = "import time\n" + mended(CODE).replace("    ctx.emit", f"    {line}\n    ctx.emit")
    world = JobWorld(stack, code=code, settings='record_limit = "1s"\n' + KEEP)
    world.click(10, users=1)
    with HandFleet(stack, world.folder) as fleet:
        fleet.plan(1)
        first = fleet.start()
        wait_for(lambda: len(world.tallies().get("user-0", ())) == 9, "nine tallies")
        assert world.tallies() == {"user-0": list(range(1, 10))}
        (one,) = letters(stack)
        assert (one.letter.kind, one.letter.cause) == (
            Kind.TIME,
            "count has kept one record for more than 1 s",
        )
        assert "n" in one.letter.line
        world.click(10, users=1, first=10)
        wait_for(lambda: len(world.tallies()["user-0"]) == 19, "more tallies")
        assert first.is_alive()


def test_a_skipping_job_goes_on_and_keeps_nothing(stack: Stack) -> None:
    world = JobWorld(stack, code=broken(CODE), settings=SETTINGS + '[inputs.clicks]\non_error = "skip"\n')
    clicks = Clicks(world)
    clicks.write(500)
    with HandFleet(stack, world.folder) as fleet:
        fleet.plan(1)
        fleet.start()
        world.await_exact(clicks.good)
        wait_for(
            lambda: (
                [one.faults for one in fleet.nodes.reports()]
                == [{"errors": clicks.bad, "skipped": clicks.bad}]
            ),
            "the count of skipped records",
        )
    assert dead_name(stack.settings.name, "count") not in stack.admin.topic_names()


def test_retries_get_past_what_passes(stack: Stack, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    code = mended(CODE).replace(
        "    number = ctx",
        "    if click['n'] == 20 and not os.path.exists(GATE):\n"
        "        ctx.state['seen'] = 1\n"
        "        raise Retryable('the gate is closed')\n"
        "    number = ctx",
    )
    code = f"import os\nGATE = {str(gate)!r}\n" + code.replace(
        "import Feed, Job", "import Feed, Job, Retryable"
    )
    world = JobWorld(stack, code=code, settings='retries = 1000\nretry_backoff = "5ms"\n' + SETTINGS)
    clicks = world.click(40, users=1)
    with HandFleet(stack, world.folder) as fleet:
        fleet.plan(1)
        fleet.start()
        # What came before the record that waits is committed meanwhile.
        wait_for(lambda: len(world.tallies().get("user-0", ())) == 20, "twenty tallies")
        wait_for(lambda: any(one.faults.get("retried", 0) > 2 for one in fleet.nodes.reports()), "retries")
        gate.touch()
        world.await_exact(clicks)
    assert world.counts() == clicks


def test_bad_questions_get_clear_answers(world: JobWorld, fleet: HandFleet, run: Run, stack: Stack) -> None:
    def told(*words: str) -> str:
        done = run("dead", *words)
        assert done.code == 1, done.out
        return done.err

    assert "there is no job 'cuont'" in told("list", "cuont")
    assert "Did you mean count" in told("redrive", "cuont")
    assert "job 'count' has no dead letters" in told("redrive", "count")
    assert "no dead letters there" in run("dead", "show", "count").err
    with LogWriter(stack.access) as writer:
        writer.write_pairs(stack.topic_of("clicks"), [b"k"], [b"rubbish"], 0)
    fleet.plan(1)
    fleet.start()
    wait_for(lambda: len(letters(stack)) == 1, "a dead letter")
    assert "none of the 1 dead letters of job 'count' fits" in told(
        "redrive", "count", "--where", "attempt > 5"
    )
    assert "no field 'atempt'" in told("list", "count", "--where", "atempt > 5")
    assert "'17' names no dead letter" in told("show", "count", "17")
    assert "job 'count' has no dead letter 0/99" in told("show", "count", "0/99")
    assert "cannot read it with version 1" in told("redrive", "count", "--to", "source")
    assert b"rubbish".hex() in run("dead", "show", "count").out
    fleet.plan({})
    fleet.ending()
    world.write_job(mended(CODE), SETTINGS)
    fleet.redeploy(world.folder)
    assert run("dead", "list", "--json").json[0]["records"] == 1


def test_a_removed_job_leaves_its_letters_but_no_way_back(
    world: JobWorld, fleet: HandFleet, run: Run, stack: Stack
) -> None:
    world.click(10)
    fleet.plan(1)
    fleet.start()
    wait_for(lambda: len(letters(stack)) == 1, "a dead letter")
    fleet.plan({})
    assert fleet.ending().reason is Reason.STOPPED
    assert run("jobs", "remove", "count", "--state", "--yes").code == 0
    assert f"{stack.settings.name}.count.redrive" not in stack.admin.topic_names()
    assert run("dead", "list", "--json").json[0]["job"] == "count"
    assert "there is no job 'count'" in run("dead", "redrive", "count").err
    assert run("dead", "redrive", "count", "--to", "source", "--json").json["redriven"] == 1
    topic = stack.topic_of("clicks")
    with LogReader(stack.access, topic) as reader:
        ends = stack.admin.ends(topic, range(2))
        reader.assign(dict.fromkeys(ends, 0), ends)
        total = 0
        while not reader.done:
            total += len(reader.read())
    assert total == 11


def test_what_came_back_is_read_once_also_by_versions_that_keep_no_letters(
    world: JobWorld, fleet: HandFleet, run: Run
) -> None:
    clicks = world.click(100, users=4)
    fleet.plan(1)
    fleet.start()
    wait_for(lambda: len(letters(world.stack)) == 2, "two dead letters")
    for settings in (SETTINGS, KEEP):
        fleet.plan({})
        assert fleet.ending().reason is Reason.STOPPED
        if settings is SETTINGS:
            # Nobody runs: it waits in the topic until a version comes that reads it, whatever it does itself.
            assert run("dead", "redrive", "count", "--json").json["redriven"] == 2
        world.write_job(mended(CODE), settings)
        fleet.redeploy(world.folder)
        fleet.plan(1)
        fleet.start()
        world.await_exact(clicks)
        clicks += world.click(20, users=4)
        world.await_exact(clicks)
    assert world.counts() == clicks


def test_a_broadcast_record_comes_back_to_each_task_that_failed_on_it(stack: Stack, run: Run) -> None:
    code = """
    from stack import Feed, Job

    clicks, rates, tallies = Feed("clicks"), Feed("rates"), Feed("tallies")
    job = Job("count")


    @job.task(rates.broadcast(), store="rates")
    def rate(record, ctx):
        ctx.state[record["user"]] = ctx.state.get(record["user"], 0) + record["n"]
        if BROKEN and record["n"] == 7:
            raise ValueError("sevens are bad")


    @job.task(clicks)
    def click(record, ctx):
        ctx.emit(tallies, {"user": record["user"], "count": ctx.store("rates").get("factor", 0)})
    """
    code = textwrap.dedent(code)
    settings = 'commit_max_ms = 50\n[inputs.rates]\non_error = "dead-letter"\n'
    world = JobWorld(stack, {"clicks": 2, "rates": 1}, broken(code), settings)
    with HandFleet(stack, world.folder) as fleet:
        fleet.plan(2)
        fleet.start(0)
        fleet.start(1)
        with stack.writer("rates") as writer:
            writer.write({"user": "factor", "n": 100})
            writer.write({"user": "factor", "n": 7})
            writer.write({"user": "factor", "n": 1})
        wait_for(lambda: len(letters(stack)) == 2, "a dead letter of each task")
        found = letters(stack)
        assert sorted((one.letter.task, one.letter.place) for one in found) == [
            ("main-0", "rates, partition 0, offset 1"),
            ("main-1", "rates, partition 0, offset 1"),
        ]
        fleet.plan({})
        assert {fleet.ending(slot).reason for slot in (0, 1)} == {Reason.STOPPED}
        world.write_job(mended(code), settings)
        fleet.redeploy(world.folder)
        fleet.plan(1)
        fleet.start()
        assert run("dead", "redrive", "count", "--json").json["redriven"] == 2
        wait_for(
            lambda: fleet.nodes.reports() and all(one.records >= 2 for one in fleet.nodes.reports()),
            "both to be handled",
        )
        world.click(20)
        wait_for(lambda: sum(map(len, world.tallies().values())) == 20, "all tallies")
        assert {count for counts in world.tallies().values() for count in counts} == {108}
