"""stack feeds record: a slice of a feed as a fixture for tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.cli.feeds import feeds
from ops.cli.output import plural, say, say_json
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.feeds.reader import FeedReader
    from stack.model.record import Record

_LIMIT = 10_000
_MOST = 100_000


@feeds.command()
@click.argument("name")
@click.option(
    "--from", "start", metavar="S", default="oldest", show_default=True, help="Where it begins, as for tail."
)
@click.option(
    "--until", metavar="S", default="latest", show_default=True, help="Where it ends: 'latest' is now."
)
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    default=_LIMIT,
    show_default=True,
    metavar="N",
    help="At most so many records.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The file; it must be new."
)
@click.option("--force", is_flag=True, help="Write the file even if there is one.")
@json_option
@pass_session
def record(
    session: Session,
    name: str,
    start: str,
    until: str,
    limit: int,
    out: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Record a slice of a feed as a fixture, for tests of jobs.

    The file holds the schema, keys, times, headers and values as JSON lines. A test plays it with
    stack.play(FILE) of stack.testing. Records that cannot be decoded are kept as bytes.

    \b
    Example:
      stack feeds record page-views --from -10m --limit 500 --out tests/views.jsonl
    """
    from stack.errors import BadInput
    from stack.feeds.fixture import fixture_lines
    from stack.feeds.reader import now_ms
    from stack.model.startpoint import parse_startpoint

    if out.exists() and not force:
        raise BadInput(f"{out} is there already", hint="Choose another name, or write over it with --force.")
    with session.open() as stack, stack.reader(name) as reader:
        moment = now_ms()
        reader.seek(parse_startpoint(start, moment), parse_startpoint(until, moment))
        registered = stack.schema(name)
        taken = _taken(reader, limit)
        lines = list(fixture_lines(reader.spec, registered.schema, registered.version, taken))
        is_whole = reader.done
    part = out.with_name(f".{out.name}.part")
    try:
        part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BadInput(f"{out} cannot be written: {error.strerror}", hint="Check the path.") from None
    count = len(lines) - 1
    if as_json:
        say_json({"feed": name, "file": str(out), "records": count, "whole": is_whole})
    else:
        more = "" if is_whole else f"; there are more, --limit allows {limit:,}"
        say(f"recorded {plural(count, 'record')} of {name} in {out}{more}")


def _taken(reader: FeedReader, limit: int) -> Iterator[tuple[Record, bytes | None]]:
    """The first records of the slice, each with its bytes."""
    left = limit
    while left and not reader.done:
        batch = reader.read(left)
        yield from zip(batch.records_or_faults(), batch.raw.values, strict=True)
        left -= len(batch)
