"""The command line as a person meets it: answers, faults, exit codes. No cluster is started."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

import ops.cli
from ops.cli import main
from ops.cli.root import root
from stack.errors import FeedstackError


@dataclass
class Answer:
    code: int
    out: str
    err: str


class Terminal:
    """Runs commands in this process, in a folder of their own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def run(self, *words: str) -> Answer:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(list(words))
        captured = self._capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Answer(left.value.code, captured.out, captured.err)

    def configure(self, text: str) -> None:
        (self.folder / "stack.toml").write_text(text)


@pytest.fixture
def terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STACK_CONFIG", raising=False)
    monkeypatch.delenv("STACK_DEBUG", raising=False)
    found = Terminal(tmp_path, capsys)
    found.configure('name = "shop"\n')
    return found


def all_commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in sorted(group.commands.items()):
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from all_commands(command, (*path, name))


COMMANDS = dict(all_commands(root))


def test_the_commands_are_those_that_the_stack_promises() -> None:
    promised = [
        *("up", "down", "status", "doctor", "demo"),
        *("feeds apply", "feeds list", "feeds show", "feeds graph", "feeds tail"),
        *("feeds produce", "feeds generate", "schemas check", "schemas diff", "bench feeds"),
    ]
    assert {" ".join(path) for path in COMMANDS} >= set(promised)


@pytest.mark.parametrize("path", [(), *COMMANDS], ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_has_help(terminal: Terminal, path: tuple[str, ...], flag: str) -> None:
    terminal.configure("broken settings do not matter for help")
    answer = terminal.run(*path, flag)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(f"Usage: {' '.join(('stack', *path))} ")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_says_what_it_does_and_shows_an_example(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    assert command.get_short_help_str()
    assert all(one.help for one in command.params if isinstance(one, click.Option))
    if not isinstance(command, click.Group):
        assert f"stack {' '.join(path)}" in (command.help or "")


def test_the_version_is_that_of_the_package(terminal: Terminal) -> None:
    answer = terminal.run("--version")
    assert (answer.code, answer.out) == (0, f"stack, version {importlib.metadata.version('feedstack')}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stauts"], "No such command 'stauts'. Did you mean 'status'?"),
        (["feeds", "lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["schemas", "dif"], "No such command 'dif'. Did you mean 'diff'?"),
        (["zzz"], "No such command 'zzz'."),
        (["status", "--jsn"], "No such option"),
        (["up", "--brokers", "2"], "a quorum needs 1 or 3 brokers"),
        (["up", "--brokers", "4"], "4 is not in the range 1<=x<=3"),
        (["feeds", "show"], "Missing argument 'NAME'"),
        (["feeds", "produce", "x", "--on-bad", "panic"], "'panic' is not one of 'stop', 'skip', 'dead'"),
        (["feeds", "produce", "x", "--from-line", "0"], "0 is not in the range x>=1"),
        (["feeds", "generate", "x"], "give --count, --rate or both"),
        (["feeds", "tail", "x", "--limit", "none"], "'none' is not a valid integer"),
        (["demo", "nothing"], "'nothing' is not"),
    ],
)
def test_a_word_that_is_not_understood_is_exit_code_2(
    terminal: Terminal, words: list[str], said: str
) -> None:
    answer = terminal.run(*words)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert "Traceback" not in answer.err


BAD = 'nane = "x"\ndata = 5\n[embedded]\nbrokers = 2\n'
NEEDS_SETTINGS = [
    ["up"],
    ["down"],
    ["status"],
    ["feeds", "apply"],
    ["feeds", "list"],
    ["feeds", "show", "x"],
    ["feeds", "graph"],
    ["feeds", "tail", "x"],
    ["feeds", "produce", "x"],
    ["feeds", "generate", "x", "--count", "1"],
    ["schemas", "check"],
    ["schemas", "diff", "x"],
]


@pytest.mark.parametrize("words", NEEDS_SETTINGS, ids=" ".join)
def test_bad_settings_are_told_all_at_once(terminal: Terminal, words: list[str]) -> None:
    terminal.configure(BAD)
    answer = terminal.run(*words)
    assert (answer.code, answer.out) == (1, "")
    first, *rest = answer.err.splitlines()
    assert first == f"stack: {terminal.folder / 'stack.toml'} has 3 faults:"
    assert [line.strip("- ").partition(":")[0] for line in rest[:3]] == ["nane", "data", "embedded.brokers"]
    assert "docs/settings.md" in rest[3]


@pytest.mark.parametrize("words", NEEDS_SETTINGS, ids=" ".join)
def test_with_json_a_fault_is_one_json_object(terminal: Terminal, words: list[str]) -> None:
    terminal.configure(BAD)
    answer = terminal.run(*words, "--json")
    assert (answer.code, answer.out) == (1, "")
    fault = json.loads(answer.err)
    assert set(fault) == {"error", "kind", "hint"}
    assert fault["kind"] == "BadConfig"
    assert all(key in fault["error"] for key in ("nane", "data", "embedded.brokers"))


def test_a_settings_file_may_be_named(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.toml").write_text('name = "other"')
    assert "stack 'other'" in terminal.run("--config", str(tmp_path / "other.toml"), "status").out
    monkeypatch.setenv("STACK_CONFIG", str(tmp_path / "other.toml"))
    assert "stack 'other'" in terminal.run("status").out
    missing = terminal.run("--config", str(tmp_path / "none.toml"), "status")
    assert missing.code == 1
    assert "none.toml cannot be read" in missing.err


def test_status_of_nothing(terminal: Terminal) -> None:
    answer = terminal.run("status")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        f"stack 'shop', data in {terminal.folder / '.stack'}",
        "not running; start it with `stack up`",
    ]
    assert json.loads(terminal.run("status", "--json").out) == {
        "name": "shop",
        "data": str(terminal.folder / ".stack"),
        "running": False,
        "services": [],
    }
    assert not (terminal.folder / ".stack").exists()


@pytest.mark.parametrize("has_data", [False, True])
def test_down_with_nothing_running(terminal: Terminal, has_data: bool) -> None:
    if has_data:
        (terminal.folder / ".stack").mkdir()
    answer = terminal.run("down")
    assert (answer.code, answer.out, answer.err) == (0, "stack 'shop' was not running\n", "")
    assert json.loads(terminal.run("down", "--json").out) == {"stopped": False}
    assert (terminal.folder / ".stack").exists() == has_data


@pytest.mark.parametrize(
    "words",
    [
        ["feeds", "list"],
        ["feeds", "show", "views"],
        ["feeds", "graph"],
        ["feeds", "tail", "views"],
        ["feeds", "produce", "views"],
        ["feeds", "generate", "views", "--count", "1"],
        ["schemas", "diff", "views"],
    ],
    ids=" ".join,
)
def test_a_stack_that_is_not_running_is_told_to_start(terminal: Terminal, words: list[str]) -> None:
    answer = terminal.run(*words)
    assert (answer.code, answer.out) == (1, "")
    assert "stack 'shop' is not running" in answer.err
    assert "stack up" in answer.err
    fault = json.loads(terminal.run(*words, "--json").err)
    assert (fault["kind"], fault["hint"]) == ("Unavailable", "Start it with `stack up`.")


@pytest.mark.parametrize("words", [["feeds", "apply"], ["schemas", "check"]], ids=" ".join)
def test_declarations_are_checked_before_anything_is_asked(terminal: Terminal, words: list[str]) -> None:
    missing = terminal.run(*words)
    assert missing.code == 1
    assert "there is no" in missing.err
    (terminal.folder / "schemas").mkdir()
    (terminal.folder / "schemas" / "catalog.toml").write_text("[feeds.a]\n[feeds.B]\n")
    answer = terminal.run(*words)
    assert answer.code == 1
    assert "has 9 faults" in answer.err
    assert "feeds.B: the name does not do" in answer.err


def test_doctor_names_broken_settings_and_goes_no_further(terminal: Terminal) -> None:
    terminal.configure(BAD)
    answer = terminal.run("doctor")
    assert answer.code == 1
    assert "= python" in answer.out
    assert "! settings" in answer.out
    assert "embedded.brokers: must be 1 or 3" in answer.out
    found = json.loads(terminal.run("doctor", "--json").out)
    assert [one["subject"] for one in found] == ["python", "packages", "settings"]
    assert (found[-1]["level"], "docs/settings.md" in found[-1]["hint"]) == ("fault", True)


def test_doctor_tells_every_fault_it_finds(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("FEEDSTACK_CACHE", str(terminal.folder / "cache"))
    (terminal.folder / ".stack").mkdir()
    (terminal.folder / ".stack" / "cluster.json").write_text("{")
    answer = terminal.run("doctor", "--json")
    assert answer.code == 1
    found = {one["subject"]: one for one in json.loads(answer.out)}
    assert "JAVA_HOME is /nowhere" in found["java"]["text"]
    assert "cluster.json is broken" in found["ports"]["text"]
    assert all(found[subject]["hint"] for subject in ("java", "ports"))
    assert found["cluster"]["text"].startswith("not running")
    assert found["jars"]["level"] == "ok"


def test_doctor_names_a_secret_that_is_not_there(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops.cluster.doctor._clients", lambda _: iter(()))
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    terminal.configure(
        '[kafka]\nbootstrap = "127.0.0.1:1"\n[zookeeper]\nhosts = "127.0.0.1:1"\n'
        '[kafka.settings]\n"sasl.password" = { env = "SHOP_PASSWORD" }\n'
    )
    assert "SHOP_PASSWORD is not set" in terminal.run("doctor").out
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    answer = terminal.run("doctor")
    assert "1 found" in answer.out
    assert "hunter2" not in answer.out + answer.err


class Boom(click.Command):
    """A command that raises what it is given."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("boom", callback=self.boom)
        self.error = error

    def boom(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (FeedstackError("it broke", hint="Mend it."), 1, "stack: it broke\n  Mend it.\n"),
        (FeedstackError("it broke"), 1, "stack: it broke\n"),
        (KeyboardInterrupt(), 130, "stopped\n"),
        (click.Abort(), 130, "stopped\n"),
        (click.exceptions.Exit(3), 3, ""),
    ],
)
def test_how_a_command_ends_is_its_exit_code(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    monkeypatch.setitem(root.commands, "boom", Boom(error))
    answer = terminal.run("boom")
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.lstrip("\n") == said


def test_what_should_not_have_happened_is_no_traceback_unless_asked_for(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(root.commands, "boom", Boom(ZeroDivisionError("by zero")))
    answer = terminal.run("boom")
    assert answer.code == 70
    assert "this should not have happened: ZeroDivisionError: by zero" in answer.err
    assert f"{ops.cli.DEBUG_VARIABLE}=1" in answer.err
    monkeypatch.setenv(ops.cli.DEBUG_VARIABLE, "1")
    with pytest.raises(ZeroDivisionError):
        main(["boom"])
