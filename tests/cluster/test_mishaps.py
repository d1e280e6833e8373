"""Mishaps on a real cluster, as a person meets them at the command line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ops.cli import main
from stack import Stack
from stack.settings import Settings

pytestmark = pytest.mark.cluster
ITEM = """{"type":"record","name":"Stock","fields":[{"name":"item","type":{"type":"record","name":"Item",
"fields":[{"name":"shop","type":"string"},{"name":"sku","type":"string"}]}},{"name":"count","type":"long"}]}"""
STOCK = """
[feeds.stock]
kind = "source"
for = "what is in the shops"
owner = "shops"
schema = "stock.avsc"
key = "item"
key_format = "avro"
table = true
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(settings: Settings, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as leave:
            main(["--config", str(settings.file), *words])
        said = capsys.readouterr()
        return int(leave.value.code or 0), said.out, said.err

    return call


def view(user: str, ms: int) -> str:
    return json.dumps({"user": user, "page": "/", "ms": ms, "load": 1.0})


def test_rows_that_kafka_would_refuse_are_bad_rows_like_others(
    run: Run, filled: Stack, tmp_path: Path
) -> None:
    now = time.time_ns() // 1_000_000
    rows = [view("ada", now), view("late", now + 7_200_000), view("x" * 1_000_000, now), view("bob", now)]
    file = tmp_path / "views.jsonl"
    file.write_text("\n".join(rows))
    code, _, err = run("feeds", "produce", "views", str(file))
    assert code == 1
    assert "line 2: its time" in err
    assert "(nothing was written)" in err
    code, out, _ = run("feeds", "produce", "views", str(file), "--on-bad", "dead")
    assert (code, out.splitlines()[0]) == (0, "wrote 2 records to views")
    assert "2 bad lines kept in views.dead; the first: line 2" in out
    dead = run("feeds", "tail", "views.dead", "--until", "latest")[1]
    assert "line 3: the record has 1,000,0" in dead


def test_a_key_with_fields_is_generated_shown_and_found(run: Run, settings: Settings) -> None:
    (settings.schemas / "stock.avsc").write_text(ITEM)
    (settings.schemas / "catalog.toml").write_text(STOCK)
    assert run("feeds", "apply")[0] == 0
    assert run("feeds", "generate", "stock", "--count", "50", "--keys", "2", "--seed", "1")[0] == 0
    shown = run("feeds", "tail", "stock", "--until", "latest")[1].splitlines()
    keys = {line.split("  ")[2] for line in shown}
    assert (len(shown), len(keys)) == (50, 2)
    key = json.dumps(json.loads(min(keys)), separators=(",", ":"))
    found = run("feeds", "tail", "stock", "--until", "latest", "--key", key)[1].splitlines()
    assert 0 < len(found) < 50
    assert {line.split("  ")[2] for line in found} == {min(keys)}


def test_a_version_that_is_not_there_is_named_with_those_that_are(run: Run, filled: Stack) -> None:
    assert filled.schema("views").version == 1
    code, _, err = run("schemas", "diff", "views", "--from", "9")
    assert (code, err) == (1, "stack: the schema of 'views' has no version 9\n  There are: 1.\n")
