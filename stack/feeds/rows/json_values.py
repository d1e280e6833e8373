"""Values of a schema from JSON and back: the one place where JSON's few types meet Avro's many.

Reading accepts ISO text or numbers for times, text or numbers for decimals, Latin-1 text or
{"base64": "..."} for bytes, and unions both plainly and in Avro's form ({"string": "x"}). Writing gives
plain JSON, with Avro's form only where the plain value would read back as another branch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from stack.errors import BadRecord
from stack.feeds.avro.schema import AvroSchema
from stack.feeds.rows.json_scalars import PRIMITIVES, Fault, binary, decimal, enumeration, shown
from stack.feeds.rows.json_times import LOGICAL
from stack.feeds.rows.json_unions import Converter, Field, union_converter

MAX_NAMES_SHOWN = 60


@lru_cache(maxsize=256)
def converter_of(schema: AvroSchema) -> Converter:
    """The converter of a schema, built once."""
    return _Builder(default_form=False).build(schema.parsed)


def converter_of_type(schema: AvroSchema, kind: Any) -> Converter:
    """The converter of one type inside a schema, given in the schema's parsed form."""
    builder = _Builder(default_form=False)
    builder.build(schema.parsed)
    return builder.build(kind)


def row_to_value(schema: AvroSchema, row: Any) -> Any:
    """The value of `schema` that a piece of parsed JSON stands for; BadRecord names the field at fault."""
    try:
        return converter_of(schema).read(row)
    except Fault as fault:
        raise fault.final() from None
    except RecursionError:
        raise BadRecord("the value is nested too deeply") from None


def value_to_json(schema: AvroSchema, value: Any) -> Any:
    """A value as plain JSON, such that `row_to_value` gives the same value back."""
    try:
        return converter_of(schema).write(value)
    except Fault as fault:
        raise fault.final() from None
    except RecursionError:
        raise BadRecord("the value is nested too deeply") from None
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise BadRecord(f"the value does not fit its schema: {error}") from None


class _Builder:
    """Walks fastavro's parsed form, in which every name is a full name.

    With `default_form`, values are read as a schema writes its defaults: a decimal as bytes, a union as
    its first branch.
    """

    def __init__(self, *, default_form: bool, named: dict[str, Any] | None = None) -> None:
        self._default_form = default_form
        self._definitions: dict[str, Any] = named if named is not None else {}
        self._named: dict[str, Converter] = {}

    def build(self, kind: Any) -> Converter:
        if isinstance(kind, list):
            return self._union(kind)
        if isinstance(kind, str):
            return self._by_name(kind)
        base, logical = kind["type"], kind.get("logicalType")
        if isinstance(base, dict | list):
            return self.build(base)
        if logical == "decimal" and base in ("bytes", "fixed"):
            scalar = decimal(kind["precision"], kind.get("scale", 0), default_form=self._default_form)
            return self._remember(kind, Converter(kind.get("name", base), base)).fill(scalar)
        if (base, logical) in LOGICAL:
            return Converter(base, base).fill(LOGICAL[base, logical])
        match base:
            case "record" | "error":
                return self._record(kind)
            case "enum":
                return self._remember(kind, Converter(kind["name"], base)).fill(enumeration(kind["symbols"]))
            case "fixed":
                return self._remember(kind, Converter(kind["name"], base)).fill(binary(base, kind["size"]))
            case "array":
                return self._array(kind)
            case "map":
                return self._map(kind)
            case _:
                return self._by_name(base)

    def _remember(self, kind: Any, converter: Converter) -> Converter:
        if "name" in kind:
            self._named[kind["name"]] = converter
            self._definitions[kind["name"]] = kind
        return converter

    def _by_name(self, name: str) -> Converter:
        if name == "bytes":
            return Converter(name, name).fill(binary(name, None))
        if name in PRIMITIVES:
            return Converter(name, name).fill(PRIMITIVES[name])
        if name not in self._named:
            return self.build(self._definitions[name])
        return self._named[name]

    def _array(self, kind: Any) -> Converter:
        items = self.build(kind["items"])

        def read(value: Any) -> list[Any]:
            if not isinstance(value, list | tuple):
                raise Fault(f"must be array, got {shown(value)}")
            found = []
            for index, one in enumerate(value):
                try:
                    found.append(items.read(one))
                except Fault as fault:
                    raise fault.under(f"[{index}]") from None
            return found

        def fits(value: Any) -> bool:
            return isinstance(value, list) and all(items.fits(one) for one in value)

        return Converter(
            "array",
            "array",
            read,
            lambda value: [items.write(one) for one in value],
            lambda value: isinstance(value, list),
            fits,
        )

    def _map(self, kind: Any) -> Converter:
        values = self.build(kind["values"])
        text = PRIMITIVES["string"]

        def read(value: Any) -> dict[str, Any]:
            if not isinstance(value, dict):
                raise Fault(f"must be map, got {shown(value)}")
            found = {}
            for key, one in value.items():
                try:
                    found[text.read(key)] = values.read(one)
                except Fault as fault:
                    raise fault.under(f".{key}") from None
            return found

        def fits(value: Any) -> bool:
            return isinstance(value, dict) and all(
                isinstance(key, str) and values.fits(one) for key, one in value.items()
            )

        return Converter(
            "map",
            "map",
            read,
            lambda value: {key: values.write(one) for key, one in value.items()},
            lambda value: isinstance(value, dict),
            fits,
        )

    def _record(self, kind: Any) -> Converter:
        record = self._remember(kind, Converter(kind["name"], "record"))
        for one in kind["fields"]:
            record.fields.append(Field(one["name"], self.build(one["type"]), self._default(one)))
        fields = record.fields
        names = frozenset(one.name for one in fields)

        def read(value: Any) -> dict[str, Any]:
            if not isinstance(value, dict):
                raise Fault(f"must be an object of {record.label}, got {shown(value)}")
            found: dict[str, Any] = {}
            given = 0
            for one in fields:
                if one.name in value:
                    given += 1
                    try:
                        found[one.name] = one.converter.read(value[one.name])
                    except Fault as fault:
                        raise fault.under(f".{one.name}") from None
                else:
                    found[one.name] = fill_in(one)
            if given != len(value):
                raise unknown_field(next(name for name in value if name not in names), names_of(fields))
            return found

        def fits(value: Any) -> bool:
            return (
                isinstance(value, dict)
                and value.keys() <= names
                and all(
                    one.converter.fits(value[one.name]) if one.name in value else one.default is not None
                    for one in fields
                )
            )

        record.read, record.fits = read, fits
        record.exact = lambda value: isinstance(value, dict)
        record.write = lambda value: {
            one.name: one.converter.write(value[one.name]) for one in fields if one.name in value
        }
        return record

    def _default(self, one: dict[str, Any]) -> Callable[[], Any] | None:
        if "default" not in one:
            return None
        written, definitions = one["default"], self._definitions
        known: list[Any] = []

        def give() -> Any:
            # Read when first needed: the type may not be complete while its record is being built.
            if not known:
                known.append(_Builder(default_form=True, named=definitions).build(one["type"]).read(written))
            return copy.deepcopy(known[0]) if isinstance(known[0], dict | list) else known[0]

        return give

    def _union(self, kinds: list[Any]) -> Converter:
        return union_converter([self.build(kind) for kind in kinds], first_branch_first=self._default_form)


def names_of(fields: list[Field]) -> list[str]:
    """The names of a record's fields, in order."""
    return [one.name for one in fields]


def fill_in(one: Field) -> Any:
    """The default of a field that was not given; a Fault where it has none."""
    if one.default is None:
        raise Fault("is missing and has no default").under(f".{one.name}")
    try:
        return one.default()
    except Fault as fault:
        raise Fault(f"is missing, and its default in the schema {fault.reason}").under(
            f".{one.name}"
        ) from None


def unknown_field(name: Any, names: list[str]) -> Fault:
    """The fault of a field that the schema does not have, with the nearest names."""
    near = get_close_matches(str(name), names, n=2)
    guess = f"; did you mean {' or '.join(near)}?" if near else "."
    listed = ", ".join(names[:MAX_NAMES_SHOWN]) + (", …" if len(names) > MAX_NAMES_SHOWN else "")
    return Fault(f"is not in the schema{guess} The fields are: {listed}").under(f".{name}")


def leaves(converter: Converter) -> Iterator[Converter]:
    """The branches of a union that are not null, or the one type itself."""
    if converter.kind == "union":
        yield from (branch for branch in converter.branches if branch.kind != "null")
    else:
        yield converter
