"""One real cluster for all tests of a run; each test has a stack of its own on it, hence its own feeds."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stack.connection import Stack
from stack.settings import Endpoints, Settings, load_settings, read_endpoints
from tests.clusters import shared_cluster

PAGE_VIEW = """{"type":"record","name":"PageView","fields":[{"name":"user","type":"string"},
{"name":"page","type":"string"},{"name":"ms","type":"long"},{"name":"load","type":"double"}]}"""
CATALOGUE = """
[feeds.views]
kind = "source"
for = "page views"
owner = "web"
schema = "view.avsc"
key = "user"
partitions = 3
retention = "forever"
event_time = "ms"

[feeds.users]
kind = "derived"
for = "the last view of each user"
owner = "web"
schema = "view.avsc"
key = "user"
partitions = 2
table = true
horizon = "1h"
by = "last-view"
inputs = ["views"]
"""
_numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster() -> Endpoints:
    """The shared cluster, started by whoever needs it first and stopped at the end of the run."""
    return read_endpoints(shared_cluster())


MakeSettings = Callable[..., Settings]


@pytest.fixture
def make_settings(cluster: Endpoints, tmp_path: Path, request: pytest.FixtureRequest) -> MakeSettings:
    """Makes the settings of a stack that has the shared cluster as its outside Kafka."""

    def make(name: str = "t", lines: str = "", prefix: str | None = None) -> Settings:
        word = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:18].strip("-")
        unique = f"{name}-{word}-{os.getpid()}-{next(_numbers)}"
        folder = tmp_path / unique
        (folder / "schemas").mkdir(parents=True)
        (folder / "schemas" / "catalog.toml").write_text(CATALOGUE)
        (folder / "schemas" / "view.avsc").write_text(PAGE_VIEW)
        topic_prefix = f"{unique}." if prefix is None else prefix
        (folder / "stack.toml").write_text(
            f'name = "{unique}"\n{lines}\n[kafka]\nbootstrap = "{cluster.kafka}"\n'
            f'topic_prefix = "{topic_prefix}"\n[zookeeper]\nhosts = "{cluster.zookeeper}"\n'
        )
        return load_settings(folder / "stack.toml")

    return make


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    return make_settings()


@pytest.fixture
def stack(settings: Settings) -> Iterator[Stack]:
    with Stack.connect(settings) as connection:
        yield connection


@pytest.fixture
def filled(stack: Stack) -> Stack:
    """The same with its declared feeds made."""
    apply(stack)
    return stack


def apply(stack: Stack, **allowed: bool) -> dict[str, str]:
    """Apply what the stack's files declare; answers the action per feed."""
    from stack.feeds.declare import read_declarations
    from stack.feeds.plan import Allowed

    declarations = read_declarations(stack.settings.schemas)
    steps = stack.applier.plan(declarations, replace(Allowed(), **allowed))
    stack.applier.apply(declarations, steps, lambda _: None)
    return {step.feed: str(step.action) for step in steps}
