"""What changed between two Avro schemas, field by field, in sentences for `stack schemas diff`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from stack.feeds.avro.schema import AvroSchema
from stack.feeds.registry.resolution import (
    NAMED_KINDS,
    Node,
    TypeGraph,
    TypePair,
    decimal_digits,
    field_sources,
    graph_of,
    same_name,
    walk,
)


class ChangeKind(StrEnum):
    """The sorts of change a reader of a diff may look for."""

    FIELD_ADDED = "field-added"
    FIELD_REMOVED = "field-removed"
    FIELD_RENAMED = "field-renamed"
    TYPE_CHANGED = "type-changed"
    TYPE_RENAMED = "type-renamed"
    DEFAULT_CHANGED = "default-changed"
    DOC_CHANGED = "doc-changed"
    ORDER_CHANGED = "order-changed"
    SYMBOL_ADDED = "symbol-added"
    SYMBOL_REMOVED = "symbol-removed"
    BRANCH_ADDED = "branch-added"
    BRANCH_REMOVED = "branch-removed"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference; `path` is where it stands in the new schema, or in the old one if it is gone."""

    kind: ChangeKind
    path: str
    sentence: str


@dataclass(frozen=True, slots=True)
class _Graphs:
    old: TypeGraph
    new: TypeGraph


def diff_schemas(old: AvroSchema, new: AvroSchema) -> tuple[Change, ...]:
    """Every change from `old` to `new`, in the order of the new schema's fields."""
    graphs = _Graphs(graph_of(old), graph_of(new))
    return tuple(walk(graphs.new, graphs.old, partial(_compare, graphs)))


def _compare(graphs: _Graphs, pair: TypePair) -> Iterator[Change | TypePair]:
    old, new = graphs.old.at(pair.writer), graphs.new.at(pair.reader)
    old_kind, new_kind = graphs.old.kind(old), graphs.new.kind(new)
    if old_kind == new_kind == "union":
        yield from _compare_branches(graphs, pair.path, old, new)
    elif old_kind != new_kind:
        yield _type_changed(graphs, pair)
        if "union" in (old_kind, new_kind):
            # A field that becomes optional keeps its type as a branch: look for changes inside it.
            yield from _same_branches(graphs, pair.path, _branches(old), _branches(new))
    elif new_kind in NAMED_KINDS:
        yield from _compare_named(graphs, pair, old, new)
    elif new_kind == "array":
        yield TypePair(f"{pair.path}[]", new["items"], old["items"])
    elif new_kind == "map":
        yield TypePair(f"{pair.path}{{}}", new["values"], old["values"])
    elif _primitive_details(old) != _primitive_details(new):
        yield _type_changed(graphs, pair)


def _type_changed(graphs: _Graphs, pair: TypePair) -> Change:
    was, now = graphs.old.describe(pair.writer), graphs.new.describe(pair.reader)
    return Change(ChangeKind.TYPE_CHANGED, pair.path, f"{pair.path} was {was} and is now {now}.")


def _primitive_details(node: Node) -> tuple[Any, ...]:
    return (node.get("logicalType"), decimal_digits(node)) if isinstance(node, dict) else (None, None)


def _branches(node: Node) -> list[Node]:
    return node if isinstance(node, list) else [node]


def _same_branch(graphs: _Graphs, old: Node, new: Node) -> bool:
    if graphs.old.kind(old) != graphs.new.kind(new):
        return False
    if graphs.new.kind(new) in NAMED_KINDS:
        return same_name(graphs.new.at(new), graphs.old.at(old))
    return True


def _same_branches(graphs: _Graphs, path: str, old: list[Node], new: list[Node]) -> Iterator[TypePair]:
    for branch in new:
        for earlier in old:
            if _same_branch(graphs, earlier, branch):
                yield TypePair(path, branch, earlier)
                break


def _compare_branches(
    graphs: _Graphs, path: str, old: list[Node], new: list[Node]
) -> Iterator[Change | TypePair]:
    added = [one for one in new if not any(_same_branch(graphs, earlier, one) for earlier in old)]
    removed = [one for one in old if not any(_same_branch(graphs, one, later) for later in new)]
    for branch in added:
        text = f"{path} may now be {graphs.new.describe(branch)}."
        yield Change(ChangeKind.BRANCH_ADDED, path, text)
    for branch in removed:
        text = f"{path} may no longer be {graphs.old.describe(branch)}."
        yield Change(ChangeKind.BRANCH_REMOVED, path, text)
    pairs = list(_same_branches(graphs, path, old, new))
    places = [old.index(one.writer) for one in pairs]
    if places != sorted(places):
        text = f"{path} lists its branches in another order: {graphs.new.describe(new)}."
        yield Change(ChangeKind.ORDER_CHANGED, path, text)
    yield from pairs


def _compare_named(graphs: _Graphs, pair: TypePair, old: Node, new: Node) -> Iterator[Change | TypePair]:
    kind, path = graphs.new.kind(new), pair.path
    if old["name"] != new["name"]:
        how = "" if same_name(new, old) else ", without an alias for the old name"
        text = f"{path}: {kind} {old['name']} is now called {new['name']}{how}."
        yield Change(ChangeKind.TYPE_RENAMED, path, text)
    yield from _doc_changed(path, f"{kind} {new['name']}", old, new)
    if kind == "record":
        yield from _compare_fields(path, old, new)
    elif kind == "enum":
        yield from _compare_symbols(path, old, new)
    elif old["size"] != new["size"] or _primitive_details(old) != _primitive_details(new):
        yield _type_changed(graphs, pair)


def _compare_fields(path: str, old: Node, new: Node) -> Iterator[Change | TypePair]:
    sources = field_sources(new["fields"], old["fields"])
    kept: list[str] = []
    for field in new["fields"]:
        below = f"{path}.{field['name']}"
        if not sources[field["name"]]:
            yield _field_added(below, field)
            continue
        earlier = sources[field["name"]][0]
        kept.append(earlier["name"])
        if earlier["name"] != field["name"]:
            text = f"{below} was called {earlier['name']}; its alias says so."
            yield Change(ChangeKind.FIELD_RENAMED, below, text)
        yield from _default_changed(below, earlier, field)
        yield from _doc_changed(below, below, earlier, field)
        yield TypePair(below, field["type"], earlier["type"])
    for field in old["fields"]:
        if field["name"] not in kept:
            below = f"{path}.{field['name']}"
            yield Change(ChangeKind.FIELD_REMOVED, below, f"{below} was removed.")
    if kept != [one["name"] for one in old["fields"] if one["name"] in kept]:
        names = ", ".join(one["name"] for one in new["fields"])
        text = f"{path} lists its fields in another order: {names}."
        yield Change(ChangeKind.ORDER_CHANGED, path, text)


def _field_added(path: str, field: Node) -> Change:
    default = f"with the default {_json(field['default'])}" if "default" in field else "without a default"
    return Change(ChangeKind.FIELD_ADDED, path, f"{path} was added, {default}.")


def _compare_symbols(path: str, old: Node, new: Node) -> Iterator[Change]:
    added = [one for one in new["symbols"] if one not in old["symbols"]]
    removed = [one for one in old["symbols"] if one not in new["symbols"]]
    for symbol in added:
        yield Change(ChangeKind.SYMBOL_ADDED, path, f"{path} may now be {symbol}.")
    for symbol in removed:
        yield Change(ChangeKind.SYMBOL_REMOVED, path, f"{path} may no longer be {symbol}.")
    if _without(new["symbols"], added) != _without(old["symbols"], removed):
        text = f"{path} lists its symbols in another order: {', '.join(new['symbols'])}."
        yield Change(ChangeKind.ORDER_CHANGED, path, text)
    yield from _default_changed(path, old, new)


def _without(names: Iterable[str], gone: Iterable[str]) -> list[str]:
    return [one for one in names if one not in gone]


def _default_changed(path: str, old: Node, new: Node) -> Iterator[Change]:
    was = _json(old["default"]) if "default" in old else None
    now = _json(new["default"]) if "default" in new else None
    if was == now:
        return
    if was is None:
        text = f"{path} has a default now: {now}."
    elif now is None:
        text = f"{path} has no default any more; it was {was}."
    else:
        text = f"{path} has another default: {now}, it was {was}."
    yield Change(ChangeKind.DEFAULT_CHANGED, path, text)


def _doc_changed(path: str, label: str, old: Node, new: Node) -> Iterator[Change]:
    was, now = old.get("doc"), new.get("doc")
    if was != now:
        told = "has no description any more" if now is None else f"is now described as {_json(now)}"
        yield Change(ChangeKind.DOC_CHANGED, path, f"{label} {told}.")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
