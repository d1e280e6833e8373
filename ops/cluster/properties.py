"""Java's .properties files: read as ISO 8859-1, with a backslash for everything else."""

from __future__ import annotations

from collections.abc import Mapping


def properties_text(values: Mapping[str, object]) -> str:
    """The text of a .properties file; a path of any letters comes out as it went in."""
    return "".join(f"{key}={_escaped(str(value))}\n" for key, value in values.items())


def _escaped(value: str) -> str:
    units = value.replace("\\", "\\\\").encode("utf-16-be")
    codes = (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    return "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)
