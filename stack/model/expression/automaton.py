"""Runs the program of a regular expression over a text: one move per character, whatever the pattern."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_CACHED_MOVES = 20_000


@dataclass(frozen=True, slots=True)
class Letters:
    """A set of characters: single ones and ranges, or all others."""

    singles: frozenset[str]
    ranges: tuple[tuple[str, str], ...] = ()
    excluded: tuple[frozenset[str], ...] = ()
    negated: bool = False
    any_case: bool = False

    def has(self, letter: str) -> bool:
        found = self._holds(letter)
        if not found and self.any_case:
            found = self._holds(letter.lower()) or self._holds(letter.upper())
        return found != self.negated

    def _holds(self, letter: str) -> bool:
        return (
            letter in self.singles
            or any(low <= letter <= high for low, high in self.ranges)
            or any(letter not in group for group in self.excluded)
        )


# A program step is what to eat with the next step behind it, or where to go without eating.
EAT, FORK, START, END, FOUND = range(5)


@dataclass(slots=True)
class Step:
    action: int
    letters: Letters | None = None
    targets: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class _State:
    """All places in the program that may be reached at once, and the moves worked out from here."""

    places: frozenset[int]
    found: bool
    found_at_end: bool
    moves: dict[str, _State] = field(default_factory=dict)


class Automaton:
    """States are made when first needed; what is remembered is bounded by MAX_CACHED_MOVES."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps
        self._found_step = len(steps) - 1
        self._restart = self._closure([0])
        self._states: dict[frozenset[int], _State] = {}
        self._move_count = 0
        self._first = self._state(self._closure([0], at_start=True))
        self._empty_matches = self._found_step in self._closure([0], at_start=True, at_end=True)

    def found_in(self, text: str) -> bool:
        """Whether a match begins anywhere in `text`."""
        if not text:
            return self._empty_matches
        state = self._first
        for letter in text:
            if state.found:
                return True
            after = state.moves.get(letter)
            state = after if after is not None else self._move(state, letter)
        return state.found_at_end

    def _move(self, state: _State, letter: str) -> _State:
        steps = self._steps
        eaten = [
            one + 1
            for one in state.places
            if (letters := steps[one].letters) is not None and letters.has(letter)
        ]
        if self._move_count >= MAX_CACHED_MOVES:
            for one in self._states.values():
                one.moves.clear()
            self._states.clear()
            self._first.moves.clear()
            self._move_count = 0
        # A match may also begin at the next character, so the start is always among the places.
        after = self._state(self._closure(eaten) | self._restart)
        state.moves[letter] = after
        self._move_count += 1
        return after

    def _state(self, places: frozenset[int]) -> _State:
        known = self._states.get(places)
        if known is None:
            found = self._found_step in places
            known = _State(places, found, found or self._found_step in self._closure(places, at_end=True))
            self._states[places] = known
        return known

    def _closure(
        self, places: Iterable[int], *, at_start: bool = False, at_end: bool = False
    ) -> frozenset[int]:
        seen: set[int] = set()
        pending = list(places)
        while pending:
            one = pending.pop()
            if one in seen:
                continue
            seen.add(one)
            step = self._steps[one]
            if step.action == FORK:
                pending.extend(step.targets)
            elif (step.action == START and at_start) or (step.action == END and at_end):
                pending.append(one + 1)
        return frozenset(seen)
