"""job.toml: every key, every fault at once, stores and their schemas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stack.deploy.settings import JobFile, input_faults, read_job_file, stores_of
from stack.errors import BadConfig
from stack.model.job import Guarantee, JobSettings, KeyCodec, OnError, StoreSpec, ValueCodec

SCHEMA = '{"type": "record", "name": "Count", "fields": [{"name": "n", "type": "long"}]}'


def read(folder: Path, text: str) -> JobFile:
    (folder / "job.toml").write_text(text)
    return read_job_file(folder)


def faults_of(folder: Path, text: str) -> tuple[str, ...]:
    with pytest.raises(BadConfig) as caught:
        read(folder, text)
    assert "docs/jobs.md" in caught.value.hint
    return caught.value.faults


def test_without_a_file_everything_has_its_default(tmp_path: Path) -> None:
    assert read_job_file(tmp_path) == JobFile(JobSettings(), {})
    assert JobSettings().horizon_ms == 3_600_000


def test_every_key_is_read(tmp_path: Path) -> None:
    (tmp_path / "count.avsc").write_text(SCHEMA)
    found = read(
        tmp_path,
        """
        containers = 3
        guarantee = "at-least-once"
        commit_min_ms = 5
        commit_max_ms = 1000
        horizon = "1d12h"
        memory = "1GB"
        cache = "100MB"
        record_limit = "5s"
        deploy_limit = "2m"
        on_error = "dead-letter"
        retries = 4
        retry_backoff = "50ms"
        [inputs.clicks]
        on_error = "skip"
        [stores.counts]
        key = "int"
        value = "avro"
        schema = "count.avsc"
        [stores.seen]
        value = "bytes"
        """,
    )
    assert found.settings == JobSettings(
        3,
        Guarantee.AT_LEAST_ONCE,
        5,
        1000,
        129_600_000,
        1 << 30,
        100 << 20,
        5_000,
        120_000,
        OnError.DEAD_LETTER,
        4,
        50,
        {"clicks": OnError.SKIP},
    )
    compact = json.dumps(json.loads(SCHEMA), separators=(",", ":"))
    assert found.stores == {
        "counts": StoreSpec("counts", KeyCodec.INT, ValueCodec.AVRO, compact),
        "seen": StoreSpec("seen", KeyCodec.STR, ValueCodec.BYTES),
    }


def test_a_small_memory_brings_a_small_cache(tmp_path: Path) -> None:
    assert read(tmp_path, 'memory = "128MB"').settings.cache_bytes == 32 << 20


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("container = 2", "container: unknown key; did you mean containers?"),
        ('on_error = "ignore"', "on_error: must be 'stop' or 'dead-letter' or 'skip', got 'ignore'"),
        ("retries = -1", "retries: must be a whole number from 0 to 1,000, got -1"),
        ('retry_backoff = "1m"', "retry_backoff: must be from 1ms to 15s"),
        ('inputs = "clicks"', "inputs: must be a table, written [inputs]"),
        ('inputs.clicks = "skip"', "inputs.clicks: must be a table, written [inputs.clicks]"),
        ("[inputs.clicks]", "inputs.clicks: says nothing"),
        ("[inputs.clicks]\nretries = 3", "inputs.clicks.retries: unknown key; known here: on_error"),
        ("zzz = 2", "zzz: unknown key; known here: align,"),
        ("containers = 0", "containers: must be a whole number from 1 to 1,000, got 0"),
        ("containers = true", "containers: must be a whole number"),
        ('guarantee = "once"', "guarantee: must be 'exactly-once' or 'at-least-once', got 'once'"),
        ("guarantee = []", "guarantee: must be"),
        ("commit_min_ms = 600", "commit_min_ms: 600 is longer than commit_max_ms, 500"),
        ("commit_max_ms = 20000", "commit_max_ms: must be a whole number from 1 to 15,000"),
        ("horizon = 3600", "horizon: must be text, got 3600"),
        ('horizon = "soon"', "horizon: 'soon' is not a duration"),
        ('horizon = "0s"', "horizon: must be from 1s to 3650d"),
        ('memory = "1KB"', "memory: must be from 64MB to 1TB"),
        ('memory = "64MB"\ncache = "60MB"', "cache: must be at most half of memory"),
        ('record_limit = "16s"', "record_limit: must be from 100ms to 15s"),
        ('deploy_limit = "1"', "deploy_limit: '1' is not a duration"),
        ("stores = 3", "stores: must be a table, written [stores]"),
        ("[stores]\ncounts = 3", "stores.counts: must be a table, written [stores.counts]"),
        ('[stores."Big One"]', "stores.Big One: the name does not do"),
        ('[stores.counts]\nkey = "float"', "stores.counts.key: must be 'str' or 'int' or 'bytes'"),
        (
            '[stores.counts]\nvalues = "int"',
            "stores.counts.values: unknown key; did you mean stores.counts.value",
        ),
        ('[stores.counts]\nvalue = "avro"', "stores.counts.schema: must be given"),
        ('[stores.counts]\nschema = "x.avsc"', "stores.counts.schema: only a store of Avro values has it"),
        ('[stores.c]\nvalue = "avro"\nschema = "x.avsc"', "stores.c.schema: there is no file"),
        ('[stores.c]\nvalue = "avro"\nschema = "../x.avsc"', "lies outside the job's folder"),
        ('[stores.c]\nvalue = "avro"\nschema = "bad.avsc"', "bad.avsc is not JSON"),
        ('[stores.c]\nvalue = "avro"\nschema = "text.avsc"', "text.avsc must be a record"),
    ],
)
def test_a_fault_names_its_key(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "bad.avsc").write_text("{")
    (tmp_path / "text.avsc").write_text('"string"')
    (fault,) = faults_of(tmp_path, text)
    assert says in fault


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    text = 'containers = -1\nhorizn = "1h"\n[stores.counts]\nkey = "x"\nvalue = "avro"\n'
    assert [fault.partition(":")[0] for fault in faults_of(tmp_path, text)] == [
        "containers",
        "horizn",
        "stores.counts.key",
        "stores.counts.schema",
    ]


@pytest.mark.parametrize("text", ["containers = ", b"\xff", "a = 1\na = 2"])
def test_a_file_that_is_not_toml(tmp_path: Path, text: str | bytes) -> None:
    (tmp_path / "job.toml").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(BadConfig, match=r"job\.toml (is not TOML|cannot be read)"):
        read_job_file(tmp_path)


def test_stores_of_the_code_get_defaults_and_unnamed_ones_are_faults() -> None:
    file = JobFile(
        stores={"counts": StoreSpec("counts", value=ValueCodec.INT), "cuonts": StoreSpec("cuonts")}
    )
    stores, faults = stores_of(file, ("counts", "seen"))
    assert stores == (StoreSpec("counts", value=ValueCodec.INT), StoreSpec("seen"))
    (fault,) = faults
    assert "stores.cuonts: no task of the code names this store; did you mean counts?" in fault
    assert "name it: @job.task" in stores_of(file, ())[1][0]


def test_inputs_that_the_code_does_not_read(tmp_path: Path) -> None:
    file = read(tmp_path, '[inputs.cliks]\non_error = "skip"\n[inputs.views]\non_error = "skip"')
    (fault,) = input_faults(file, ["clicks", "views"])
    assert fault == "job.toml, inputs.cliks: the code does not read this feed; did you mean clicks?"
