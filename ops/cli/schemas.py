"""stack schemas check, diff: what a change of a schema would mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.cli.output import say, say_json
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.connection import Stack
    from stack.feeds.avro.schema import AvroSchema
    from stack.feeds.registry.compatibility import Level


@click.group()
def schemas() -> None:
    """Check and compare the schemas of feeds."""


@schemas.command()
@click.argument("feed", required=False)
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--level", help="Judge by this compatibility instead of the subject's own, such as FULL_TRANSITIVE."
)
@json_option
@pass_session
def check(session: Session, feed: str | None, file: Path | None, level: str | None, as_json: bool) -> None:
    """Tell whether schemas may change as the files say; exit code 1 if one may not.

    Without arguments all declared feeds are checked, with FEED one, with FILE that file in place of the
    declared one. Each refusal names the field and the rule.

    \b
    Example:
      stack schemas check
      stack schemas check page-views new-page-view.avsc --level FULL
    """
    from stack.feeds.registry.compatibility import Level
    from stack.feeds.registry.decisions import find_subject_breaks
    from stack.model.feed import value_subject

    wanted = _declared_schemas(session, feed, file)
    asked = _level(level)
    answers = []
    with session.open() as stack:
        state = stack.registry.state()
        for name, (schema, declared) in wanted.items():
            subject = value_subject(name)
            judged = asked or (Level(declared) if declared else state.level(subject))
            same = state.find_text(subject, schema.text)
            breaks = () if same else find_subject_breaks(state, subject, schema, judged)
            answers.append((name, judged, same, breaks))
    refused = [name for name, _, _, breaks in answers if breaks]
    if as_json:
        say_json(
            [
                {
                    "feed": name,
                    "level": str(judged),
                    "registered": same is not None,
                    "compatible": not breaks,
                    "breaks": [{"path": b.path, "rule": b.rule, "message": b.message} for b in breaks],
                }
                for name, judged, same, breaks in answers
            ]
        )
    else:
        for name, judged, same, breaks in answers:
            verdict = f"as registered, version {same.version}" if same else f"may change ({judged})"
            say(f"{'!' if breaks else '='} {name}: {f'refused ({judged})' if breaks else verdict}")
            for one in breaks:
                say(f"    {one.path}: {one.message} [{one.rule}]")
    if refused:
        raise click.exceptions.Exit(1)


def _level(word: str | None) -> Level | None:
    from stack.errors import BadInput
    from stack.feeds.registry.compatibility import Level

    if word is None:
        return None
    try:
        return Level(word.upper())
    except ValueError:
        raise BadInput(f"there is no compatibility {word!r}", hint=f"There are {', '.join(Level)}.") from None


def _declared_schemas(
    session: Session, feed: str | None, file: Path | None
) -> dict[str, tuple[AvroSchema, str | None]]:
    """The schemas to look at, by feed, with the compatibility that the catalogue file declares."""
    from stack.errors import NotFound
    from stack.feeds.declare import read_declarations

    declared = {
        one.spec.name: (one.schema, one.spec.compatibility)
        for one in read_declarations(session.settings.schemas)
    }
    if feed is None:
        return declared
    if feed not in declared and file is None:
        raise NotFound(
            f"schemas/catalog.toml declares no feed {feed!r}", hint=f"It has: {', '.join(declared)}."
        )
    if file is None:
        return {feed: declared[feed]}
    return {feed: (_read(file), declared.get(feed, (None, None))[1])}


def _read(file: Path) -> AvroSchema:
    from stack.errors import BadInput
    from stack.feeds.avro.schema import parse_avro

    try:
        return parse_avro(file.read_text(encoding="utf-8"), where=str(file))
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}", hint="Check the path.") from None
    except UnicodeDecodeError:
        raise BadInput(f"{file} is not UTF-8 text", hint="Save it as UTF-8.") from None


@schemas.command()
@click.argument("feed")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--from",
    "old",
    type=click.IntRange(1),
    metavar="V",
    help="Old version; by default the newest registered.",
)
@click.option(
    "--to", "new", type=click.IntRange(1), metavar="V", help="New version, instead of the declared file."
)
@json_option
@pass_session
def diff(
    session: Session, feed: str, file: Path | None, old: int | None, new: int | None, as_json: bool
) -> None:
    """Show what differs between two versions of a feed's schema, field by field.

    By default between the newest registered version and the declared file.

    \b
    Example:
      stack schemas diff page-views
      stack schemas diff page-views --from 1 --to 2
    """
    from stack.feeds.registry.diff import diff_schemas

    with session.open() as stack:
        before = _version(stack, feed, old)
        after = _version(stack, feed, new) if new else _declared_schemas(session, feed, file)[feed][0]
    changes = diff_schemas(before, after)
    if as_json:
        say_json([{"kind": str(one.kind), "path": one.path, "message": one.sentence} for one in changes])
        return
    for one in changes:
        say(f"  {one.path}: {one.sentence}")
    if not changes:
        say("no difference")


def _version(stack: Stack, feed: str, version: int | None) -> AvroSchema:
    from stack.errors import NotFound
    from stack.model.feed import value_subject

    stack.feed(feed)
    state, subject = stack.registry.state(), value_subject(feed)
    there = [one.version for one in state.versions_of(subject)]
    if version is not None and version not in there:
        numbers = ", ".join(map(str, there))
        raise NotFound(f"the schema of {feed!r} has no version {version}", hint=f"There are: {numbers}.")
    return state.version(subject, version).schema
