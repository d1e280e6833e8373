"""Values of a schema from JSON and back: the one place where JSON's few types meet Avro's many.

Reading accepts ISO text or numbers for times, text or numbers for decimals, Latin-1 text or
{"base64": "..."} for bytes, and unions both plainly and in Avro's form ({"string": "x"}). Writing gives
plain JSON, with Avro's form only where the plain value would read back as another branch.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from stack.errors import BadRecord, BadSchema
from stack.feeds.avro.defaults import default_of
from stack.feeds.avro.fault import Fault
from stack.feeds.avro.nodes import MISSING, Field, Node, node_of
from stack.feeds.avro.schema import AvroSchema
from stack.feeds.rows.converters import Converter, scalar_converter, union_converter
from stack.feeds.rows.json_scalars import PRIMITIVES, Scalar, binary, decimal, enumeration, shown
from stack.feeds.rows.json_times import LOGICAL

MAX_NAMES_SHOWN = 60


def converter_of(schema: AvroSchema) -> Converter:
    """The converter of a schema, built once."""
    return converter_of_type(node_of(schema))


@lru_cache(maxsize=256)
def converter_of_type(node: Node) -> Converter:
    """The converter of one type of a schema, built once."""
    return _build(node, {})


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


def _build(node: Node, made: dict[Node, Converter]) -> Converter:
    match node.kind:
        case "union":
            return union_converter(node, [_build(one, made) for one in node.branches])
        case "record":
            return made[node] if node in made else _record(node, made)
        case "array":
            return _array(node, made)
        case "map":
            return _map(node, made)
        case _:
            return scalar_converter(node, _scalar(node))


def _scalar(node: Node) -> Scalar:
    if node.logical == "decimal":
        return decimal(node.precision, node.scale)
    if node.logical:
        return LOGICAL[node.logical]
    if node.kind == "enum":
        return enumeration(node.symbols)
    if node.kind in ("bytes", "fixed"):
        return binary(node.kind, node.size_bytes if node.kind == "fixed" else None)
    return PRIMITIVES[node.kind]


def _array(node: Node, made: dict[Node, Converter]) -> Converter:
    assert node.item is not None  # noqa: S101 - arrays and maps always have one
    items = _build(node.item, made)

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

    return Converter(
        node, read, lambda value: [items.write(one) for one in value], lambda value: isinstance(value, list)
    )


def _map(node: Node, made: dict[Node, Converter]) -> Converter:
    assert node.item is not None  # noqa: S101 - arrays and maps always have one
    values, text = _build(node.item, made), PRIMITIVES["string"]

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

    return Converter(
        node,
        read,
        lambda value: {key: values.write(one) for key, one in value.items()},
        lambda value: isinstance(value, dict),
    )


def _record(node: Node, made: dict[Node, Converter]) -> Converter:
    record = made[node] = Converter(node)
    record.fields = {one.name: _build(one.node, made) for one in node.fields}
    pairs = [(one, record.fields[one.name]) for one in node.fields]

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Fault(f"must be an object of {node.name}, got {shown(value)}")
        found: dict[str, Any] = {}
        given = 0
        for one, converter in pairs:
            try:
                if one.name in value:
                    given += 1
                    found[one.name] = converter.read(value[one.name])
                else:
                    found[one.name] = fill_in(node, one, "is missing")
            except Fault as fault:
                raise fault.under(f".{one.name}") from None
        if given != len(value):
            raise unknown_field(node, next(name for name in value if name not in record.fields))
        return found

    record.read = read
    record.exact = lambda value: isinstance(value, dict)
    record.write = lambda value: {
        one.name: converter.write(value[one.name]) for one, converter in pairs if one.name in value
    }
    return record


def fill_in(record: Node, field: Field, why: str) -> Any:
    """A fresh default of a field that was not given; a Fault that starts with `why` where it has none."""
    if field.default is MISSING:
        raise Fault(f"{why} and has no default")
    try:
        return default_of(record, field)
    except BadSchema as error:
        raise Fault(f"{why}, and {error.message}") from None


def unknown_field(record: Node, name: Any) -> Fault:
    """The fault of a field that the schema does not have, with the nearest names."""
    names = [one.name for one in record.fields]
    near = get_close_matches(str(name), names, n=2)
    guess = f"; did you mean {' or '.join(near)}?" if near else "."
    listed = ", ".join(names[:MAX_NAMES_SHOWN]) + (", …" if len(names) > MAX_NAMES_SHOWN else "")
    return Fault(f"is not in the schema{guess} The fields are: {listed}").under(f".{name}")
