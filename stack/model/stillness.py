"""A request that the tasks of a job stand still for a moment, so that a point of all of it can be taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stack.model.place import Place


@dataclass(frozen=True, slots=True)
class StillRequest:
    """Let the tasks of the first `stages` stages commit and stand still; those behind them work on.

    A task that reads what an earlier stage writes first reads up to `ends`: where those feeds ended when the
    stages before stood still.
    """

    id: str
    stages: int
    ends: Mapping[Place, int] = field(default_factory=dict)

    @property
    def token(self) -> str:
        """What a container says that has carried it out."""
        return f"{self.id}.{self.stages}"


def request_to_json(request: StillRequest) -> dict[str, Any]:
    """The request as plain JSON values."""
    ends = [[topic, number, end] for (topic, number), end in request.ends.items()]
    return {"id": request.id, "stages": request.stages, "ends": ends}


def request_from_json(tree: Mapping[str, Any]) -> StillRequest:
    """The request that `request_to_json` wrote."""
    ends = {(str(topic), int(number)): int(end) for topic, number, end in tree["ends"]}
    return StillRequest(str(tree["id"]), int(tree["stages"]), ends)
