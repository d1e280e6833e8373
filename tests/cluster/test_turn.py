"""One runner at a time, on a real ZooKeeper."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from stack.model.fleet import RunnerPlace
from stack.settings import Endpoints, Settings
from stack.zookeeper.lead import IsDead
from stack.zookeeper.turn import Turn
from tests.clusters import wait_for

pytestmark = pytest.mark.cluster
NewTurn = Callable[..., Turn]


@pytest.fixture
def new_turn(cluster: Endpoints, settings: Settings) -> Iterator[NewTurn]:
    opened: list[Turn] = []

    def make(name: str, is_dead: IsDead = lambda _: False) -> Turn:
        opened.append(Turn(cluster.zookeeper, settings.name, RunnerPlace(name, "here", 1, 1.0), is_dead))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def holder(turn: Turn) -> str | None:
    other = turn.claim()
    return other.id if other else None


def test_the_second_stands_by_until_the_first_is_gone(new_turn: NewTurn) -> None:
    first, second = new_turn("a"), new_turn("b")
    assert holder(first) is None
    assert holder(first) is None
    assert holder(second) == "a"
    looked: list[bool] = []
    won = threading.Event()

    def stand_by() -> None:
        if second.wait(lambda: looked.append(True)):
            won.set()

    thread = threading.Thread(target=stand_by)
    thread.start()
    wait_for(lambda: len(looked) > 1, "the second to look again", 10)
    assert not won.is_set()
    first.close()
    assert won.wait(10)
    thread.join(5)
    assert holder(new_turn("c")) == "b"


def test_whoever_is_told_to_stop_waits_no_longer(new_turn: NewTurn) -> None:
    first, second = new_turn("a"), new_turn("b")
    assert holder(first) is None
    assert second.wait(second.stop) is False


def test_the_turn_of_a_dead_runner_is_taken_at_once(new_turn: NewTurn) -> None:
    dead, next_ = new_turn("dead"), new_turn("next", lambda place: place.id == "dead")
    assert holder(dead) is None
    assert holder(next_) is None
    assert holder(dead) == "next"


def test_who_lost_the_turn_is_told(new_turn: NewTurn) -> None:
    first, next_ = new_turn("a"), new_turn("b", lambda _: True)
    assert holder(first) is None
    lost = threading.Event()
    thread = threading.Thread(target=first.keep, args=(lost.set,))
    thread.start()
    assert not lost.wait(1.2)
    assert holder(next_) is None
    assert lost.wait(10)
    thread.join(5)


def test_a_turn_is_kept_through_a_session_that_was_lost(new_turn: NewTurn) -> None:
    turn = new_turn("a")
    assert holder(turn) is None
    assert turn._session is not None
    # ZooKeeper still has the old session, and with it the node, when the runner comes with a new one.
    turn._session.lost.set()
    assert holder(turn) is None
    assert turn._session is not None
    assert not turn._session.lost.is_set()
