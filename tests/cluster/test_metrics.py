"""Metrics, lag, freshness and logs of containers on real Kafka, ZooKeeper and RocksDB."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ops.service.alarms import Alarms, Webhook
from ops.service.metrics_routes import exposition
from ops.service.watcher import Watcher
from stack import Stack
from stack.deploy.freshness import last_alarms
from stack.deploy.lag import input_lags
from stack.deploy.logs import JobLogs, LogLine
from stack.deploy.metrics import MetricsFollower
from stack.model.freshness import FreshnessState
from stack.model.job import group_name
from stack.model.metrics import ContainerMetrics
from stack.model.place import Place
from stack.model.plan import TaskState
from stack.runtime.launch import Launch
from tests.cluster import test_commands
from tests.cluster.conftest import apply
from tests.cluster.job_world import COUNT, JobWorld
from tests.cluster.test_commands import Run
from tests.clusters import wait_for
from tests.fleets import HandFleet
from tests.kafka_tools import group_lags
from tests.unit.metrics_world import samples

pytestmark = pytest.mark.cluster
run = test_commands.run
CHATTY = COUNT.replace(
    "    number = ", '    print("saw", click["user"])\n    ctx.count("clicks-seen")\n    number = '
)


@pytest.fixture
def world(stack: Stack) -> JobWorld:
    return JobWorld(stack, code=CHATTY)


@pytest.fixture
def fleet(world: JobWorld, stack: Stack) -> Iterator[HandFleet]:
    with HandFleet(stack, world.folder) as fleet:
        yield fleet


def slow_restore(launch: Launch, ends: Any) -> None:
    """A container that takes its time to restore."""
    from stack.runtime import opening
    from tests.fleets import run_and_tell

    tell = opening.Opening._tell

    def telling(self: Any, *arguments: Any) -> None:
        tell(self, *arguments)
        time.sleep(0.02)

    opening._READ_RECORDS = 10
    setattr(opening.Opening, "_tell", telling)  # noqa: B010 - a method of another kind
    run_and_tell(launch, ends)


def test_a_container_tells_what_it_does_also_while_it_restores(
    world: JobWorld, fleet: HandFleet, stack: Stack, run: Run, tmp_path: Path
) -> None:
    clicks = world.click(2_000, users=600)
    fleet.plan(1)
    fleet.start()
    world.await_exact(clicks)
    with MetricsFollower(stack) as follower:

        def told() -> ContainerMetrics | None:
            return next(iter(follower.look().of_job("count")), None)

        def is_complete() -> bool:
            one = told()
            if one is None or one.records_in != {"clicks": 2_000}:
                return False
            stores = [task.stores.get("counts") for task in one.tasks.values()]
            return all(stores) and {task.lag for task in one.tasks.values()} == {0}

        wait_for(is_complete, "the metrics")
        one = told()
        assert one is not None
        assert one.records_out == {"tallies": 2_000}
        assert one.processing.count == 2_000
        assert one.processing.sum_s > 0
        assert one.commits.times.count > 0
        # Every click makes an output; every key of every commit a change; every task a checkpoint.
        assert one.commits.records > 2_000 + 600
        assert one.commits.size_bytes > one.commits.records * 70
        assert one.memory_bytes > 1 << 20
        assert one.counters == {"clicks-seen": 2_000}
        assert {task.state for task in one.tasks.values()} == {TaskState.RUNNING}
        assert all(0 <= (task.delay_ms or 0) < 60_000 for task in one.tasks.values())
        shown = run("jobs", "show", "count")
        assert "record p99" in shown.out
        assert "clicks-seen" in shown.out
        about = run("jobs", "show", "count", "--json").json
        assert about["metrics"][0]["records_in"] == {"clicks": 2_000}
        assert {row["records"] for row in about["lag"]} == {0}
        found = samples(exposition([], 0, follower.look()))
        assert found["feedstack_container_processing_seconds_count", ("count", "0")] == 2_000

        # On another machine, where nothing is there yet.
        fleet.kill()
        fleet.main = slow_restore
        fleet.start(data=tmp_path / "elsewhere")

        def restoring() -> bool:
            now = told()
            tasks = () if now is None or now.attempt != 2 else now.tasks.values()
            return any(
                task.restore and 0 < task.restore.share < 1 and task.restore.left_s > 0 for task in tasks
            )

        wait_for(restoring, "a restore with an end in sight")


def test_a_job_may_do_without_metrics(world: JobWorld, fleet: HandFleet, stack: Stack, run: Run) -> None:
    fleet.with_settings(metrics=False)
    clicks = world.click(100)
    fleet.plan(1)
    fleet.start()
    world.await_exact(clicks)
    fleet.plan({})
    fleet.ending()
    with MetricsFollower(stack) as follower:
        assert follower.look().containers == {}
    assert "count" in run("jobs", "show", "count").out


def test_lag_is_what_kafkas_own_tool_prints(world: JobWorld, fleet: HandFleet, stack: Stack) -> None:
    group = group_name(stack.settings.name, "count")

    def lags() -> dict[Place, int | None]:
        found = input_lags(stack, fleet.spec, stack.catalogue.feeds())
        return {(one.topic, one.partition): one.records for one in found}

    clicks = world.click(300)
    # The marker of a transaction is the last thing in the log: no record that waits.
    with stack.writer("clicks", transactional_id="clicker") as writer, writer.transaction():
        for number in range(20):
            writer.write({"user": f"user-{number % 10}", "n": number})
            clicks[f"user-{number % 10}"] += 1
    fleet.plan(1)
    fleet.start()
    world.await_exact(clicks)
    wait_for(lambda: set(lags().values()) == {0}, "the group to follow to the end", limit_s=10)
    assert group_lags(stack.endpoints.kafka, group) == lags()
    fleet.plan({})
    fleet.ending()
    world.click(70)
    assert sum(one or 0 for one in lags().values()) == 70
    assert group_lags(stack.endpoints.kafka, group) == lags()


class Hook:
    """Somebody who is told of alarms over HTTP; the first time it is out of sorts."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.asked = 0
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.asked += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if hook.asked > 1:
                    hook.heard.append(json.loads(body))
                self.send_response(200 if hook.asked > 1 else 500)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/alarms"


def test_a_feed_whose_job_is_dead_raises_an_alarm_and_a_quiet_one_does_not(
    world: JobWorld, fleet: HandFleet, stack: Stack, run: Run
) -> None:
    file = stack.settings.schemas / "catalog.toml"
    objective = 'freshness = "1s"\nfreshness_window = "2s"\nby = "count"\n'
    file.write_text(file.read_text().replace('by = "count"\n', objective))
    apply(stack)
    clicks = world.click(100)
    fleet.plan(1)
    fleet.start()
    world.await_exact(clicks)
    hook = Hook()
    alarms = Alarms(stack.settings.name, Webhook(hook.address))
    watcher = Watcher(partial(Stack.connect, stack.settings), alarms, judge_s=0.3)
    watcher.start()
    try:

        def state() -> FreshnessState | None:
            one = watcher.looked.feeds.get("tallies")
            return one.state if one else None

        def judged_ms() -> int:
            return watcher.looked.feeds["tallies"].time_ms

        wait_for(lambda: state() is FreshnessState.FRESH, "a judgement")
        # Nothing comes for longer than the objective: a quiet source is not stale.
        begun_ms = judged_ms()
        wait_for(lambda: judged_ms() > begun_ms + 1_500, "more judgements")
        assert state() is FreshnessState.FRESH
        fleet.kill()
        clicks += world.click(50)
        wait_for(lambda: state() is FreshnessState.ALARM, "the alarm")
        wait_for(lambda: hook.heard, "the webhook")
        assert (hook.heard[0]["feed"], hook.heard[0]["alarm"]) == ("tallies", True)
        assert "was staler than 1s" in hook.heard[0]["text"]
        assert last_alarms(stack)["tallies"].state is FreshnessState.ALARM
        assert sum(one.records or 0 for one in watcher.looked.lags["count"]) == 50
        assert "alarm since" in run("feeds", "show", "tallies").out
        assert run("status", "--json").json["feeds"]["tallies"]["state"] == "alarm"
        fleet.start()
        world.await_exact(clicks)
        wait_for(lambda: len(hook.heard) > 1, "the end of the alarm")
        assert hook.heard[1]["alarm"] is False
        assert last_alarms(stack)["tallies"].state is FreshnessState.FRESH
        assert len(hook.heard) == 2
    finally:
        watcher.close()
        hook.server.shutdown()


def test_logs_follow_all_containers_and_name_the_record(
    world: JobWorld, fleet: HandFleet, stack: Stack, run: Run
) -> None:
    seen: list[LogLine] = []

    def follow() -> None:
        seen.extend(JobLogs(stack, "count").follow(0))

    threading.Thread(target=follow, daemon=True).start()
    fleet.plan(2)
    fleet.start(0)
    fleet.start(1)
    clicks = world.click(100)
    world.await_exact(clicks)
    fleet.kill(1)
    fleet.start(1)
    clicks += world.click(100)
    world.await_exact(clicks)

    def about_records() -> list[LogLine]:
        return [line for line in list(seen) if line.text.startswith("saw ")]

    wait_for(lambda: len(about_records()) == 200, "every line of both containers")
    assert {(line.slot, line.attempt) for line in about_records()} == {(0, 1), (1, 1), (1, 2)}
    for line in about_records():
        assert (line.task, line.feed, line.partition) == (f"main-{line.slot}", "clicks", line.slot)
    offsets = sorted((line.partition, line.offset) for line in about_records())
    ends = stack.admin.ends(stack.topic_of("clicks"), range(2))
    assert offsets == [(number, offset) for number in range(2) for offset in range(ends[number])]
    # What is said without a record at hand names none.
    assert all(line.task is None for line in seen if "begins" in line.text)
    told = run("jobs", "logs", "count", "--json", "--lines", "1000").lines
    assert {"time_ms", "job", "slot", "attempt", "level", "task", "feed", "offset"} <= told[-1].keys()
    assert sum(line["offset"] is not None for line in told) == 200
