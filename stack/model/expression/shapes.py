"""The kinds that the fields of an Avro schema can have, looked up along a path."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from stack.errors import BadExpression

MAX_NAMES_SHOWN = 60

_PRIMITIVES = {
    "null": "null",
    "boolean": "boolean",
    "int": "number",
    "long": "number",
    "float": "number",
    "double": "number",
    "bytes": "bytes",
    "string": "text",
}
_COMPLEX = {
    "record": "record",
    "error": "record",
    "enum": "text",
    "array": "list",
    "map": "map",
    "fixed": "bytes",
}
_LOGICAL = {
    "timestamp-millis": ("long", "timestamp"),
    "timestamp-micros": ("long", "timestamp"),
    "local-timestamp-millis": ("long", "timestamp"),
    "local-timestamp-micros": ("long", "timestamp"),
    "date": ("int", "date"),
    "time-millis": ("int", "time"),
    "time-micros": ("long", "time"),
    "uuid": ("string", "uuid"),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The kinds that a value may have, and words for them. No kinds: nothing is known."""

    kinds: frozenset[str]
    label: str

    @property
    def unknown(self) -> bool:
        return not self.kinds


UNKNOWN = Shape(frozenset(), "unknown")


def either(shapes: list[Shape]) -> Shape:
    """The shape of a value that has one of these shapes; null is named last."""
    if not shapes or any(shape.unknown for shape in shapes):
        return UNKNOWN
    kinds = frozenset(kind for shape in shapes for kind in shape.kinds)
    labels = sorted(dict.fromkeys(shape.label for shape in shapes), key="null".__eq__)
    return Shape(kinds, " or ".join(labels))


@dataclass(frozen=True, slots=True)
class _Place:
    """A type inside the schema, with the namespace that short names in it belong to."""

    type: Any
    namespace: str


class SchemaShapes:
    """Answers which shape a path has in one schema, given as the JSON tree of the schema."""

    def __init__(self, schema_tree: Any) -> None:
        self._named: dict[str, _Place] = {}
        self._collect(schema_tree)
        self._root = _Place(schema_tree, "")

    def _collect(self, root: Any) -> None:
        pending = [_Place(root, "")]
        while pending:
            place = pending.pop()
            if isinstance(place.type, list):
                pending.extend(_Place(one, place.namespace) for one in place.type)
            elif isinstance(place.type, dict):
                namespace = place.namespace
                if isinstance(place.type.get("name"), str) and place.type.get("type") in _COMPLEX:
                    full = full_name(place.type, namespace)
                    self._named[full] = place
                    namespace = full.rpartition(".")[0]
                inner = [one.get("type") for one in place.type.get("fields") or ()]
                inner += [place.type.get(part) for part in ("type", "items", "values")]
                pending.extend(_Place(one, namespace) for one in inner if isinstance(one, dict | list))

    def shape_of(self, path: Iterable[str | int]) -> Shape:
        """The shape at the end of a path; BadExpression (without a place) where a step leads nowhere."""
        places = self._branches(self._root)
        walked = ""
        for step in path:
            places = self._step(places, step, walked)
            walked += f"[{step}]" if isinstance(step, int) else f".{step}" if walked else step
        return either([self._shape(place) for place in places])

    def _branches(self, place: _Place) -> list[_Place]:
        """The branches of a union (or the one type), references and wrappers resolved."""
        kind, namespace = place.type, place.namespace
        if isinstance(kind, list):
            return [branch for one in kind for branch in self._branches(_Place(one, namespace))]
        if isinstance(kind, str) and kind not in _PRIMITIVES:
            known = self._named.get(f"{namespace}.{kind}" if "." not in kind and namespace else kind)
            known = known or self._named.get(kind)
            return [known] if known else []
        if isinstance(kind, dict) and "logicalType" not in kind and kind.get("type") not in _COMPLEX:
            return self._branches(_Place(kind.get("type"), namespace))
        return [place]

    def _step(self, places: list[_Place], step: str | int, walked: str) -> list[_Place]:
        reached: list[_Place] = []
        names: list[str] = []
        for place in places:
            kind = place.type if isinstance(place.type, dict) else {}
            if kind.get("type") in ("record", "error") and isinstance(step, str):
                namespace = full_name(kind, place.namespace).rpartition(".")[0]
                names.extend(one["name"] for one in kind["fields"])
                for one in kind["fields"]:
                    if one["name"] == step:
                        reached += self._branches(_Place(one["type"], namespace))
            elif kind.get("type") == "map" and isinstance(step, str):
                reached += self._branches(_Place(kind["values"], place.namespace))
            elif kind.get("type") == "array" and isinstance(step, int):
                reached += self._branches(_Place(kind["items"], place.namespace))
        if reached:
            return reached
        label = either([self._shape(place) for place in places]).label
        raise BadExpression(_dead_end(step, walked, names, label))

    def _shape(self, place: _Place) -> Shape:
        kind = place.type
        if isinstance(kind, str):
            return Shape(frozenset({_PRIMITIVES[kind]}), kind)
        base, logical = kind["type"], kind.get("logicalType")
        if logical == "decimal" and base in ("bytes", "fixed"):
            return Shape(frozenset({"number"}), "decimal")
        # A logical type on the wrong base is ignored, as Avro asks.
        if logical in _LOGICAL and _LOGICAL[logical][0] == base:
            return Shape(frozenset({_LOGICAL[logical][1]}), logical)
        return Shape(frozenset({_COMPLEX.get(base) or _PRIMITIVES[base]}), str(base))


def full_name(definition: dict[str, Any], namespace: str) -> str:
    """The full name of a named type: its own namespace, else the one around it."""
    name = str(definition["name"])
    if "." in name:
        return name
    space = definition.get("namespace", namespace)
    return f"{space}.{name}" if space else name


def _dead_end(step: str | int, walked: str, names: list[str], label: str) -> str:
    if isinstance(step, int):
        return f"{walked or 'the record'} is {label}, so it has no [{step}]"
    if not names:
        return f"{walked or 'the record'} is {label}, so it has no field {step!r}"
    known = list(dict.fromkeys(names))
    near = get_close_matches(step, known, n=3) or [one for one in known if one.lower() == step.lower()]
    shown = ", ".join(known[:MAX_NAMES_SHOWN]) + (", …" if len(known) > MAX_NAMES_SHOWN else "")
    guess = f"; did you mean {' or '.join(near)}?" if near else "."
    return f"{walked or 'the record'} has no field {step!r}{guess} The fields are: {shown}"
