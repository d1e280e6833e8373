"""Schema resolution: each rule of the Avro specification in a row, then random schemas against fastavro."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from stack.errors import BadSchema
from stack.feeds.avro.schema import AvroSchema, parse_avro
from stack.feeds.registry.compatibility import Break, Level, check_compatibility, find_breaks


def schema(tree: Any) -> AvroSchema:
    return parse_avro(json.dumps(tree))


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def record(*fields: dict[str, Any], name: str = "PageView", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def enum(*symbols: str, name: str = "Color", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "Md5", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def values(of: Any) -> dict[str, Any]:
    return {"type": "map", "values": of}


def decimal(precision: int, scale: int | None = None) -> dict[str, Any]:
    digits = {} if scale is None else {"scale": scale}
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, **digits}


ADDRESS = record(field("zip", "string"), name="Address")
TREE = record(field("value", "int"), field("children", array("Tree")), name="Tree")
TREE_OF_TEXT = record(field("value", "string"), field("children", array("Tree")), name="Tree")

READABLE: dict[str, tuple[Any, Any]] = {
    "the same primitive": ("int", "int"),
    "a primitive written as a dict": ({"type": "string"}, "string"),
    "int as long": ("long", "int"),
    "int as float": ("float", "int"),
    "int as double": ("double", "int"),
    "long as float": ("float", "long"),
    "long as double": ("double", "long"),
    "float as double": ("double", "float"),
    "string as bytes": ("bytes", "string"),
    "bytes as string": ("string", "bytes"),
    "a promotion below an array": (array("long"), array("int")),
    "a promotion below a map": (values("double"), values("float")),
    "a field dropped": (record(field("a", "int")), record(field("a", "int"), field("b", "int"))),
    "a field added with a default": (record(field("a", "int", default=1)), record()),
    "a default that is null": (record(field("a", ["null", "int"], default=None)), record()),
    "fields in another order": (
        record(field("a", "int"), field("b", "string")),
        record(field("b", "string"), field("a", "int")),
    ),
    "a field renamed with an alias": (
        record(field("user", "int", aliases=["user_id"])),
        record(field("user_id", "int")),
    ),
    "an alias whose old name is another field now": (
        record(field("c", "int", aliases=["b"]), field("b", "int")),
        record(field("c", "int"), field("b", "int")),
    ),
    "an alias whose name is taken, with a default": (
        record(field("c", "int", aliases=["b"], default=0), field("b", "int")),
        record(field("b", "int")),
    ),
    "a record renamed with an alias": (
        record(name="New", aliases=["Old"]),
        record(name="Old"),
    ),
    "an alias takes the namespace of its type": (
        record(name="shop.New", aliases=["Old"]),
        record(name="shop.Old"),
    ),
    "an alias with its own namespace": (
        record(name="shop.New", aliases=["web.Old"]),
        record(name="web.Old"),
    ),
    "the same record in another namespace": (record(name="a.Same"), record(name="b.Same")),
    "a namespace as an attribute": (
        record(name="Same", namespace="a"),
        record(name="a.Same"),
    ),
    "an enum with fewer symbols written": (enum("RED", "BLUE"), enum("RED")),
    "an enum with a default": (enum("RED", default="RED"), enum("RED", "BLUE")),
    "an enum renamed with an alias": (enum("RED", name="Paint", aliases=["Color"]), enum("RED")),
    "a fixed renamed with an alias": (fixed(16, name="Hash", aliases=["Md5"]), fixed(16)),
    "a type that becomes optional": (["null", "string"], "string"),
    "a union that takes a promotion": (["null", "long"], "int"),
    "a union inside a union's array": (["null", array(["null", "long"])], array("int")),
    "a union with more branches": (["null", "string", "int"], ["string", "null"]),
    "a union of one branch read as that branch": ("string", ["string"]),
    "a union whose every branch promotes": ("double", ["int", "float"]),
    "a record in a union": (["null", ADDRESS], ADDRESS),
    "a recursive record": (TREE, TREE),
    "the same decimal": (decimal(10, 2), decimal(10, 2)),
    "a scale of zero written or not": (decimal(10, 0), decimal(10)),
    "a decimal read as its bytes": ("bytes", decimal(10, 2)),
    "another logical type of the same primitive": (
        {"type": "long", "logicalType": "timestamp-millis"},
        "long",
    ),
    "a type named once and used twice": (
        record(field("home", ADDRESS), field("work", "Address")),
        record(field("home", ADDRESS), field("work", "Address")),
    ),
}

BREAKS: dict[str, tuple[Any, Any, list[tuple[str, str]]]] = {
    "long as int": ("int", "long", [("int", "type-mismatch")]),
    "double as float": ("float", "double", [("float", "type-mismatch")]),
    "string as int": ("int", "string", [("int", "type-mismatch")]),
    "boolean as int": ("int", "boolean", [("int", "type-mismatch")]),
    "int as string": ("string", "int", [("string", "type-mismatch")]),
    "fixed as bytes": ("bytes", fixed(16), [("bytes", "type-mismatch")]),
    "an array as a map": (values("int"), array("int"), [("map", "type-mismatch")]),
    "array items": (array("int"), array("string"), [("array[]", "type-mismatch")]),
    "map values": (values("int"), values("string"), [("map{}", "type-mismatch")]),
    "a field added without a default": (
        record(field("zip", "int")),
        record(),
        [("PageView.zip", "reader-field-missing-default")],
    ),
    "optional is not a default": (
        record(field("zip", ["null", "int"])),
        record(),
        [("PageView.zip", "reader-field-missing-default")],
    ),
    "nested fields": (
        record(field("address", record(field("zip", "int"), name="Address"))),
        record(field("address", record(field("zip", "string"), name="Address"))),
        [("PageView.address.zip", "type-mismatch")],
    ),
    "nested in an array of a map": (
        record(field("all", array(values(record(field("zip", "int"), name="Address"))))),
        record(field("all", array(values(record(name="Address"))))),
        [("PageView.all[]{}.zip", "reader-field-missing-default")],
    ),
    "every field in order": (
        record(field("a", "int"), field("b", record(field("c", "int"), name="B")), field("d", "int")),
        record(field("a", "string"), field("b", record(name="B"))),
        [
            ("PageView.a", "type-mismatch"),
            ("PageView.b.c", "reader-field-missing-default"),
            ("PageView.d", "reader-field-missing-default"),
        ],
    ),
    "a record renamed": (record(name="New"), record(name="Old"), [("New", "name-mismatch")]),
    "the alias stands in the writer": (
        record(name="New"),
        record(name="Old", aliases=["New"]),
        [("New", "name-mismatch")],
    ),
    "an alias of another namespace": (
        record(name="shop.New", aliases=["Old"]),
        record(name="web.Old"),
        [("New", "name-mismatch")],
    ),
    "a field renamed without an alias": (
        record(field("user", "int")),
        record(field("user_id", "int")),
        [("PageView.user", "reader-field-missing-default")],
    ),
    "an alias and the name are both written": (
        record(field("a", "int", aliases=["b"])),
        record(field("a", "int"), field("b", "int")),
        [("PageView.a", "ambiguous-alias")],
    ),
    "two fields with the same alias": (
        record(field("a", "int", aliases=["c"]), field("b", "int", aliases=["c"])),
        record(field("c", "int")),
        [("PageView.a", "ambiguous-alias"), ("PageView.b", "ambiguous-alias")],
    ),
    "an alias whose name is taken": (
        record(field("c", "int", aliases=["b"]), field("b", "int")),
        record(field("b", "int")),
        [("PageView.c", "reader-field-missing-default")],
    ),
    "an enum that lost a symbol": (enum("RED"), enum("RED", "BLUE"), [("Color", "missing-enum-symbols")]),
    "the writer's default does not help": (
        enum("RED"),
        enum("RED", "BLUE", default="RED"),
        [("Color", "missing-enum-symbols")],
    ),
    "an enum renamed": (enum("RED", name="Paint"), enum("RED"), [("Paint", "name-mismatch")]),
    "a fixed resized": (fixed(8), fixed(16), [("Md5", "fixed-size-mismatch")]),
    "a fixed renamed": (fixed(16, name="Hash"), fixed(16), [("Hash", "name-mismatch")]),
    "an enum as a record of the same name": (
        enum("RED", name="Same"),
        record(name="Same"),
        [("Same", "type-mismatch")],
    ),
    "a branch gone": (["null", "int"], ["null", "string"], [("union", "missing-union-branch")]),
    "a branch for none": (["null", "int"], "string", [("union", "missing-union-branch")]),
    "optional read as required": (
        record(field("a", "string")),
        record(field("a", ["null", "string"])),
        [("PageView.a", "type-mismatch")],
    ),
    "a fixed of another size in a union": (
        ["null", fixed(8)],
        fixed(16),
        [("union", "missing-union-branch")],
    ),
    "inside a matching branch": (
        ["null", record(field("zip", "int"), name="Address")],
        ["null", ADDRESS],
        [("union.zip", "type-mismatch")],
    ),
    "a recursive record, told once": (TREE, TREE_OF_TEXT, [("Tree.value", "type-mismatch")]),
    "another precision": (decimal(10, 2), decimal(12, 2), [("bytes", "decimal-mismatch")]),
    "another scale": (decimal(10, 2), decimal(10), [("bytes", "decimal-mismatch")]),
    "a fixed decimal": (
        fixed(8, logicalType="decimal", precision=10, scale=2),
        fixed(8, logicalType="decimal", precision=10, scale=3),
        [("Md5", "decimal-mismatch")],
    ),
}


@pytest.mark.parametrize("case", READABLE)
def test_reads(case: str) -> None:
    reader, writer = READABLE[case]
    assert find_breaks(schema(reader), schema(writer)) == ()


@pytest.mark.parametrize("case", BREAKS)
def test_breaks(case: str) -> None:
    reader, writer, expected = BREAKS[case]
    breaks = find_breaks(schema(reader), schema(writer))
    assert [(one.path, one.rule) for one in breaks] == expected


@pytest.mark.parametrize("case", BREAKS)
def test_every_message_says_where(case: str) -> None:
    reader, writer, _ = BREAKS[case]
    for one in find_breaks(schema(reader), schema(writer), "left", "right"):
        assert one.path.rpartition(".")[2] in one.message
        assert "right" in one.message


def test_mutually_recursive_records_end() -> None:
    def pair(kind: str) -> AvroSchema:
        inner = record(field("back", ["null", "Outer"]), field("value", kind), name="Inner")
        return schema(record(field("inner", ["null", inner]), name="Outer"))

    assert find_breaks(pair("long"), pair("int")) == ()
    assert [one.path for one in find_breaks(pair("int"), pair("long"))] == ["Outer.inner.value"]


def test_deep_schemas_do_not_exhaust_the_stack() -> None:
    tree: Any = "int"
    for _ in range(150):
        tree = array(tree)
    narrow = schema(tree)
    wide = schema(json.loads(json.dumps(tree).replace('"int"', '"long"')))
    assert find_breaks(wide, narrow) == ()
    assert [one.path for one in find_breaks(narrow, wide)] == ["array" + "[]" * 150]


V1 = schema(record(field("id", "long")))
V2 = schema(record(field("id", "long"), field("city", "string", default="")))
V3 = schema(record(field("id", "long"), field("city", "string")))
ZIP = schema(record(field("id", "long"), field("zip", "string")))


@pytest.mark.parametrize(
    ("level", "new", "older", "expected"),
    [
        (Level.BACKWARD, V3, [V1, V2], []),
        (Level.BACKWARD_TRANSITIVE, V3, [V1, V2], ["PageView.city"]),
        (Level.BACKWARD, V3, [V1], ["PageView.city"]),
        (Level.FORWARD, V3, [V1, V2], []),
        (Level.FORWARD, V1, [V2, V3], ["PageView.city"]),
        (Level.FORWARD, V1, [V3, V2], []),
        (Level.FORWARD_TRANSITIVE, V1, [V3, V2], ["PageView.city"]),
        (Level.FULL, V2, [V1], []),
        (Level.FULL, ZIP, [V3], ["PageView.zip", "PageView.city"]),
        (Level.FULL_TRANSITIVE, ZIP, [V3, V1], ["PageView.zip", "PageView.zip", "PageView.city"]),
        (Level.NONE, ZIP, [V3], []),
        (Level.FULL_TRANSITIVE, ZIP, [], []),
    ],
)
def test_levels(level: Level, new: AvroSchema, older: list[AvroSchema], expected: list[str]) -> None:
    assert [one.path for one in check_compatibility(new, older, level)] == expected


def test_messages_name_the_direction_and_the_version() -> None:
    backward = check_compatibility(ZIP, [V1], Level.BACKWARD, versions=[2])
    assert backward == (
        Break(
            "PageView.zip",
            "reader-field-missing-default",
            "new schema cannot read records of version 2: field 'zip' has no default and version 2 "
            "does not have it",
        ),
    )
    (forward,) = check_compatibility(V1, [ZIP], Level.FORWARD, versions=[7])
    assert forward.message == (
        "version 7 cannot read records of the new schema: field 'zip' has no default and the new schema "
        "does not have it"
    )


def test_a_version_for_each_schema() -> None:
    with pytest.raises(ValueError, match="argument"):
        check_compatibility(ZIP, [V1, V2], Level.BACKWARD, versions=[1])


FAULTY: dict[str, tuple[Any, str]] = {
    "two fields of a name": (record(field("a", "int"), field("a", "int")), "two fields 'a'"),
    "a field that is not named by text": (record(field({}, "int")), "{} is no name for a field"),  # type: ignore[arg-type]
    "a field with a bad name": (record(field("a-b", "int")), "'a-b' is no name for a field"),
    "a type with a bad name": (record(name="shop.1st"), "'1st' is no name for a type"),
    "aliases that are no list": (record(name="R", aliases=None), "aliases that are no list"),
    "an alias that is no text": (record(name="R", aliases=[1]), "1 is no name for an alias"),
    "a fixed without a size": (fixed(-1), "the size -1"),
    "a union in a union": (["null", ["int"]], "directly inside a union"),
    "two branches of a type": (
        array(["int", {"type": "int", "logicalType": "date"}]),
        "two branches of type int",
    ),
}


@pytest.mark.parametrize("case", FAULTY)
def test_what_is_no_avro_does_not_parse(case: str) -> None:
    tree, says = FAULTY[case]
    with pytest.raises(BadSchema) as error:
        schema(tree)
    assert says in error.value.message


Draw = Callable[[st.SearchStrategy[Any]], Any]
_TEXT = st.text("abc é", max_size=4)
_DATA: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": _TEXT,
    # Bytes read as a string must be UTF-8: Avro promises no more than that either.
    "bytes": _TEXT.map(str.encode),
}
_DEFAULTS = {"null": None, "boolean": True, "int": 1, "long": 2, "float": 0.5, "double": 1.5, "string": "s"}
_DEFAULTS["bytes"] = "b"
_WIDER = {
    "int": ["long", "float", "double"],
    "long": ["float", "double"],
    "float": ["double"],
    "string": ["bytes"],
    "bytes": ["string"],
}


@st.composite
def types(draw: st.DrawFn, depth: int = 3) -> Any:
    """A random type; each named type gets a name of its own and is used where it is defined."""
    kinds = ["primitive", "enum", "fixed"] + (["record", "record", "array", "map", "union"] if depth else [])
    kind = draw(st.sampled_from(kinds))
    name = f"T{draw(st.integers(0, 10**9))}"
    if kind == "primitive":
        return draw(st.sampled_from(sorted(_DATA)))
    if kind == "enum":
        return enum(*draw(st.lists(st.sampled_from("ABCD"), min_size=1, unique=True)), name=name)
    if kind == "fixed":
        return fixed(draw(st.integers(1, 4)), name=name)
    if kind == "array":
        return array(draw(types(depth - 1)))
    if kind == "map":
        return values(draw(types(depth - 1)))
    if kind == "union":
        branches = draw(st.lists(types(0), min_size=1, max_size=3))
        return list({json.dumps(one): one for one in branches}.values())
    names = draw(st.lists(st.sampled_from("abcdef"), max_size=4, unique=True))
    return record(*(field(one, draw(types(depth - 1))) for one in names), name=name)


def data_for(draw: Draw, tree: Any) -> Any:
    if isinstance(tree, list):
        return data_for(draw, draw(st.sampled_from(tree)))
    if isinstance(tree, str):
        return draw(_DATA[tree])
    if tree["type"] == "record":
        return {one["name"]: data_for(draw, one["type"]) for one in tree["fields"]}
    if tree["type"] == "array":
        return [data_for(draw, tree["items"]) for _ in range(draw(st.integers(0, 2)))]
    if tree["type"] == "map":
        return {str(at): data_for(draw, tree["values"]) for at in range(draw(st.integers(0, 2)))}
    if tree["type"] == "enum":
        return draw(st.sampled_from(tree["symbols"]))
    return b"x" * tree["size"]


def _mutate_safely(draw: Draw, tree: Any) -> Any:
    """A reader that the specification lets read everything written with `tree`."""
    if isinstance(tree, list):
        return tree
    if isinstance(tree, dict):
        tree = _mutate_dict_safely(draw, tree)
    elif draw(st.booleans()) and tree in _WIDER:
        tree = draw(st.sampled_from(_WIDER[tree]))
    return ["null", tree] if tree != "null" and draw(st.integers(0, 4)) == 0 else tree


def _mutate_dict_safely(draw: Draw, tree: dict[str, Any]) -> dict[str, Any]:
    tree = dict(tree)
    if tree["type"] == "record":
        kept = [one for one in tree["fields"] if draw(st.integers(0, 5))]
        fields = [{**one, "type": _mutate_safely(draw, one["type"])} for one in kept]
        fields = [
            {**one, "name": "new_" + one["name"], "aliases": [one["name"]]}
            if draw(st.integers(0, 3)) == 0
            else one
            for one in fields
        ]
        for at in range(draw(st.integers(0, 2))):
            kind = draw(st.sampled_from(sorted(_DEFAULTS)))
            fields.append(field(f"added{at}", kind, default=_DEFAULTS[kind]))
        tree["fields"] = draw(st.permutations(fields))
    elif tree["type"] == "array":
        tree["items"] = _mutate_safely(draw, tree["items"])
    elif tree["type"] == "map":
        tree["values"] = _mutate_safely(draw, tree["values"])
    elif tree["type"] == "enum":
        tree["symbols"] = draw(st.permutations([*tree["symbols"], "Z"]))
    return tree


def _mutate_anyhow(draw: Draw, tree: Any) -> Any:
    """A reader that may or may not fit: like an edit by someone who does not think of readers."""
    move = draw(st.integers(0, 9))
    if move == 0:
        return draw(types(1))
    if isinstance(tree, list):
        changed = [_mutate_anyhow(draw, one) for one in tree if move != 1 or draw(st.booleans())]
        flat = [branch for one in changed for branch in (one if isinstance(one, list) else [one])]
        return list({json.dumps(one): one for one in flat}.values()) or ["null"]
    if isinstance(tree, str):
        return draw(st.sampled_from(sorted(_DATA))) if move < 4 else tree
    tree = dict(tree)
    if tree["type"] == "record":
        fields = [
            {**one, "type": _mutate_anyhow(draw, one["type"])}
            for one in tree["fields"]
            if draw(st.integers(0, 5))
        ]
        if move < 3 and "added" not in {one["name"] for one in fields}:
            fields.append(field("added", "int", **({"default": 1} if draw(st.booleans()) else {})))
        if move == 4 and fields:
            fields[0] = {**fields[0], "aliases": [draw(st.sampled_from("abcdef"))]}
        tree["fields"] = fields
        tree["name"] = tree["name"] if move > 1 else "Renamed"
    elif tree["type"] in ("array", "map"):
        part = "items" if tree["type"] == "array" else "values"
        tree[part] = _mutate_anyhow(draw, tree[part])
    elif tree["type"] == "enum" and move < 4:
        tree["symbols"] = tree["symbols"][1:] or ["Z"]
        if draw(st.booleans()):
            tree["default"] = tree["symbols"][0]
    elif tree["type"] == "fixed" and move < 4:
        tree["size"] += 1
    return tree


def _unique_names(tree: Any, taken: dict[str, int]) -> Any:
    """The same tree with every repeated name numbered: Avro forbids defining a name twice."""
    tree = copy.copy(tree)
    if isinstance(tree, list):
        return [_unique_names(one, taken) for one in tree]
    if isinstance(tree, dict):
        if "name" in tree:
            taken[tree["name"]] = taken.get(tree["name"], 0) + 1
            if taken[tree["name"]] > 1:
                tree["name"] += f"_{taken[tree['name']]}"
        if "fields" in tree:
            tree["fields"] = [{**one, "type": _unique_names(one["type"], taken)} for one in tree["fields"]]
        for part in ("items", "values"):
            if part in tree:
                tree[part] = _unique_names(tree[part], taken)
    return tree


def decode(written: AvroSchema, read_as: AvroSchema, datum: Any) -> Any:
    payload = io.BytesIO()
    fastavro.schemaless_writer(payload, written.parsed, datum)
    payload.seek(0)
    return fastavro.schemaless_reader(payload, written.parsed, read_as.parsed)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_safe_changes_are_compatible_and_decode(data: st.DataObject) -> None:
    tree = _unique_names(data.draw(types()), {})
    writer, reader = schema(tree), schema(_mutate_safely(data.draw, tree))
    assert find_breaks(reader, writer) == ()
    decode(writer, reader, data_for(data.draw, tree))


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_whatever_is_called_compatible_decodes(data: st.DataObject) -> None:
    tree = _unique_names(data.draw(types()), {})
    writer = schema(tree)
    reader = schema(_unique_names(_mutate_anyhow(data.draw, tree), {}))
    compatible = find_breaks(reader, writer) == ()
    event("compatible" if compatible else "breaks")
    if compatible:
        decode(writer, reader, data_for(data.draw, tree))
