"""stack feeds apply, list, show, graph: what feeds there are and should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ops.cli.output import note, say, say_json, table
from ops.cli.root import Session, json_option, pass_session

if TYPE_CHECKING:
    from stack.connection import Stack
    from stack.feeds.plan import Step
    from stack.kafka.admin import Bounds
    from stack.model.feed import FeedSpec
    from stack.model.freshness import Freshness

_SIGNS = {"create": "+", "change": "~", "keep": "=", "remove": "-", "refuse": "!"}


@click.group()
def feeds() -> None:
    """Make, fill and read feeds.

    Feeds are declared in schemas/catalog.toml, with an Avro schema each.
    """


@feeds.command()
@click.option("--plan", "only_plan", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--allow-destroy", is_flag=True, help="Permit steps that lose records: shrink, re-key, remove.")
@click.option("--allow-grow", is_flag=True, help="Permit more partitions for a keyed feed (keys move).")
@click.option("--adopt", is_flag=True, help="Take topics that exist already into this stack's catalogue.")
@json_option
@pass_session
def apply(
    session: Session, only_plan: bool, allow_destroy: bool, allow_grow: bool, adopt: bool, as_json: bool
) -> None:
    """Make the feeds what schemas/catalog.toml declares.

    Shows the plan first: + create, ~ change, - remove, = keep, ! refuse. If anything is refused, nothing is
    changed. Running it again changes nothing. Records are never lost without --allow-destroy.

    \b
    Example:
      stack feeds apply --plan
      stack feeds apply
    """
    from stack.feeds.declare import read_declarations
    from stack.feeds.plan import Action, Allowed

    declarations = read_declarations(session.settings.schemas)
    allowed = Allowed(destroy=allow_destroy, grow=allow_grow, adopt=adopt)
    with session.open() as stack:
        steps = stack.applier.plan(declarations, allowed)
        if not as_json:
            _show_plan(steps)
        refused = sum(step.action is Action.REFUSE for step in steps)
        if not only_plan and not (refused and not as_json):
            stack.applier.apply(declarations, steps, lambda _: None)
    changed = [step for step in steps if step.action is not Action.KEEP]
    if as_json:
        say_json({"applied": not only_plan, "steps": [_step_json(step) for step in steps]})
    elif refused:
        note(f"{refused} of {len(steps)} feeds refused: nothing was changed")
    elif only_plan:
        say("nothing was changed: this is the plan" if changed else "all feeds are as declared")
    else:
        say(f"applied {len(changed)} of {len(steps)} feeds" if changed else "all feeds are as declared")
    if refused:
        raise click.exceptions.Exit(1)


def _show_plan(steps: Sequence[Step]) -> None:
    for step in steps:
        say(f"{_SIGNS[step.action]} {step.action:<7} {step.feed}")
        for reason in step.reasons:
            say(f"            {reason}")
        if step.hint:
            say(f"            {step.hint}")


def _step_json(step: Step) -> dict[str, Any]:
    return {"feed": step.feed, "action": str(step.action), "reasons": list(step.reasons), "hint": step.hint}


@feeds.command("list")
@click.option("--all", "with_own", is_flag=True, help="Also the feeds that the stack keeps for itself.")
@json_option
@pass_session
def list_feeds(session: Session, with_own: bool, as_json: bool) -> None:
    """List all feeds, and topics that exist but are not declared.

    \b
    Example:
      stack feeds list
    """
    with session.open() as stack:
        rows = _feed_rows(stack, with_own)
    if as_json:
        say_json(rows)
        return
    if not rows:
        say("no feeds yet; declare some in schemas/catalog.toml and run `stack feeds apply`")
        return
    table(
        ["feed", "kind", "partitions", "records", "keeps", "key", "owner", "for"],
        [
            [row[k] for k in ("feed", "kind", "partitions", "records", "keeps", "key", "owner", "for")]
            for row in rows
        ],
        right=["partitions", "records"],
    )


def _feed_rows(stack: Stack, with_own: bool) -> list[dict[str, Any]]:
    from stack.feeds.plan import describe_storage

    declared = {stack.topic_of(spec.name, spec.version): spec for spec in stack.catalogue.feeds().values()}
    prefix = stack.settings.topic_prefix
    names = {name for name in stack.admin.topic_names() if name.startswith(prefix)}
    if not with_own:
        names = {name for name in names if not name.startswith("_")}
    topics = stack.admin.describe(sorted(names | set(declared)))
    rows = []
    for name in sorted(names | set(declared)):
        spec, topic = declared.get(name), topics.get(name)
        records = (
            sum(b.high - b.low for b in stack.admin.bounds(name, range(topic.partitions)).values())
            if topic
            else None
        )
        rows.append(
            {
                "feed": spec.name if spec else name,
                "kind": str(spec.kind) if spec else _kind_of_undeclared(name),
                "partitions": topic.partitions if topic else 0,
                "records": records if topic else "topic is gone",
                "keeps": describe_storage(spec) if spec else "",
                "key": spec.key.field if spec and spec.key else "",
                "owner": spec.owner if spec else "",
                "for": spec.purpose if spec else "",
            }
        )
    return rows


def _kind_of_undeclared(topic: str) -> str:
    if topic.startswith("_"):
        return "stack"
    return "dead" if topic.endswith(".dead") else "undeclared"


@feeds.command()
@click.argument("name")
@json_option
@pass_session
def show(session: Session, name: str, as_json: bool) -> None:
    """Show all about one feed: declaration, schema, offsets of every partition, topic settings.

    \b
    Example:
      stack feeds show page-views
    """
    from stack.errors import NotFound
    from stack.model.freshness import freshness_to_json

    with session.open() as stack:
        spec = stack.feed(name)
        topic_name = stack.topic_of(name, spec.version)
        topic = stack.admin.describe([topic_name]).get(topic_name)
        if topic is None:
            raise NotFound(
                f"feed {name!r} is in the catalogue, but its topic {topic_name!r} was deleted",
                hint="`stack feeds apply` makes it anew, empty.",
            )
        bounds = stack.admin.bounds(topic_name, range(topic.partitions))
        registered = stack.schema(name)
        settings = stack.admin.settings([topic_name])[topic_name]
        freshness = _freshness(stack, spec)
    about = {
        **_spec_json(spec),
        "topic": topic_name,
        "topic_id": topic.id,
        "replication": topic.replication,
        "schema_id": registered.id,
        "schema_version": registered.version,
        "fields": [{"name": one["name"], "type": one["type"]} for one in registered.schema.tree["fields"]],
        "partitions": {str(n): {"oldest": b.low, "end": b.high} for n, b in bounds.items()},
    }
    if as_json:
        told = freshness_to_json(freshness) if freshness else None
        say_json({**about, "freshness": told, "settings": settings})
        return
    _show_feed(spec, about, bounds, freshness)


def _freshness(stack: Stack, spec: FeedSpec) -> Freshness | None:
    """How fresh the feed is, if somebody judges it."""
    from stack.deploy.metrics import MetricsFollower

    if not spec.is_judged:
        return None
    with MetricsFollower(stack) as follower:
        return follower.look().feeds.get(spec.name)


def _objective(spec: FeedSpec, freshness: Freshness | None) -> str:
    from ops.cli.metric_views import freshness_text
    from stack.model.duration import format_duration

    if spec.freshness_ms is None:
        return "no objective"
    objective = f"{format_duration(spec.freshness_ms)} over {format_duration(spec.freshness_window_ms)}"
    if not spec.is_judged:
        return f'{objective}; of a source feed it is judged with freshness_of = "records" only'
    return f"{objective}; {freshness_text(freshness)}"


def _show_feed(
    spec: FeedSpec, about: dict[str, Any], bounds: dict[int, Bounds], freshness: Freshness | None
) -> None:
    from stack.feeds.plan import describe_storage

    say(f"{spec.name}: {spec.purpose}")
    lines = [
        ["kind", f"{spec.kind}" + (f", written by job {spec.by}" if spec.by else "")],
        ["owner", spec.owner],
        ["keeps", describe_storage(spec)],
        ["key", f"{spec.key.field} ({spec.key.format})" if spec.key else "none"],
        ["event time", spec.event_time or "time of writing"],
        ["freshness", _objective(spec, freshness)],
        ["schema", f"{spec.schema}, version {about['schema_version']}, id {about['schema_id']}"],
        ["topic", f"{about['topic']}, id {about['topic_id']}, replication {about['replication']}"],
    ]
    for word, text in lines:
        say(f"  {word:<11} {text}")
    say()
    table(["field", "type"], [[one["name"], _type_text(one["type"])] for one in about["fields"]])
    say()
    table(
        ["partition", "oldest", "end", "records"],
        [[number, b.low, b.high, b.high - b.low] for number, b in bounds.items()],
        right=["partition", "oldest", "end", "records"],
    )


def _spec_json(spec: FeedSpec) -> dict[str, Any]:
    import json

    from stack.feeds.catalogue import spec_to_json

    return dict(json.loads(spec_to_json(spec)))


def _type_text(declared: Any) -> str:
    """A type on one line: 'long (timestamp-millis)', 'null or string', 'array of long'."""
    if isinstance(declared, list):
        return " or ".join(_type_text(one) for one in declared)
    if not isinstance(declared, dict):
        return str(declared)
    kind = declared["type"]
    if kind in ("array", "map"):
        return f"{kind} of {_type_text(declared.get('items', declared.get('values')))}"
    if kind == "enum":
        return f"enum of {', '.join(declared['symbols'])}"
    if kind in ("record", "fixed"):
        return f"{kind} {declared['name']}"
    return (
        f"{_type_text(kind)} ({declared['logicalType']})" if "logicalType" in declared else _type_text(kind)
    )


@feeds.command()
@click.option("--dot", is_flag=True, help="Print Graphviz text.")
@json_option
@pass_session
def graph(session: Session, dot: bool, as_json: bool) -> None:
    """Draw which feed is made of which, and by what job.

    \b
    Example:
      stack feeds graph
      stack feeds graph --dot | dot -Tsvg > feeds.svg
    """
    with session.open() as stack:
        specs = stack.catalogue.feeds()
    if as_json:
        edges = [
            {"from": one, "to": spec.name, "job": spec.by} for spec in specs.values() for one in spec.inputs
        ]
        say_json({"feeds": {name: str(spec.kind) for name, spec in specs.items()}, "edges": edges})
    elif dot:
        _dot(specs)
    elif not specs:
        note("no feeds yet; declare some in schemas/catalog.toml and run `stack feeds apply`")
    else:
        drawn: set[str] = set()
        # A round of feeds has no beginning: whatever no root leads to begins one of its own.
        for spec in sorted(specs.values(), key=lambda one: len(one.inputs) > 0):
            if not spec.inputs or spec.name not in drawn:
                _draw(spec, specs, "", "", (), drawn)


def _draw(
    spec: FeedSpec, specs: dict[str, FeedSpec], first: str, rest: str, above: tuple[str, ...], drawn: set[str]
) -> None:
    drawn.add(spec.name)
    how = f" <- {spec.by}" if spec.by else ""
    say(f"{first}{spec.name} ({spec.kind}{', table' if spec.is_table else ''}){how}")
    if spec.name in above:
        say(f"{rest}└─ (and round again)")
        return
    made = [one for one in specs.values() if spec.name in one.inputs]
    for index, one in enumerate(made):
        last = index == len(made) - 1
        fork, bar = ("└─ ", "   ") if last else ("├─ ", "│  ")
        _draw(one, specs, rest + fork, rest + bar, (*above, spec.name), drawn)


def _dot(specs: dict[str, FeedSpec]) -> None:
    say("digraph feeds {\n  rankdir=LR;")
    for spec in specs.values():
        say(f'  "{spec.name}" [shape={"cylinder" if spec.is_table else "box"}];')
        for one in spec.inputs:
            say(f'  "{one}" -> "{spec.name}" [label="{spec.by or ""}"];')
    say("}")
