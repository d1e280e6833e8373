"""The expression language: grammar, meaning, schema checks, bounds."""

from __future__ import annotations

import contextlib
import re
import time as clock
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.errors import BadExpression
from stack.model.expression import (
    check_against,
    compile_expression,
    field_paths,
    format_expression,
    parse_expression,
    tree,
)
from stack.model.expression.like import compile_like
from stack.model.expression.parser import MAX_DEPTH, parse_tree
from stack.model.expression.pattern import compile_pattern
from stack.model.expression.tokens import MAX_TEXT_LENGTH

RECORD: dict[str, Any] = {
    "load": 3.5,
    "count": 7,
    "user": "Ada",
    "none": None,
    "active": True,
    "price": Decimal("0.10"),
    "seen": datetime(2026, 3, 1, 12, tzinfo=UTC),
    "local": datetime(2026, 3, 1, 12),  # noqa: DTZ001
    "day": date(2026, 3, 1),
    "at": time(12, 30),
    "uid": UUID(int=7),
    "raw": b"abc",
    "ms": 1_772_366_400_000,
    "place": {"city": "Zug", "odd name": 1},
    "items": [{"n": 1}, {"n": 2}],
    "tags": ["a", "b"],
    "odd name": "x",
    "_key": "field, not metadata",
    "nan": float("nan"),
}
METADATA = {"_key": "k1", "_partition": 2, "_offset": 40, "_timestamp": 1_772_366_400_000}


def holds(text: str, record: Any = RECORD) -> bool:
    return compile_expression(parse_expression(text))(record, METADATA)


TRUE = r"""
load > 3
3 < load
load >= 3.5 and load <= 3.5
load = 3.5 AND NOT load != 3.5
count == 7 && !(count <> 7)
count = 8 || count = 7
count = 7.0
load + count * 2 = 17.5
(load + count) * 2 = 21
count - 2 - 1 = 4
count % 4 = 3
-count % 4 = -3
count / 2 = 3.5
-count = -7
- -count = 7
user = 'Ada'
user = "Ada"
'it''s' = "it's"
'a\nb' = "a\u000ab"
'\d' = '\\d'
user in ('Bob', 'Ada')
user not in ('Bob', 'Eve')
count in (1, 7.0, null)
count not in (1, 2)
load between 3 and 4
load not between 4 and 5
none is null
missing is null
place.street is null
items[5].n is null
user[0] is null
user is not null
user like 'A%'
user like '_d_'
user not like 'a%'
'50%' like '50\\%'
user matches '^A[a-z]+$'
user matches '(?i)aDA'
user not matches 'x'
active
active = true
active != false
not none
not (none = 1)
not missing
price = 0.1
price < 0.2 and 0.05 < price
price + 0.2 = 0.3
seen = '2026-03-01T12:00Z'
seen = timestamp '2026-03-01T13:00+01:00'
seen > timestamp '2026-03-01'
seen between '2026-03-01T11:00Z' and '2026-03-01T12:00Z'
seen in ('2026-03-01T12:00Z')
local = '2026-03-01T12:00Z'
local = seen
seen = ms
ms >= timestamp '2026-03-01T12:00Z'
day = '2026-03-01'
day < seen
at > '12:00'
uid = '00000000-0000-0000-0000-000000000007'
place.city = 'Zug'
place.`odd name` = 1
items[1].n = 2
`odd name` = 'x'
_key = 'k1' and _partition = 2 and _offset >= 40
_timestamp >= '2026-03-01T12:00Z'
_timestamp = 1772366400000
`_key` = 'field, not metadata'
lower(user) = 'ada' and upper(user) = 'ADA'
length(user) = 3 and length(tags) = 2 and length(raw) = 3
abs(-count) = 7
round(load) = 4 and round(2.5) = 2 and round(1.25, 1) = 1.2
round(1250, -2) = 1200
starts_with(user, 'A') and ends_with(user, 'a') and contains(user, 'd')
contains(tags, 'b')
coalesce(none, missing, user) = 'Ada'
exists(none) and exists(place.city) and not exists(place.street) and exists(items[1])
exists(_key)
(load > 3) = true
nan != nan
Load is null
true or count / 0 = 1
""".strip().splitlines()

FALSE = r"""
load > 3.5
none = 1
none != 1
none = null
null = null
none < 1
none in (1, null)
none not in (1, 2)
count not in (1, null)
none between 1 and 2
none not between 1 and 2
none like '%'
none not like 'x'
none matches 'x'
none not matches 'x'
none
count
user
count / 0 = 1
count % 0 = 0
count / 0 is not null
load / 0 = 1
missing.deep.path = 1
user > 3
user != 3
count = '7'
active > false
active = 1
raw = 'abc'
raw = user
tags = tags
place != place
day = 3
seen = 'not a time'
uid = 'not a uuid'
user like 'd'
user like 'ada'
user = 'ada'
contains(tags, 'c')
round(load, 99) = 3.5
nan = nan
seen = 1e300
lower(count) = '7'
abs(user) = 3
count * 1e308 * 1e308 is null
count + user = 7
not (active and load > 3)
""".strip().splitlines()


@pytest.mark.parametrize("text", TRUE)
def test_holds(text: str) -> None:
    assert holds(text) is True


@pytest.mark.parametrize("text", FALSE)
def test_does_not_hold(text: str) -> None:
    assert holds(text) is False


def test_a_tombstone_has_only_null_fields() -> None:
    assert holds("load is null and place.city is null and not exists(load)", None)
    assert not holds("load > 3", None)


def test_loose_binds_around_tight() -> None:
    name = {one: tree.Name((one,)) for one in "abcd"}
    assert parse_tree("a or b and not c = d") == tree.Or(
        (name["a"], tree.And((name["b"], tree.Not(tree.Compare("=", name["c"], name["d"])))))
    )
    assert parse_tree("a - b - c") == tree.Arithmetic(
        "-", tree.Arithmetic("-", name["a"], name["b"]), name["c"]
    )
    assert parse_tree("-a * b") == tree.Arithmetic("*", tree.Negate(name["a"]), name["b"])


SYNTAX_FAULTS = [
    ("load >> 3", 6, "expected a value here, found '>'"),
    ("", 0, "expected a value here, found the end"),
    ("load >", 6, "found the end"),
    ("load > 3 4", 9, "found '4'"),
    ("age > 5m", 7, "found 'm'"),
    ("a < b < c", 6, "do not chain"),
    ("a = not b", 4, "expected a value"),
    ("user = 'open", 7, "no closing '"),
    ("`open", 0, "no closing `"),
    ("`` = 1", 0, "cannot be empty"),
    ("a = #", 4, "has no meaning"),
    ("(a = 1", 6, "expected ')'"),
    ("a in ()", 6, "expected a value"),
    ("a in 3", 5, "expected '('"),
    ("a between 1 or 2", 12, "expected 'and'"),
    ("a is 3", 5, "expected 'null'"),
    ("a like 3", 7, "expected text in quotes"),
    ("a.3 = 1", 2, "expected a name"),
    ("a[x] = 1", 2, "expected a whole number"),
    ("a[-1] = 1", 2, "expected a whole number"),
    ("lenght(a) = 1", 0, "did you mean length?"),
    ("lower(a, b) = 'x'", 0, "lower takes 1 arguments, got 2"),
    ("round() = 1", 0, "round takes 1 to 2 arguments"),
    ("exists(3)", 0, "exists takes the name of a field"),
    ("t > timestamp 'soon'", 14, "not an ISO 8601 time"),
    ("_offset.x = 1", 0, "has no fields"),
    ("a = 1e999", 4, "too large"),
    ("load + 3", 5, "load + 3 is a number"),
    ("3 > 'x'", 2, "3 is a number, 'x' is text"),
    ("lower(3) = 'a'", 6, "expected text for lower; 3 is a number"),
    ("a matches '(a'", 10, "character 1 of this pattern: this group has no closing )"),
    (r"a matches 'x(?=y)'", 10, "only (?:...) is supported"),
    (r"a matches '(a)\\1'", 10, r"the escape \1 is not supported"),
    ("a matches 'a**'", 10, "a repeat of a repeat"),
    ("a matches 'a{1000}{2}'", 10, "a repeat of a repeat"),
    ("a matches '(a{1000}){1000}'", 10, "too large"),
    ("a = 1 or\n  b >> 3", 14, "\n     ^ expected a value"),
]


@pytest.mark.parametrize(("text", "position", "part"), SYNTAX_FAULTS)
def test_a_fault_shows_its_place(text: str, position: int, part: str) -> None:
    with pytest.raises(BadExpression) as caught:
        parse_expression(text)
    assert caught.value.position == position
    assert part in caught.value.message


def test_the_caret_stands_under_the_place() -> None:
    with pytest.raises(BadExpression) as caught:
        parse_expression("load >> 3")
    assert caught.value.message == "load >> 3\n      ^ expected a value here, found '>'"


def test_the_caret_stays_in_view_on_a_long_line() -> None:
    with pytest.raises(BadExpression) as caught:
        parse_expression("a = 1 and " * 100 + "b >> 3")
    shown, pointer = caught.value.message.splitlines()
    assert len(shown) <= 120
    assert shown[pointer.index("^")] == ">"


SCHEMA = {
    "type": "record",
    "name": "Visit",
    "namespace": "shop",
    "fields": [
        {"name": "load", "type": "double"},
        {"name": "user", "type": ["null", "string"]},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["ON", "OFF"]}},
        {"name": "last", "type": ["null", "Status"]},
        {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "wrong", "type": {"type": "string", "logicalType": "date"}},
        {"name": "active", "type": "boolean"},
        {"name": "raw", "type": "bytes"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "labels", "type": {"type": "map", "values": "long"}},
        {"name": "parent", "type": ["null", "shop.Visit"]},
        {"name": "mixed", "type": ["string", "long"]},
    ],
}


@pytest.mark.parametrize(
    "text",
    [
        "load > 3 and user = 'Ada' and status in ('ON') and last != 'OFF'",
        "seen > '2026-03-01' and seen > 1000 and uid = '00000000-0000-0000-0000-000000000007'",
        "price < 3.5 and price + load > 1 and wrong = 'anything'",
        "active and not active = false and coalesce(user, 'x') = 'x'",
        "tags[0] = 'a' and contains(tags, 'a') and labels.any > 3 and length(labels) > 0",
        "parent.parent.load > 3 and parent is not null",
        "mixed = 3 or mixed = 'x'",
        "_key = 3 and _key.id = 'x' and _timestamp > '2026-03-01' and user = null",
    ],
)
def test_fits_the_schema(text: str) -> None:
    check_against(parse_expression(text), SCHEMA)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("load > 'fast'", "load is double, 'fast' is text"),
        ("user = 3", "user is string or null, 3 is a number"),
        ("laod > 3", "no field 'laod'; did you mean load? The fields are: load, user, status"),
        ("zzz > 3", "mixed"),
        ("parent.laod > 3", "parent has no field 'laod'; did you mean load?"),
        ("load.x > 3", "load is double, so it has no field 'x'"),
        ("load[0] > 3", "load is double, so it has no [0]"),
        ("tags.x = 'a'", "tags is array"),
        ("load", "expected a condition; load is double"),
        ("active and load", "expected a condition"),
        ("user + 1 = 2", "expected a number; user is string or null"),
        ("seen > 'yesterday'", "'yesterday' does not read as one"),
        ("uid in ('7')", "does not read as one"),
        ("load between 1 and 'x'", "load is double, 'x' is text"),
        ("load like 'a%'", "expected text; load is double"),
        ("active > false", "active is boolean"),
        ("tags = tags", "tags is array, tags is array"),
        ("labels.x = 'a'", "labels.x is long, 'a' is text"),
        ("coalesce(load, 3) = 'a'", "is text"),
        ("exists(laod)", "no field 'laod'"),
        ("_offset = 'x'", "_offset is a number, 'x' is text"),
        ("raw = 'x'", "raw is bytes"),
    ],
)
def test_does_not_fit_the_schema(text: str, part: str) -> None:
    with pytest.raises(BadExpression, match=re.escape(part)) as caught:
        check_against(parse_expression(text), SCHEMA)
    assert caught.value.position is not None


def test_a_schema_that_is_no_record_has_no_fields() -> None:
    with pytest.raises(BadExpression, match="the record is string"):
        check_against(parse_expression("a = 1"), "string")


def test_field_paths_names_what_is_read() -> None:
    expression = parse_expression("a.b > c[0] and _key = 'x' or lower(d) in (e, 'x')")
    assert field_paths(expression.tree) == {("a", "b"), ("c", 0), ("d",), ("e",)}


@pytest.mark.parametrize(
    "text",
    [
        "(" * 2000 + "a" + ")" * 2000,
        "not " * 1000 + "a",
        "-" * 4000 + "a = 1",
        "lower(" * 600 + "a" + ")" * 600 + " = 1",
        "1" + "+1" * 2000 + " = 1",
        "a = " + "(" * 60 + "1" + "+1" * 30 + ")+1+1" * 60,
        "a" * (MAX_TEXT_LENGTH + 1),
    ],
)
def test_too_large_is_a_fault_of_the_expression(text: str) -> None:
    with pytest.raises(BadExpression, match=r"nested more than|characters"):
        parse_expression(text)


def test_as_deep_as_allowed_works_and_is_quick() -> None:
    deepest = MAX_DEPTH - 2
    began = clock.perf_counter()
    assert holds("not " * (deepest // 2 * 2) + "active")
    nested = "user"
    for _ in range(deepest):
        nested = f"lower({nested})"
    check_against(parse_expression(f"{nested} = 'x'"), SCHEMA)
    member = "active"
    for _ in range(80):
        member = f"({member} in (true, true))"
    check_against(parse_expression(member), SCHEMA)
    assert holds(member)
    assert clock.perf_counter() - began < 2
    assert holds(" or ".join(["count = 1"] * 300) + " or active")


def test_no_pattern_can_hang() -> None:
    text = "a" * 5_000
    began = clock.perf_counter()
    for pattern in ("^(a+)+b$", "(a|aa)+$b", ".*.*.*.*.*x", "((((a?)?)?)?)*b", "(a*)*" * 20 + "b"):
        assert not compile_pattern(pattern)(text)
    nested = "a"
    for _ in range(29):
        nested = f"({nested})?"
    assert compile_pattern(nested + "x")("ax")
    assert not compile_like("%a" * 100 + "%b%")(text)
    assert clock.perf_counter() - began < 10


_ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", "[a-c]", r"\d", r"\w", r"\S", r"[\d_]", r"[\D]", r"\.", "^", "$"]
)
_REGEXES = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,1}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(_REGEXES, st.lists(st.text("abcA1_. \n", max_size=7), min_size=3, max_size=3), st.booleans())
def test_patterns_find_what_re_finds(pattern: str, texts: list[str], any_case: bool) -> None:
    prefix = "(?i)" if any_case else ""
    reference = re.compile(prefix + pattern.replace("$", r"\Z"), re.ASCII)
    found_in = compile_pattern(prefix + pattern)
    for text in texts:
        assert found_in(text) == (reference.search(text) is not None), (pattern, text)


@settings(max_examples=200, deadline=None)
@given(st.text("ab%_", max_size=8), st.text("ab\n", max_size=8))
def test_like_fits_what_a_regex_fits(pattern: str, text: str) -> None:
    reference = "".join({"%": ".*", "_": "."}.get(letter, letter) for letter in pattern)
    assert compile_like(pattern)(text) == (re.fullmatch(reference, text, re.DOTALL) is not None)


_STEPS = st.one_of(st.text(min_size=1, max_size=6), st.sampled_from(["in", "and", "_key", "a", "a`b"]))
_NAMES = st.builds(
    lambda first, rest: tree.Name((first, *rest)),
    _STEPS,
    st.lists(st.one_of(_STEPS, st.integers(0, 99)), max_size=2),
)
_LITERALS = st.builds(
    tree.Literal,
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
        st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.replace(fold=0)),
    ),
)
_METADATA = st.one_of(
    st.builds(tree.Metadata, st.sampled_from(tree.METADATA_NAMES)),
    st.builds(tree.Metadata, st.just("_key"), st.tuples(_STEPS)),
)


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(
        st.builds(tree.Negate, inner),
        st.builds(tree.Not, inner),
        st.builds(tree.And, some),
        st.builds(tree.Or, some),
        st.builds(tree.Arithmetic, st.sampled_from("+-*/%"), inner, inner),
        st.builds(tree.Compare, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), inner, inner),
        st.builds(tree.In, inner, some, st.booleans()),
        st.builds(tree.Between, inner, inner, inner, st.booleans()),
        st.builds(tree.IsNull, inner, st.booleans()),
        st.builds(tree.Like, inner, st.text(max_size=6), st.booleans()),
        st.builds(tree.Matches, inner, st.just("a+"), st.booleans()),
        st.builds(tree.Call, st.just("coalesce"), some),
        st.builds(tree.Call, st.just("exists"), st.tuples(_NAMES)),
    )


TREES = st.recursive(st.one_of(_NAMES, _LITERALS, _METADATA), _grown, max_leaves=8)


@settings(max_examples=200, deadline=None)
@given(TREES)
def test_written_trees_read_back_the_same(node: tree.Node) -> None:
    # The repr too, since 1, 1.0 and True are equal in Python.
    again = parse_tree(format_expression(node))
    assert again == node
    assert repr(again) == repr(node)


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (tree.Literal(-5), "-5"),
        (tree.Negate(tree.Literal(5)), "-(5)"),
        (tree.Negate(tree.Literal(-5)), "--5"),
        (tree.Negate(tree.Negate(tree.Name(("a",)))), "--a"),
        (tree.And((tree.And((tree.Name(("a",)), tree.Name(("b",)))), tree.Name(("c",)))), "(a and b) and c"),
        (tree.Name(("_key", "in")), "`_key`.in"),
    ],
)
def test_written_trees(node: tree.Node, text: str) -> None:
    assert format_expression(node) == text
    assert repr(parse_tree(text)) == repr(node)


_ANY_VALUE = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.binary(max_size=5),
        st.datetimes(timezones=st.sampled_from([None, UTC])),
        st.dates(),
        st.times(),
        st.uuids(),
        st.decimals(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(TREES, st.dictionaries(st.sampled_from(["a", "in", "_key"]), _ANY_VALUE), _ANY_VALUE)
def test_every_tree_gives_true_or_false_on_every_record(
    node: tree.Node, record: dict[str, Any], key: Any
) -> None:
    test = compile_expression(tree.Expression("", node))
    assert test(record, {"_key": key, "_timestamp": 5}) in (True, False)


_FRAGMENTS = st.sampled_from(
    re.split(
        " ",
        "a b.c `x` [ ] [0] ( ) , . = == != < > + - * / % ! && || and or not in between is null like matches "
        "true 1 2.5 1e9 'x' \"y\" '%' timestamp lower( exists( round( _key _offset ' ` \\ \n 'a(b' é",
    )
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(_FRAGMENTS, max_size=25).map(" ".join)))
def test_random_text_is_an_expression_or_a_fault_of_it(text: str) -> None:
    try:
        expression = parse_expression(text)
    except BadExpression as error:
        position = error.position
    else:
        position = 0
        assert parse_expression(format_expression(expression.tree)) == expression
        assert compile_expression(expression)(RECORD, METADATA) in (True, False)
        with contextlib.suppress(BadExpression):
            check_against(expression, SCHEMA)
    assert position is not None
    assert 0 <= position <= len(text)


@settings(max_examples=200, deadline=None)
@given(st.text("ab()[]{}*+?|\\^$.,-0123dwsn(?i)", max_size=30))
def test_random_patterns_compile_or_are_refused(pattern: str) -> None:
    try:
        found_in = compile_pattern(pattern)
    except BadExpression:
        return
    assert found_in("ab01 \n") in (True, False)
