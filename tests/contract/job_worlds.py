"""The job `count` in two worlds: in the test kit, and on real Kafka, ZooKeeper and RocksDB."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Protocol

from stack import Oldest, Stack
from stack.deploy.deploy import next_entry
from stack.deploy.jobs import jobs_feed
from stack.deploy.rewind_plan import Wanted, look_again, make_plan
from stack.deploy.rewinding import Rewinding
from stack.engine.rewind import OutputsChoice
from stack.kafka.reader import LogReader
from stack.model.startpoint import AtAnnotation
from stack.offsets.index import CheckpointIndex
from stack.offsets.naming import name_point, where_it_stands
from stack.testing import MemoryStack
from tests.cluster.job_world import CLICK, DERIVED, SOURCE, TALLY, JobWorld
from tests.clusters import wait_for
from tests.contract import crashes
from tests.fleets import HandFleet, run_and_tell

Tallies = dict[str, list[int]]


class Counting(Protocol):
    """What a scenario does and looks at. Clicks go in; each user's count comes out, and is kept as state."""

    def click(self, count: int, first: int = 0) -> Counter[str]: ...

    def run(self) -> None:
        """Until everything is handled and committed."""

    def stop(self) -> None:
        """In good order."""

    def crash(self, at: str) -> None:
        """Run until that point and die there."""

    def crash_at_rest(self, lose_disk: bool = False) -> None: ...

    def run_with_abort(self) -> None:
        """As `run`, but Kafka refuses the first commit."""

    def name(self, point: str) -> None:
        """Give the point where it stands a name."""

    def rewind(self, point: str) -> None:
        """Go back there; the tallies are events, which stay."""

    def tallies(self) -> Tallies: ...

    def counts(self) -> dict[str, int]: ...


class KitCounting:
    """In the kit."""

    def __init__(self, folder: Path, code: str, settings: str) -> None:
        (folder / "schemas").mkdir()
        (folder / "schemas" / "click.avsc").write_text(CLICK)
        (folder / "schemas" / "tally.avsc").write_text(TALLY)
        source = SOURCE.format(name="clicks", partitions=2, storage='retention = "forever"')
        derived = DERIVED.format(name="tallies", inputs='["clicks"]')
        (folder / "schemas" / "catalog.toml").write_text(source + derived)
        (folder / "count").mkdir()
        (folder / "count" / "job.py").write_text(code)
        (folder / "count" / "job.toml").write_text(settings)
        self.stack = MemoryStack(folder / "schemas", jobs=[folder / "count"])

    def click(self, count: int, first: int = 0) -> Counter[str]:
        users = [f"user-{number % 10}" for number in range(first, first + count)]
        self.stack.write("clicks", *({"user": user, "n": first + at} for at, user in enumerate(users)))
        return Counter(users)

    def run(self) -> None:
        self.stack.run()

    def stop(self) -> None:
        self.stack.stop("count")

    def crash(self, at: str) -> None:
        if at == "store.write":
            # Committed changes are written every few seconds.
            self.stack.run()
            self.stack.clock.advance("6s")
        self.stack.crash("count", at=at)

    def crash_at_rest(self, lose_disk: bool = False) -> None:
        self.stack.crash("count", lose_disk=lose_disk)

    def run_with_abort(self) -> None:
        self.stack.abort("count")
        self.stack.run()

    def name(self, point: str) -> None:
        self.stack.annotate("count", point)

    def rewind(self, point: str) -> None:
        self.stack.rewind("count", f"@{point}", outputs="append")

    def tallies(self) -> Tallies:
        found: Tallies = {}
        for record in self.stack.records("tallies"):
            found.setdefault(record.key, []).append(record.value["count"])
        return found

    def counts(self) -> dict[str, int]:
        return self.stack.state("count", "counts")


class RealCounting:
    """On the shared cluster, in a process of its own that is really killed."""

    def __init__(self, stack: Stack, folder: Path, code: str, settings: str) -> None:
        self._world = JobWorld(stack, code=code, settings=settings)
        self._fleet = HandFleet(stack, self._world.folder)
        self._folder = folder
        self._data: Path | None = None
        self._machines = 0
        self._fleet.plan(1)

    def click(self, count: int, first: int = 0) -> Counter[str]:
        return self._world.click(count, first=first)

    def run(self) -> None:
        self._start()
        wait_for(self._is_done, "all clicks to be committed", limit_s=60)

    def _start(self) -> None:
        process = self._fleet.processes.get(0)
        if process is None or not process.is_alive():
            self._fleet.start(data=self._data)

    def _is_done(self) -> bool:
        topic = self._world.stack.topic_of("clicks")
        ends = self._world.stack.admin.ends(topic, range(2))
        points = self._world.checkpoints()
        return len(points) == 2 and all(
            point.inputs["clicks"].offsets[task.partition] == ends[task.partition]
            for task, point in points.items()
        )

    def stop(self) -> None:
        self._fleet.plan({})
        self._fleet.ending()
        self._fleet.plan(1)

    def crash(self, at: str) -> None:
        self.crash_at_rest()
        self._fleet.main = partial(crashes.run, at)
        process = self._fleet.start(data=self._data)
        process.join(60)
        assert process.exitcode == -9, f"{at}: the container did not die there, but ended {process.exitcode}"
        self._fleet.main = run_and_tell

    def crash_at_rest(self, lose_disk: bool = False) -> None:
        if 0 in self._fleet.processes:
            self._fleet.kill()
        if lose_disk:
            self._machines += 1
            self._data = self._folder / f"machine-{self._machines}"

    def run_with_abort(self) -> None:
        self.crash_at_rest()
        self._fleet.main = partial(crashes.run, "abort")
        self.run()

    def name(self, point: str) -> None:
        stack, spec = self._world.stack, self._fleet.spec
        name_point(stack, spec, where_it_stands(stack, spec, is_still=True), point, {}, by="test")

    def rewind(self, point: str) -> None:
        """The container is not told to stop: it is fenced."""
        stack, spec = self._world.stack, self._fleet.spec
        jobs = jobs_feed(stack)
        jobs.update("count", lambda before: next_entry(before, spec))
        with CheckpointIndex(stack) as index:
            index.refresh()
            wanted = Wanted(AtAnnotation(point), outputs=OutputsChoice.APPEND)
            plan = make_plan(stack, jobs, index, "count", wanted)
            Rewinding(stack, jobs, lambda _: 0).carry_out(
                "count", plan.intent("", f"@{point}"), look_again(stack, jobs, index, plan)
            )
        process = self._fleet.processes.get(0)
        if process is not None:
            self._fleet.kill()

    def tallies(self) -> Tallies:
        """Not to the high watermark: nobody ends the open transaction of a process that was killed."""
        found: Tallies = {}
        with self._world.stack.reader("tallies") as reader:
            reader.seek(Oldest())
            while not reader.caught_up:
                for record in reader.read().records():
                    found.setdefault(record.key, []).append(record.value["count"])
        return found

    def counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        with LogReader(self._world.stack.access, self._world.changelog) as reader:
            reader.assign({0: 0, 1: 0})
            while not reader.caught_up:
                batch = reader.read()
                for key, value in zip(batch.keys, batch.values, strict=True):
                    found[(key or b"").decode()] = int.from_bytes(value or b"", "big")
        # Counts begin with one: nothing is what was deleted.
        return {user: count for user, count in found.items() if count}

    def close(self) -> None:
        self._fleet.close()
