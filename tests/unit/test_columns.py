"""The columnar codec gives what the reference gives, for generated schemas, values and evolutions."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stack.errors import BadInput, BadRecord, BadSchema
from stack.feeds.avro.codec import RecordDecoder, RecordEncoder
from stack.feeds.avro.columns import BadPayload, ColumnDecoder, ColumnEncoder, arrow_schema, rows
from tests.avro_strategies import Case, Shelf, cases, evolutions, record, same, schema_of

QUICK = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
PAGE = schema_of(record("Page", user="string", page="string", ms="long", load="double"))


def page(number: int) -> dict[str, Any]:
    return {"user": f"user-{number}", "page": "/p/ü", "ms": number, "load": number / 4}


def encoded(case: Case, schema_id: int = 1) -> list[bytes]:
    encoder = RecordEncoder(case.schema, schema_id)
    return [encoder.encode(one) for one in case.records]


def check_against_reference(payloads: list[bytes], shelf: Shelf, reader: Any) -> pa.RecordBatch:
    expected = [RecordDecoder(shelf, reader).decode(one) for one in payloads]
    batch = ColumnDecoder(shelf, reader).decode(payloads)
    batch.validate(full=True)
    found = rows(batch)
    assert same(found, expected), (found, expected)
    return batch


@QUICK
@given(st.booleans().flatmap(cases))
def test_decoded_columns_are_the_reference_values(case: Case) -> None:
    batch = check_against_reference(encoded(case), Shelf(case.schema), None)
    assert batch.schema.equals(arrow_schema(case.schema))
    middle = batch.num_rows // 2
    assert same(rows(batch.slice(middle)), rows(batch)[middle:])


@QUICK
@given(st.data(), st.booleans())
def test_evolved_columns_are_the_reference_values(data: st.DataObject, columnar: bool) -> None:
    case = data.draw(cases(columnar=columnar))
    reader = data.draw(evolutions(case.schema))
    batch = check_against_reference(encoded(case), Shelf(case.schema), reader)
    assert batch.schema.equals(arrow_schema(reader))


@QUICK
@given(st.data(), st.booleans())
def test_encoded_columns_decode_to_the_same_values(data: st.DataObject, columnar: bool) -> None:
    case = data.draw(cases(columnar=columnar))
    shelf = Shelf(case.schema)
    decoder = RecordDecoder(shelf)
    batch = ColumnDecoder(shelf).decode(encoded(case))
    start = data.draw(st.integers(0, batch.num_rows - 1))
    payloads = ColumnEncoder(case.schema, 1).encode(batch.slice(start))
    assert same([decoder.decode(one) for one in payloads], case.records[start:])


@QUICK
@given(st.data())
def test_mixed_schema_ids_keep_their_order(data: st.DataObject) -> None:
    case = data.draw(cases(columnar=True, max_records=6))
    later = data.draw(evolutions(case.schema))
    shelf = Shelf(case.schema, later)
    upgraded = RecordDecoder(shelf, later)
    newer = RecordEncoder(later, 2)
    payloads = [
        newer.encode(upgraded.decode(one)) if data.draw(st.booleans()) else one for one in encoded(case)
    ]
    check_against_reference(payloads, shelf, later)


SPREAD = schema_of(
    record(
        "Spread",
        flag="boolean",
        small="int",
        ratio="float",
        raw="bytes",
        day={"type": "int", "logicalType": "date"},
        at={"type": "long", "logicalType": "timestamp-micros"},
        here={"type": "long", "logicalType": "local-timestamp-millis"},
        clock={"type": "int", "logicalType": "time-millis"},
        kind={"type": "enum", "name": "Kind", "symbols": ["A", "B"]},
        tags={"type": "array", "items": "string"},
        scores={"type": "map", "values": ["null", "double"]},
        either=["null", "int", "string"],
        inner=["null", record("Inner", x="long", again=["null", "Kind"])],
    )
)


class NoReference:
    """Stands in for the reference where the columnar path must do all the work."""

    def decode(self, payload: bytes) -> Any:
        raise AssertionError(f"the reference was asked for {payload!r}")


@pytest.mark.parametrize("schema", [PAGE, SPREAD], ids=["page", "spread"])
def test_common_types_never_need_the_reference(
    schema: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    payloads = [b"\0\0\0\0\x01" + body for body in [SPREAD_BODY if schema is SPREAD else PAGE_BODY] * 40]
    expected = [RecordDecoder(Shelf(schema)).decode(one) for one in payloads]
    caplog.set_level(logging.DEBUG, "feedstack.codec")
    decoder = ColumnDecoder(Shelf(schema))
    monkeypatch.setattr(decoder, "_reference", NoReference())
    assert same(rows(decoder.decode(payloads)), expected)
    assert caplog.records == []


PAGE_BODY = b"\x02a\x02b\x02" + bytes(8)
SPREAD_BODY = (
    b"\x01\x03" + bytes(4) + b"\x04\xff\xfe" + b"\x01\x01\x01\x02\x02"
    b"\x04\x02a\x02b\x00" + b"\x02\x02k\x00\x00" + b"\x04\x02s" + b"\x02\x09\x02\x00"
)


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        {"type": "fixed", "name": "F", "size": 3},
        {"type": "string", "logicalType": "uuid"},
        ["bytes", "string"],
        {"type": "array", "items": "null"},
        record("Empty"),
    ],
)
def test_what_pyruhvro_cannot_do_is_said_once(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    schema = schema_of(record("R", x=kind))
    caplog.set_level(logging.DEBUG, "feedstack.codec")
    decoder = ColumnDecoder(Shelf(schema))
    for _ in range(3):
        decoder.decode_lenient([b"\0\0\0\0\x01\0"])
    assert len(caplog.records) == 1
    assert "schema id 1 is decoded record by record" in caplog.records[0].getMessage()


def test_the_first_bad_payload_is_named_and_the_good_ones_remain() -> None:
    encoder = RecordEncoder(PAGE, 1)
    payloads = [encoder.encode(page(number)) for number in range(500)]
    payloads[77] += b"\0"
    payloads[78] = b"\0\0"
    payloads[300] = payloads[300][:-1]
    payloads[400] = b"\0\0\0\0\x09" + payloads[400][5:]
    decoder = ColumnDecoder(Shelf(PAGE))
    with pytest.raises(BadPayload, match="payload 77: 1 bytes are left over") as caught:
        decoder.decode(payloads)
    assert caught.value.index == 77
    batch, bad = decoder.decode_lenient(payloads)
    assert [index for index, _ in bad] == [77, 78, 300, 400]
    assert "schema id 9" in bad[3][1].message
    assert rows(batch) == [page(number) for number in range(500) if number not in (77, 78, 300, 400)]


def test_a_batch_of_nothing_but_bad_payloads_is_empty() -> None:
    batch, bad = ColumnDecoder(Shelf(PAGE), PAGE).decode_lenient([b"", b"x"])
    assert batch.num_rows == 0
    assert batch.schema.equals(arrow_schema(PAGE))
    assert [index for index, _ in bad] == [0, 1]


def test_no_payloads_make_an_empty_batch_of_the_readers_shape() -> None:
    batch = ColumnDecoder(Shelf(PAGE), PAGE).decode([])
    assert (batch.num_rows, batch.schema) == (0, arrow_schema(PAGE))


def test_shapes_that_differ_need_a_reader() -> None:
    other = schema_of(record("Page", user="string"))
    payloads = [RecordEncoder(PAGE, 1).encode(page(1)), RecordEncoder(other, 2).encode({"user": "a"})]
    with pytest.raises(BadInput, match="different shapes"):
        ColumnDecoder(Shelf(PAGE, other)).decode(payloads)
    batch = ColumnDecoder(Shelf(PAGE, other), other).decode(payloads)
    assert rows(batch) == [{"user": "user-1"}, {"user": "a"}]


def test_nullability_follows_avro() -> None:
    schema = arrow_schema(schema_of(record("R", a="int", b=["null", "int"], c=record("S", d="string"))))
    assert [field.nullable for field in schema] == [False, True, False]
    assert not schema.field("c").type.field(0).nullable


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ("string", "need a record"),
        (
            {"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]},
            "contains itself",
        ),
    ],
)
def test_what_cannot_be_columns_is_refused(tree: Any, words: str) -> None:
    with pytest.raises(BadSchema, match=words):
        arrow_schema(schema_of(tree))


def test_a_null_that_avro_does_not_allow_names_the_row_and_the_field() -> None:
    batch = ColumnDecoder(Shelf(PAGE)).decode([RecordEncoder(PAGE, 1).encode(page(n)) for n in range(3)])
    holed = batch.set_column(2, "ms", pa.array([1, None, 2], pa.int64()))
    with pytest.raises(BadPayload, match="field 'ms' must be long") as caught:
        ColumnEncoder(PAGE, 1).encode(holed)
    assert (caught.value.index, caught.value.field) == (1, "ms")


def test_nulls_inside_records_and_arrays_are_found() -> None:
    schema = schema_of(
        record("R", s=["null", record("S", x="int")], a={"type": "array", "items": record("T", y="string")})
    )
    kinds = {field.name: field.type for field in arrow_schema(schema)}
    good = {"s": [None, {"x": 1}], "a": [[], [{"y": "b"}]]}
    for name, values in {"s": [None, {"x": None}], "a": [[], [{"y": None}]]}.items():
        columns = {k: pa.array(values if k == name else v, kinds[k]) for k, v in good.items()}
        with pytest.raises(BadPayload) as caught:
            ColumnEncoder(schema, 1).encode(pa.RecordBatch.from_pydict(columns))
        assert caught.value.index == 1
    batch = pa.RecordBatch.from_pydict({k: pa.array(v, kinds[k]) for k, v in good.items()})
    payloads = ColumnEncoder(schema, 1).encode(batch)
    assert [RecordDecoder(Shelf(schema)).decode(one) for one in payloads] == rows(batch)


def test_columns_are_matched_by_name_and_cast_where_nothing_is_lost() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"load": pa.array([1.5]), "ms": pa.array([3], pa.int32()), "page": ["p"], "user": ["u"]}
    )
    (payload,) = ColumnEncoder(PAGE, 1).encode(batch)
    assert RecordDecoder(Shelf(PAGE)).decode(payload) == {"user": "u", "page": "p", "ms": 3, "load": 1.5}
    for columns, words in [
        ({"user": ["u"], "page": ["p"], "ms": [1]}, "column 'load' is missing"),
        ({"user": ["u"], "page": ["p"], "ms": [1], "load": [1.0], "x": [1]}, "column 'x' is not in Page"),
        ({"user": ["u"], "page": ["p"], "ms": ["m"], "load": [1.0]}, "column 'ms' must be int64"),
    ]:
        with pytest.raises(BadRecord, match=words):
            ColumnEncoder(PAGE, 1).encode(pa.RecordBatch.from_pydict(columns))


def test_enum_symbols_and_times_are_checked_when_encoding() -> None:
    schema = schema_of(record("R", k={"type": "enum", "name": "K", "symbols": ["A"]}))
    with pytest.raises(BadPayload, match="field 'k' must be one of A"):
        ColumnEncoder(schema, 1).encode(pa.RecordBatch.from_pydict({"k": ["A", "Z"]}))
    schema = schema_of(record("R", t={"type": "long", "logicalType": "timestamp-millis"}))
    late = pa.array([1 << 62], pa.int64()).view(pa.timestamp("ms", "UTC"))
    with pytest.raises(BadRecord):
        ColumnEncoder(schema, 1).encode(pa.RecordBatch.from_pydict({"t": late}))


def test_payloads_are_what_fastavro_writes() -> None:
    encoder = ColumnEncoder(PAGE, 0x01020304)
    batch = ColumnDecoder(Shelf(PAGE)).decode([RecordEncoder(PAGE, 1).encode(page(n)) for n in range(9)])
    body = io.BytesIO()
    fastavro.schemaless_writer(body, PAGE.parsed, page(8))
    assert encoder.encode(batch)[8] == b"\0\x01\x02\x03\x04" + body.getvalue()


@pytest.mark.parametrize("schema_id", [1, 0x7F800001, 0x0000C07F, 0x7FFFFFFF])
def test_ids_that_look_like_any_float_survive(schema_id: int) -> None:
    class One:
        def schema_by_id(self, asked: int) -> Any:
            assert asked == schema_id
            return PAGE

    payloads = [RecordEncoder(PAGE, schema_id).encode(page(n)) for n in range(3)]
    decoder = ColumnDecoder(One())
    decoder._reference = NoReference()  # type: ignore[assignment]
    batch = decoder.decode(payloads)
    assert rows(batch) == [page(n) for n in range(3)]
    assert ColumnEncoder(PAGE, schema_id).encode(batch) == payloads


NO_PANDAS = """
import sys
from tests.unit.test_columns import PAGE, page
from tests.avro_strategies import Shelf, record, schema_of
from stack.feeds.avro.columns import ColumnDecoder, ColumnEncoder, rows
from stack.feeds.avro.codec import RecordEncoder
added = {"name": "n", "type": "string", "default": "x"}
later = schema_of({**PAGE.tree, "fields": [*PAGE.tree["fields"], added]})
payloads = [RecordEncoder(PAGE, 1).encode(page(n)) for n in range(3)]
batch = ColumnDecoder(Shelf(PAGE), later).decode(payloads)
assert rows(batch)[2]["n"] == "x"
ColumnEncoder(later, 1).encode(batch)
fixed = schema_of(record("R", f={"type": "fixed", "name": "F", "size": 2}))
rows(ColumnDecoder(Shelf(fixed)).decode([RecordEncoder(fixed, 1).encode({"f": b"ab"})]))
ColumnDecoder(Shelf(PAGE)).decode_lenient([b"", *payloads])
assert "pandas" not in sys.modules
"""


def test_pandas_is_never_imported() -> None:
    subprocess.run([sys.executable, "-c", NO_PANDAS], check=True, timeout=60)


TIMESTAMP = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
LATE = b"\xfe" + b"\xff" * 8 + b"\x01"


@pytest.mark.parametrize(
    ("written", "wanted", "body", "expected"),
    [
        (TIMESTAMP, "long", b"\x02", 1),
        (TIMESTAMP, "long", LATE, (1 << 63) - 1),
        ({"type": "int", "logicalType": "date"}, "long", b"\x02", 1),
        ("long", TIMESTAMP, b"\x02", datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)),
        ("long", TIMESTAMP, LATE, None),
        (TIMESTAMP, MICROS, b"\x02", datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)),
        (MICROS, TIMESTAMP, b"\xa2\x1f", datetime(1970, 1, 1, 0, 0, 0, 2000, UTC)),
        ("int", "float", b"\x82\x80\x80\x10", 16777216.0),
        ("long", "float", b"\x82\x80\x80\x10", 16777216.0),
        ("long", "double", b"\x82\x80\x80\x80\x80\x80\x80\x20", float(1 << 53)),
        ("string", "bytes", b"\x02a", b"a"),
        ("bytes", "string", b"\x02a", "a"),
        ("bytes", "string", b"\x02\xff", None),
        ("string", {"type": "string", "logicalType": "uuid"}, b"\x02a", None),
        ({"type": "string", "logicalType": "uuid"}, "string", b"\x02a", "a"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            "bytes",
            b"\x02\x01",
            b"\1",
        ),
        (["null", "int"], ["string", "double", "null"], b"\x02\x02", 1.0),
        (["int", TIMESTAMP], [TIMESTAMP, "int"], b"\x00\x02", 1),
    ],
)
def test_a_value_read_as_another_type_is_that_of_the_reference(
    written: Any, wanted: Any, body: bytes, expected: Any
) -> None:
    shelf, reader = Shelf(schema_of(record("R", x=written))), schema_of(record("R", x=wanted))
    payload = b"\0\0\0\0\x01" + body
    batch, bad = ColumnDecoder(shelf, reader).decode_lenient([payload])
    if expected is None:
        assert [index for index, _ in bad] == [0]
        with pytest.raises(BadRecord):
            RecordDecoder(shelf, reader).decode(payload)
    else:
        assert same(rows(batch), [{"x": expected}])
        assert same(RecordDecoder(shelf, reader).decode(payload), {"x": expected})


def test_uuids_are_columns_of_text_that_spark_takes() -> None:
    schema = schema_of(
        record("R", x=["null", {"type": "array", "items": {"type": "string", "logicalType": "uuid"}}],
               y={"type": "string", "logicalType": "uuid"})
    )  # fmt: skip
    value = {"x": [UUID(int=1)], "y": UUID(int=2)}
    batch = ColumnDecoder(Shelf(schema)).decode([RecordEncoder(schema, 1).encode(value)] * 2)
    assert (batch.schema.field("y").type, batch.schema.field("x").type.value_type) == (
        pa.string(),
        pa.string(),
    )
    assert rows(batch) == [value] * 2
    from pyspark.sql.pandas.types import from_arrow_schema

    assert from_arrow_schema(batch.schema)["y"].dataType.simpleString() == "string"
    own = batch.set_column(1, "y", pa.array([UUID(int=2).bytes] * 2, pa.binary(16)).cast(pa.uuid()))
    assert ColumnEncoder(schema, 1).encode(own) == [RecordEncoder(schema, 1).encode(value)] * 2


def test_wide_fixed_values_have_room_only_where_they_are() -> None:
    schema = schema_of(record("R", f=["null", {"type": "fixed", "name": "F", "size": 1 << 30}]))
    batch = ColumnDecoder(Shelf(schema)).decode([b"\0\0\0\0\x01\0"] * 3)
    assert rows(batch) == [{"f": None}] * 3


def test_payloads_of_equal_bytes_are_read_by_the_id_they_carry() -> None:
    first, second = schema_of(record("R", x="int")), schema_of(record("R", y="int"))
    both = [{"name": name, "type": "int", "default": 0} for name in "xy"]
    reader = schema_of({"type": "record", "name": "R", "fields": both})
    payloads = [b"\0\0\0\0\x01\x02", b"\0\0\0\0\x02\x02", b"\0\0\0\0\x01\x04"]
    batch = ColumnDecoder(Shelf(first, second), reader).decode(payloads)
    assert rows(batch) == [{"x": 1, "y": 0}, {"x": 0, "y": 1}, {"x": 2, "y": 0}]
