"""Feeds and a counting job for tests of containers, with the questions that such tests ask."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

from stack import Latest, Oldest, Stack
from stack.kafka.reader import LogReader
from stack.model.checkpoint import Checkpoint
from stack.model.job import changelog_name
from stack.model.plan import TaskId, tasks_of
from stack.offsets.checkpoints import last_checkpoints
from stack.offsets.codec import CheckpointDecoder
from tests.cluster.conftest import apply
from tests.clusters import wait_for

_RECORD = '{{"type":"record","name":"{}","fields":[{}]}}'
_USER = '{"name":"user","type":"string"},'
CLICK = _RECORD.format("Click", _USER + '{"name":"n","type":"long"}')
TALLY = _RECORD.format("Tally", _USER + '{"name":"count","type":"long"}')
SOURCE = """
[feeds.{name}]
kind = "source"
for = "test"
owner = "test"
schema = "click.avsc"
key = "user"
partitions = {partitions}
{storage}
"""
DERIVED = """
[feeds.{name}]
kind = "derived"
for = "test"
owner = "test"
schema = "tally.avsc"
key = "user"
partitions = 2
retention = "forever"
by = "count"
inputs = {inputs}
"""
COUNT = """
from stack import Feed, Job

clicks, tallies = Feed("clicks"), Feed("tallies")
job = Job("count")


@job.task(clicks, store="counts")
def count(click, ctx):
    number = ctx.state.get(click["user"], 0) + 1
    ctx.state[click["user"]] = number
    ctx.emit(tallies, {"user": click["user"], "count": number})
"""
SETTINGS = """
commit_min_ms = 10
commit_max_ms = 50
[stores.counts]
key = "str"
value = "int"
"""


class JobWorld:
    """A stack with feeds `clicks` and `tallies`, and the folder of the job `count` between them."""

    def __init__(
        self,
        stack: Stack,
        sources: dict[str, int | str] | None = None,
        code: str = COUNT,
        settings: str = SETTINGS,
        derived: str = DERIVED,
    ) -> None:
        self.stack = stack
        sources = sources or {"clicks": 2}
        schemas = stack.settings.schemas
        (schemas / "click.avsc").write_text(CLICK)
        (schemas / "tally.avsc").write_text(TALLY)
        text = "".join(
            SOURCE.format(
                name=name,
                partitions=str(kind).split()[0],
                storage='table = true\nhorizon = "1h"' if "table" in str(kind) else 'retention = "forever"',
            )
            for name, kind in sources.items()
        )
        text += derived.format(name="tallies", inputs=json.dumps(list(sources)))
        (schemas / "catalog.toml").write_text(text)
        apply(stack)
        self.folder = Path(stack.settings.root) / "count"
        self.folder.mkdir(exist_ok=True)
        self.write_job(code, settings)

    def write_job(self, code: str = COUNT, settings: str = SETTINGS) -> None:
        """Write the files of the job."""
        (self.folder / "job.py").write_text(textwrap.dedent(code))
        (self.folder / "job.toml").write_text(settings)

    def click(self, count: int, users: int = 10, feed: str = "clicks", first: int = 0) -> Counter[str]:
        """Write clicks; returns how many each user got."""
        made: Counter[str] = Counter()
        with self.stack.writer(feed) as writer:
            for number in range(first, first + count):
                user = f"user-{number % users}"
                writer.write({"user": user, "n": number})
                made[user] += 1
        return made

    def tallies(self) -> dict[str, list[int]]:
        """Every committed output so far, per user in order."""
        found: dict[str, list[int]] = {}
        with self.stack.reader("tallies") as reader:
            reader.seek(Oldest(), until=Latest())
            for record in reader.records():
                found.setdefault(record.key, []).append(record.value["count"])
        return found

    def outputs(self) -> int:
        """About how many outputs there are, aborted ones and commit markers included."""
        return sum(self.stack.admin.ends(self.stack.topic_of("tallies"), range(2)).values())

    def await_exact(self, clicks: Counter[str], limit_s: float = 30.0) -> None:
        """Wait until every click has its tally, and check that none came twice."""
        total = sum(clicks.values())
        wait_for(lambda: sum(map(len, self.tallies().values())) >= total, f"{total} tallies", limit_s)
        assert self.tallies() == {user: list(range(1, count + 1)) for user, count in clicks.items()}

    @property
    def changelog(self) -> str:
        """The changelog of the counting job."""
        return changelog_name(self.stack.settings.name, "count", "counts")

    def changelog_ends(self) -> dict[int, int]:
        """Where its partitions end."""
        return self.stack.admin.ends(self.changelog, range(2))

    def state(self, store: str = "counts") -> dict[str, bytes]:
        """The last committed value of each key in a changelog."""
        topic = changelog_name(self.stack.settings.name, "count", store)
        state: dict[str, bytes] = {}
        with LogReader(self.stack.access, topic) as reader:
            ends = self.stack.admin.ends(topic, range(2))
            reader.assign(dict.fromkeys(ends, 0), ends)
            while not reader.done:
                batch = reader.read()
                for key, value in zip(batch.keys, batch.values, strict=True):
                    assert key is not None
                    if value is None:
                        state.pop(key.decode(), None)
                    else:
                        state[key.decode()] = value
        return state

    def counts(self) -> dict[str, int]:
        """The state of the counting job."""
        return {user: int.from_bytes(value, "big") for user, value in self.state().items()}

    def checkpoints(self) -> dict[TaskId, Checkpoint]:
        """The newest checkpoint of each task."""
        stack = self.stack
        return last_checkpoints(stack, CheckpointDecoder(stack.registry), "count", tasks_of(2))


def numbers(values: dict[str, bytes]) -> dict[str, Any]:
    """JSON values of a store."""
    return {key: json.loads(value) for key, value in values.items()}
