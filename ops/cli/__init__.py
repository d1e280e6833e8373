"""The command `stack`: every verb of the stack for a person at a terminal."""

from __future__ import annotations

import os
import sys

from ops.cli.output import fail
from ops.cli.root import ReaderGone, root

DEBUG_VARIABLE = "STACK_DEBUG"


def main(arguments: list[str] | None = None) -> None:
    """Run one command; a fault is printed with what to do next, never as a traceback."""
    import click

    from stack.errors import FeedstackError

    _open_closed_streams()
    words = sys.argv[1:] if arguments is None else arguments
    try:
        code = root.main(words, prog_name="stack", standalone_mode=False)
    except click.exceptions.Exit as leave:
        code = leave.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        code = 130
    except FeedstackError as error:
        code = fail(error, as_json="--json" in words)
    except ReaderGone:
        code = _reader_is_gone()
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        click.echo(f"stack: this should not have happened: {type(error).__name__}: {error}", err=True)
        click.echo(f"  Run it again with {DEBUG_VARIABLE}=1 for the whole story, and report it.", err=True)
        code = 70
    sys.exit(code if isinstance(code, int) else 0)


def _open_closed_streams() -> None:
    """A shell may close standard output (`>&-`): Python then has none, and every print would fail."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _reader_is_gone() -> int:
    """`stack feeds tail … | head` is a fine way to stop; the interpreter must not complain at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
