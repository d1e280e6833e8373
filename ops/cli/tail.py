"""stack feeds tail: the records of a feed."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ops.cli.feeds import feeds
from ops.cli.output import note, say
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.connection import Stack
    from stack.feeds.reader import FeedReader
    from stack.model.record import Record

_LAST_RECORDS = 10


@feeds.command()
@click.argument("name")
@click.option(
    "--from", "start", metavar="S", help="oldest, latest, an offset, p0=120,p1=98, a time, or -10m."
)
@click.option(
    "--until", metavar="S", help="The same; reading ends exactly there. 'latest' is the end as of now."
)
@click.option(
    "--where", metavar="EXPR", help="Only records that fit, such as 'load > 3 and page like \"/p/%\"'."
)
@click.option("--key", metavar="K", help="Only records with this key.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Stop after N records.")
@json_option
@pass_session
def tail(
    session: Session,
    name: str,
    start: str | None,
    until: str | None,
    where: str | None,
    key: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print records of a feed.

    Without --from it prints the last few and follows. --until and --limit end it; so does Ctrl-C.

    \b
    Example:
      stack feeds tail page-views
      stack feeds tail page-views --from -10m --until latest --where 'load > 3' --json
      stack feeds tail page-views --from oldest --key user-0000007 --limit 5
    """
    with session.open() as stack, contextlib.suppress(KeyboardInterrupt):
        if _is_dead(stack, name):
            if where is not None or key is not None:
                raise click.UsageError("rows in a dead feed are not records: --where and --key do not apply")
            with dead_reader(stack, name) as reader:
                _seek(reader, start, until, None)
                shown = _show(_dead_lines(reader, as_json), limit)
        else:
            with stack.reader(name) as reader:
                fits = _filter(reader, where, key)
                _seek(reader, start, until, key)
                shown = _show(_lines(reader, fits, as_json), limit)
        if not shown and not as_json:
            note("no record fits" if where or key else "no records there")


def _show(lines: Iterator[str | None], limit: int | None) -> int:
    """Print lines up to the limit; None stands between batches, when a reader may want to see them."""
    shown = 0
    for line in lines:
        if line is None:
            sys.stdout.flush()
            continue
        say(line)
        shown += 1
        if shown == limit:
            break
    return shown


def _lines(reader: FeedReader, fits: Callable[[Record], bool], as_json: bool) -> Iterator[str | None]:
    shape = _json_line(reader) if as_json else _text_line(reader)
    for batch in reader.batches():
        for record in batch.records_or_faults():
            if fits(record):
                yield shape(record)
        yield None


def _is_dead(stack: Stack, name: str) -> bool:
    from stack.feeds.produce import DEAD_SUFFIX

    return name.endswith(DEAD_SUFFIX) and name.removesuffix(DEAD_SUFFIX) in stack.catalogue.feeds()


def dead_reader(stack: Stack, name: str) -> FeedReader:
    """A reader of the bad rows of a feed; they are bytes as they came, not Avro."""
    from stack.feeds.produce import dead_spec
    from stack.feeds.reader import FeedReader

    topic = stack.topic_of(name)
    return FeedReader(
        stack.access, stack.admin, dead_spec(name), topic=topic, schemas=stack.registry, schema=None
    )


def _dead_lines(reader: FeedReader, as_json: bool) -> Iterator[str | None]:
    from stack.model.startpoint import format_time

    for batch in reader.batches():
        for message in batch.raw.messages:
            about = {word: (text or b"").decode("utf-8", "replace") for word, text in message.headers() or ()}
            row = (message.value() or b"").decode("utf-8", "replace")
            moment = format_time(message.timestamp()[1])
            if as_json:
                yield json.dumps({"offset": message.offset(), "time": moment, **about, "row": row})
            else:
                place = f"{about.get('source')}, line {about.get('line')}"
                yield f"{moment}  @{message.offset()}  {place}: {about.get('cause')}\n    {row}"
        yield None


def _seek(reader: FeedReader, start: str | None, until: str | None, key: str | None) -> None:
    from stack.feeds.keys import text_key
    from stack.feeds.reader import now_ms
    from stack.model.feed import KeyFormat
    from stack.model.partitioner import partition_of
    from stack.model.startpoint import AtOffsets, parse_startpoint

    now = now_ms()
    bounds = reader.bounds()
    end = parse_startpoint(until, now) if until else None
    if start is not None:
        begin = parse_startpoint(start, now)
    elif until is not None or key is not None:
        begin = parse_startpoint("oldest", now)
    else:
        share = -(-_LAST_RECORDS // len(bounds))
        begin = AtOffsets({number: max(b.low, b.high - share) for number, b in bounds.items()})
    partitions = None
    spec = reader.spec
    if key is not None and spec.key is not None and spec.key.format is KeyFormat.UTF8:
        # A key lives in one partition: the others need not be read.
        partitions = [partition_of(text_key(key) or b"", len(bounds))]
    reader.seek(begin, end, partitions)


def _filter(reader: FeedReader, where: str | None, key: str | None) -> Callable[[Record], bool]:
    from stack.errors import BadRecord
    from stack.model.expression import check_against, compile_expression, parse_expression

    tests: list[Callable[[Record], bool]] = []
    if key is not None:
        wanted = (key, _as_shown(key))
        tests.append(lambda record: record.key is not None and _key_text(record.key) in wanted)
    if where is not None:
        expression = parse_expression(where)
        check_against(expression, reader.schema.tree if reader.schema else None)
        fits = compile_expression(expression)

        def by_expression(record: Record) -> bool:
            if record.value is None or isinstance(record.value, BadRecord):
                return False
            about = {
                "_key": record.key,
                "_partition": record.partition,
                "_offset": record.offset,
                "_timestamp": record.timestamp_ms,
            }
            return fits(record.value, about)

        tests.append(by_expression)
    return lambda record: all(test(record) for test in tests)


def _json_line(reader: FeedReader) -> Callable[[Record], str]:
    from stack.errors import BadRecord
    from stack.feeds.rows.rows import value_to_json
    from stack.model.startpoint import format_time

    schema = reader.schema

    def line(record: Record) -> str:
        about: dict[str, Any] = {
            "partition": record.partition,
            "offset": record.offset,
            "time": format_time(record.timestamp_ms),
            "key": record.key,
        }
        if isinstance(record.value, BadRecord):
            about["bad"] = record.value.message
        else:
            about["value"] = (
                None if record.value is None or schema is None else value_to_json(schema, record.value)
            )
        return _json_text(about)

    return line


def _text_line(reader: FeedReader) -> Callable[[Record], str]:
    from stack.errors import BadRecord
    from stack.feeds.rows.rows import value_to_json
    from stack.model.startpoint import format_time

    schema = reader.schema

    def line(record: Record) -> str:
        place = f"{format_time(record.timestamp_ms)}  p{record.partition}@{record.offset}"
        if isinstance(record.value, BadRecord):
            return f"{place}  {_key_text(record.key)}  BAD {record.value.message}"
        if record.value is None or schema is None:
            return f"{place}  {_key_text(record.key)}  deleted"
        value = _json_text(value_to_json(schema, record.value))
        return f"{place}  {_key_text(record.key)}  {value}"

    return line


def _key_text(key: Any) -> str:
    """A key as it is shown and as --key takes it; one with fields is JSON."""
    if key is None:
        return "-"
    return _json_text(key) if isinstance(key, dict | list | bool) else str(key)


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _as_shown(text: str) -> str:
    """What somebody typed as --key, spaced as it is shown if it is a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _json_text(value) if isinstance(value, dict | list) else text
