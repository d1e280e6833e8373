"""Cuts the text of an expression into tokens, and shows places in it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, NoReturn

from stack.errors import BadExpression

MAX_TEXT_LENGTH = 4_096

TokenKind = Literal["number", "text", "word", "quoted", "symbol", "end"]

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SYMBOL = re.compile(r"==|!=|<>|<=|>=|&&|\|\||[=<>!+\-*/%()\[\],.]")
_UNICODE_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_WRITTEN = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", "'": "\\'"}


@dataclass(frozen=True, slots=True)
class Token:
    """One word of the text; `value` is what it means, `raw` how it was written."""

    kind: TokenKind
    value: str | int | float
    raw: str
    position: int


def fail(text: str, position: int, message: str, hint: str = "") -> NoReturn:
    """Raise BadExpression with the line of the text and a caret under the place."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else len(text)]
    column = position - start
    # Only a window is shown, so that the caret stays in view for a long line.
    left = max(0, column - 60)
    shown = line[left : left + 120].replace("\t", " ").replace("\r", " ")
    raise BadExpression(f"{shown}\n{' ' * (column - left)}^ {message}", hint=hint, position=position)


def tokenize(text: str) -> list[Token]:
    """All tokens of `text`; the last one has the kind 'end'."""
    if len(text) > MAX_TEXT_LENGTH:
        raise BadExpression(
            f"the expression has {len(text):,} characters, {MAX_TEXT_LENGTH:,} are allowed",
            hint="Shorten it, or filter in a job.",
            position=MAX_TEXT_LENGTH,
        )
    tokens: list[Token] = []
    position = _skip_space(text, 0)
    while position < len(text):
        token = _token_at(text, position)
        tokens.append(token)
        position = _skip_space(text, position + len(token.raw))
    tokens.append(Token("end", "", "", len(text)))
    return tokens


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _token_at(text: str, position: int) -> Token:
    if match := _WORD.match(text, position):
        return Token("word", match.group(), match.group(), position)
    if match := _NUMBER.match(text, position):
        return _number(text, match, position)
    if match := _SYMBOL.match(text, position):
        return Token("symbol", match.group(), match.group(), position)
    if text[position] in "'\"":
        return _quoted_text(text, position)
    if text[position] == "`":
        return _quoted_name(text, position)
    fail(text, position, f"the character {text[position]!r} has no meaning here")


def _number(text: str, match: re.Match[str], position: int) -> Token:
    raw = match.group()
    if match.group(1) is None and match.group(2) is None:
        return Token("number", int(raw), raw, position)
    number = float(raw)
    if math.isinf(number):
        fail(text, position, "this number is too large")
    return Token("number", number, raw, position)


def _quoted_text(text: str, start: int) -> Token:
    quote, position = text[start], start + 1
    parts: list[str] = []
    while position < len(text):
        letter = text[position]
        if letter == quote:
            if text[position + 1 : position + 2] != quote:
                return Token("text", "".join(parts), text[start : position + 1], start)
            parts.append(quote)
            position += 2
        elif letter == "\\" and (match := _UNICODE_ESCAPE.match(text, position)):
            parts.append(chr(int(match.group(1), 16)))
            position = match.end()
        elif letter == "\\" and text[position + 1 : position + 2] in _ESCAPES:
            # An unknown escape keeps its backslash, so that '\d+' reads as a regular expression should.
            parts.append(_ESCAPES[text[position + 1]])
            position += 2
        else:
            parts.append(letter)
            position += 1
    fail(text, start, f"this text has no closing {quote}")


def _quoted_name(text: str, start: int) -> Token:
    position = start + 1
    parts: list[str] = []
    while position < len(text):
        if text[position] != "`":
            parts.append(text[position])
            position += 1
        elif text[position + 1 : position + 2] == "`":
            parts.append("`")
            position += 2
        elif not parts:
            fail(text, start, "a name cannot be empty")
        else:
            return Token("quoted", "".join(parts), text[start : position + 1], start)
    fail(text, start, "this name has no closing `")


def quote_text(value: str) -> str:
    """A text as a literal that reads back as the same text."""
    return "'" + "".join(_written(letter) for letter in value) + "'"


def _written(letter: str) -> str:
    if letter in _WRITTEN:
        return _WRITTEN[letter]
    if letter < " " or "\ud800" <= letter <= "\udfff":
        return f"\\u{ord(letter):04x}"
    return letter


def quote_name(name: str, reserved: frozenset[str]) -> str:
    """A step of a path, in backquotes where it would not read back as a name."""
    if _WORD.fullmatch(name) and name.lower() not in reserved:
        return name
    return "`" + name.replace("`", "``") + "`"
