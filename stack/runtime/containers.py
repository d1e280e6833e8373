"""What a runner needs of whatever runs its containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stack.model.plan import ContainerReport, Ending
from stack.runtime.launch import Launch

OnEnd = Callable[[Ending], None]


class Containers(Protocol):
    """Starts containers, tells how they ended, and ends those that do not end by themselves."""

    @property
    def identity(self) -> str:
        """In the environment of every container: by it a process is known to be ours."""
        ...

    @property
    def warm_at(self) -> float | None:
        """When our code was loaded where containers run, by a monotonic clock; None before."""
        ...

    def launch(self, launch: Launch, on_end: OnEnd) -> None:
        """Start a container when there is room for it; `on_end` is called once, from another thread."""
        ...

    def cancel(self, launch: Launch, report: ContainerReport | None) -> None:
        """End a container, whatever it does. Where its report tells the process, that is killed."""
        ...

    def fault(self) -> str | None:
        """Why no container can be started any more, or None."""
        ...

    def close(self) -> None:
        """End everything that is left."""
        ...
