"""What all stories of the demo are told with: headings, commands that are really run, and a strict ear."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import click

from stack.errors import ClusterFault
from stack.settings import Settings


def head(text: str) -> None:
    """Begin a scene."""
    click.secho(f"\n# {text}", bold=True)


class Story:
    """Runs commands on the demo's own stack, and stops the story if one does not do as expected."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def stack(self, words: str, expect: int = 0, given: str | None = None) -> None:
        """Show a command as it would be typed, and run it."""
        self.show(f"echo '{given}' | stack {words}" if given else f"stack {words}")
        done = subprocess.run(self._command(words), input=given, text=True, check=False, cwd=_project())
        if done.returncode != expect:
            raise ClusterFault(
                f"the demo expected exit code {expect} from `stack {words}`, got {done.returncode}",
                hint="Run `stack doctor`; if it finds nothing, this is a fault of ours: please report it.",
            )

    def background(self, words: str) -> subprocess.Popen[bytes]:
        """Show a command and run it while the story goes on."""
        self.show(f"stack {words} &")
        return subprocess.Popen(
            self._command(words), cwd=_project(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    @staticmethod
    def show(shown: str) -> None:
        """Show what is typed."""
        click.secho(f"$ {shown}", fg="green")

    def _command(self, words: str) -> list[str]:
        return [sys.executable, "-m", "ops", "--config", str(self.settings.file), *shlex.split(words)]


def _project() -> Path:
    return Path(__file__).resolve().parents[2]
