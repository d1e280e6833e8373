"""What a rewind would bring back and nobody could read, on a stack in memory: found exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stack import BadInput
from stack.deploy.jobs import jobs_feed
from stack.deploy.rewind_readable import Readable
from stack.engine.rewind import Move, StateChoice
from stack.feeds.avro.schema import parse_avro
from stack.machine import steered_by
from stack.model.plan import job_tasks
from stack.offsets.checkpoints import last_checkpoints
from stack.offsets.codec import CheckpointDecoder
from tests.unit.test_rewind_kit import World

SUBJECT = "clicks-value"


@pytest.fixture
def world() -> Iterator[World]:
    one = World()
    with one.stack, steered_by(one.stack._machine):
        yield one


def evolve(world: World, *, permanent: bool) -> None:
    """Another version of the schema, and the first one hidden or gone."""
    registry = world.stack.connection.registry
    text = registry.latest(SUBJECT).text.replace("]}", ',{"name":"city","type":"string","default":""}]}')
    registry.register(SUBJECT, parse_avro(text))
    registry.delete_version(SUBJECT, 1)
    if permanent:
        registry.delete_version(SUBJECT, 1, permanent=True)


def found(world: World, gaps: dict[str, tuple[int, ...]], **more: Any) -> list[str]:
    stack = world.stack.connection
    spec = jobs_feed(stack).get("count").spec
    now = last_checkpoints(stack, CheckpointDecoder(stack.registry), "count", job_tasks(spec))
    moves = [Move(task, now.get(task), None) for task in job_tasks(spec)]
    readable = Readable(stack, jobs_feed(stack), spec, gaps, **more)
    return [one.message for one in readable.refusals(moves, StateChoice.THEN)]


def test_what_is_hidden_can_be_read_and_what_is_gone_cannot(world: World) -> None:
    evolve(world, permanent=False)
    assert world.stack.rewind("count", "@then")
    world.stack.run()
    assert world.stack.connection.registry.delete_version(SUBJECT, 1, permanent=True) == 1
    with pytest.raises(BadInput, match="5 records of feed 'clicks' that the job would read again"):
        world.stack.rewind("count", "@then")
    assert world.mark is None


def test_what_a_job_passes_over_need_not_be_read(world: World) -> None:
    world.stack.rewind("count", "@then")  # so that the job stands in the jobs feed
    world.stack.run()
    evolve(world, permanent=True)
    (told,) = found(world, {})
    assert told.startswith("13 records of feed 'clicks'")
    (told,) = found(world, {"clicks": (1, 0)})
    assert told.startswith("1 record of feed 'clicks'")
    assert found(world, {"clicks": (0, 0)}) == []
