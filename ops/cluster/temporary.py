"""A stack that lives as long as a block: for the demo, benchmarks and tests."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from ops.cluster import control
from stack.settings import Settings, load_settings

_EXAMPLES = Path(__file__).resolve().parents[2]
EXAMPLE_SCHEMAS = _EXAMPLES / "schemas"


@contextlib.contextmanager
def temporary_folder(name: str, lines: str = "", schemas: Path = EXAMPLE_SCHEMAS) -> Iterator[Settings]:
    """A folder with a stack.toml, schemas and example jobs; at the end its stack is stopped and it goes."""
    with contextlib.ExitStack() as at_the_end:
        at_the_end.enter_context(_terminable())
        folder = Path(tempfile.mkdtemp(prefix=f"feedstack-{name}-"))
        at_the_end.callback(shutil.rmtree, folder, ignore_errors=True)
        shutil.copytree(schemas, folder / "schemas")
        shutil.copytree(_EXAMPLES / "jobs", folder / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "stack.toml").write_text(f'name = "{name}"\n{lines}', encoding="utf-8")
        settings = load_settings(folder / "stack.toml")
        at_the_end.callback(control.down, settings, lambda _: None)
        yield settings


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Within the block SIGTERM ends this process in good order, as Ctrl-C does, and not at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def temporary_stack(
    name: str,
    say: Callable[[str], None],
    lines: str = "",
    brokers: int | None = None,
    schemas: Path = EXAMPLE_SCHEMAS,
) -> Iterator[Settings]:
    """The same with the stack running."""
    with temporary_folder(name, lines, schemas) as settings:
        control.up(settings, brokers, say)
        yield settings
