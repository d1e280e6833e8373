"""Files for Java hold any text."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from ops.cluster.properties import properties_text


def read_as_java(text: str) -> dict[str, str]:
    """The part of java.util.Properties that matters: Latin-1 bytes, lines, the first =, escapes."""
    found = {}
    for line in text.encode("ascii").decode("latin-1").split("\n")[:-1]:
        key, _, value = line.partition("=")
        escaped = re.sub(
            r"\\(u([0-9a-f]{4})|.)",
            lambda match: chr(int(match.group(2), 16)) if match.group(2) else match.group(1),
            value,
        )
        found[key] = escaped.encode("utf-16", "surrogatepass").decode("utf-16")
    return found


@given(st.dictionaries(st.from_regex(r"[a-z.]{1,9}", fullmatch=True), st.text(max_size=40)))
def test_every_text_comes_out_as_it_went_in(values: dict[str, str]) -> None:
    text = properties_text({key: f"x{value}" for key, value in values.items()})
    assert read_as_java(text) == {key: f"x{value}" for key, value in values.items()}


def test_paths_and_numbers() -> None:
    assert properties_text({"dir": "/a b/é\\", "port": 7}) == "dir=/a b/\\u00e9\\\\\nport=7\n"
