"""Where a rewind lands, what it undoes and what speaks against it: values in, values out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from stack.model.checkpoint import REWIND_SLOT, Checkpoint, InputPoint
from stack.model.plan import TaskId
from stack.model.startpoint import format_time

# Kafka ends a transaction after 45 s; the rest is for clocks that differ.
_LONGEST_COMMIT_MS = 300_000


class StateChoice(StrEnum):
    """What becomes of the stores."""

    THEN = "then"  # as they were at the point
    KEEP = "keep"  # as they are now
    EMPTY = "empty"


class OutputsChoice(StrEnum):
    """What becomes of the outputs."""

    RESTORE = "restore"  # tables become what they were at the point; an event feed refuses
    APPEND = "append"  # tables as above; what was written to event feeds stays, and more is added


@dataclass(frozen=True, slots=True)
class Cut:
    """Per partition of a table output: what stands before belongs to commits that stay.

    `unclear` are partitions where commits that stay and commits that go have written among each other.
    """

    feed: str
    topic: str
    topic_id: str
    offsets: tuple[int, ...]
    ends: tuple[int, ...]
    unclear: tuple[int, ...] = ()

    @property
    def span(self) -> int:
        """How many offsets lie behind the cut."""
        return sum(end - offset for offset, end in zip(self.offsets, self.ends, strict=True))


@dataclass(frozen=True, slots=True)
class Move:
    """One task: where it stands, and where it goes; None is before its first commit.

    `inner` are inputs that other stages of the job write: they are not read again, but written anew.
    """

    task: TaskId
    now: Checkpoint | None
    then: Checkpoint | None
    inner: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """How many offsets of its inputs are read again."""
        if self.now is None:
            return 0
        return sum(
            max(0, offset - self._then_offset(feed, number))
            for feed, point in self.now.inputs.items()
            if feed not in self.inner
            for number, offset in point.offsets.items()
        )

    def _then_offset(self, feed: str, number: int) -> int:
        point = None if self.then is None else self.then.inputs.get(feed)
        return 0 if point is None else point.offsets.get(number, 0)

    @property
    def deltas(self) -> int:
        """How many offsets of its changelogs are undone at most."""
        if self.now is None:
            return 0
        return sum(max(0, point.end - self.store_end(name)) for name, point in self.now.stores.items())

    def store_end(self, store: str) -> int:
        """How far the changelog of a store reached at the point."""
        point = None if self.then is None else self.then.stores.get(store)
        return 0 if point is None else point.end


@dataclass(frozen=True, slots=True)
class Input:
    """An input as it is now: which offsets its partitions hold."""

    feed: str
    topic: str
    topic_id: str
    bounds: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a plan depends on."""

    job: str
    version: str
    moves: Sequence[Move]
    horizon_ms: int
    now_ms: int
    inputs: Mapping[str, Input]
    cuts: Sequence[Cut] = ()
    event_outputs: Sequence[str] = ()
    # Stores as the job has them now, with the topic ids of their changelogs.
    stores: Mapping[str, str] = field(default_factory=dict)
    state: StateChoice = StateChoice.THEN
    outputs: OutputsChoice = OutputsChoice.RESTORE
    best_effort: bool = False
    # Other jobs that write to a table output.
    other_writers: Mapping[str, str] = field(default_factory=dict)
    # For how long all records of a table output stay.
    table_horizons: Mapping[str, int] = field(default_factory=dict)
    # It goes back with a job whose outputs it reads, also if it has read none of what is undone.
    follows: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that speaks against a rewind, and what to do about it."""

    message: str
    hint: str


def find_refusals(facts: Facts) -> Iterator[Refusal]:
    """Everything that speaks against going back."""
    yield from _nothing_to_do(facts)
    yield from _beyond_horizon(facts)
    yield from _inputs(facts)
    yield from _stores(facts)
    yield from _outputs(facts)


def _nothing_to_do(facts: Facts) -> Iterator[Refusal]:
    if facts.follows:
        return
    if all(one.now is None for one in facts.moves):
        message = f"job {facts.job!r} has not committed anything yet"
        yield Refusal(message, "There is nothing to go back from.")
    elif facts.state is StateChoice.THEN and all(_same(one) for one in facts.moves):
        yield Refusal(
            f"job {facts.job!r} stands at that point already",
            f"`stack offsets list {facts.job}` shows the points before it.",
        )


def _same(move: Move) -> bool:
    return move.now == move.then or (
        move.now is not None and move.then is not None and move.now.number == move.then.number
    )


def _beyond_horizon(facts: Facts) -> Iterator[Refusal]:
    if facts.best_effort or facts.state is not StateChoice.THEN:
        return
    old = [
        one.then
        for one in facts.moves
        if one.then is not None
        and one.then.stores
        and not _same(one)
        and facts.now_ms - one.then.time_ms >= _horizon_at(one.then, facts)
    ]
    if old:
        oldest = min(one.time_ms for one in old)
        horizon_ms = min(_horizon_at(one, facts) for one in old)
        edge = format_time(facts.now_ms - horizon_ms)
        yield Refusal(
            f"the point is from {format_time(oldest)}, beyond the horizon of {horizon_ms // 1000} s: "
            "compaction may have removed values that state had then",
            f"The nearest exact point is {edge} (--to {edge}). To rebuild from the source, --to oldest "
            "--state empty. To take what is left of the state, --best-effort.",
        )


def _horizon_at(then: Checkpoint, facts: Facts) -> int:
    """A horizon that was made longer since does not bring back what was compacted before."""
    return min(facts.horizon_ms, then.horizon_ms or facts.horizon_ms)


def _inputs(facts: Facts) -> Iterator[Refusal]:
    for move in facts.moves:
        for feed, now in facts.inputs.items():
            point = None if move.then is None else move.then.inputs.get(feed)
            if point is not None:
                yield from _input(facts, move, feed, point, now)


def _input(facts: Facts, move: Move, feed: str, point: InputPoint, now: Input) -> Iterator[Refusal]:
    if point.topic_id != now.topic_id:
        yield Refusal(
            f"feed {feed!r} was deleted and made anew since then: its offsets of that point mean nothing",
            f"Go back no further than the job's first commit on it: `stack offsets list {facts.job}`.",
        )
        return
    for number, offset in point.offsets.items():
        low, high = now.bounds.get(number, (0, 0))
        if offset < low:
            yield Refusal(
                f"feed {feed!r}, partition {number}: offsets {offset} to {low - 1} are gone: retention "
                f"removed {low - offset:,} records that task {move.task} would read again",
                "Choose a later point; the feed must keep records for as long as one wants to go back.",
            )
        elif offset > high:
            yield Refusal(
                f"feed {feed!r}, partition {number} ends at {high}, before the point at {offset}",
                "Somebody cut the feed. Choose an earlier point.",
            )


def _stores(facts: Facts) -> Iterator[Refusal]:
    told = set()
    for move in facts.moves:
        for name, point in {} if move.then is None else move.then.stores.items():
            now = facts.stores.get(name)
            if now is not None and now != point.topic_id and name not in told:
                told.add(name)
                yield Refusal(
                    f"the changelog of store {name!r} was deleted and made anew since then",
                    "What the state was before is gone. Choose a later point.",
                )


def _outputs(facts: Facts) -> Iterator[Refusal]:
    for feed, job in facts.other_writers.items():
        yield Refusal(
            f"table feed {feed!r} is also written by job {job!r}: what belongs to whom cannot be told",
            "A table feed has one writing job. Give the other one a feed of its own.",
        )
    if facts.event_outputs and facts.outputs is not OutputsChoice.APPEND:
        names = ", ".join(facts.event_outputs)
        yield Refusal(
            f"the job writes events to {names}: events are not unwritten, they would be there twice",
            "Say --outputs append if its readers can bear that.",
        )
    yield from _remade_tables(facts)
    yield from find_unclear(facts.cuts, facts.best_effort)
    yield from _old_tables(facts)


def _remade_tables(facts: Facts) -> Iterator[Refusal]:
    for cut in facts.cuts:
        points = [one.then.outputs.get(cut.feed) for one in facts.moves if one.then is not None]
        if any(point is not None and point.topic_id != cut.topic_id for point in points):
            yield Refusal(
                f"table feed {cut.feed!r} was deleted and made anew since then: what it held is gone",
                "Choose a later point.",
            )


def _old_tables(facts: Facts) -> Iterator[Refusal]:
    """A cut that is older than what a table keeps; before everything there is nothing to be kept."""
    times = [one.then.time_ms for one in facts.moves if one.then is not None and not _same(one)]
    for cut in () if facts.best_effort or not times else facts.cuts:
        horizon_ms = facts.table_horizons.get(cut.feed)
        if horizon_ms is not None and cut.span and facts.now_ms - min(times) >= horizon_ms:
            yield Refusal(
                f"the point is from {format_time(min(times))}, beyond the horizon of table {cut.feed!r} "
                f"({horizon_ms // 1000} s): compaction may have removed values that it had then",
                "Choose a later point, or take what is left of the table with --best-effort.",
            )


def find_unclear(cuts: Iterable[Cut], best_effort: bool) -> Iterator[Refusal]:
    """Tables that cannot be cut."""
    for cut in cuts:
        if cut.unclear and not best_effort:
            numbers = ", ".join(map(str, cut.unclear))
            yield Refusal(
                f"at that point several containers were writing to table {cut.feed!r} at once (partitions "
                f"{numbers}): which of their records stay cannot be told",
                "Choose a named point (`stack offsets annotate` makes one at which all stand still), or a "
                "moment at which the job was paused. --best-effort keeps what is unclear.",
            )


def output_cut(
    feed: str,
    ends: Sequence[int],
    targets: Mapping[TaskId, Checkpoint | None],
    later: Iterable[Checkpoint],
    topic: tuple[str, str],
    *,
    firsts: Collection[TaskId] = (),
) -> Cut:
    """Where the records of commits that stay end in each partition of an output.

    `later` are checkpoints of the job in the order of the feed: the targets, and everything from the first
    commit on that goes. `ends` is where the partitions end now. `firsts` are tasks whose target may be the
    first commit in its container: what it tells may be from before the task came.
    """
    following = [one for one in later if _tells_of(one, feed, topic[1])]
    kept = [one for one in targets.values() if one is not None and _tells_of(one, feed, topic[1])]
    nexts = [(one, _next_ends(one, following, feed, ends)) for one in kept]
    offsets, unclear = [], []
    for partition in range(len(ends)):
        cut = max(
            (
                after[partition]
                if one.task in firsts or one.outputs[feed].may_have_written(partition)
                else one.outputs[feed].ends[partition]
                for one, after in nexts
            ),
            default=0,
        )
        offsets.append(cut)
        if any(_reaches_below(one, targets, feed, partition, cut) for one in following):
            unclear.append(partition)
    return Cut(feed, *topic, tuple(offsets), tuple(ends), tuple(unclear))


def _tells_of(one: Checkpoint, feed: str, topic_id: str) -> bool:
    return feed in one.outputs and one.outputs[feed].topic_id == topic_id


def may_be_first(target: Checkpoint, slot_before: int | None) -> bool:
    """Whether a commit may be the first of its task in its container. `slot_before` is the slot of the
    commit before it, None if that is not known. A new attempt of a slot begins when all before it is done."""
    return target.slot != REWIND_SLOT and target.number > 1 and slot_before != target.slot


def _next_ends(
    one: Checkpoint, following: Sequence[Checkpoint], feed: str, ends: Sequence[int]
) -> Sequence[int]:
    """Where an output ended when a commit of a container, and those before it, were done."""
    # By itself: commits of one millisecond that have written nothing look alike.
    own = (
        place
        for place, other in enumerate(following)
        if _is_same_commit(one, other) and other.task == one.task
    )
    place = next(own, None)
    for after in following[0 if place is None else place + 1 :]:
        if _is_same_commit(one, after) or (place is None and after.time_ms <= one.time_ms):
            continue
        # The container's own next commit tells, and so does a rewind, before which everything had ended.
        if after.slot in (one.slot, REWIND_SLOT):
            return after.outputs[feed].ends
    return ends


def _is_same_commit(one: Checkpoint, other: Checkpoint) -> bool:
    """Whether two checkpoints were made by one commit: all of it share a time and where outputs ended. The
    clock may stand still, or have been put back; but no task is in a commit twice."""
    if one.task == other.task:
        return one.number == other.number and one.slot == other.slot
    return (one.slot, one.attempt, one.time_ms, one.outputs) == (
        other.slot,
        other.attempt,
        other.time_ms,
        other.outputs,
    )


def _reaches_below(
    one: Checkpoint, targets: Mapping[TaskId, Checkpoint | None], feed: str, partition: int, cut: int
) -> bool:
    """Whether a commit that goes may have written before the cut."""
    target = targets.get(one.task)
    # A container that got in before a rewind may have given its commit the number of the intent.
    if target is not None and (one.number < target.number or _is_same_commit(one, target)):
        return False
    point = one.outputs[feed]
    return point.may_have_written(partition) and point.ends[partition] < cut


def is_settled(
    later: Iterable[Checkpoint], targets: Mapping[TaskId, Checkpoint | None], cuts: Sequence[Cut]
) -> bool:
    """Whether no commit behind these can make a cut unclear.

    As soon as one tells that a table had grown to the cut, whatever a task sends after its next commit
    stands behind it. And no transaction lasts longer than some seconds.
    """
    short = [(cut, number) for cut in cuts for number, offset in enumerate(cut.offsets) if offset]
    waiting, since_ms = set(targets), 0
    unseen = {(task, one.number) for task, one in targets.items() if one is not None}
    for one in later:
        unseen.discard((one.task, one.number))
        if short:
            short = [(cut, number) for cut, number in short if not _reaches(one, cut, number)]
            since_ms = one.time_ms
        if not short:
            waiting.discard(one.task)
            if not unseen and (not waiting or one.time_ms > since_ms + _LONGEST_COMMIT_MS):
                return True
    return False


def _reaches(one: Checkpoint, cut: Cut, number: int) -> bool:
    """Whether a checkpoint tells that a partition had grown to the cut."""
    return (
        _tells_of(one, cut.feed, cut.topic_id) and one.outputs[cut.feed].ends[number] >= cut.offsets[number]
    )
