"""The jobs of a chaos run without a job of the user's: two in a chain that count, and the feeds between."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ops.chaos.schedule import Size
from ops.chaos.stage import Say, Stage, stage_on
from ops.chaos.verifier import Chain, Step
from ops.cluster.temporary import temporary_stack
from stack.feeds.declare import CATALOGUE_NAME
from stack.settings import Settings

PARTITIONS = 4
_CONTAINERS = 2
STEPS = (
    Step("count-clicks", "clicks", "clicks-per-user"),
    Step("count-visits", "clicks-per-user", "visits"),
)


@dataclass(frozen=True)
class Member:
    """One job of the chain, as its progress is followed."""

    name: str
    inputs: Mapping[str, bool]
    outputs: tuple[str, ...]
    tasks: int = PARTITIONS


JOBS = tuple(Member(one.job, {one.source: False}, (one.output,)) for one in STEPS)
SOURCE, LAST = STEPS[0].source, STEPS[-1].output
SIZES = (Size(_CONTAINERS, PARTITIONS),) * len(STEPS)
_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Count",
    "fields": [{"name": "user", "type": "string"}, {"name": "count", "type": "long"}],
}
_FEED = """
[feeds.{name}]
kind = "{kind}"
for = "what the chaos run counts"
owner = "chaos"
schema = "count.avsc"
key = "user"
partitions = {partitions}
{storage}
"""
# A deletion is a record, too: a job that goes back deletes what it had not written yet.
_CODE = '''"""Counts records per user: one output for each input, with the count so far."""

from stack import Feed, Job

source, output = Feed("{source}"), Feed("{output}")
job = Job("{name}")


@job.task(source, store="{store}")
def count(record, ctx):
    number = ctx.state.get(ctx.key, 0) + 1
    ctx.state[ctx.key] = number
    ctx.emit(output, {{"user": ctx.key, "count": number}}, key=ctx.key)
'''
# The verifier reads every record: none may be compacted before the longest run is over.
_SETTINGS = """containers = {containers}
horizon = "24h"
[stores.{store}]
key = "str"
value = "int"
"""


@contextlib.contextmanager
def open_chain(say: Say) -> Iterator[Stage]:
    """A stage of its own for the chain, as long as the block lasts, with its feeds made."""
    with temporary_stack("chaos", say) as settings, chain_on(settings) as stage:
        yield stage


@contextlib.contextmanager
def chain_on(settings: Settings) -> Iterator[Stage]:
    """The same on a stack that runs already; its folder of schemas is written."""
    settings.schemas.mkdir(parents=True, exist_ok=True)
    (settings.schemas / "count.avsc").write_text(json.dumps(_SCHEMA), encoding="utf-8")
    events = 'retention = "forever"'
    feeds = [_FEED.format(name=SOURCE, kind="source", partitions=PARTITIONS, storage=events)]
    for step in STEPS:
        # A job goes back with its tables; events it could only repeat.
        storage = f'table = true\nhorizon = "24h"\nby = "{step.job}"\ninputs = ["{step.source}"]'
        feeds.append(_FEED.format(name=step.output, kind="derived", partitions=PARTITIONS, storage=storage))
    (settings.schemas / CATALOGUE_NAME).write_text("".join(feeds), encoding="utf-8")
    with stage_on(settings, tuple(step.job for step in STEPS)) as stage:
        yield stage


def deploy_chain(stage: Stage, say: Say) -> None:
    """Deploy both jobs and wait until they run."""
    for step in STEPS:
        folder = stage.settings.root / "jobs" / step.job
        folder.mkdir(parents=True)
        code = _CODE.format(source=step.source, output=step.output, name=step.job, store=step.store)
        settings = _SETTINGS.format(containers=_CONTAINERS, store=step.store)
        (folder / "job.py").write_text(code, encoding="utf-8")
        (folder / "job.toml").write_text(settings, encoding="utf-8")
        stage.deploy(folder, say)


def chain_of(stage: Stage) -> Chain:
    """The jobs as the verifier sees them."""
    settings = stage.settings
    return Chain(stage.stack.endpoints.kafka, settings.name, STEPS, settings.topic_prefix)
