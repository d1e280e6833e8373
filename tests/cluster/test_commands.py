"""The commands on a real cluster, as a person types them."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ops.cli import main
from stack import Stack
from stack.settings import Settings
from stack.testing import MemoryStack
from tests.cluster.conftest import CATALOGUE, PAGE_VIEW

pytestmark = pytest.mark.cluster
GOOD = '{"user": "ada", "page": "/", "ms": 1, "load": 1.5}'


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Done]


@pytest.fixture
def run(settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*words: str, given: str | None = None) -> Done:
        if given is not None:
            stream = io.TextIOWrapper(io.BytesIO(given.encode()))
            monkeypatch.setattr(sys, "stdin", stream)
        with pytest.raises(SystemExit) as leave:
            main(["--config", str(settings.file), *words])
        said = capsys.readouterr()
        return Done(int(leave.value.code or 0), said.out, said.err)

    return call


@pytest.fixture
def ready(run: Run) -> Run:
    assert run("feeds", "apply").code == 0
    return run


def test_apply_shows_its_plan_and_then_nothing_to_do(run: Run) -> None:
    first = run("feeds", "apply", "--plan")
    assert "+ create  views" in first.out
    assert "nothing was changed" in first.out
    assert run("feeds", "apply", "--json").json["steps"][0]["action"] == "create"
    assert "all feeds are as declared" in run("feeds", "apply").out


def test_a_refused_plan_exits_with_one_and_names_the_field(ready: Run, settings: Settings) -> None:
    file = settings.schemas / "view.avsc"
    file.write_text(file.read_text().replace("]}", ',{"name":"city","type":"string"}]}'))
    done = ready("feeds", "apply")
    assert done.code == 1
    assert "! refuse  views" in done.out
    assert "PageView.city" in done.out
    assert ready("schemas", "check").code == 1
    assert "city" in ready("schemas", "diff", "views").out
    judged = ready("schemas", "check", "views", str(file), "--level", "NONE", "--json")
    assert judged.json[0]["compatible"] is True


def test_produce_and_tail_json_lines(ready: Run) -> None:
    done = ready("feeds", "produce", "views", given=f"{GOOD}\n\n{GOOD.replace('ada', 'bob')}\n")
    assert "wrote 2 records" in done.out
    rows = ready("feeds", "tail", "views", "--from", "oldest", "--until", "latest", "--json").lines
    assert sorted(row["value"]["user"] for row in rows) == ["ada", "bob"]
    assert rows[0]["time"] == "1970-01-01T00:00:00.001Z"
    only = ready("feeds", "tail", "views", "--until", "latest", "--key", "bob", "--json").lines
    assert [row["key"] for row in only] == ["bob"]
    some = ready(
        "feeds", "tail", "views", "--until", "latest", "--where", "user = 'ada' and load > 1", "--json"
    )
    assert [row["key"] for row in some.lines] == ["ada"]
    assert ready("feeds", "tail", "views", "--limit", "1").out.count("\n") == 1


def test_a_bad_line_stops_a_pipe_there(ready: Run) -> None:
    done = ready("feeds", "produce", "views", given=f"{GOOD}\n{GOOD.replace('1.5', 'true')}\n{GOOD}\n")
    assert done.code == 1
    assert "line 2: field 'load'" in done.err
    assert "--from-line 2" in done.err
    rows = ready("feeds", "tail", "views", "--until", "latest", "--json").lines
    assert len(rows) == 1


def test_a_file_with_a_bad_line_writes_nothing(ready: Run, tmp_path: Path) -> None:
    file = tmp_path / "views.jsonl"
    file.write_text(f"{GOOD}\n" * 3 + '{"user": "ada"}\n')
    done = ready("feeds", "produce", "views", str(file))
    assert done.code == 1
    assert "line 4: field 'page'" in done.err
    assert ready("feeds", "tail", "views", "--until", "latest", "--json").out == ""


def test_bad_lines_are_skipped_or_kept_with_their_cause(ready: Run, stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "views.csv"
    file.write_text("user,page,ms,load\nada,/,1,1.5\nbob,/,soon,2\neve,/,2,2.5\n")
    assert ready("feeds", "produce", "views", str(file), "--on-bad", "skip", "--json").json["bad"] == 1
    done = ready("feeds", "produce", "views", str(file), "--on-bad", "dead")
    assert "1 bad line kept in views.dead" in done.out
    from stack.kafka.reader import LogReader

    with LogReader(stack.access, stack.topic_of("views.dead")) as reader:
        reader.assign({0: 0}, {0: 1})
        batch = reader.read(timeout_s=10)
    assert batch.values == [b"bob,/,soon,2"]
    dead = ready("feeds", "tail", "views.dead", "--until", "latest", "--json").lines
    assert [(row["line"], row["field"], row["row"]) for row in dead] == [("3", "ms", "bob,/,soon,2")]
    assert "views.csv, line 3: field 'ms'" in ready("feeds", "tail", "views.dead", "--until", "latest").out
    assert ready("feeds", "tail", "views.dead", "--where", "load > 1").code == 2
    headers = dict(batch.headers[0] or [])
    assert headers["line"] == b"3"
    assert headers["field"] == b"ms"
    assert b"soon" in (headers["cause"] or b"")
    assert len(ready("feeds", "tail", "views", "--until", "latest", "--json").lines) == 4


def test_generate_is_true_to_the_schema_and_repeatable(ready: Run) -> None:
    words = ("feeds", "generate", "views", "--count", "300", "--keys", "7", "--skew", "1", "--seed", "5")
    assert ready(*words, "--json").json == {"written": 300}
    rows = ready("feeds", "tail", "views", "--from", "oldest", "--until", "latest", "--json").lines
    assert len(rows) == 300
    assert len({row["key"] for row in rows}) <= 7
    ready(*words)
    again = ready("feeds", "tail", "views", "--from", "oldest", "--until", "latest", "--json").lines
    users = sorted(row["value"]["page"] for row in again)
    assert users == sorted(row["value"]["page"] for row in rows for _ in range(2))


def test_generate_at_a_rate_ends_with_its_count(ready: Run) -> None:
    assert ready("feeds", "generate", "views", "--count", "40", "--rate", "200", "--json").json == {
        "written": 40
    }
    assert ready("feeds", "generate", "views").code == 2


def test_list_show_and_graph(ready: Run, stack: Stack) -> None:
    from stack.kafka.admin import TopicPlan

    stack.admin.create([TopicPlan(stack.topic_of("stray"), 1)])
    kinds = {row["feed"]: row["kind"] for row in ready("feeds", "list", "--json").json}
    assert kinds == {"views": "source", "users": "derived", stack.topic_of("stray"): "undeclared"}
    shown = ready("feeds", "show", "views", "--json").json
    assert shown["schema_version"] == 1
    assert shown["partitions"]["0"] == {"oldest": 0, "end": 0}
    assert "page views" in ready("feeds", "show", "views").out
    assert "└─ users (derived, table) <- last-view" in ready("feeds", "graph").out
    assert '"views" -> "users"' in ready("feeds", "graph", "--dot").out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["feeds", "show", "vews"], "Did you mean views?"),
        (["feeds", "tail", "views", "--where", "lod > 3"], "did you mean load?"),
        (["feeds", "tail", "views", "--where", "load >"], "expected a value"),
        (["feeds", "tail", "views", "--where", "load > 'fast'"], "load"),
        (["feeds", "tail", "views", "--from", "yesterday"], "'yesterday' is not a startpoint"),
        (["feeds", "tail", "views", "--from", "99"], "there is no offset 99"),
        (["feeds", "produce", "views", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["schemas", "check", "views", "--level", "SIDEWAYS"], "there is no compatibility 'SIDEWAYS'"),
        (["schemas", "diff", "views", "--from", "9"], "9"),
    ],
)
def test_mistakes_are_named(ready: Run, words: list[str], says: str) -> None:
    done = ready(*words)
    assert done.code == 1
    assert says in done.err
    assert "Traceback" not in done.err


def test_tail_shows_undecodable_records_as_such(ready: Run, stack: Stack) -> None:
    from stack.kafka.writer import LogWriter

    with LogWriter(stack.access) as log:
        log.write(stack.topic_of("views"), [{"value": b"junk"}])
    assert "BAD" in ready("feeds", "tail", "views", "--until", "latest").out
    assert "bad" in ready("feeds", "tail", "views", "--until", "latest", "--json").lines[0]


def test_a_slice_of_a_feed_is_recorded_and_played(ready: Run, tmp_path: Path) -> None:
    file = tmp_path / "views.jsonl"
    rows = [
        {"user": f"user-{n % 3}", "page": f"/{n}", "ms": 1_700_000_000_000 + n, "load": n / 2}
        for n in range(9)
    ]
    ready("feeds", "produce", "views", given="\n".join(map(json.dumps, rows)))
    done = ready("feeds", "record", "views", "--out", str(file), "--json")
    assert done.json == {"feed": "views", "file": str(file), "records": 9, "whole": True}
    assert json.loads(file.read_text().splitlines()[0])["schema_version"] == 1
    refused = ready("feeds", "record", "views", "--out", str(file))
    assert refused.code != 0
    assert "is there already" in refused.err
    few = ready("feeds", "record", "views", "--limit", "4", "--out", str(file), "--force")
    assert "recorded 4 records of views" in few.out
    assert "there are more" in few.out
    assert ready("feeds", "record", "views", "--out", str(file), "--force", "--from", "oldest").code == 0
    schemas = tmp_path / "schemas"
    schemas.mkdir()
    (schemas / "catalog.toml").write_text(CATALOGUE)
    (schemas / "view.avsc").write_text(PAGE_VIEW)
    with MemoryStack(schemas) as stack:
        assert stack.play(file) == 9
        assert sorted(stack.values("views"), key=lambda value: int(value["ms"])) == rows
