"""stack feeds tail, produce, generate: the records themselves."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from ops.cli.feeds import feeds
from ops.cli.output import note, plural, progress, say, say_json
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.connection import Stack
    from stack.feeds.reader import FeedReader
    from stack.feeds.writer import FeedWriter
    from stack.model.feed import FeedSpec
    from stack.model.record import Record

_LAST_RECORDS = 10
_DEAD_RETENTION_MS = 30 * 86_400_000


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
    with session.open() as stack, stack.reader(name) as reader:
        fits = _filter(reader, where, key)
        _seek(reader, start, until, key)
        shape = _json_line(reader) if as_json else _text_line(reader)
        shown = 0
        with contextlib.suppress(KeyboardInterrupt):
            for batch in reader.batches():
                for record in batch.records_or_faults():
                    if fits(record):
                        say(shape(record))
                        shown += 1
                        if shown == limit:
                            return
                sys.stdout.flush()
        if not shown and not as_json:
            note("no record fits" if where or key else "no records there")


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
        tests.append(lambda record: str(record.key) == key)
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
        return json.dumps(about, ensure_ascii=False, default=str)

    return line


def _text_line(reader: FeedReader) -> Callable[[Record], str]:
    from stack.errors import BadRecord
    from stack.feeds.rows.rows import value_to_json
    from stack.model.startpoint import format_time

    schema = reader.schema

    def line(record: Record) -> str:
        place = f"{format_time(record.timestamp_ms)}  p{record.partition}@{record.offset}"
        if isinstance(record.value, BadRecord):
            return f"{place}  {record.key}  BAD {record.value.message}"
        if record.value is None or schema is None:
            return f"{place}  {record.key}  deleted"
        value = json.dumps(value_to_json(schema, record.value), ensure_ascii=False, default=str)
        return f"{place}  {record.key if record.key is not None else '-'}  {value}"

    return line


@feeds.command()
@click.argument("name")
@click.argument("file", default="-")
@click.option(
    "--format", "row_format", type=click.Choice(["jsonl", "csv"]), help="By default from the file's ending."
)
@click.option(
    "--on-bad",
    type=click.Choice(["stop", "skip", "dead"]),
    default="stop",
    show_default=True,
    help="Stop at a bad line, skip it, or keep it in NAME.dead with the cause.",
)
@click.option("--from-line", type=click.IntRange(1), default=1, help="Begin at this line of the input.")
@json_option
@pass_session
def produce(
    session: Session, name: str, file: str, row_format: str | None, on_bad: str, from_line: int, as_json: bool
) -> None:
    """Write the lines of FILE, or of standard input, to a feed: JSON lines or CSV with a header.

    Every record is checked against the feed's schema; a fault names the line and the field. With --on-bad
    stop a file is checked whole before its first record is written.

    \b
    Example:
      stack feeds produce page-views views.jsonl
      stack feeds produce page-views views.csv --on-bad dead
      head -n 100 views.jsonl | stack feeds produce page-views
    """
    from stack.feeds.produce import LineMemory, OnBad, Produced, check_rows, write_rows

    policy = OnBad(on_bad)
    form = row_format or ("csv" if file.endswith(".csv") else "jsonl")
    with (
        session.open() as stack,
        _dead_letters(stack, name, file, policy) as dead,
        stack.writer(name) as writer,
    ):
        schema = stack.schema(name).schema
        if file != "-" and policy is OnBad.STOP:
            with _open_input(file) as stream, progress(f"checking {file}", None) as line:
                rows = LineMemory(stream, from_line).rows(form, schema)
                check_rows(rows, writer, lambda seen: line.advance_to(seen.rows))
        with _open_input(file) as stream, progress(f"writing to {name}", None) as line:
            memory = LineMemory(stream, from_line)

            def moved(seen: Produced) -> None:
                line.advance_to(seen.rows)

            rows = memory.rows(form, schema)
            seen = write_rows(
                rows, writer, policy, lambda at, fault: dead(at, memory.since(at), fault), moved
            )
    if as_json:
        say_json({"written": seen.written, "bad": seen.bad, "first_fault": seen.first_fault or None})
        return
    say(f"wrote {plural(seen.written, 'record')} to {name}")
    if seen.bad:
        kept = f"kept in {name}.dead" if policy is OnBad.DEAD else "skipped"
        say(f"{plural(seen.bad, 'bad line')} {kept}; the first: {seen.first_fault}")


@contextlib.contextmanager
def _open_input(file: str) -> Iterator[IO[bytes]]:
    from stack.errors import BadInput

    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}", hint="Check the path.") from None
    with stream:
        yield stream


@contextlib.contextmanager
def _dead_letters(stack: Stack, name: str, source: str, policy: str) -> Iterator[Callable[..., None]]:
    from stack.feeds.produce import DeadRows, OnBad, dead_feed
    from stack.kafka.admin import TopicPlan
    from stack.kafka.writer import LogWriter

    if policy != OnBad.DEAD:
        yield lambda *_: None
        return
    stack.feed(name)
    topic = stack.topic_of(dead_feed(name))
    stack.admin.create([TopicPlan(topic, 1, {"retention.ms": str(_DEAD_RETENTION_MS)})])
    with LogWriter(stack.access) as log:
        yield DeadRows(log, topic, "standard input" if source == "-" else source).write


@feeds.command()
@click.argument("name")
@click.option("--count", type=click.IntRange(1), help="How many records; without it, until Ctrl-C.")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Records per second; without it, as fast as it goes.",
)
@click.option(
    "--keys", type=click.IntRange(1), default=1000, show_default=True, help="How many different keys."
)
@click.option(
    "--skew",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="0: all keys alike; 1: a few get most.",
)
@click.option("--seed", type=int, default=None, help="The same seed makes the same records.")
@json_option
@pass_session
def generate(
    session: Session,
    name: str,
    count: int | None,
    rate: float | None,
    keys: int,
    skew: float,
    seed: int | None,
    as_json: bool,
) -> None:
    """Fill a feed with synthetic records that fit its schema.

    \b
    Example:
      stack feeds generate page-views --count 100000 --keys 5000 --skew 1.1
      stack feeds generate page-views --rate 200
    """
    from stack.feeds.reader import now_ms
    from stack.feeds.synthetic.generate import Generator

    if count is None and rate is None:
        raise click.UsageError("give --count, --rate or both: without them it would fill the disk")
    with session.open() as stack, stack.writer(name) as writer:
        spec = writer.spec
        start_ms, pace = _times(spec, count, rate, now_ms())
        generator = Generator(
            stack.schema(name).schema,
            seed=time.time_ns() if seed is None else seed,
            keys=keys,
            skew=skew,
            key_field=spec.key.field if spec.key else None,
            event_time=spec.event_time,
            start_ms=start_ms,
            rate_per_s=pace,
        )
        with progress(f"writing to {name}", count) as line, contextlib.suppress(KeyboardInterrupt):
            _generate(generator.next, writer, count, rate, line.advance_to)
        writer.flush()
    if as_json:
        say_json({"written": writer.written})
    else:
        say(f"wrote {plural(writer.written, 'record')} to {name}")


def _times(spec: FeedSpec, count: int | None, rate: float | None, now: int) -> tuple[int, float]:
    """When the first record happened, and how many happen a second.

    At a given rate time goes on from now. Without one the records end now: none lies in the future, and
    none is older than half of what the feed keeps.
    """
    from stack.model.feed import Events

    if rate is not None or count is None:
        return now, rate or 1000.0
    span_ms = count
    if isinstance(spec.storage, Events) and spec.storage.retention_ms is not None:
        span_ms = max(1, min(count, spec.storage.retention_ms // 2))
    return now - span_ms, count / span_ms * 1000


def _generate(
    make: Callable[[], Any],
    writer: FeedWriter,
    count: int | None,
    rate: float | None,
    moved: Callable[[int], None],
) -> None:
    """Write generated records, paced so that at any moment rate x time of them are written."""
    begun = time.monotonic()
    done = 0
    while count is None or done < count:
        due = 1000 if rate is None else int((time.monotonic() - begun) * rate) - done
        if due <= 0:
            time.sleep(min(0.05, 1 / (rate or 1)))
            continue
        due = min(due, 1000, (count - done) if count is not None else due)
        writer.write_encoded([writer.encode(make()) for _ in range(due)])
        if rate is not None:
            writer.send()
        done += due
        moved(done)
