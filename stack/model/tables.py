"""Values out of a TOML table, key by key: every unknown or wrong key becomes a fault that names it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from stack.errors import BadConfig, BadInput
from stack.model.duration import parse_duration_ms, parse_size_bytes

Parse = Callable[[Any], Any]
"""Makes a value of what TOML gave; BadInput says why it cannot."""


def section(tree: Mapping[str, Any], name: str, faults: list[str]) -> Mapping[str, Any]:
    """A table inside a table; empty if it is not there."""
    found = tree.get(name, {})
    if not isinstance(found, dict):
        faults.append(f"{name}: must be a table, written [{name}]")
        return {}
    return found


def take(
    table: Mapping[str, Any],
    parsers: Mapping[str, Parse],
    prefix: str,
    faults: list[str],
    tables: Collection[str] = (),
) -> dict[str, Any]:
    """Values of the known keys; `tables` are known, too, but read elsewhere."""
    taken: dict[str, Any] = {}
    for key, value in table.items():
        if key in tables:
            continue
        if key not in parsers:
            faults.append(f"{prefix}{key}: unknown key{suggest(key, [*parsers, *tables], prefix)}")
            continue
        try:
            taken[key] = parsers[key](value)
        except BadInput as fault:
            faults.append(f"{prefix}{key}: {fault.message}")
        except ValueError:  # Python does not print a number of more than 4,300 digits
            faults.append(f"{prefix}{key}: holds a number that is too long")
    return taken


def suggest(word: str, known: Sequence[str], prefix: str = "") -> str:
    """The end of a sentence about an unknown word: the nearest known one, or all of them."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {prefix}{near[0]}?" if near else f"; known here: {', '.join(sorted(known))}"


def refuse_faults(about: str, faults: Sequence[str], hint: str) -> None:
    """Raise all faults at once, as a list below `about`; nothing if there are none."""
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        lines = "\n".join(f"  - {fault}" for fault in faults)
        raise BadConfig(f"{about} has {count}:\n{lines}", hint=hint, faults=tuple(faults))


def plain_text(value: Any) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise BadInput(f"must be text, got {value!r}")
    return value


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise BadInput(f"must be true or false, got {value!r}")
    return value


def whole(low: int, high: int) -> Callable[[Any], int]:
    """A whole number within bounds."""

    def parse(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise BadInput(f"must be a whole number from {low:,} to {high:,}, got {value!r}")
        return value

    return parse


def duration_ms(low: str, high: str) -> Callable[[Any], int]:
    """A duration such as '10s' within bounds."""

    def parse(value: Any) -> int:
        found = parse_duration_ms(plain_text(value))
        if not parse_duration_ms(low) <= found <= parse_duration_ms(high):
            raise BadInput(f"must be from {low} to {high}, got {value!r}")
        return found

    return parse


def size_bytes(low: str, high: str) -> Callable[[Any], int]:
    """A size such as '512MB' within bounds."""

    def parse(value: Any) -> int:
        found = parse_size_bytes(plain_text(value))
        if not parse_size_bytes(low) <= found <= parse_size_bytes(high):
            raise BadInput(f"must be from {low} to {high}, got {value!r}")
        return found

    return parse


def one_of(words: Sequence[str]) -> Callable[[Any], str]:
    """One of a few words."""

    def parse(value: Any) -> str:
        if value not in words:
            raise BadInput(f"must be {' or '.join(repr(str(word)) for word in words)}, got {value!r}")
        return str(value)

    return parse
