"""What must hold at every moment of a run, and what must have come out at its end.

The checks look at the logs of Kafka, at disks and at containers from outside, and compute with plain Python
what the jobs should have computed. They share no code with what they judge, but for reading checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ops.simulation.jobs import STACK, Simulated, decode_checkpoint, decoder_of, store_codec, stored
from ops.simulation.kernel import Broken
from ops.simulation.logs import Followed
from ops.simulation.tables import TableChecks
from stack.deploy.rewinding import REWOUND_ASKED
from stack.model.checkpoint import REWIND, Checkpoint
from stack.model.job import transactional_id
from stack.model.place import Place
from stack.model.plan import TaskId
from stack.offsets.checkpoints import checkpoint_partition, checkpoints_topic

if TYPE_CHECKING:
    from changelog.memory import MemoryDisk
    from ops.simulation.world import Running, World
    from stack.kafka.memory.broker import MemoryKafka


class TaskChecks:
    """One task: what it has read, and what should have come of it."""

    def __init__(self, kafka: MemoryKafka, simulated: Simulated, partition: int, exact: bool) -> None:
        self._simulated = simulated
        self._exact = exact
        self._name = f"{simulated.name}/{partition}"
        self.source = Followed(kafka.log((simulated.source, partition)))
        self.target = Followed(kafka.log((simulated.target, partition)))
        self.changelog = Followed(kafka.log((simulated.changelog, partition)))
        self.topic_id = kafka.topic(simulated.changelog).id
        self._decode = decoder_of(simulated.source)
        self._decode_target = decoder_of(simulated.target)
        self._handled = 0
        self._state: dict[str, int] = {}
        self.table: dict[str, int] = {}
        # Per commit the offset that it had read up to.
        self.commits: dict[int, int] = {}
        self._expected: list[tuple[str, int]] = []
        self._compared = 0
        self._folded = 0
        self._restored: dict[bytes, bytes] = {}
        self.last: Checkpoint | None = None

    def take(self, point: Checkpoint) -> None:
        """A commit became visible."""
        last, offset, end = self.last, _offset(point), _end(point)
        if last is not None and is_intent(point) and point.number == last.number and not is_intent(last):
            return  # written over a commit that had not been there at its last look: the next stands on that
        if last is not None and point.number != last.number + 1:
            raise Broken(f"{self._name}: checkpoint {point.number} after {last.number}")
        if last is None and point.number != 1:
            raise Broken(f"{self._name}: the first checkpoint is number {point.number}")
        if last is not None and ((offset < _offset(last) and not is_landing(point)) or end < _end(last)):
            raise Broken(f"{self._name}: checkpoint {point.number} goes back: {point} after {last}")
        if is_intent(point) and offset != (0 if last is None else _offset(last)):
            raise Broken(f"{self._name}: checkpoint {point.number} moves: {point} after {last}")
        if is_landing(point):
            self._go_back(point, offset)
        self.last = point
        self.commits[point.number] = offset
        self._handle_up_to(offset)
        self.changelog.follow()
        if self.changelog.log.stable >= end:
            self._compare_state(point, end)

    def _go_back(self, point: Checkpoint, offset: int) -> None:
        """A rewind has landed: where it was to, and from there everything is computed once more."""
        asked, _, number = point.annotations[REWOUND_ASKED].partition("#")
        known = {0, *self.commits.values()}
        if asked == str(point.task) and int(number) in self.commits:
            known = {self.commits[int(number)]}
        if offset not in known:
            raise Broken(f"{self._name}: checkpoint {point.number} lands at {offset}, not at {known}")
        self._handled, self._state, self.table = 0, {}, {}

    def _handle_up_to(self, offset: int) -> None:
        self.source.follow()
        records, shown = self.source.records, self._simulated.shown
        while self._handled < len(records) and records[self._handled][0] < offset:
            value = self._decode(records[self._handled][2] or b"")
            outcome = (value["user"], self._simulated.after(self._state, value))
            if shown is None:
                self._expected.append(outcome)
            else:
                shown(self.table, *outcome)
            self._handled += 1

    def _compare_state(self, point: Checkpoint, end: int) -> None:
        """Deltas up to a checkpoint's end give the state after its inputs."""
        records = self.changelog.records
        while self._folded < len(records) and records[self._folded][0] < end:
            _apply(self._restored, records[self._folded])
            self._folded += 1
        wanted = dict(stored(user, number) for user, number in self._state.items())
        if self._restored != wanted:
            raise Broken(
                f"{self._name}: at checkpoint {point.number}, end {end}, the changelog gives "
                f"{_shown(self._restored)}, the inputs give {self._state}"
            )

    def compare_outputs(self, settled: bool) -> None:
        """Outputs are what the inputs of the last checkpoint give: no gap, no repetition."""
        self.target.follow()
        records, expected = self.target.records, self._expected
        if not self._exact or self._simulated.shown is not None:
            return
        for place in range(self._compared, min(len(records), len(expected))):
            found = self._decode_target(records[place][2] or b"")
            if (found["user"], found["count"]) != expected[place]:
                raise Broken(f"{self._name}: output {place} is {found}, expected {expected[place]}")
        self._compared = min(len(records), len(expected))
        if settled and len(records) != len(expected):
            raise Broken(f"{self._name}: {len(records)} outputs are committed for {len(expected)} inputs")

    @property
    def is_settled(self) -> bool:
        """Whether nothing of this task's transactions is under way."""
        return all(one.log.stable == one.log.high for one in (self.target, self.changelog))

    @property
    def is_complete(self) -> bool:
        """Whether everything that was read by this job's tasks is committed."""
        self.source.follow()
        return self.is_settled and self._handled == len(self.source.records) and not self.is_going_back

    @property
    def is_going_back(self) -> bool:
        """Whether a rewind is under way."""
        return self.last is not None and is_intent(self.last)

    def check_end(self) -> None:
        """At the end of a run: exact results."""
        self.compare_outputs(settled=True)
        self.changelog.follow()
        if self.last is not None:
            self._compare_state(self.last, 1 << 60)
        if not self._exact:
            found = [self._decode_target(value or b"") for _, _, value in self.target.records]
            written = [(one["user"], one["count"]) for one in found]
            _check_at_least_once(self._name, written, self._expected)

    def content_at(self, position: int) -> dict[bytes, bytes]:
        """The state as of a position in the changelog."""
        content: dict[bytes, bytes] = {}
        for record in self.changelog.records:
            if record[0] < position:
                _apply(content, record)
        return content


class Checks:
    """All of it, for all jobs of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kafka = world.kafka
        self._tasks: dict[tuple[str, int], TaskChecks] = {}
        self._tables: dict[str, TableChecks] = {}
        self._points: dict[str, Followed] = {}
        self._seen: dict[str, int] = {}
        self._generations: dict[str, int] = {}

    def follow(self, simulated: Simulated, exact: bool) -> None:
        """Check a job from now on; its topics must be there."""
        for partition in range(self._world.partitions):
            self._tasks[simulated.name, partition] = TaskChecks(self._kafka, simulated, partition, exact)
        if simulated.shown is not None:
            self._tables[simulated.name] = TableChecks.of(self._kafka, simulated, self._world.partitions)
        log = self._kafka.log((checkpoints_topic(STACK), checkpoint_partition(simulated.name)))
        points = Followed(log)
        points.follow()
        self._points[simulated.name] = points
        self._seen[simulated.name] = len(points.records)

    def after_commit(self) -> None:
        """Some transaction was committed."""
        for job, points in self._points.items():
            points.follow()
            for _, key, value in points.records[self._seen[job] :]:
                if key is not None and value is not None and key.startswith(f"{job}/".encode()):
                    point = decode_checkpoint(value)
                    self._tasks[job, point.task.partition].take(point)
            self._seen[job] = len(points.records)
        for (job, _), task in self._tasks.items():
            points_log = self._points[job].log
            task.compare_outputs(task.is_settled and points_log.stable == points_log.high)
        for job in self._tables:
            points_log = self._points[job].log
            if points_log.stable == points_log.high:
                self._compare_table(job)

    def _compare_table(self, job: str) -> None:
        """A table is what its tasks have shown in it, but for the time in which a rewind brings it back."""
        tasks = [task for (name, _), task in self._tasks.items() if name == job]
        if self._tables[job].is_settled and not any(one.is_going_back for one in tasks):
            self._tables[job].compare(one.table for one in tasks)

    def before_compaction(self) -> None:
        """Read what compaction may remove: of a commit whose markers came late it was not read yet."""
        for points in self._points.values():
            points.follow()
        for task in self._tasks.values():
            task.changelog.follow()

    @property
    def is_complete(self) -> bool:
        """Whether all jobs have handled everything."""
        return all(task.is_complete for task in self._tasks.values())

    def lacks(self, job: str, task: TaskId, positions: Mapping[Place, int]) -> bool:
        """Whether the last commit of a task is behind these positions."""
        last = self._tasks[job, task.partition].last
        return (0 if last is None else _offset(last)) < max(positions.values())

    def check_end(self) -> None:
        for task in self._tasks.values():
            task.check_end()
        for job in self._tables:
            self._compare_table(job)

    def check_owners(self) -> None:
        """No task is open in two containers that could both commit."""
        owners: dict[tuple[str, TaskId], Running] = {}
        for running in self._world.containers:
            container = running.container
            if container is None or not running.process.alive or not self._can_commit(running):
                continue
            for task in container._tasks:
                other = owners.setdefault((running.launch.spec.name, task), running)
                if other is not running:
                    raise Broken(f"{task} of {running.launch.spec.name} is open in {other} and {running}")

    def _can_commit(self, running: Running) -> bool:
        committer = getattr(running.container, "_committer", None)
        if committer is None:
            return False
        launch = running.launch
        known = self._kafka.coordinator.get(transactional_id(STACK, launch.spec.name, launch.slot))
        return known is not None and known.epoch == committer.writer._producer._epoch

    def check_going_back(self, job: str) -> None:
        """While values of then are brought back, and when that is done, nobody who could commit has a task
        open: it would have been opened on what was there before."""
        for running in self._world.containers:
            container = running.container
            if container is None or running.launch.spec.name != job or not running.process.alive:
                continue
            if (container._tasks or container._openings) and self._can_commit(running):
                raise Broken(f"{running} has {job} open, and can commit, while {job} goes back")

    def check_refused(self, command: str, why: str) -> None:
        """A rewind that is refused has changed nothing; another one may have, which is why it was."""
        if command in self._world.committed_rewinds and "busy with another rewind" not in why:
            raise Broken(f"{command} was refused, but has committed something: {why}")

    def commits_of(self, job: str) -> list[tuple[TaskId, int]]:
        """The tasks of a job that have committed, with the number of their last commit."""
        lasts = [task.last for (name, _), task in self._tasks.items() if name == job]
        return [(one.task, one.number) for one in lasts if one is not None]

    def check_session(self, running: Running) -> None:
        """Nobody commits whose session has long been over, unless it stood still itself."""
        over_s = self._world.session_over_s(running.process)
        if over_s is not None and over_s > 4.0:
            raise Broken(f"{running} commits {over_s:.0f} s after its session was over")

    def check_disk(self, disk: MemoryDisk) -> None:
        """What a crash has left in stores is the state as of their positions."""
        for identity, content, position in disk.durable():
            task = self._tasks.get((identity.job, identity.partition))
            if task is None or identity.topic_id != task.topic_id:
                continue
            task.changelog.follow()
            name = f"the store of {identity.job}/{identity.partition}"
            place = (identity.topic, identity.partition)
            if position > task.changelog.position and self._kafka.coordinator.is_committed(place):
                # The commit is decided; only its marker is on its way. The next look compares.
                continue
            if position > task.changelog.position:
                raise Broken(f"{name} is at {position}, its changelog at {task.changelog.position}")
            wanted = task.content_at(position)
            if content != wanted:
                raise Broken(f"{name} at {position} holds {_shown(content)}, not {_shown(wanted)}")

    def check_generation(self, job: str, generation: int) -> None:
        """Plans follow each other."""
        if generation < self._generations.get(job, 0):
            raise Broken(f"plan {generation} of {job} after {self._generations[job]}")
        self._generations[job] = generation


def _check_at_least_once(name: str, written: list[tuple[str, int]], expected: list[tuple[str, int]]) -> None:
    """Everything is there, in order, and nothing else; repetitions are allowed."""
    place = 0
    for one in written:
        if place < len(expected) and one == expected[place]:
            place += 1
    if place < len(expected) or not set(written) <= set(expected):
        raise Broken(f"{name}: output {place}, {expected[place : place + 1]}, is missing in {written}")


def _apply(content: dict[bytes, bytes], record: tuple[int, bytes | None, bytes | None]) -> None:
    _, key, value = record
    if value is None:
        content.pop(key or b"", None)
    else:
        content[key or b""] = value


def is_intent(point: Checkpoint) -> bool:
    """Whether a checkpoint only says that a rewind is under way."""
    return REWIND in point.annotations


def is_landing(point: Checkpoint) -> bool:
    """Whether a checkpoint is where a rewind has come to its end."""
    return REWOUND_ASKED in point.annotations


def _offset(point: Checkpoint) -> int:
    """How far it had read; nothing at all before a first commit."""
    return sum(one.offsets[point.task.partition] for one in point.inputs.values())


def _end(point: Checkpoint) -> int:
    return sum(one.end for one in point.stores.values())


def _shown(content: dict[bytes, bytes]) -> dict[str, Any]:
    codec = store_codec()
    return {codec.keys.decode(key): codec.values.decode(value) for key, value in sorted(content.items())}
