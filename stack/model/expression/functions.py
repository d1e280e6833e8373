"""The functions that an expression may call: how many arguments, of what kinds, giving what."""

from __future__ import annotations

from dataclasses import dataclass

MANY = 1_000
TEXT = frozenset({"text"})
NUMBER = frozenset({"number"})
BOOLEAN = frozenset({"boolean"})
SIZED = frozenset({"text", "bytes", "list", "map"})
TEXT_OR_LIST = frozenset({"text", "list"})
ANY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes and gives; an empty set of kinds means any kind."""

    least: int
    most: int
    takes: tuple[frozenset[str], ...]
    gives: frozenset[str]

    def kinds_of(self, index: int) -> frozenset[str]:
        """The kinds allowed for one argument; the last entry of `takes` holds for all that follow."""
        return self.takes[min(index, len(self.takes) - 1)]


FUNCTIONS = {
    "lower": Signature(1, 1, (TEXT,), TEXT),
    "upper": Signature(1, 1, (TEXT,), TEXT),
    "length": Signature(1, 1, (SIZED,), NUMBER),
    "abs": Signature(1, 1, (NUMBER,), NUMBER),
    "round": Signature(1, 2, (NUMBER, NUMBER), NUMBER),
    "starts_with": Signature(2, 2, (TEXT,), BOOLEAN),
    "ends_with": Signature(2, 2, (TEXT,), BOOLEAN),
    "contains": Signature(2, 2, (TEXT_OR_LIST, ANY), BOOLEAN),
    "coalesce": Signature(1, MANY, (ANY,), ANY),
    "exists": Signature(1, 1, (ANY,), BOOLEAN),
}
