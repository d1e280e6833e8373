"""stack offsets commit, fetch: where consumers outside the stack stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ops.cli.offsets import offsets, one_way, pairs
from ops.cli.output import note, plural, say, say_json, table
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.connection import Stack
    from stack.model.group import GroupCommit

_LAST_COMMITS = 20


@offsets.command()
@click.argument("group")
@click.argument("words", nargs=-1, metavar="[FEED:OFFSETS]... [KEY=VALUE]...")
@click.option("--name", metavar="NAME", help="A name for this commit; the same name again moves it.")
@click.option("--reason", default="", help="Why; kept in the audit feed.")
@click.option(
    "--expect",
    type=click.IntRange(0),
    metavar="N",
    help="Commit only if N is still the newest commit of the group (0: it has none).",
)
@click.option("--whole", is_flag=True, help="What is not named is forgotten; otherwise it stays where it is.")
@click.option("--no-mirror", is_flag=True, help="Leave Kafka's own group of this name alone.")
@json_option
@pass_session
def commit(
    session: Session,
    group: str,
    words: tuple[str, ...],
    name: str | None,
    reason: str,
    expect: int | None,
    whole: bool,
    no_mirror: bool,
    as_json: bool,
) -> None:
    """Commit where GROUP stands in feeds, and what is to be said of it.

    GROUP is any consumer outside the stack. OFFSETS are those of the next records: p0=120,p1=98, or 120 for
    all partitions, oldest, latest, a time, or an age (-2h). Without any, what is said is said of where the
    group stands. Kafka's own group of this name follows, unless consumers are at work in it.

    \b
    Example:
      stack offsets commit nightly-export page-views:p0=120,p1=98 version=3f2a
      stack offsets commit nightly-export page-views:latest --name before-migration --expect 4
    """
    places, said = _sorted_out(words)
    with session.open() as stack:
        given = {feed: _offsets_of(stack, feed, where) for feed, where in places.items()}
        done = stack.offsets(group).commit(
            given,
            name=None if name is None else name.removeprefix("@"),
            reason=reason,
            expect=expect,
            whole=whole,
            mirror=not no_mirror,
            annotations=said,
        )
    if as_json:
        say_json(done.as_json())
        return
    one = done.commit
    say(f"commit {one.number} of {group}{_said_of(one)}: {_places(one)}")
    if done.mirror_fault:
        note(f"the commit stands, but {done.mirror_fault}")


def _sorted_out(words: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str]]:
    """Feeds and where in them, and what is said: whichever of `:` and `=` comes first tells."""
    from stack.errors import BadInput

    places: dict[str, str] = {}
    said: list[str] = []
    for word in words:
        feed, sign, where = word.partition(":")
        if not sign or "=" in feed:
            said.append(word)
        elif feed in places:
            raise BadInput(
                f"feed {feed!r} is named twice", hint="Write all its partitions in one: p0=1,p1=2."
            )
        else:
            places[feed] = where
    return places, pairs(tuple(said))


def _offsets_of(stack: Stack, feed: str, where: str) -> dict[int, int]:
    """Offsets as a person writes them; what is not written as offsets is looked up in the feed."""
    from stack.feeds.reader import now_ms, resolve
    from stack.model.startpoint import AtOffsets, parse_startpoint

    point = parse_startpoint(where, now_ms())
    if isinstance(point, AtOffsets):
        return dict(point.offsets)
    with stack.reader(feed) as reader:
        bounds = reader.bounds()
        topic = stack.topic_of(feed, reader.spec.version)
        return resolve(point, bounds, lambda ms: stack.admin.offsets_at(topic, len(bounds), ms))


@offsets.command()
@click.argument("group", required=False)
@click.argument("values", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--to", "startpoint", metavar="S", help="Any startpoint: @NAME, -2h, a time, #17, p0=120,p1=98."
)
@click.option("--at", "moment", metavar="TIME", help="The last commit at a moment.")
@click.option("--name", "name", metavar="NAME", help="The newest commit with this name.")
@click.option("--list", "as_list", is_flag=True, help="The newest commits instead of one.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=_LAST_COMMITS,
    show_default=True,
    help="With --list: so many.",
)
@json_option
@pass_session
def fetch(
    session: Session,
    group: str | None,
    values: tuple[str, ...],
    startpoint: str | None,
    moment: str | None,
    name: str | None,
    as_list: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Where GROUP stands, or stood: its newest commit, or one by time, name, number, or what was said of it.

    Without GROUP: all groups.

    \b
    Example:
      stack offsets fetch nightly-export
      stack offsets fetch nightly-export version=3f2a
      stack offsets fetch nightly-export --at -2h --json
    """
    from stack.errors import BadInput

    with session.open() as stack:
        if group is None:
            _say_groups(stack, as_json)
            return
        known = stack.offsets(group)
        word = one_way(values, startpoint, moment, None, name, none="latest")
        if as_list and word != "latest":
            raise BadInput("--list shows the newest commits", hint="Leave it out to find one of them.")
        if as_list:
            _say_history(known.history(limit), group, as_json)
            return
        found = known.fetch(word) if word is not None else known.fetch(annotations=pairs(values))
        _say_commit(stack, found, as_json)


def _say_groups(stack: Stack, as_json: bool) -> None:
    from stack.errors import NotFound
    from stack.model.startpoint import format_time
    from stack.offsets.group_index import GroupIndex

    try:
        with GroupIndex(stack) as index:
            index.refresh()
            found = index.newest_of_all()
    except NotFound:
        found = []
    if as_json:
        say_json([one.as_json() for one in found])
        return
    if not found:
        note("no group has committed anything on this stack yet")
        return
    rows = [[one.group, one.number, format_time(one.time_ms), one.by, _places(one)] for one in found]
    table(["group", "commit", "when", "by", "stands at"], rows, right=["commit"])


def _say_history(found: list[GroupCommit], group: str, as_json: bool) -> None:
    from stack.model.startpoint import format_time

    if as_json:
        say_json([one.as_json() for one in found])
        return
    if not found:
        note(f"{group} has not committed anything yet")
        return
    rows = [
        [f"#{one.number}", format_time(one.time_ms), one.by, _said_of(one).strip(), _places(one), one.reason]
        for one in found
    ]
    table(["commit", "when", "by", "said", "stands at", "why"], rows)
    note(f"{plural(found[0].number, 'commit')} in all; any of these is a point for --to")


def _say_commit(stack: Stack, one: GroupCommit, as_json: bool) -> None:
    from stack.deploy.lag import commit_lags
    from stack.model.startpoint import format_time

    lags = commit_lags(stack, one)
    if as_json:
        say_json({**one.as_json(), "lag": [lag.as_json() for lag in lags]})
        return
    say(f"commit {one.number} of {one.group}{_said_of(one)}, by {one.by}, {format_time(one.time_ms)}")
    rows = [[lag.feed, lag.partition, lag.committed, lag.end, lag.records] for lag in lags]
    right = ["partition", "offset", "end", "lag"]
    table(["feed", *right], rows, right=right)


def _said_of(one: GroupCommit) -> str:
    words = [] if one.name is None else [f"@{one.name}"]
    words += [f"{key}={value}" for key, value in one.annotations.items()]
    return f" {' '.join(words)}" if words else ""


def _places(one: GroupCommit, most: int = 4) -> str:
    told = []
    for feed, places in one.offsets.items():
        some = ",".join(f"p{number}={offset}" for number, offset in list(places.items())[:most])
        told.append(f"{feed}:{some}{',…' if len(places) > most else ''}")
    return " ".join(told)
