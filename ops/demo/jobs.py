"""The second story: a job with state, killed while it works, and counts that are exact all the same."""

from __future__ import annotations

import os
import signal
import time

import click

from ops.cluster.temporary import temporary_folder
from ops.demo.counting import JOB, LIMIT_S, await_that, counts, views
from ops.demo.story import Story, head
from stack import Stack
from stack.errors import ClusterFault
from stack.model.plan import ContainerReport
from stack.zookeeper.fleet import FleetNodes, open_fleet

_BEFORE, _DURING, _RATE = 20_000, 20_000, 2_000


def run() -> None:
    """Tell the story; every command is run for real and shown as it would be typed."""
    begun = time.monotonic()
    with temporary_folder("demo") as settings:
        story = Story(settings)
        head(
            "A real Kafka, a real ZooKeeper, a schema registry and a runner of jobs on Spark, on this machine"
        )
        story.stack("up")
        head("Feeds are declared in schemas/catalog.toml; the plan comes first")
        story.stack("feeds apply")
        story.stack("feeds graph")
        head(f"{_BEFORE:,} synthetic page views that fit the schema")
        story.stack(f"feeds generate page-views --count {_BEFORE} --keys 500 --skew 1.1 --seed 7")
        head("A job counts them per user: jobs/count-views/job.py, one function with state like a dict")
        story.stack(f"jobs deploy {settings.root / 'jobs' / JOB}")
        story.stack("feeds tail views-per-user --from oldest --limit 5")
        with (
            Stack.connect(settings) as stack,
            open_fleet(stack.endpoints.zookeeper, settings.name) as nodes,
        ):
            _crash(story, stack, nodes)
        head("Down again; nothing stays behind")
        story.stack("down")
    click.echo(f"\nThat was all real, in {time.monotonic() - begun:.0f} s. Next: `stack up`, and README.md.")


def _crash(story: Story, stack: Stack, fleet: FleetNodes) -> None:
    """Kill a container while page views come in, and count what comes out."""
    head("While more page views come in, one of its containers is killed with -9")
    load = story.background(
        f"feeds generate page-views --count {_DURING} --keys 500 --skew 1.1 --seed 8 --rate {_RATE}"
    )
    try:
        await_that(lambda: _outputs(stack) > _BEFORE + _DURING // 10, "counts of the new page views")
        victim = _containers(fleet)[0]
        story.show(f"kill -9 {victim.pid}    # container {victim.slot} of {JOB}")
        os.kill(victim.pid, signal.SIGKILL)
        killed = time.monotonic()
        await_that(lambda: _is_back(fleet, victim), "the container to come back")
        click.echo(f"container {victim.slot} works again after {time.monotonic() - killed:.1f} s")
        story.stack(f"jobs show {JOB}")
    finally:
        load.wait(LIMIT_S)
    head("Nothing lost, nothing doubled: every user's counts are 1, 2, 3, ... up to the number of views")
    expected = views(stack)
    total = sum(expected.values())
    await_that(lambda: sum(map(len, counts(stack).values())) >= total, f"{total:,} counts")
    found = counts(stack)
    lost = sum(len(set(range(1, number + 1)) - set(found.get(user, ()))) for user, number in expected.items())
    doubled = sum(len(numbers) - len(set(numbers)) for numbers in found.values())
    click.echo(f"page views {total:,}, users {len(expected):,}, lost {lost}, doubled {doubled}")
    if lost or doubled or found != {user: list(range(1, n + 1)) for user, n in expected.items()}:
        raise ClusterFault("the counts are not exact", hint="This is a fault of ours: please report it.")


def _containers(fleet: FleetNodes) -> list[ContainerReport]:
    return [one for one in fleet.job(JOB).reports() if one.tasks]


def _is_back(fleet: FleetNodes, victim: ContainerReport) -> bool:
    return any(
        one.slot == victim.slot and one.attempt > victim.attempt and one.commits for one in _containers(fleet)
    )


def _outputs(stack: Stack) -> int:
    spec = stack.feed("views-per-user")
    topic = stack.topic_of(spec.name, spec.version)
    return sum(stack.admin.ends(topic, range(spec.partitions)).values())
