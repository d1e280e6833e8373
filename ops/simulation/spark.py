"""Spark as a runner knows it: starts containers somewhere, tells how they ended, or forgets to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ops.simulation.kernel import Process
from stack.model.plan import ContainerReport, Ending, Reason
from stack.runtime.launch import Launch

if TYPE_CHECKING:
    from ops.simulation.world import Running, World


class SimulatedSpark:
    """The Spark application of one runner. It ends with its process; containers may live on for a while."""

    def __init__(self, world: World, driver: Process) -> None:
        self._world = world
        self._driver = driver
        self._running: dict[tuple[str, int, int], list[Running]] = {}

    @property
    def identity(self) -> str:
        return self._driver.name

    @property
    def warm_at(self) -> float | None:
        return 0.0

    def launch(self, launch: Launch, on_end: Callable[[Ending], None]) -> None:
        chance, key = self._world.chance, (launch.spec.name, launch.slot, launch.attempt)
        told = [False]

        def tell(ending: Ending) -> None:
            if not told[0]:
                told[0] = True
                self._world.kernel.start(lambda: on_end(ending), "spark", self._driver, chance.random())

        def start() -> None:
            running = self._world.start_container(launch, tell)
            self._running.setdefault(key, []).append(running)
            running.process.on_kill.append(lambda: tell(Ending(Reason.LOST, "the process is gone")))

        start_s = chance.random() * 0.5
        self._world.later(start_s, start)
        if self._world.steering.active and chance.random() < 0.05:
            # What must never happen, but does: the same attempt a second time.
            self._world.later(start_s + chance.random(), start)

    def cancel(self, launch: Launch, report: ContainerReport | None) -> None:  # noqa: ARG002
        key = (launch.spec.name, launch.slot, launch.attempt)
        for running in self._running.pop(key, []):
            # A machine that cannot be reached kills nobody.
            if running.process.alive and self._world.chance.random() < 0.6:
                self._world.later(self._world.chance.random(), partial(self._end, running))

    def _end(self, running: Running) -> None:
        if running.process.alive:
            self._world.crash(running.process, "the cancelling of its Spark job")

    def fault(self) -> str | None:
        return None

    def close(self) -> None:
        self.driver_died()

    def driver_died(self) -> None:
        """Executors end some time after their driver; orphans of theirs live on."""
        for group in self._running.values():
            for running in group:
                if running.process.alive and self._world.chance.random() < 0.7:
                    self._world.later(self._world.chance.random() * 4, partial(self._end, running))
