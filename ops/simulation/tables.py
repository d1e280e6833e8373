"""What must hold of a table that a job writes, also while the job goes back and comes again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ops.simulation.jobs import Simulated, decoder_of
from ops.simulation.kernel import Broken
from ops.simulation.logs import Followed

if TYPE_CHECKING:
    from stack.kafka.memory.broker import MemoryKafka


@dataclass
class _Part:
    """One partition, and how many of its records are folded."""

    followed: Followed
    folded: int = 0


@dataclass
class TableChecks:
    """The whole table, as a reader of committed records has it."""

    name: str
    parts: list[_Part]
    content: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, kafka: MemoryKafka, simulated: Simulated, partitions: int) -> TableChecks:
        logs = [kafka.log((simulated.target, number)) for number in range(partitions)]
        return cls(simulated.target, [_Part(Followed(log)) for log in logs])

    @property
    def is_settled(self) -> bool:
        """Whether no transaction that writes to it is under way."""
        return all(one.followed.log.stable == one.followed.log.high for one in self.parts)

    def compare(self, wanted: Iterable[dict[str, int]]) -> None:
        """The table holds what its tasks have shown in it, and nothing else."""
        self._follow()
        expected = {key: value for one in wanted for key, value in one.items()}
        if self.content != expected:
            raise Broken(f"table {self.name} holds {_sorted(self.content)}, not {_sorted(expected)}")

    def _follow(self) -> None:
        decode = decoder_of(self.name)
        for part in self.parts:
            part.followed.follow()
            records = part.followed.records
            for _, key, value in records[part.folded :]:
                if value is None:
                    self.content.pop((key or b"").decode(), None)
                else:
                    self.content[(key or b"").decode()] = decode(value)["count"]
            part.folded = len(records)


def _sorted(content: dict[str, int]) -> dict[str, int]:
    return dict(sorted(content.items()))
