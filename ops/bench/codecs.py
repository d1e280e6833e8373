"""How fast values are encoded and decoded: the columnar codec against fastavro, record by record.

Run `python -m ops.bench.codecs`. Times are the best of a few rounds, because noise only ever adds.
"""

from __future__ import annotations

import gc
import io
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import fastavro

from stack.errors import NotFound
from stack.feeds.avro import wire
from stack.feeds.avro.codec import RecordDecoder, RecordEncoder
from stack.feeds.avro.columns import ColumnDecoder, ColumnEncoder, rows
from stack.feeds.avro.schema import AvroSchema, parse_avro

PAGE = """{"type":"record","name":"Page","fields":[
  {"name":"user","type":"string"},{"name":"page","type":"string"},
  {"name":"ms","type":"long"},{"name":"load","type":"double"}]}"""
SCHEMA_ID = 300
ROUNDS = 5


class _OneSchema:
    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema

    def schema_by_id(self, schema_id: int) -> AvroSchema:
        if schema_id == SCHEMA_ID:
            return self._schema
        raise NotFound(f"there is no schema with id {schema_id}")


def make_pages(records: int, seed: int = 1) -> list[dict[str, Any]]:
    """Records as a web server would send them."""
    chance = random.Random(seed)
    return [
        {
            "user": f"user-{chance.randrange(10_000_000):07d}",
            "page": f"/p/{chance.randrange(100)}",
            "ms": 1_700_000_000_000 + number,
            "load": chance.random() * 100,
        }
        for number in range(records)
    ]


def measure_codecs(records: int = 200_000) -> dict[str, Any]:
    """Milliseconds for all records, and how many times faster the columnar codec is (one thread)."""
    schema = parse_avro(PAGE)
    source = _OneSchema(schema)
    values = make_pages(records)
    encoder, decoder = RecordEncoder(schema, SCHEMA_ID), RecordDecoder(source)
    columns, column_encoder = ColumnDecoder(source, schema), ColumnEncoder(schema, SCHEMA_ID)
    payloads = [encoder.encode(value) for value in values]
    batch = columns.decode(payloads)
    if rows(batch) != values or column_encoder.encode(batch) != payloads:
        raise AssertionError("the codecs disagree, so their times mean nothing")
    times_ms = _best_times_ms(
        {
            "decode_fastavro_ms": lambda: _read_all(payloads, schema.parsed),
            "decode_reference_ms": lambda: [decoder.decode(payload) for payload in payloads],
            "decode_columns_ms": lambda: columns.decode(payloads),
            "decode_columns_and_rows_ms": lambda: rows(columns.decode(payloads)),
            "rows_ms": lambda: rows(batch),
            "encode_fastavro_ms": lambda: _write_all(values, schema.parsed),
            "encode_reference_ms": lambda: [encoder.encode(value) for value in values],
            "encode_columns_ms": lambda: column_encoder.encode(batch),
        }
    )
    return {
        "records": records,
        "bytes": sum(map(len, payloads)),
        **{name: round(ms, 1) for name, ms in times_ms.items()},
        "decode_ratio": _ratio(times_ms, "decode_fastavro_ms", "decode_columns_ms"),
        "rows_ratio": _ratio(times_ms, "decode_fastavro_ms", "decode_columns_and_rows_ms"),
        "encode_ratio": _ratio(times_ms, "encode_fastavro_ms", "encode_columns_ms"),
    }


def _read_all(payloads: list[bytes], parsed: Any) -> list[Any]:
    found = []
    for payload in payloads:
        stream = io.BytesIO(payload)
        stream.seek(wire.HEADER_BYTES)
        found.append(fastavro.schemaless_reader(stream, parsed, None))
    return found


def _write_all(values: list[dict[str, Any]], parsed: Any) -> list[bytes]:
    header = wire.pack(SCHEMA_ID)
    payloads = []
    for value in values:
        stream = io.BytesIO()
        stream.write(header)
        fastavro.schemaless_writer(stream, parsed, value)
        payloads.append(stream.getvalue())
    return payloads


def _best_times_ms(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The best time of each, all taking turns, so that a busy minute of the machine hits none alone.

    Without the garbage collector, as timeit does: what it adds depends on what else is alive.
    """
    best_ms = dict.fromkeys(works, float("inf"))
    gc.disable()
    try:
        for _ in range(ROUNDS):
            for name, work in works.items():
                start = time.perf_counter()
                work()
                best_ms[name] = min(best_ms[name], (time.perf_counter() - start) * 1000)
    finally:
        gc.enable()
    return best_ms


def _ratio(times_ms: dict[str, float], slow: str, fast: str) -> float:
    return round(times_ms[slow] / times_ms[fast], 1)


if __name__ == "__main__":
    print(json.dumps(measure_codecs(*map(int, sys.argv[1:2])), indent=2))
