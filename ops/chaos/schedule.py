"""Which faults come when: a pure function of a seed, so that a run that failed can be run again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

LEAST_OF_EACH = 2


class FaultKind(StrEnum):
    """What is done to the stack. Killed is SIGKILL; stopped is SIGSTOP, and SIGCONT after a while."""

    CONTAINER_KILLED = "container killed"
    CONTAINER_STOPPED = "container stopped"
    EXECUTOR_KILLED = "executor killed"
    RUNNER_KILLED = "runner killed"
    BROKER_KILLED = "broker killed"
    BROKER_STOPPED = "broker stopped"
    ZOOKEEPER_KILLED = "ZooKeeper killed"


STOPPED = (FaultKind.CONTAINER_STOPPED, FaultKind.BROKER_STOPPED)
LEAST_FAULTS = LEAST_OF_EACH * len(FaultKind)
# More of those that are quick to recover from: they come many times in a short run.
_FURTHER = (
    *(FaultKind.CONTAINER_KILLED,) * 5,
    FaultKind.EXECUTOR_KILLED,
    FaultKind.RUNNER_KILLED,
    FaultKind.BROKER_KILLED,
    FaultKind.BROKER_STOPPED,
    FaultKind.ZOOKEEPER_KILLED,
)
# A container that stands still must outlast the ZooKeeper session (6 s), in the long form also the
# transaction (45 s); a broker the patience of its clients (10 s), or just not.
_STOP_S = {FaultKind.CONTAINER_STOPPED: (9.0, 11.0), FaultKind.BROKER_STOPPED: (2.0, 7.0)}
_LONG_STOP_S = {FaultKind.CONTAINER_STOPPED: (50.0, 55.0), FaultKind.BROKER_STOPPED: (12.0, 20.0)}
_MOST_CONTAINERS = 3
_BACK_S = (2.0, 45.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `after_s` is the time since the one before it; `job` and `share` choose a container."""

    kind: FaultKind
    after_s: float
    job: int
    share: float
    stop_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scale:
    """Run a job in another number of containers; the faults of the round do not wait for it."""

    job: int
    containers: int


class Way(StrEnum):
    """How the point is told that a job goes back to."""

    TIME = "a time"
    COMMIT = "a commit"
    NAME = "a named point"


class RewindStep(StrEnum):
    """Where a rewind is when its command is killed."""

    STOPPING = "stopping"
    UNDOING = "bringing"


@dataclass(frozen=True, slots=True)
class Rewind:
    """A job goes back by some seconds, before the faults of its round or after them.

    `share` chooses among commits and names. `killed_at`: the command is killed so long after it came there,
    and repeated.
    """

    job: int
    way: Way
    back_s: float
    share: float
    is_first: bool
    killed_at: RewindStep | None = None
    killed_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """Faults that come before the jobs had time to recover from each other, and what goes with them."""

    faults: tuple[Fault, ...]
    scale: Scale | None = None
    rewind: Rewind | None = None


# It undoes for half a second, or longer: a command must be killed before that is over.
_KILL_S = {RewindStep.STOPPING: (0.0, 1.0), RewindStep.UNDOING: (0.0, 0.3)}


@dataclass(frozen=True, slots=True)
class Size:
    """How many containers a job has, and how many it has work for."""

    containers: int
    most: int


def schedule(
    seed: int, faults: int, jobs: Sequence[Size], long: bool = False, rewinds: int = 0
) -> list[Round]:
    """So many faults in rounds, each kind as often as LEAST_OF_EACH says if there are enough of them.

    Jobs are scaled in between, and go back in so many rounds as far as there are.
    """
    chance = random.Random(seed)
    kinds = [*FaultKind] * min(LEAST_OF_EACH, faults // len(FaultKind))
    kinds += [chance.choice(_FURTHER) for _ in range(faults - len(kinds))]
    chance.shuffle(kinds)
    made = [_fault(kind, chance, len(jobs), long) for kind in kinds]
    rounds = list(_rounds(made, chance))
    sizes = [one.containers for one in jobs]
    scaled = []
    for number, one in enumerate(rounds):
        scale = None
        if number % 3 == 1:
            job = chance.randrange(len(jobs))
            most = min(_MOST_CONTAINERS, jobs[job].most)
            other = [size for size in range(1, most + 1) if size != sizes[job]]
            if other:
                sizes[job] = chance.choice(other)
                scale = Scale(job, sizes[job])
        scaled.append(Round(one, scale))
    return _with_rewinds(scaled, rewinds, len(jobs), random.Random(seed + 1))


def _with_rewinds(rounds: list[Round], count: int, jobs: int, chance: random.Random) -> list[Round]:
    """Rewinds in some of the rounds but the first, half of them killed on their way."""
    places = chance.sample(range(1, len(rounds)), min(count, len(rounds) - 1))
    for number, place in enumerate(places):
        made = Rewind(
            chance.randrange(jobs),
            chance.choice([*Way]),
            chance.uniform(*_BACK_S),
            chance.random(),
            chance.random() < 0.5,
        )
        if number % 2 == 0:
            step = chance.choice([*RewindStep])
            made = replace(made, killed_at=step, killed_after_s=chance.uniform(*_KILL_S[step]))
        rounds[place] = replace(rounds[place], rewind=made)
    return rounds


def _fault(kind: FaultKind, chance: random.Random, jobs: int, long: bool) -> Fault:
    stop_s = 0.0
    if kind in STOPPED:
        spans = _LONG_STOP_S if long and chance.random() < 0.5 else _STOP_S
        stop_s = chance.uniform(*spans[kind])
    return Fault(kind, chance.uniform(0.0, 3.0), chance.randrange(jobs), chance.random(), stop_s)


def _rounds(faults: Sequence[Fault], chance: random.Random) -> Iterator[tuple[Fault, ...]]:
    """One fault after the other, now and then two at a time."""
    left = list(faults)
    while left:
        count = 2 if len(left) > 1 and chance.random() < 0.3 else 1
        yield tuple(left[:count])
        del left[:count]
