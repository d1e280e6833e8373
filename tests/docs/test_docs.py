"""The documentation keeps up with the code: commands, settings, routes, public names and links."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest

import stack
import stack.testing
from ops.cli.root import root
from ops.service.app import create_app
from ops.service.offsets_routes import OffsetsDesk, offsets_router
from ops.simulation.points import crash_table
from stack import settings
from stack.deploy import settings as job_settings
from stack.feeds import declare
from stack.feeds.registry.registry import SchemaRegistry
from stack.model.expression.functions import FUNCTIONS
from stack.model.ledger import MemoryLedger

PROJECT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_RULE = re.compile(r'^\s+"([a-z]+(?:-[a-z]+)+)",$', re.MULTILINE)
# Written in two parts, so that this file does not hold what it looks for.
_UNWANTED = (
    "shared" + "/design",
    "pypi" + ".org",
    "python" + "hosted.org",
    "maven" + ".org",
    "maven" + ".apache.org",
)


def test_the_crash_table_is_the_list_of_the_simulation() -> None:
    _, found, rest = _read("ARCHITECTURE.md").partition("<!-- crash table -->\n")
    assert found
    assert rest.partition("\n<!-- end of crash table -->")[0] == crash_table()


def _read(name: str) -> str:
    return (PROJECT / name).read_text(encoding="utf-8")


def _tracked(*patterns: str) -> list[Path]:
    """The files of the repository, those not added yet included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    try:
        listed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return _without_git(patterns)
    return [file for name in listed.stdout.splitlines() if (file := PROJECT / name).is_file()]


def _without_git(patterns: tuple[str, ...]) -> list[Path]:
    """The same in an unpacked archive, or where there is no git: all files but those of tools."""
    hidden = {".venv", ".stack", ".git", "__pycache__", ".hypothesis", ".mypy_cache", ".ruff_cache"}
    hidden |= {".import_linter_cache", "feedstack.egg-info", "build"}
    files = [file for file in PROJECT.rglob("*") if file.is_file()]
    kept = [file for file in files if not hidden & set(file.relative_to(PROJECT).parts)]
    return [file for file in kept if not patterns or any(file.match(pattern) for pattern in patterns)]


def _commands(command: click.Command, words: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _commands(below, f"{words} {name}")
    else:
        yield words, command


COMMANDS = dict(_commands(root, "stack"))


@pytest.fixture(scope="module")
def pages() -> str:
    return "\n".join(
        [_read("README.md"), *(_read(f"docs/{page.name}") for page in PROJECT.glob("docs/*.md"))]
    )


@pytest.mark.parametrize("words", COMMANDS)
def test_command_has_help_with_an_example(words: str) -> None:
    text = COMMANDS[words].help or ""
    assert "Example:" in text
    assert f"{words} " in f"{text} ".replace("\n", " ")


@pytest.mark.parametrize("words", COMMANDS)
def test_command_and_its_options_are_documented(words: str, pages: str) -> None:
    assert f"`{words}" in pages
    for option in COMMANDS[words].params:
        if isinstance(option, click.Option):
            assert option.help, f"{words} {option.opts[0]} has no help"
            assert re.search(rf"{re.escape(option.opts[0])}\b", pages), f"{words} {option.opts[0]}"


def test_options_of_the_root_are_documented(pages: str) -> None:
    for option in root.params:
        assert option.opts[0] in pages


def test_every_setting_is_documented() -> None:
    page = _read("docs/settings.md")
    tables: dict[str, Iterable[str]] = {
        "": settings._TOP,
        "embedded.": settings._EMBEDDED,
        "spark.": [*settings._SPARK, *settings._INNER_TABLES["spark."]],
        "runner.": settings._RUNNER,
        "http.": settings._HTTP,
        "alarms.": settings._ALARMS,
        "kafka.": [*settings._KAFKA, *settings._INNER_TABLES["kafka."]],
        "zookeeper.": settings._ZOOKEEPER,
    }
    assert {prefix.rstrip(".") for prefix in tables} - {""} == set(settings._TABLES)
    names = [f"{prefix}{key}" for prefix, keys in tables.items() for key in keys]
    assert [key for key in names if f"| `{key}` |" not in page] == []
    own = [*settings._OWN_KAFKA_SETTINGS, *settings._OWN_SPARK_SETTINGS]
    assert [key for key in own if f"`{key}`" not in page] == []


def test_every_key_of_the_catalogue_is_documented() -> None:
    page = _read("docs/feeds.md")
    assert [key for key in declare._KEYS if f"| `{key}` |" not in page] == []


def test_every_key_of_job_toml_is_documented() -> None:
    page = _read("docs/jobs.md")
    keys = [*job_settings._KEYS, *job_settings._STORE_KEYS, *job_settings._INPUT_KEYS]
    assert [key for key in keys if f"| `{key}` |" not in page] == []


def test_every_level_and_rule_is_documented() -> None:
    page = _read("docs/schemas.md")
    rules = _RULE.findall(_read("stack/feeds/registry/compatibility.py"))
    assert len(rules) >= 8
    assert [word for word in (*declare.LEVELS, *rules) if f"`{word}`" not in page] == []


def test_every_function_of_expressions_is_documented() -> None:
    page = _read("docs/expressions.md")
    assert [name for name in FUNCTIONS if f"`{name}(" not in page] == []


def test_every_route_is_documented() -> None:
    page = _read("docs/schemas.md")
    paths = create_app(SchemaRegistry(MemoryLedger())).openapi()["paths"]
    assert len(paths) >= 20
    for path, methods in paths.items():
        shown = " ".join(line.split("|")[1] for line in page.splitlines() if f" {path}`" in line)
        assert [method for method in methods if method.upper() not in shown] == [], path


def test_every_route_of_the_offset_manager_is_documented() -> None:
    page = _read("docs/offsets.md")
    with stack.testing.MemoryStack(feeds={"views": {"schema": {"user": "string"}}}) as kit:
        router = offsets_router(OffsetsDesk(kit.connection))
        own = create_app(SchemaRegistry(MemoryLedger()), router).openapi()["paths"]
    paths = {path: methods for path, methods in own.items() if path.startswith(("/offsets", "/audit"))}
    assert len(paths) >= 7
    for path, methods in paths.items():
        shown = " ".join(line.split("|")[1] for line in page.splitlines() if f" {path}`" in line)
        assert [method for method in methods if method.upper() not in shown] == [], path


def test_every_decision_says_context_choice_and_price() -> None:
    decisions = sorted((PROJECT / "ops/decisions").glob("*.md"))
    assert [int(file.name[:4]) for file in decisions] == list(range(1, len(decisions) + 1))
    for file in decisions:
        text = file.read_text(encoding="utf-8")
        assert all(f"**{word}.**" in text for word in ("Context", "Choice", "Price")), file.name


def test_internal_links_lead_somewhere() -> None:
    broken = []
    for page in _tracked("*.md"):
        for target in _LINK.findall(page.read_text(encoding="utf-8")):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            if not file.exists() or (anchor and anchor not in _anchors(file)):
                broken.append(f"{page.relative_to(PROJECT)}: {target}")
    assert broken == []


def _anchors(page: Path) -> set[str]:
    headings = _HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_public_names_are_what_all_says() -> None:
    modules = {file.stem for file in (PROJECT / "stack").iterdir()}
    module = importlib.import_module("stack")
    assert all(getattr(module, name) is not None for name in stack.__all__)
    visible = {name for name in dir(stack) if not name.startswith("_")}
    assert sorted(stack.__all__) == list(stack.__all__)
    assert visible - modules == set(stack.__all__)
    with pytest.raises(AttributeError, match="module 'stack' has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_importing_the_surface_loads_nothing_heavy() -> None:
    code = (
        "import sys, stack, stack.errors, stack.settings, ops.cluster.supervisor\n"
        "print({'pyarrow', 'numpy', 'confluent_kafka', 'fastavro', 'kazoo'} & set(sys.modules))\n"
        "from stack import Feed, Stack\n"
        "print('confluent_kafka' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "set()\nTrue\n"


def test_the_test_kit_is_documented_and_its_names_are_what_all_says() -> None:
    page = _read("docs/testing.md")
    modules = {file.stem for file in (PROJECT / "stack/testing").iterdir()}
    visible = {name for name in vars(stack.testing) if not name.startswith("_")}
    assert visible - modules == set(stack.testing.__all__)
    methods = [name for name in vars(stack.testing.MemoryStack) if not name.startswith("_")]
    inner = {"close"}
    assert [name for name in methods if name not in inner and not re.search(rf"`{name}\b", page)] == []
    for point, meaning in stack.testing.POINTS.items():
        assert f"| `{point}` | {meaning}" in page


def test_the_examples_of_the_test_kit_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    blocks = re.findall(r"^```python\n(.*?)^```$", _read("docs/testing.md"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        names: dict[str, object] = {}
        exec(block, names)  # noqa: S102
        for name, one in names.items():
            if name.startswith("test_") and callable(one):
                one()


def test_no_file_names_what_must_not_be_named() -> None:
    found = []
    for file in _tracked():
        text = file.read_text(encoding="utf-8", errors="replace")
        found += [f"{file.relative_to(PROJECT)}: {word}" for word in _UNWANTED if word in text]
    assert found == []
