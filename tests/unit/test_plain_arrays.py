"""Arrays of plain values: what pyarrow makes of them, without its imports."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.feeds.avro import plain_arrays
from stack.feeds.avro.plain_arrays import PLAIN

TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "bytes": pa.binary(),
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=5),
    "long": st.integers(-(2**63), 2**63 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "double": st.floats(),
    "boolean": st.booleans(),
    "bytes": st.binary(max_size=5),
}


@pytest.mark.parametrize("name", PLAIN)
@given(data=st.data())
def test_they_are_what_pyarrow_makes(name: str, data: st.DataObject) -> None:
    kind, build = PLAIN[name]
    values = data.draw(st.lists(VALUES[name]))
    made = build(values)
    made.validate(full=True)
    assert made.type == TYPES[name]
    assert made.null_count == 0
    assert set(map(type, values)) <= {kind}
    # By what they print: a number that is none equals nothing, not even itself.
    assert repr(made.to_pylist()) == repr(pa.array(values, TYPES[name]).to_pylist())


@pytest.mark.parametrize(
    ("name", "values", "error"),
    [
        ("long", [1, 2**63], OverflowError),
        ("int", [-(2**31) - 1], OverflowError),
        ("string", ["fine", "\ud800"], UnicodeEncodeError),
    ],
)
def test_what_does_not_fit_is_refused(name: str, values: list[Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        PLAIN[name][1](values)


@pytest.mark.parametrize(("name", "values"), [("string", ["ab", "cä"]), ("bytes", [b"ab", b"cde"])])
def test_more_bytes_than_a_column_holds_are_refused(
    name: str, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_arrays, "_MOST_BYTES", 5)
    assert PLAIN[name][1](values).to_pylist() == values
    monkeypatch.setattr(plain_arrays, "_MOST_BYTES", 4)
    with pytest.raises(OverflowError, match="5 bytes are more than a column holds"):
        PLAIN[name][1](values)


NO_PANDAS = """
import sys
from tests.unit.test_outputs import Sent, output
one, sent = output(), Sent()
for number in range(100):
    one.add(number, {"user": f"u{number}", "n": number, "x": 0.5}, None, None)
one.encode()
one.send(sent)
assert len(sent.records) == 100
assert "pandas" not in sys.modules
"""


def test_emitting_does_not_import_pandas() -> None:
    subprocess.run([sys.executable, "-c", NO_PANDAS], check=True, timeout=60)
