"""Logs of Kafka as somebody follows them who looks from outside."""

from __future__ import annotations

from dataclasses import dataclass, field

from stack.kafka.memory.log import PartitionLog


@dataclass
class Followed:
    """One log as far as it was read: only what is committed, kept also when compaction removes it."""

    log: PartitionLog
    position: int = 0
    records: list[tuple[int, bytes | None, bytes | None]] = field(default_factory=list)

    def follow(self) -> None:
        if self.position < self.log.stable:
            found, self.position = self.log.read(self.position, 1_000_000, committed=True)
            self.records += [(one.offset(), one.key(), one.value()) for one in found]
