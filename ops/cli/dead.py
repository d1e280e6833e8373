"""stack dead list, show, redrive: records that jobs could not get past."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ops.cli.audit import audited
from ops.cli.output import note, plural, progress, say, say_json, table
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.connection import Stack
    from stack.deploy.dead import Found
    from stack.deploy.redrive import RedrivePlan

_LAST_LETTERS = 10
_MOST_CAUSE, _MOST_SHOWN = 90, 2_000

where_option = click.option(
    "--where", metavar="EXPR", help="Only dead letters that fit, such as 'kind = \"code\" and attempt = 1'."
)


@click.group()
def dead() -> None:
    """Look at records that jobs could not get past, and bring them back.

    A job keeps them if its job.toml says on_error = "dead-letter"; docs/errors.md tells more.
    """


@dataclass
class _Group:
    """Dead letters of one job with the same feed, kind and cause."""

    count: int = 0
    redriven: int = 0
    last_ms: int = 0

    def add(self, found: Found) -> None:
        self.count += 1
        self.redriven += found.redriven
        self.last_ms = max(self.last_ms, found.letter.time_ms)


@dead.command("list")
@click.argument("job", required=False)
@where_option
@json_option
@pass_session
def list_letters(session: Session, job: str | None, where: str | None, as_json: bool) -> None:
    """Count the dead letters of all jobs, or of JOB, by feed, kind and cause.

    \b
    Example:
      stack dead list
      stack dead list count-views --where 'time > "2026-03-01T12:00Z" and not redriven'
    """
    from stack.deploy.dead import DeadFeed, filter_letters, jobs_with_letters

    fits = filter_letters(where)
    groups: dict[tuple[str, str, str, str], _Group] = {}
    with session.open() as stack:
        for name in [job] if job else jobs_with_letters(stack):
            for found in DeadFeed(stack, name).letters():
                if fits(found):
                    letter = found.letter
                    key = (name, letter.feed, str(letter.kind), letter.cause)
                    groups.setdefault(key, _Group()).add(found)
    _say_groups(groups, as_json)
    if not groups and not as_json:
        note("no dead letter fits" if where else "no dead letters there")


def _say_groups(groups: dict[tuple[str, str, str, str], _Group], as_json: bool) -> None:
    from stack.model.startpoint import format_time

    rows = [
        {
            "job": job,
            "feed": feed,
            "kind": kind,
            "records": one.count,
            "redriven": one.redriven,
            "last": format_time(one.last_ms),
            "cause": cause,
        }
        for (job, feed, kind, cause), one in sorted(groups.items(), key=lambda item: -item[1].count)
    ]
    if as_json:
        say_json(rows)
    elif rows:
        shown = [{**row, "cause": _short(str(row["cause"]), _MOST_CAUSE)} for row in rows]
        table(list(rows[0]), [list(row.values()) for row in shown], right=["records", "redriven"])


@dead.command()
@click.argument("job")
@click.argument("letters", nargs=-1)
@where_option
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=_LAST_LETTERS,
    show_default=True,
    help="The last N of those that fit.",
)
@json_option
@pass_session
def show(
    session: Session, job: str, letters: tuple[str, ...], where: str | None, limit: int, as_json: bool
) -> None:
    """Show dead letters of JOB with everything that is known of them.

    LETTERS are their names, partition/offset; without any the last few are shown. The value is decoded
    where it can be.

    \b
    Example:
      stack dead show count-views
      stack dead show count-views 0/17 2/4 --json
      stack dead show count-views --where 'cause like "KeyError%"' --limit 3
    """
    from stack.deploy.dead import DeadFeed, filter_letters, parse_position, position_text
    from stack.errors import NotFound

    named = tuple(map(parse_position, letters))
    fits = filter_letters(where, named)
    with session.open() as stack:
        found = deque((one for one in DeadFeed(stack, job).letters() if fits(one)), maxlen=limit)
        missing = [position_text(one) for one in named if one not in {each.position for each in found}]
        if missing and not where:
            raise NotFound(
                f"job {job!r} has no dead letter {', '.join(missing)}",
                hint=f"Dead letters stay for 30 days; `stack dead show {job}` shows the last ones.",
            )
        about = [_about(stack, one) for one in found]
    for one in about:
        if as_json:
            say_json(one)
        else:
            _say_letter(one)
    if not about and not as_json:
        note("no dead letter fits" if where else "no dead letters there")


def _about(stack: Stack, found: Found) -> dict[str, Any]:
    from stack.model.startpoint import format_time

    letter = found.letter
    return {
        "letter": found.name,
        "feed": letter.feed,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": format_time(letter.timestamp_ms),
        "kind": str(letter.kind),
        "cause": letter.cause,
        "line": letter.line,
        "task": letter.task,
        "version": letter.version,
        "time": format_time(letter.time_ms),
        "attempt": letter.attempt,
        "redriven": found.redriven,
        "key": _text(letter.key),
        "headers": {name: _text(text) for name, text in letter.headers},
        "value": _decoded(stack, found),
        "bytes": None if letter.value is None else letter.value.hex(),
        "full_bytes": letter.full_bytes,
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def _decoded(stack: Stack, found: Found) -> Any:
    """The value as JSON, or None where it cannot be decoded."""
    from stack.errors import BadInput
    from stack.feeds.avro.codec import RecordDecoder
    from stack.feeds.rows.rows import value_to_json

    if found.letter.value is None:
        return None
    with contextlib.suppress(BadInput):
        schema = stack.schema(found.letter.feed).schema
        return value_to_json(schema, RecordDecoder(stack.registry, schema).decode(found.letter.value))
    return None


def _say_letter(about: dict[str, Any]) -> None:
    import json

    redriven = ", redriven" if about["redriven"] else ""
    say(f"{about['letter']}  {about['time']}  {about['kind']}, attempt {about['attempt']}{redriven}")
    say(f"  {'cause':<8} {about['cause']}")
    if about["line"]:
        say(f"  {'line':<8} {about['line']}")
    place = f"{about['feed']}, partition {about['partition']}, offset {about['offset']}"
    say(f"  {'record':<8} {place}, {about['timestamp']}")
    say(f"  {'by':<8} task {about['task']}, version {about['version']}")
    say(f"  {'key':<8} {about['key'] if about['key'] is not None else '-'}")
    for name, text in about["headers"].items():
        say(f"  {'header':<8} {name}: {text}")
    if about["value"] is not None:
        say(f"  {'value':<8} {json.dumps(about['value'], ensure_ascii=False, default=str)}")
    elif about["bytes"] is not None:
        say(f"  {'bytes':<8} {_short(about['bytes'], _MOST_SHOWN)}")
    if about["full_bytes"] is not None:
        say(f"  {'cut':<8} it had {about['full_bytes']:,} bytes and is kept in part")


def _short(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


@dead.command()
@click.argument("job")
@click.argument("letters", nargs=-1)
@click.option(
    "--to",
    type=click.Choice(["job", "source"]),
    default="job",
    show_default=True,
    help="Straight to the job's tasks, or into the feeds that they came from, for all who read them.",
)
@where_option
@click.option("--plan", "only_plan", is_flag=True, help="Count what would be done, and change nothing.")
@json_option
@pass_session
def redrive(
    session: Session,
    job: str,
    letters: tuple[str, ...],
    to: str,
    where: str | None,
    only_plan: bool,
    as_json: bool,
) -> None:
    """Bring dead letters of JOB back, all of them or those that LETTERS or --where name.

    Each comes back once: those that were redriven before are left out, and a redrive that was interrupted
    goes on when it is run again. One that cannot be read any more is told, and then nothing is written.

    \b
    Example:
      stack dead redrive count-views --plan
      stack dead redrive count-views --where 'kind = "code" and version = "3f2a91c04d17"'
      stack dead redrive count-views 0/17 --to source
    """
    from stack.deploy.dead import filter_letters, parse_position
    from stack.deploy.redrive import Redrive, To

    fits = filter_letters(where, tuple(map(parse_position, letters)))
    with session.open() as stack:
        one = Redrive(stack, job, To(to), fits)
        plan = one.plan()
        if not as_json:
            _say_plan(plan)
        done = 0
        if not only_plan:
            with progress(f"redriving {job}", plan.total) as bar:
                done = one.run(plan, bar.advance_to)
            audited(stack, "redrive", job, after={"to": to, "records": done, "where": where or ""})
    if as_json:
        counts = [
            {"feed": feed, "kind": kind, "records": count} for (feed, kind), count in plan.counts.items()
        ]
        say_json({"job": job, "to": to, "planned": counts, "redriven_before": plan.already, "redriven": done})
    elif only_plan:
        say(f"{plural(plan.total, 'record')} would go back; nothing was changed")
    else:
        say(f"{plural(done, 'record')} went back")


def _say_plan(plan: RedrivePlan) -> None:
    by_feed: Counter[str] = Counter()
    for (feed, _), count in plan.counts.items():
        by_feed[feed] += count
    for feed, count in by_feed.items():
        kinds = ", ".join(f"{kind} {n:,}" for (name, kind), n in sorted(plan.counts.items()) if name == feed)
        whither = f"to job {plan.job}" if plan.to == "job" else f"into feed {feed}, for all who read it"
        say(f"{plural(count, 'record')} of {feed} {whither} ({kinds})")
    if plan.already:
        note(f"{plan.already:,} were redriven before and are left out")
