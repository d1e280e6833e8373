"""What the Avro specification forbids but fastavro lets through: bad names, doubles, unions in unions.

Other clients refuse such schemas, and our comparisons rest on names that are text and occur once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def find_faults(parsed: Any) -> tuple[str, ...]:
    """Every fault of a schema that fastavro parsed, in words; empty for a good one."""
    faults: list[str] = []
    pending = [parsed]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            faults.extend(_union_faults(node))
            pending.extend(node)
        elif isinstance(node, dict):
            faults.extend(_named_faults(node) if "name" in node else ())
            pending.extend(one["type"] for one in node.get("fields", ()))
            pending.extend(node[part] for part in ("items", "values") if part in node)
    return tuple(faults)


def _union_faults(branches: list[Any]) -> Iterator[str]:
    if any(isinstance(branch, list) for branch in branches):
        yield "a union stands directly inside a union"
    for kind in _doubles(_branch_name(branch) for branch in branches):
        yield f"a union has two branches of type {kind}"


def _branch_name(branch: Any) -> str:
    if isinstance(branch, dict):
        return str(branch.get("name", branch["type"]))
    return branch if isinstance(branch, str) else "union"


def _named_faults(node: dict[str, Any]) -> Iterator[str]:
    name = node["name"]
    yield from _name_faults("a type", name.split("."))
    if name.rpartition(".")[2] in _PRIMITIVES:
        yield f"a type is called {name}, like one of Avro's own"
    if not isinstance(node.get("aliases", []), list):
        yield f"type {name} has aliases that are no list"
        return
    yield from _alias_faults(node)
    if "fields" in node:
        yield from _name_faults("a field", (one["name"] for one in node["fields"]))
        for field in node["fields"]:
            yield from _alias_faults(field)
        for double in _doubles(repr(one["name"]) for one in node["fields"]):
            yield f"record {name} has two fields {double}"
    if "size" in node and (type(node["size"]) is not int or node["size"] < 0):
        yield f"fixed {name} has the size {node['size']!r}"


def _alias_faults(node: dict[str, Any]) -> Iterator[str]:
    for alias in node.get("aliases", ()):
        yield from _name_faults("an alias", alias.split(".") if isinstance(alias, str) else [alias])


def _name_faults(what: str, names: Iterable[Any]) -> Iterator[str]:
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            yield f"{name!r} is no name for {what}: use ASCII letters, digits and _, no digit first"


def _doubles(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
