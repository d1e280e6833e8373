"""stack audit: who asked what of which job or group."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ops.cli.output import note, say_json, table
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.connection import Stack

_LAST = 50
_MOST_TEXT = 80


@click.command()
@click.argument("job", required=False)
@click.option("--what", metavar="WORD", help="Only this kind: deploy, scale, rewind, annotate, commit, …")
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=_LAST, show_default=True, help="The last N."
)
@json_option
@pass_session
def audit(session: Session, job: str | None, what: str | None, limit: int, as_json: bool) -> None:
    """What people asked of all jobs, or of JOB: who, when, what, why, from where to where.

    Commits of offsets stand under the name of their group.

    \b
    Example:
      stack audit
      stack audit count-views --what rewind --json
    """
    from stack.model.startpoint import format_time
    from stack.offsets.audit import read_audit

    with session.open() as stack:
        found = [
            one
            for one in read_audit(stack)
            if (job is None or one.job == job) and (what is None or one.what == what)
        ][-limit:]
    if as_json:
        say_json([asdict(one) for one in found])
        return
    if not found:
        note("nothing there")
        return
    rows = [
        [format_time(one.time_ms), one.by, one.what, one.job, _short(dict(one.after)), one.reason]
        for one in found
    ]
    table(["when", "who", "what", "of", "to", "why"], rows)


def _short(tree: dict[str, object]) -> str:
    said = tree.get("annotations")
    told = {**tree, **(said if isinstance(said, dict) else {})}
    told = {key: value for key, value in told.items() if value is not None and not isinstance(value, dict)}
    text = " ".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in told.items()
    )
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"


def audited(
    stack: Stack,
    what: str,
    job: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Note in the audit feed what was just asked of a job."""
    from stack.offsets.audit import entry_of, write_audit

    write_audit(stack, entry_of(what, job, before=before, after=after))
