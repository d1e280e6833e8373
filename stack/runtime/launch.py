"""What a container is started with, and the one function that Spark runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stack.model.job import JobSpec
from stack.settings import Endpoints, Settings


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything a container needs to know; it travels to the executor with the Spark task."""

    settings: Settings
    endpoints: Endpoints
    spec: JobSpec
    slot: int
    attempt: int
    runner: str

    @property
    def state_folder(self) -> Path:
        """Where the stores of this job live on the executor's disk."""
        return self.settings.data / "state" / self.spec.name
