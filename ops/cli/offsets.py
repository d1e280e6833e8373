"""stack offsets list, find, annotate: the points that a job has passed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ops.cli.output import note, plural, say, say_json, table
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.model.checkpoint import Checkpoint
    from stack.offsets.points import Point

_LAST_COMMITS = 10


@click.group()
def offsets() -> None:
    """Look at the points that a job has passed, find one by meaning, give one a name.

    Every commit of a job is remembered, with inputs, state and outputs. `commit` and `fetch` are for
    consumers outside the stack: their offsets, with what is said of them. docs/offsets.md tells more.
    """


@offsets.command("list")
@click.argument("job")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=_LAST_COMMITS,
    show_default=True,
    help="So many of the newest commits, beside all named points, versions and rewinds.",
)
@json_option
@pass_session
def list_points(session: Session, job: str, limit: int, as_json: bool) -> None:
    """The timeline of JOB: named points, versions, rewinds and its newest commits.

    \b
    Example:
      stack offsets list count-views
      stack offsets list count-views --limit 100 --json
    """
    from stack.deploy.asking import job_timeline

    with session.open() as stack:
        events, total = job_timeline(stack, job, limit)
    if as_json:
        say_json([one.as_json() for one in events])
        return
    if not events:
        note(f"{job} has not committed anything yet")
        return
    rows = [one.as_row() for one in events]
    table(["when", "point", "version", "what", "state"], rows)
    note(f"{plural(total, 'commit')} known; any of these is a point for --to")


@offsets.command()
@click.argument("job")
@click.argument("values", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--to", "startpoint", metavar="S", help="Any startpoint: @NAME, -2h, a time, v:HASH, main-0#17."
)
@click.option("--at", "moment", metavar="TIME", help="The last commits at a moment.")
@click.option("--version", "version", metavar="HASH", help="Where a version took over.")
@click.option("--name", "name", metavar="NAME", help="A named point.")
@json_option
@pass_session
def find(
    session: Session,
    job: str,
    values: tuple[str, ...],
    startpoint: str | None,
    moment: str | None,
    version: str | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Find one point of JOB: by time, version, name, commit, or by what was said of it.

    \b
    Example:
      stack offsets find count-views --at 2026-03-01T12:00Z
      stack offsets find count-views ticket=OPS-17
    """
    from stack.deploy.asking import find_job_point

    word = one_way(values, startpoint, moment, version, name)
    with session.open() as stack:
        point = find_job_point(stack, job, word, pairs(values))
    _say_point(job, point, as_json)


def one_way(
    values: tuple[str, ...],
    startpoint: str | None,
    moment: str | None,
    version: str | None,
    name: str | None,
    none: str | None = None,
) -> str | None:
    """The startpoint that was meant; None to look for what was said of a point. `none` is what it means to
    say nothing, where that may be."""
    from stack.errors import BadInput

    ways = [
        startpoint,
        moment,
        None if version is None else f"v:{version}",
        None if name is None else f"@{name.removeprefix('@')}",
    ]
    given = [one for one in ways if one is not None]
    if not given and not values and none is not None:
        return none
    if len(given) + bool(values) != 1:
        raise BadInput(
            "say in one way which point is meant",
            hint="One of --to, --at, --name, … or key=value of what was said of it.",
        )
    return given[0] if given else None


def pairs(values: tuple[str, ...]) -> dict[str, str]:
    """What is said as key=value."""
    from stack.errors import BadInput

    found = {}
    for one in values:
        key, sign, value = one.partition("=")
        if not sign or not key:
            raise BadInput(f"{one!r} is not key=value", hint="Such as ticket=OPS-17.")
        found[key] = value
    return found


def _say_point(job: str, point: Point, as_json: bool) -> None:
    from stack.deploy.asking import point_json
    from stack.model.startpoint import format_time

    if as_json:
        say_json(point_json(job, point))
        return
    say(f"{job}: {point.words}")
    rows = []
    for task, one in sorted(point.checkpoints.items()):
        if one is None:
            rows.append([str(task), "-", "-", "-", "before its first commit"])
        else:
            rows.append([str(task), str(one.number), format_time(one.time_ms), one.version, _inputs(one)])
    table(["task", "commit", "when", "version", "reads on at"], rows, right=["commit"])


def _inputs(one: Checkpoint) -> str:
    return ", ".join(
        f"{feed} p{number}@{offset}"
        for feed, point in one.inputs.items()
        for number, offset in list(point.offsets.items())[:4]
    )


@offsets.command()
@click.argument("job")
@click.argument("name")
@click.argument("values", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--reason", default="", help="Why; kept in the audit feed.")
@json_option
@pass_session
def annotate(
    session: Session, job: str, name: str, values: tuple[str, ...], reason: str, as_json: bool
) -> None:
    """Give the point where JOB stands now a name, and say more of it if you like.

    It can be gone back to with `stack rewind JOB --to @NAME`.

    \b
    Example:
      stack offsets annotate count-views before-migration ticket=OPS-17
    """
    from stack.deploy.asking import annotate_job, annotated_json
    from stack.offsets.audit import person

    with session.open() as stack:
        point = annotate_job(stack, job, name, pairs(values), reason=reason, by=person())
    commits = {str(task): one.number for task, one in sorted(point.checkpoints.items())}
    if as_json:
        say_json(annotated_json(point))
        return
    say(f"@{name} is where {job} stands now: {', '.join(f'{t}#{n}' for t, n in commits.items())}")
    if not point.aligned:
        note(
            "its tasks did not come to stand still in time, so this is not one moment of all of them: say it "
            "again when the job has caught up, or pause it first"
        )
