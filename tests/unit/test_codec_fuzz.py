"""Bytes that nobody wrote: a value or BadRecord, the same from both codecs, in bounded time and memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stack.errors import BadRecord
from stack.feeds.avro.codec import RecordDecoder, RecordEncoder
from stack.feeds.avro.columns import ColumnDecoder, rows
from stack.feeds.avro.schema import AvroSchema
from tests.avro_strategies import Case, Shelf, cases, record, recursive_cases, same, schema_of

QUICK = settings(
    max_examples=90,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
ROOT = Path(__file__).parents[2]
MEMORY_BYTES = 1 << 30
HEADER = b"\0\0\0\0\x01"


def outcome(decoder: RecordDecoder, payload: bytes) -> Any:
    """The value, or None where the reference refuses; any other exception fails the test."""
    try:
        return decoder.decode(payload)
    except BadRecord:
        return None


class Codecs:
    """Both codecs of a schema; what one has refused must not change what it says of the next."""

    def __init__(self, schema: AvroSchema) -> None:
        self._reference = RecordDecoder(Shelf(schema))
        self._columns = ColumnDecoder(Shelf(schema), schema)

    def check_agreement(self, payloads: list[bytes]) -> list[Any]:
        expected = [outcome(self._reference, one) for one in payloads]
        batch, bad = self._columns.decode_lenient(payloads)
        assert [index for index, _ in bad] == [index for index, one in enumerate(expected) if one is None]
        assert same(rows(batch), [one for one in expected if one is not None])
        return expected


def check_agreement(schema: AvroSchema, payloads: list[bytes]) -> list[Any]:
    return Codecs(schema).check_agreement(payloads)


@st.composite
def damaged(draw: st.DrawFn, payload: bytes) -> bytes:
    """The payload cut, extended, with bytes changed, put in or taken out, or replaced after the header."""
    how = draw(st.sampled_from(["cut", "extend", "change", "insert", "remove", "random", "id", "magic"]))
    place = draw(st.integers(5, max(5, len(payload) - 1)))
    byte = draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    return {
        "cut": lambda: payload[: draw(st.integers(0, len(payload)))],
        "extend": lambda: payload + draw(st.binary(min_size=1, max_size=4)),
        "change": lambda: payload[:place] + bytes([byte]) + payload[place + 1 :],
        "insert": lambda: payload[:place] + bytes([byte]) + payload[place:],
        "remove": lambda: payload[:place] + payload[place + 1 :],
        "random": lambda: payload[:5] + draw(st.binary(max_size=30)),
        "id": lambda: payload[:4] + bytes([byte]) + payload[5:],
        "magic": lambda: bytes([byte]) + payload[1:],
    }[how]()


@QUICK
@given(st.data(), st.booleans())
def test_damage_is_refused_or_read_by_both_codecs_alike(data: st.DataObject, columnar: bool) -> None:
    case: Case = data.draw(cases(columnar=columnar, max_records=3))
    encoder = RecordEncoder(case.schema, 1)
    payloads = [encoder.encode(one) for one in case.records]
    payloads += [data.draw(damaged(one)) for one in payloads for _ in range(3)]
    check_agreement(case.schema, data.draw(st.permutations(payloads)))


@QUICK
@given(cases(max_records=1), st.data())
def test_a_cut_or_extended_value_is_never_accepted(case: Case, data: st.DataObject) -> None:
    payload = RecordEncoder(case.schema, 1).encode(case.records[0])
    codecs = Codecs(case.schema)
    for wrong in [payload[:length] for length in range(len(payload))] + [payload + b"\0"]:
        assert codecs.check_agreement([wrong]) == [None]


@QUICK
@given(st.data())
def test_damage_to_recursive_values_is_refused_or_read(data: st.DataObject) -> None:
    case: Case = data.draw(recursive_cases(max_records=2))
    encoder, decoder = RecordEncoder(case.schema, 1), RecordDecoder(Shelf(case.schema))
    for value in case.records:
        payload = encoder.encode(value)
        for _ in range(3):
            outcome(decoder, data.draw(damaged(payload)))
        for length in range(len(payload)):
            assert outcome(decoder, payload[:length]) is None
        assert outcome(decoder, payload + b"\0") is None


INT_MAX_PLUS_ONE = b"\x80\x80\x80\x80\x10"
LONG_MAX = b"\xfe" + b"\xff" * 8 + b"\x01"
LONG_MIN = b"\xff" * 9 + b"\x01"
WRONG: list[tuple[str, Any, bytes]] = [
    ("int of 33 bits", "int", INT_MAX_PLUS_ONE),
    ("int of 64 bits", "int", LONG_MIN),
    ("number of eleven bytes", "long", b"\x80" * 10 + b"\0"),
    ("number of 70 bits", "long", b"\xff" * 9 + b"\x7f"),
    ("boolean 2", "boolean", b"\x02"),
    ("negative length", "string", b"\x05abc"),
    ("negative length of bytes", "bytes", b"\x05abc"),
    ("length beyond the end", "string", b"\x80\x80\x80\x80\x80\x80\x40"),
    ("text that is not UTF-8", "string", b"\x04\xc3\x28"),
    ("surrogate in UTF-8", "string", b"\x06\xed\xa0\x80"),
    ("map key that is not UTF-8", {"type": "map", "values": "int"}, b"\x02\x02\xff\x02\x00"),
    ("union branch 2 of 2", ["null", "int"], b"\x04\x02"),
    ("union branch -1", ["null", "int"], b"\x01\x02"),
    ("union branch -1 of three", ["null", "int", "string"], b"\x01\x02a"),
    ("enum index 2 of 2", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x04"),
    ("enum index -1", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x01"),
    ("date after 9999", {"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f"),
    ("timestamp after 9999", {"type": "long", "logicalType": "timestamp-millis"}, LONG_MAX),
    ("timestamp before 1", {"type": "long", "logicalType": "timestamp-micros"}, LONG_MIN),
    ("local timestamp before 1", {"type": "long", "logicalType": "local-timestamp-micros"}, LONG_MIN),
    ("timestamp in a list", {"type": "array", "items": {"type": "long", "logicalType": "timestamp-millis"}},
     b"\x02" + LONG_MIN + b"\0"),
    ("time before midnight", {"type": "int", "logicalType": "time-millis"}, b"\x01"),
    ("time after midnight", {"type": "long", "logicalType": "time-micros"}, b"\x80\xe0\x88\xbe\x83\x0a"),
    ("decimal of five digits", {"type": "bytes", "logicalType": "decimal", "precision": 4}, b"\x04\x27\x10"),
    ("uuid that is none", {"type": "string", "logicalType": "uuid"}, b"\x08nope"),
    ("block of another size", {"type": "array", "items": "int"}, b"\x01\x04\x02\x00"),
    ("block of negative size", {"type": "array", "items": "int"}, b"\x01\x01\x02\x00"),
    ("array without end", {"type": "array", "items": "int"}, b"\x02\x02"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "body"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG])
def test_wrong_bytes_are_refused_by_both(kind: Any, body: bytes) -> None:
    schema = schema_of(record("R", before="int", x=kind))
    good = RecordEncoder(schema_of(record("R", x="int")), 1).encode({"x": 0})
    assert good == HEADER + b"\0"
    assert check_agreement(schema, [HEADER + b"\x02" + body]) == [None]
    with pytest.raises(BadRecord):
        ColumnDecoder(Shelf(schema)).decode([HEADER + b"\x02" + body])


def test_unusual_but_legal_encodings_are_read_by_both() -> None:
    schema = schema_of(record("R", x={"type": "array", "items": "int"}, y="long"))
    blocks = b"\x01\x02\x02" + b"\x02\x04" + b"\x00"
    plain = b"\x04\x02\x04\x00"
    payloads = [HEADER + xs + y for xs in (blocks, plain) for y in (b"\x02", b"\x82\x00")]
    assert check_agreement(schema, payloads) == [{"x": [1, 2], "y": 1}] * 4


HUGE = LONG_MAX
MILLION = b"\x80\x89\x7a"
CRAFTED: list[tuple[str, Any, bytes]] = [
    ("nulls", {"type": "array", "items": "null"}, HUGE + b"\0"),
    ("nulls, negative count", {"type": "array", "items": "null"}, LONG_MIN + b"\0\0"),
    ("many blocks of nulls", {"type": "array", "items": "null"}, MILLION * 10_000 + b"\0"),
    ("lists of nulls", {"type": "array", "items": {"type": "array", "items": "null"}},
     b"\x80\x7d" + (b"\xfe\xff\x07\x00" * 8000) + b"\0"),
    ("empty records", {"type": "array", "items": record("E")}, HUGE + b"\0"),
    ("records of nulls", {"type": "array", "items": record("E", a="null", b=record("F"))}, HUGE + b"\0"),
    ("fixed of size 0", {"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}}, HUGE + b"\0"),
    ("ints", {"type": "array", "items": "int"}, HUGE + b"\0"),
    ("ints, negative count", {"type": "array", "items": "int"}, LONG_MIN + b"\x02\0"),
    ("map entries", {"type": "map", "values": "null"}, HUGE + b"\0"),
    ("text", "string", HUGE),
    ("bytes", "bytes", HUGE),
    ("huge fixed", {"type": "fixed", "name": "Z", "size": 1 << 40}, b"\0"),
    ("decimal", {"type": "bytes", "logicalType": "decimal", "precision": 4}, HUGE),
    ("doubles", {"type": "array", "items": "double"}, HUGE + bytes(64)),
]  # fmt: skip
LIST = {"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}
TREE = {"type": "record", "name": "T", "fields": [{"name": "n", "type": {"type": "array", "items": "T"}}]}


def run_crafted() -> None:
    """What the subprocess does: every crafted payload must be refused by both codecs."""
    for name, kind, body in CRAFTED:
        schema = schema_of(record("R", x=kind))
        reduced = schema_of(record("R"))
        for reader in (None, schema, reduced):
            try:
                RecordDecoder(Shelf(schema), reader).decode(HEADER + body)
            except BadRecord:
                continue
            raise AssertionError(name)
        assert check_agreement(schema, [HEADER + body] * 3) == [None] * 3, name
    for tree in (LIST, TREE):
        for depth in (101, 1_000_000):
            assert outcome(RecordDecoder(Shelf(schema_of(tree))), HEADER + b"\x02" * depth + b"\0") is None


def test_crafted_sizes_cost_neither_memory_nor_time() -> None:
    subprocess.run(
        [sys.executable, "-c", "from tests.unit.test_codec_fuzz import run_crafted; run_crafted()"],
        check=True,
        timeout=30,
        cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    )


def test_the_memory_limit_would_be_noticed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"bytearray({MEMORY_BYTES})"],
        check=False,
        timeout=30,
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    )
    assert b"MemoryError" in done.stderr
