"""What goes wrong, and when: drawn from the seed at every point at which a process asks somebody something.

A point has a name, such as `commit.after`: after the request to commit took effect, before its answer is
heard. The list of points is what the crash table in ARCHITECTURE.md is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from ops.simulation.kernel import START_MS, Kernel, Process
from ops.simulation.points import CrashPoint
from ops.simulation.themes import Theme
from stack.kafka.memory.client import MemoryClient as KafkaClient
from stack.kafka.memory.hooks import AFTER, BEFORE, Late
from stack.kafka.memory.hooks import Hooks as KafkaHooks
from stack.zookeeper.memory.client import MemoryClient as ZooKeeperClient
from stack.zookeeper.memory.hooks import Hooks as ZooKeeperHooks
from stack.zookeeper.memory.hooks import answer_lost

if TYPE_CHECKING:
    from ops.simulation.world import World

# Requests whose client tells its caller of trouble on the way; all others it repeats by itself.
_TOLD = {"init", "offsets", "commit", "abort", "list-offsets", "describe", "produce"}
# Requests that only ask: nothing can happen between their effect, which is none, and their answer.
_QUICK = frozenset(
    {"fetch", "metadata", "list-offsets", "describe", "watermarks", "get", "exists", "children"}
)
# How often nobody else goes on while a request is under way: with those that only ask, others do so seldom.
_AT_ONCE, _QUICK_AT_ONCE = 0.4, 0.75


class Steering:
    """Draws faults. `left` counts down to the next one."""

    def __init__(self, world: World, kernel: Kernel, theme: Theme) -> None:
        self._world = world
        self._kernel = kernel
        self._chance = kernel.chance
        self.theme = theme
        self._weights, self._kinds = theme.weights, theme.kinds
        self.active = False
        self.faults = 0
        # A process that is to stand still at a certain point.
        self.trap: tuple[str, str, str] | None = None
        # For how long, if that matters.
        self.trap_s: float | None = None
        # In a run for the crash table: where a process of a kind is to be killed; nothing else goes wrong.
        self.kill_at: CrashPoint | None = None
        self.killed: Callable[[Process], None] = lambda _: None
        self.refuses = False
        self._left = 0
        self._rate = 0

    def begin(self) -> None:
        """Let things go wrong from now on."""
        self.active = True
        self._rate = self._chance.choice(self.theme.rates)
        self._draw()

    def _draw(self) -> None:
        self._left = self._chance.randrange(1, 2 * self._rate)

    def pass_time(self, at_once: float = _AT_ONCE) -> None:
        """A request is on its way. Of so many the answer is there before anybody else has done anything."""
        chance = self._chance.random()
        if chance < at_once:
            return
        if chance < 0.9:
            delay_s = 0.0002 + chance * 0.003
        elif chance < 0.99:
            delay_s = chance * 0.03
        else:
            delay_s = chance * 0.4
        self._kernel.wait(delay_s)

    def is_due(self, operation: str, phase: str) -> bool:
        """Whether something goes wrong here; only asked while anything does."""
        if self.kill_at is not None:
            self._kill_where_wanted(operation, phase)
            return False
        weight = self._weights.get(operation)
        if weight is None:
            return False
        process = self.process()
        factor = self._kinds.get(process.kind)
        if factor is None:
            return False
        if self.trap is not None and self.trap == (process.name, operation, phase):
            return True
        self._left -= weight * factor
        if self._left > 0:
            return False
        self._draw()
        self.faults += 1
        self._world.stir()
        return True

    def _kill_where_wanted(self, operation: str, phase: str) -> None:
        wanted, process = self.kill_at, self.process()
        if wanted is not None and (process.kind, operation, phase) == (
            wanted.kind,
            wanted.operation,
            wanted.phase,
        ):
            self.kill_at, self.active = None, False
            self.killed(process)
            self._world.crash(process, wanted.name)
            self._kernel.leave()

    def process(self) -> Process:
        """Whose point it is."""
        return self._kernel.current().process

    def crash_or_pause(self, where: str) -> bool:
        """Maybe end or hold up the process at hand; True if it is over with it for now."""
        process, world, chance, theme = self.process(), self._world, self._chance.random(), self.theme
        if process.kind == "operator":
            return False
        if self.trap is not None and self.trap[0] == process.name:
            for_s, self.trap, self.trap_s = self.trap_s, None, None
            world.pause(process, for_s or self._chance.choice(theme.long_s[-2:]), where)
            self._kernel.wait(0.0)
            return True
        if chance < theme.crash:
            world.crash(process, where)
            self._kernel.leave()
        if chance < theme.crash + theme.pause:
            world.pause(process, self._chance.choice(theme.long_s), where)
            self._kernel.wait(0.0)
            return True
        return False


class KafkaSteering(KafkaHooks):
    """Faults of Kafka and of the way to it."""

    only_ask = _QUICK

    def __init__(self, steering: Steering, kernel: Kernel, world: World) -> None:
        super().__init__()
        self._steering = steering
        self._kernel = kernel
        self._world = world
        # Asked for with every request: hence no function of Python.
        self.now_s = partial(attrgetter("now"), kernel)  # type: ignore[method-assign]

    def now_ms(self) -> int:
        return START_MS + int(self._kernel.now * 1000)

    def wait(self, seconds: float) -> None:
        process = self._kernel.current().process
        if seconds <= process.idle_s:
            # A container that has nothing to read: as long as nothing happens it may as well sleep on.
            self._world.wait_for_news(process.idle_s)
        else:
            self._kernel.wait(seconds)

    def marker_delay_s(self, topic: str, partition: int) -> float:  # noqa: ARG002
        steering = self._steering
        if steering.active and self._kernel.chance.random() < 0.1:
            return self._kernel.chance.random() * 0.3
        return 0.0

    def point(self, client: KafkaClient, operation: str, phase: str) -> None:
        steering = self._steering
        if phase == AFTER:
            self._world.after_kafka(client, operation)
        steering.pass_time(_QUICK_AT_ONCE if operation in _QUICK else _AT_ONCE)
        if (
            steering.refuses
            and operation == "produce"
            and phase == BEFORE
            and client.settings.get("transactional.id")
        ):
            steering.refuses = False
            raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT, "Local: Message timed out"))
        if steering.active and steering.is_due(operation, phase):
            self._go_wrong(client, operation, phase)

    def _go_wrong(self, client: KafkaClient, operation: str, phase: str) -> None:
        steering, chance = self._steering, self._kernel.chance
        where = f"{operation}.{phase}"
        if steering.crash_or_pause(where) or operation not in _TOLD:
            return
        kind = chance.random()
        if operation == "commit" and kind < 0.3:
            self._world.tell(f"{where} {client.name}: nobody knows")
            raise KafkaException(KafkaError(KafkaError._FAIL, "Local: the answer is not known"))
        if operation in ("commit", "abort", "offsets") and phase == BEFORE and kind < 0.75:
            after_s = chance.choice((0.005, 0.02, 0.06, 0.2, 1.0, 5.0))
            self._world.tell(f"{where} {client.name}: the request comes {after_s} s late")
            raise Late(after_s, _timed_out())
        if operation == "produce" and phase == BEFORE and kind < 0.4:
            self._world.tell(f"{where} {client.name}: the records never arrive")
            raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT, "Local: Message timed out"))
        self._world.tell(f"{where} {client.name}: {'the answer' if phase == AFTER else 'it'} gets lost")
        raise KafkaException(_timed_out())


def _timed_out() -> KafkaError:
    return KafkaError(KafkaError._TIMED_OUT, "Local: Timed out", retriable=True)


class ZooKeeperSteering(ZooKeeperHooks):
    """Faults of ZooKeeper and of the way to it."""

    only_ask = _QUICK

    def __init__(self, steering: Steering, kernel: Kernel, world: World) -> None:
        self._steering = steering
        self._kernel = kernel
        self._world = world

    def now_s(self) -> float:
        return self._kernel.now

    def process(self) -> str:
        return self._steering.process().name

    def start(self, client: ZooKeeperClient, work: Callable[[], object], name: str) -> None:
        process = self._world.process_of(client.process)
        if process is not None:
            self._kernel.start(work, name, process, self._kernel.chance.random() * 0.01)

    def lag(self, client: ZooKeeperClient) -> bool:
        steering, chance = self._steering, self._kernel.chance
        if not steering.active or chance.random() > steering.theme.stale_reads:
            return False
        self._world.later(chance.random() * 1.5, client.catch_up)
        return True

    def point(self, client: ZooKeeperClient, operation: str, path: str, phase: str) -> None:
        steering = self._steering
        steering.pass_time(_QUICK_AT_ONCE if operation in _QUICK else _AT_ONCE)
        if not steering.active or not steering.is_due(f"zookeeper-{operation}", phase):
            return
        where = f"zookeeper-{operation}.{phase}"
        if steering.crash_or_pause(where):
            return
        if self._kernel.chance.random() < 0.4:
            for_s = self._kernel.chance.choice(steering.theme.long_s)
            self._world.tell(f"{where} {path}: the connection is cut for {for_s} s")
            self._world.cut(client, for_s)
            if phase == BEFORE:
                return
        else:
            self._world.tell(f"{where} {path}: {'the answer' if phase == AFTER else 'it'} gets lost")
        raise answer_lost()


class DiskSteering:
    """Crashes around what a process does to its disk."""

    def __init__(self, steering: Steering, world: World) -> None:
        self._steering = steering
        self._world = world

    def __call__(self, process: str, step: str, folder: Path) -> None:  # noqa: ARG002
        self._steering.pass_time()
        if self._steering.active and self._steering.is_due(f"store-{step}", BEFORE):
            self._steering.crash_or_pause(f"store-{step}.{BEFORE}")
