"""stack feeds generate: synthetic records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ops.cli.feeds import feeds
from ops.cli.output import plural, progress, say, say_json
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.feeds.writer import FeedWriter
    from stack.model.feed import FeedSpec


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
