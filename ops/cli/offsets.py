"""stack offsets list, find, annotate: the points that a job has passed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from ops.cli.output import note, plural, say, say_json, table
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.model.checkpoint import Checkpoint
    from stack.offsets.index import CheckpointIndex
    from stack.offsets.points import Point

_LAST_COMMITS = 10


@click.group()
def offsets() -> None:
    """Look at the points that a job has passed, find one by meaning, give one a name.

    Every commit of a job is remembered, with inputs, state and outputs; docs/offsets.md tells more.
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
    from stack.deploy.jobs import jobs_feed
    from stack.offsets.index import CheckpointIndex
    from stack.offsets.timeline import timeline

    with session.open() as stack:
        entry = jobs_feed(stack).get(job)
        with CheckpointIndex(stack) as index:
            index.refresh()
            now_ms = time.time_ns() // 1_000_000
            events = timeline(index, job, limit, entry.spec.settings.horizon_ms, now_ms)
            total = index.count(job)
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
    from stack.deploy.jobs import jobs_feed
    from stack.model.startpoint import parse_job_startpoint
    from stack.offsets.index import CheckpointIndex
    from stack.offsets.points import find_point

    word = _one_way(values, startpoint, moment, version, name)
    with session.open() as stack:
        spec = jobs_feed(stack).get(job).spec
        with CheckpointIndex(stack) as index:
            index.refresh()
            if word is None:
                word = f"@{_said(index, job, _pairs(values))}"
            now_ms = time.time_ns() // 1_000_000
            point = find_point(index, spec, parse_job_startpoint(word, now_ms))
    _say_point(job, point, as_json)


def _one_way(
    values: tuple[str, ...], startpoint: str | None, moment: str | None, version: str | None, name: str | None
) -> str | None:
    """The startpoint that was meant; None to look for what was said of a point."""
    from stack.errors import BadInput

    ways = [
        startpoint,
        moment,
        None if version is None else f"v:{version}",
        None if name is None else f"@{name.removeprefix('@')}",
    ]
    given = [one for one in ways if one is not None]
    if len(given) + bool(values) != 1:
        raise BadInput(
            "say in one way which point is meant",
            hint="One of --to, --at, --version, --name, or key=value of a named point.",
        )
    return given[0] if given else None


def _pairs(values: tuple[str, ...]) -> dict[str, str]:
    from stack.errors import BadInput

    found = {}
    for one in values:
        key, sign, value = one.partition("=")
        if not sign or not key:
            raise BadInput(f"{one!r} is not key=value", hint="Such as ticket=OPS-17.")
        found[key] = value
    return found


def _said(index: CheckpointIndex, job: str, wanted: dict[str, str]) -> str:
    """The newest named point of which all of this was said."""
    from stack.errors import NotFound
    from stack.model.annotation import ALIGNED_PREFIX

    names = [name for name in index.names(job) if not name.startswith(ALIGNED_PREFIX)]
    for name in reversed(names):
        point = index.annotated(job, name)
        if point is not None and wanted.items() <= dict(point.values).items():
            return name
    told = " ".join(f"{key}={value}" for key, value in wanted.items())
    known = ", ".join("@" + name for name in names[-10:]) or "none"
    raise NotFound(f"of no point of job {job!r} was said {told}", hint=f"Named points: {known}.")


def _say_point(job: str, point: Point, as_json: bool) -> None:
    from stack.model.startpoint import format_time
    from stack.offsets.codec import checkpoint_tree

    if as_json:
        say_json(
            {
                "job": job,
                "point": point.words,
                "aligned": point.aligned,
                "time_ms": point.time_ms,
                "checkpoints": {
                    str(task): None if one is None else checkpoint_tree(one)
                    for task, one in sorted(point.checkpoints.items())
                },
            }
        )
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
    from stack.deploy.aligning import stand_of
    from stack.deploy.audit import entry_of, person, write_audit
    from stack.deploy.operate import watch_jobs
    from stack.offsets.naming import name_point, refuse_bad_point

    said_of_it = _pairs(values)
    refuse_bad_point(name, said_of_it)
    with session.open() as stack, watch_jobs(stack) as watch:
        spec = watch.jobs.get(job).spec
        stand = stand_of(stack, watch.nodes.job(job), spec)
        point = name_point(stack, spec, stand, name, said_of_it, by=person())
        said: dict[str, Any] = {"name": name, **point.values}
        write_audit(stack, entry_of("annotate", job, reason, after=said))
    commits = {str(task): one.number for task, one in sorted(point.checkpoints.items())}
    if as_json:
        say_json({"job": job, "name": name, "aligned": point.aligned, "commits": commits})
        return
    say(f"@{name} is where {job} stands now: {', '.join(f'{t}#{n}' for t, n in commits.items())}")
    if not point.aligned:
        note(
            "its tasks did not come to stand still in time, so this is not one moment of all of them: say it "
            "again when the job has caught up, or pause it first"
        )
