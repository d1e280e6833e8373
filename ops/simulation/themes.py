"""What a run is about: which steps go wrong in it, how, and what people do meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

# How much nearer a point brings the next fault; points that are not named bring none.
_COMMIT = {"commit": 30, "abort": 30, "offsets": 20, "produce": 12, "init": 15, "list-offsets": 4}
_FLEET = {
    "zookeeper-transaction": 20,
    "zookeeper-sync": 20,
    "zookeeper-set": 3,
    "zookeeper-delete": 5,
    "zookeeper-get": 3,
    "zookeeper-children": 3,
    "zookeeper-exists": 2,
    "zookeeper-ensure": 2,
    "zookeeper-start": 5,
}
_STORES = {
    "store-open": 30,
    "store-apply": 40,
    "store-flush": 40,
    "store-swap": 40,
    "store-close": 30,
    "fetch": 1,
}


@dataclass(frozen=True)
class Theme:
    """One kind of run. `share` is how many of a hundred runs are of it."""

    name: str
    share: int
    weights: Mapping[str, int]
    # Between two faults lie points of about this weight.
    rates: tuple[int, ...]
    # Of faults, how many kill the process, and how many let it stand still.
    crash: float
    pause: float
    # What people do, with how often in comparison.
    steps: Mapping[str, int]
    turns: tuple[int, int] = (1, 1)
    # Within this time things begin to go wrong.
    begins_s: float = 4.0
    # Of what kind of process points count, and how much.
    kinds: Mapping[str, int] = field(default_factory=lambda: {"container": 1})
    # Whether people bring the job back.
    goes_back: bool = False
    # How often there is but one task in a job.
    one_partition: float = 0.0
    two_containers: float = 0.3
    two_runners: float = 0.0
    two_jobs: float = 0.0
    at_least_once: float = 0.0
    stale_reads: float = 0.05
    deletions: float = 0.15
    long_s: tuple[float, ...] = field(default=(1.5, 8.0, 20.0, 55.0))


THEMES = (
    Theme(
        "commits",
        52,
        _COMMIT,
        rates=(70, 110, 170),
        crash=0.22,
        pause=0.1,
        steps={"write": 5, "compact": 1},
        turns=(1, 2),
        begins_s=2.0,
        one_partition=0.75,
        two_containers=0.5,
        at_least_once=0.35,
    ),
    Theme(
        "moves",
        16,
        {**_COMMIT, **_FLEET, "fetch": 1},
        rates=(300, 600),
        crash=0.25,
        pause=0.45,
        steps={"scale": 4, "deploy": 2, "bounce": 1, "lose_one": 4, "linger": 1},
        two_containers=0.9,
        long_s=(8.0, 20.0, 25.0),
    ),
    Theme(
        "fleet",
        12,
        {**_FLEET, "init": 10},
        rates=(60, 120),
        crash=0.3,
        pause=0.2,
        steps={"deploy": 3, "scale": 3, "bounce": 2, "linger": 2, "alone": 2},
        kinds={"container": 1, "runner": 1, "operator": 1},
        two_containers=0.6,
        two_runners=0.5,
        stale_reads=0.3,
    ),
    Theme(
        "stores",
        12,
        _STORES,
        rates=(40, 80),
        crash=0.9,
        pause=0.05,
        steps={"bounce": 3, "age": 3, "sleep": 2, "scale": 2, "reset": 3, "compact": 2},
        deletions=0.4,
    ),
    Theme(
        "rewinds",
        5,
        {**_COMMIT, **_FLEET, "describe": 4, "fetch": 1},
        rates=(500, 900),
        crash=0.3,
        pause=0.4,
        steps={"rewind": 12, "scale": 1, "deploy": 1, "bounce": 1, "alone": 1},
        turns=(1, 2),
        begins_s=6.0,
        kinds={"container": 1, "runner": 1, "rewind": 4},
        goes_back=True,
        one_partition=0.3,
        two_containers=0.5,
        deletions=0.25,
        long_s=(1.5, 8.0, 35.0, 55.0),
    ),
    Theme(
        "all",
        3,
        {**_COMMIT, **_FLEET, **_STORES},
        rates=(500, 900),
        crash=0.4,
        pause=0.2,
        steps={"write": 1, "deploy": 2, "scale": 2, "bounce": 1, "compact": 1, "sleep": 1},
        kinds={"container": 1, "runner": 1, "operator": 1},
        two_containers=0.5,
        two_runners=0.2,
        two_jobs=0.8,
        at_least_once=0.2,
        stale_reads=0.1,
    ),
)


# For the crash table: nothing goes wrong but the one thing.
PLAIN = Theme("plain", 0, {}, rates=(1,), crash=0.0, pause=0.0, steps={}, two_containers=0.0, stale_reads=0.0)


def drawn(chance: Random) -> Theme:
    """The theme of a run."""
    return chance.choices(THEMES, [one.share for one in THEMES])[0]
