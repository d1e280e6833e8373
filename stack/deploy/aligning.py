"""Takes points of a whole job: its tasks stand still for a moment, and nothing is on its way between stages.

One stage after the other: the tasks of the first commit and stand still; then those of the next read what
the first has written, to its end, and stand still, too. Whoever stands says so in its report, and takes that
back before it goes on. So if everybody's report says it both before and after the checkpoints were read,
nobody has done anything in between. The request is an ephemeral node: if whoever asks dies, all go on.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping

from stack.connection import Stack
from stack.errors import Unavailable
from stack.feeds.plan import DAY_MS
from stack.kafka.reader import LogReader
from stack.machine import monotonic, sleep, time_ms
from stack.model.annotation import ALIGNED_PREFIX, aligned_name
from stack.model.checkpoint import Checkpoint
from stack.model.job import JobSpec
from stack.model.place import Place
from stack.model.plan import ContainerReport, TaskId, job_tasks
from stack.model.stillness import StillRequest
from stack.offsets.index import CheckpointIndex
from stack.offsets.naming import Stand, forget_point, name_point, where_it_stands
from stack.zookeeper.fleet import JobNodes

LIMIT_S = 15.0
# Who has named a point that nobody asked for.
BY_ITSELF = "the runner"
_LOOK_S = 0.02
_MOST_FORGOTTEN = 1_000


def stand_of(
    stack: Stack,
    nodes: JobNodes,
    spec: JobSpec,
    limit_s: float = LIMIT_S,
    clock: Callable[[], float] = monotonic,
) -> Stand:
    """Where a job stands, with all its tasks still; if they cannot be brought to that, where they are now.

    Its containers work on when this returns.
    """
    try:
        return _Aligning(stack, nodes, spec, clock() + limit_s, clock).stand()
    except _NotStill:
        return where_it_stands(stack, spec, is_still=False)


def take_aligned_point(stack: Stack, nodes: JobNodes, spec: JobSpec) -> str | None:
    """What a runner does every few minutes: name a point at which all tasks of a job stand still, and forget
    those that are older than the job's horizon and a day. The name; None if they did not stand still.
    """
    stand = stand_of(stack, nodes, spec)
    if not (stand.aligned and stand.checkpoints and stand.outputs):
        return None
    point = name_point(stack, spec, stand, aligned_name(time_ms()), {}, by=BY_ITSELF)
    edge_ms = time_ms() - max(spec.settings.horizon_ms, DAY_MS)
    with CheckpointIndex(stack) as index:
        index.refresh()
        for name in index.aligned(spec.name, edge_ms, limit=_MOST_FORGOTTEN):
            if name.startswith(ALIGNED_PREFIX):
                forget_point(stack, spec.name, name)
    return point.name


def needs_aligned_points(stack: Stack, spec: JobSpec) -> bool:
    """Whether single commits of a job are not always points to go back to: it has several stages, or several
    containers that write tables."""
    return len(spec.stages) > 1 or (
        spec.settings.containers > 1 and any(stack.feed(feed).is_table for feed in spec.outputs)
    )


class _NotStill(Exception):
    """Somebody does not stand still, or has gone on."""


class _Aligning:
    """One attempt."""

    def __init__(
        self, stack: Stack, nodes: JobNodes, spec: JobSpec, deadline: float, clock: Callable[[], float]
    ) -> None:
        self._stack = stack
        self._nodes = nodes
        self._spec = spec
        self._deadline = deadline
        self._clock = clock
        self._id = uuid.uuid4().hex[:12]

    def stand(self) -> Stand:
        if not self._nodes.reports():
            stand = stand_at_rest(self._stack, self._spec)
            if self._nodes.reports():  # it has begun meanwhile
                raise _NotStill
            return stand
        with self._asked():
            stages = list(self._spec.stages)
            token = ""
            for count in range(1, len(stages) + 1):
                request = StillRequest(self._id, count, self._ends_before(stages[count - 1]))
                self._ask(request)
                token = request.token
                self._await(token, [task for task in job_tasks(self._spec) if task.stage in stages[:count]])
            before = self._who(token)
            stand = where_it_stands(self._stack, self._spec, is_still=True)
            if not self._nodes.asks_for_stillness() or self._who(token) != before:
                raise _NotStill
            return stand

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """At the end everybody goes on, whatever has happened."""
        try:
            yield
        finally:
            with contextlib.suppress(Unavailable):  # then the node goes with the session
                if self._nodes.asks_for_stillness():
                    self._nodes.end_stillness()

    def _ask(self, request: StillRequest) -> None:
        """Somebody else who takes a point just now is done soon."""
        while not self._nodes.request_stillness(request):
            self._pass_time()

    def _pass_time(self) -> None:
        if self._clock() > self._deadline:
            raise _NotStill
        sleep(_LOOK_S)

    def _ends_before(self, stage: str) -> dict[Place, int]:
        """Where the feeds end that earlier stages write for this one, now that those stand still."""
        inner = [one.feed for one in self._spec.inputs_of(stage) if one.feed in self._spec.outputs]
        topics = [_topic(self._stack, feed) for feed in inner]
        partitions = self._spec.stages[stage]
        return self._stack.admin.all_ends([(topic, n) for topic in topics for n in range(partitions)])

    def _await(self, token: str, tasks: list[TaskId]) -> None:
        while True:
            reports = self._nodes.reports()
            standing = {task for one in reports if one.still == token for task in one.tasks}
            if standing.issuperset(tasks) and all(one.still == token for one in reports):
                return
            self._pass_time()

    def _who(self, token: str) -> dict[tuple[int, int], frozenset[TaskId]]:
        """Who has which tasks, all of them still."""
        reports = self._nodes.reports()
        if any(one.still != token for one in reports):
            raise _NotStill
        return {_name(one): frozenset(one.tasks) for one in reports}


def stand_at_rest(stack: Stack, spec: JobSpec) -> Stand:
    """Where a job stands of which no container works. Between stages something may be left all the same."""
    stand = where_it_stands(stack, spec, is_still=True)
    if all(
        _is_read(stack, place, offset) for place, offset in _inner(stack, spec, stand.checkpoints).items()
    ):
        return stand
    return where_it_stands(stack, spec, is_still=False)


def _inner(stack: Stack, spec: JobSpec, points: Mapping[TaskId, Checkpoint]) -> dict[Place, int]:
    """Where tasks have come to in what other stages wrote."""
    found = {}
    for task in job_tasks(spec):
        for one in spec.inputs_of(task.stage):
            if one.feed in spec.outputs:
                point = points[task].inputs.get(one.feed) if task in points else None
                offset = 0 if point is None else point.offsets.get(task.partition, 0)
                found[_topic(stack, one.feed), task.partition] = offset
    return found


def _is_read(stack: Stack, place: Place, offset: int) -> bool:
    """Whether no record stands behind an offset; there may be markers of transactions."""
    topic, partition = place
    bounds = stack.admin.bounds(topic, [partition])[partition]
    deadline = monotonic() + LIMIT_S
    with LogReader(stack.access, topic) as reader:
        reader.assign({partition: max(offset, bounds.low)}, {partition: bounds.high})
        while not reader.done:
            if len(reader.read(1, 0.1)) or monotonic() > deadline:
                return False
    return True


def _topic(stack: Stack, feed: str) -> str:
    return stack.topic_of(feed, stack.feed(feed).version)


def _name(report: ContainerReport) -> tuple[int, int]:
    return report.slot, report.attempt
