"""Counts records per key on Quix Streams: Avro in and out, RocksDB store, changelog, one output per input.

It runs in an environment of its own and hence knows nothing of this project.
"""

from __future__ import annotations

import argparse
import json
import logging
import struct
import sys
from typing import Any

from quixstreams import Application  # type: ignore[import-not-found]
from quixstreams.models.serializers.avro import (  # type: ignore[import-not-found]
    AvroDeserializer,
    AvroSerializer,
)

HEADER_BYTES = 5


class _Skipping(AvroDeserializer):
    """Avro behind the five header bytes of a schema registry."""

    def __call__(self, value: bytes, ctx: Any) -> Any:
        return super().__call__(value[HEADER_BYTES:], ctx)


class _Heading(AvroSerializer):
    """The same in the other direction."""

    def __init__(self, schema: Any, schema_id: int) -> None:
        super().__init__(schema)
        self._header = struct.pack(">bi", 0, schema_id)

    def __call__(self, value: Any, ctx: Any) -> bytes:
        return self._header + bytes(super().__call__(value, ctx))


class _RestoreTimes(logging.Handler):
    """Says when restoring begins and ends: the library tells it in its log only."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message.startswith("Beginning recovery check"):
            print(f"RESTORING {record.created * 1000:.0f}", flush=True)
        elif message.startswith("Recovery process complete"):
            print(f"RESTORED {record.created * 1000:.0f}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "in", "out", "app", "state", "guarantee", "in-schema", "out-schema", "latency"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("commit-ms", "out-schema-id", "workers"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def count(view: Any, state: Any) -> dict[str, Any]:
    found = state.get("n", 0) + 1
    state.set("n", found)
    return {"user": view["user"], "count": found}


def main() -> None:
    options = _options()
    if options.workers != 1:
        sys.exit("a Quix process is one worker")
    app = Application(
        options.bootstrap,
        consumer_group=options.app,
        auto_offset_reset="earliest",
        state_dir=options.state,
        loglevel="INFO",
        commit_interval=options.commit_ms / 1000,
        producer_extra_config={"linger.ms": 0 if options.latency == "yes" else 20},
        processing_guarantee=options.guarantee,
    )
    logging.getLogger("quixstreams").addHandler(_RestoreTimes())
    views = app.topic(
        vars(options)["in"],
        value_deserializer=_Skipping(json.loads(options.in_schema)),
        key_deserializer="str",
    )
    counts = app.topic(
        options.out,
        value_serializer=_Heading(json.loads(options.out_schema), options.out_schema_id),
        key_serializer="str",
    )
    app.dataframe(views).apply(count, stateful=True).to_topic(counts)
    app.run()


if __name__ == "__main__":
    main()
