"""Regular expressions that take linear time on every text, so that no --where can hang a reader.

Python's `re` backtracks: `(a+)+b` or `.*.*.*x` stalls on a long text. Here a pattern becomes a small
automaton whose states are made when first needed. Known are the parts that `re` and RE2 (Arrow) read
alike: letters, `.`, `[a-z]`, `[^...]`, `\\d \\w \\s` and their opposites (of ASCII), `\\n \\t \\r`, groups,
`|`, `* + ? {m,n}`, `^` and `$` (the ends of the text) and a leading `(?i)`. Anything else is refused.
`.` is any character but a line break.
"""

from __future__ import annotations

from collections.abc import Callable

from stack.errors import BadExpression
from stack.model.expression.automaton import EAT, END, FORK, FOUND, START, Automaton, Letters, Step

MAX_PATTERN_LENGTH = 256
MAX_PROGRAM_STEPS = 2_000
MAX_GROUP_DEPTH = 30
MAX_REPEATS = 1_000

_DIGITS = frozenset("0123456789")
_WORDS = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_SPACES = frozenset(" \t\n\r\f\v")
_CLASSES = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_TOO_LARGE = "the pattern is too large with its repeats written out"


def _bad(message: str, offset: int) -> BadExpression:
    """The fault of a pattern; its position counts inside the pattern until the parser adds its own."""
    return BadExpression(message, position=offset)


class _Compiler:
    """Reads a pattern and emits its program, one recursive descent."""

    def __init__(self, pattern: str) -> None:
        self.any_case = pattern.startswith("(?i)")
        self.pattern = pattern
        self.offset = 4 if self.any_case else 0
        self.steps: list[Step] = []
        self.depth = 0

    def compile(self) -> list[Step]:
        self._alternatives()
        if self.offset < len(self.pattern):
            raise _bad("this ) closes no group", self.offset)
        self._emit(Step(FOUND))
        return self.steps

    def _peek(self) -> str:
        return self.pattern[self.offset : self.offset + 1]

    def _emit(self, step: Step) -> int:
        if len(self.steps) >= MAX_PROGRAM_STEPS:
            raise _bad(_TOO_LARGE, self.offset)
        self.steps.append(step)
        return len(self.steps) - 1

    def _alternatives(self) -> None:
        exits = []
        while True:
            fork = self._emit(Step(FORK))
            self._sequence()
            if self._peek() != "|":
                self.steps[fork].targets = (fork + 1,)
                break
            self.offset += 1
            exits.append(self._emit(Step(FORK)))
            self.steps[fork].targets = (fork + 1, len(self.steps))
        for one in exits:
            self.steps[one].targets = (len(self.steps),)

    def _sequence(self) -> None:
        while self._peek() not in ("", "|", ")"):
            begin = len(self.steps)
            self._atom()
            self._repeats(begin)

    def _repeats(self, begin: int) -> None:
        offset = self.offset
        bounds = self._quantifier()
        if bounds is None:
            return
        if self._peek() in ("*", "+", "?", "{"):
            raise _bad("a repeat of a repeat: put the first into a group", self.offset)
        low, high = bounds
        part = self.steps[begin:]
        del self.steps[begin:]
        for _ in range(low):
            self._copy(part, begin, offset)
        if high is None:
            fork = self._emit(Step(FORK))
            self._copy(part, begin, offset)
            self._emit(Step(FORK, targets=(fork,)))
            self.steps[fork].targets = (fork + 1, len(self.steps))
            return
        forks = []
        for _ in range(high - low):
            forks.append(self._emit(Step(FORK)))
            self._copy(part, begin, offset)
        for fork in forks:
            self.steps[fork].targets = (fork + 1, len(self.steps))

    def _copy(self, part: list[Step], begin: int, offset: int) -> None:
        """Append a part that stood at step `begin`; its targets move along."""
        if len(self.steps) + len(part) > MAX_PROGRAM_STEPS:
            raise _bad(_TOO_LARGE, offset)
        shift = len(self.steps) - begin
        self.steps.extend(
            Step(step.action, step.letters, tuple(target + shift for target in step.targets)) for step in part
        )

    def _quantifier(self) -> tuple[int, int | None] | None:
        sign = self._peek()
        if sign == "{":
            bounds = self._counts()
        elif sign and sign in "*+?":
            self.offset += 1
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        else:
            return None
        if self._peek() == "?":
            # Lazy or greedy finds the same texts.
            self.offset += 1
        elif self._peek() == "+":
            raise _bad("possessive repeats are not supported", self.offset)
        return bounds

    def _counts(self) -> tuple[int, int | None]:
        end = self.pattern.find("}", self.offset)
        low, comma, high = self.pattern[self.offset + 1 : max(end, 0)].partition(",")
        if end < 0 or not _is_count(low) or not (_is_count(high) or high == ""):
            raise _bad(r"a repeat is written {2}, {2,} or {2,5}; a plain brace \{", self.offset)
        least = int(low)
        most = None if comma and not high else int(high or low)
        if max(least, most or 0) > MAX_REPEATS or (most is not None and most < least):
            raise _bad(f"a repeat goes from low to high, at most {MAX_REPEATS}", self.offset)
        self.offset = end + 1
        return least, most

    def _atom(self) -> None:
        letter = self._peek()
        if letter == "(":
            self._group()
        elif letter == "[":
            self._emit(Step(EAT, self._bracket()))
        elif letter == "\\":
            self._emit(Step(EAT, self._escape()))
        elif letter in "*+?{":
            raise _bad("there is nothing to repeat here", self.offset)
        else:
            self.offset += 1
            if letter in "^$":
                self._emit(Step(START if letter == "^" else END))
            elif letter == ".":
                self._emit(Step(EAT, Letters(frozenset("\n"), negated=True)))
            else:
                self._emit(Step(EAT, Letters(frozenset(letter), any_case=self.any_case)))

    def _group(self) -> None:
        begin = self.offset
        self.depth += 1
        if self.depth > MAX_GROUP_DEPTH:
            raise _bad("groups are nested too deeply", begin)
        self.offset += 1
        if self._peek() == "?":
            if self.pattern[self.offset : self.offset + 2] != "?:":
                raise _bad("of the groups with ?, only (?:...) is supported", begin)
            self.offset += 2
        self._alternatives()
        if self._peek() != ")":
            raise _bad("this group has no closing )", begin)
        self.offset += 1
        self.depth -= 1

    def _escape(self) -> Letters:
        letter = self.pattern[self.offset + 1 : self.offset + 2]
        self.offset += 2
        if letter in _CLASSES:
            return Letters(_CLASSES[letter])
        if letter and letter.lower() in _CLASSES:
            return Letters(_CLASSES[letter.lower()], negated=True)
        return Letters(frozenset(self._plain_escape(letter)), any_case=self.any_case)

    def _plain_escape(self, letter: str) -> str:
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "" or (letter in _WORDS and letter != "_"):
            raise _bad(f"the escape \\{letter} is not supported", self.offset - 2)
        return letter

    def _bracket(self) -> Letters:
        begin = self.offset
        self.offset += 1
        negated = self._peek() == "^"
        self.offset += negated
        singles: set[str] = set()
        ranges: list[tuple[str, str]] = []
        excluded: list[frozenset[str]] = []
        first = True
        while self._peek() != "]" or first:
            first = False
            low = self._member(begin, singles, excluded)
            if low is None:
                continue
            if self._peek() == "-" and self.pattern[self.offset + 1 : self.offset + 2] not in ("]", ""):
                self.offset += 1
                high = self._member(begin, set(), [])
                if high is None or high < low:
                    raise _bad("a range goes from one character to a later one", self.offset)
                ranges.append((low, high))
            else:
                singles.add(low)
        self.offset += 1
        return Letters(frozenset(singles), tuple(ranges), tuple(excluded), negated, self.any_case)

    def _member(self, begin: int, singles: set[str], excluded: list[frozenset[str]]) -> str | None:
        """One character of a bracket, or None after adding a class such as \\d to the sets."""
        letter = self._peek()
        if letter == "":
            raise _bad("this bracket has no closing ]", begin)
        if letter == "[":
            raise _bad(r"a plain [ inside brackets is written \[", self.offset)
        self.offset += 1
        if letter != "\\":
            return letter
        letter = self._peek()
        self.offset += 1
        if letter in _CLASSES:
            singles.update(_CLASSES[letter])
            return None
        if letter and letter.lower() in _CLASSES:
            excluded.append(_CLASSES[letter.lower()])
            return None
        return self._plain_escape(letter)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit()


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """A function that says whether `pattern` is found anywhere in a text; BadExpression if it is wrong."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise _bad(f"a pattern may have {MAX_PATTERN_LENGTH} characters", MAX_PATTERN_LENGTH)
    return Automaton(_Compiler(pattern).compile()).found_in
