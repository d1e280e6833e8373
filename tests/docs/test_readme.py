"""The README is run: every console block and every Python block, in order, on a stack of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops.cluster.temporary import temporary_folder

_PROJECT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(console|python|output)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND_LIMIT_S = 150


@dataclass(frozen=True)
class Example:
    """A command or a script of the README, and the output that it promises (None: no promise)."""

    program: tuple[str, ...]
    shown: str
    promised: str | None


def _examples(text: str) -> Iterator[Example]:
    blocks = _BLOCK.findall(text)
    for index, (kind, body) in enumerate(blocks):
        if kind == "console":
            yield from _commands(body)
        elif kind == "python":
            following = blocks[index + 1] if index + 1 < len(blocks) else ("", "")
            promised = following[1] if following[0] == "output" else None
            yield Example((sys.executable, "-c", body), body, promised)


def _commands(body: str) -> Iterator[Example]:
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, promised = part.partition("\n")
        yield Example(("bash", "-c", command), command, promised)


def _fits(promised: str, output: str) -> bool:
    """Whether the output is the promised one, line breaks included; `…` stands for any text."""
    pattern = ".*".join(re.escape(part) for part in promised.strip().split("…"))
    return re.fullmatch(pattern, output.strip(), re.DOTALL) is not None


def _run(example: Example, folder: Path) -> str:
    done = subprocess.run(
        example.program,
        cwd=folder,
        # The venv's commands come first, and the packages are found also where they are not installed.
        env={
            **{name: value for name, value in os.environ.items() if name != "STACK_CONFIG"},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(_PROJECT),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_COMMAND_LIMIT_S,
        check=False,
    )
    return done.stdout


def test_wildcard_stands_for_any_text_and_nothing_else() -> None:
    assert _fits("a … c\n", "a b\nb c")
    assert not _fits("a … c\n", "a b\nd")
    assert not _fits("a.c", "abc")


def test_readme_has_commands_from_up_to_down() -> None:
    shown = [one.shown for one in _examples((_PROJECT / "README.md").read_text("utf-8"))]
    commands = [one for one in shown if one.startswith("stack ")]
    assert shown[0] == commands[0] == "stack up"
    assert commands[-1] == "stack down"
    assert any("from stack import" in one for one in shown)


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_readme_runs_as_written() -> None:
    with temporary_folder("feedstack") as settings:
        for example in _examples((_PROJECT / "README.md").read_text("utf-8")):
            output = _run(example, settings.root)
            if example.promised is not None and not _fits(example.promised, output):
                pytest.fail(f"$ {example.shown}\n\npromised:\n{example.promised}\ngot:\n{output}")
