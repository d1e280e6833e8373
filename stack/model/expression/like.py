"""SQL's like: % is any text, _ any one character, a backslash makes the next character plain."""

from __future__ import annotations

import re
from collections.abc import Callable


def compile_like(pattern: str) -> Callable[[str], bool]:
    """A function that says whether all of a text fits `pattern`, in time linear in the text."""
    pieces = _pieces(pattern)
    if len(pieces) == 1:
        whole = re.compile(pieces[0][0], re.DOTALL)
        return lambda text: whole.fullmatch(text) is not None
    # Between two % each piece has a fixed length, so taking the first place where it fits is always right.
    (first, first_length), *middle, (last, last_length) = pieces
    head, tail = re.compile(first, re.DOTALL), re.compile(last, re.DOTALL)
    inner = [re.compile(source, re.DOTALL) for source, length in middle if length]

    def fits(text: str) -> bool:
        end = len(text) - last_length
        if end < first_length or not head.match(text) or not tail.match(text, end):
            return False
        place = first_length
        for piece in inner:
            match = piece.search(text, place, end)
            if match is None:
                return False
            place = match.end()
        return True

    return fits


def _pieces(pattern: str) -> list[tuple[str, int]]:
    """The parts between % as source for `re`, each with the number of characters it takes."""
    pieces: list[tuple[str, int]] = []
    source, length, plain = "", 0, False
    for letter in pattern:
        if plain:
            source, length, plain = source + re.escape(letter), length + 1, False
        elif letter == "\\":
            plain = True
        elif letter == "%":
            pieces.append((source, length))
            source, length = "", 0
        else:
            source, length = source + ("." if letter == "_" else re.escape(letter)), length + 1
    if plain:
        source, length = source + re.escape("\\"), length + 1
    pieces.append((source, length))
    return pieces
