"""Which stack a child process belongs to: the words of its command line, and back."""

from __future__ import annotations

import argparse
from pathlib import Path

from stack.settings import Settings, load_settings, resolve_paths


def place_words(settings: Settings) -> list[str]:
    """The words that tell a child where its stack is: the settings file, or the folder without one."""
    return ["--config", str(settings.file)] if settings.file else ["--root", str(settings.root)]


def add_place(parser: argparse.ArgumentParser) -> None:
    """Let a child's command line take what `place_words` gives."""
    parser.add_argument("--config", type=Path)
    parser.add_argument("--root", type=Path)


def add_console(parser: argparse.ArgumentParser) -> None:
    """Let a child log to standard error, where somebody else collects that."""
    parser.add_argument("--console", action="store_true")


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings of the stack that the words name."""
    if options.config:
        return load_settings(options.config)
    return resolve_paths(Settings(root=options.root))
