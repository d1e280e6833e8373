"""The root of all commands, with the options that they share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from stack.connection import Stack
    from stack.settings import Settings


@dataclass
class Session:
    """What a command knows before it starts; settings are read when they are first needed."""

    config: Path | None = None

    @cached_property
    def settings(self) -> Settings:
        from stack.settings import load_settings

        return load_settings(self.config)

    @contextmanager
    def open(self) -> Iterator[Stack]:
        """A connection to the stack, closed at the end of the block."""
        from stack.connection import Stack

        with Stack.connect(self.settings) as connection:
            yield connection


pass_session = click.make_pass_decorator(Session, ensure=True)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")


class ReaderGone(Exception):
    """Whoever read our output has left, as `head` does."""


class _Root(click.Group):
    """Click would end with code 1 when a pipe is closed; for us that is a fine end."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderGone from None


@click.group(cls=_Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings file; otherwise $STACK_CONFIG, or the nearest stack.toml at or above this folder.",
)
@click.version_option(package_name="feedstack", prog_name="stack")
@click.pass_context
def root(ctx: click.Context, config: Path | None) -> None:
    """Feeds in Kafka, jobs on Spark, state that can be rewound.

    \b
    First steps:
      stack up                     start Kafka, ZooKeeper and the schema registry on this machine
      stack feeds apply            make the feeds that schemas/catalog.toml declares
      stack feeds generate NAME    fill one with synthetic records
      stack feeds tail NAME        watch it
      stack jobs deploy PATH       run a job over it
      stack down                   stop; all data stays
    """
    ctx.obj = Session(config)


def _add_commands() -> None:
    """Importing a module adds its commands to their group; the groups are added here."""
    from ops.cli import (  # noqa: F401
        audit,
        chaos,
        cluster,
        compose,
        dead,
        feeds,
        generate,
        group_offsets,
        job_steering,
        job_views,
        jobs,
        offsets,
        produce,
        record,
        rewind,
        schemas,
        simulate,
        stories,
        tail,
    )

    groups = (
        feeds.feeds,
        schemas.schemas,
        jobs.jobs,
        dead.dead,
        offsets.offsets,
        rewind.rewind,
        audit.audit,
        stories.demo,
        stories.bench,
        chaos.chaos,
        simulate.simulate,
        compose.compose,
    )
    for command in (*cluster.COMMANDS, *groups):
        root.add_command(command)


_add_commands()
