"""catalog.toml: what feeds should be, all faults at once; and the catalogue that keeps them."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stack.errors import BadCatalogue, CorruptState, NotFound
from stack.feeds.catalogue import Catalogue, spec_from_json, spec_to_json, specs_of
from stack.feeds.declare import Declaration, read_declarations
from stack.model.feed import Events, FeedSpec, FreshnessOf, Key, KeyFormat, Kind, Table
from stack.model.ledger import Changes, Decide, Entries, MemoryLedger
from tests.unit.test_settings import to_toml

VIEW = {
    "type": "record",
    "name": "View",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "ms", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "load", "type": "double"},
        {"name": "visits", "type": "int"},
        {"name": "maybe", "type": ["null", "string"], "default": None},
        {"name": "place", "type": {"type": "record", "name": "Place", "fields": []}},
        {"name": "home", "type": "Place"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["ON"]}},
        {"name": "raw", "type": "bytes"},
    ],
}
PLAIN = 'kind = "source"\nfor = "views"\nowner = "web"\nschema = "view.avsc"\n'


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with schemas and room for a catalog.toml."""
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "view.avsc").write_text(json.dumps(VIEW))
    (folder / "empty.avsc").write_text('{"type": "record", "name": "Empty", "fields": []}')
    (folder / "enum.avsc").write_text('{"type": "enum", "name": "E", "symbols": ["A"]}')
    (folder / "union.avsc").write_text(json.dumps(["null", VIEW]))
    (folder / "text.avsc").write_text('"string"')
    (folder / "broken.avsc").write_text('{"type": "record",')
    (folder / "unknown.avsc").write_text('"strng"')
    (folder / "latin.avsc").write_bytes(b'"\xe9"')
    (folder / "inner").mkdir()
    (folder / "inner" / "view.avsc").write_text(json.dumps(VIEW))
    (folder.parent / "outside.avsc").write_text(json.dumps(VIEW))
    (folder / "link.avsc").symlink_to(folder.parent / "outside.avsc")
    return folder


Read = Callable[[str], tuple[Declaration, ...]]


@pytest.fixture
def read(schemas: Path) -> Iterator[Read]:
    def read_text(text: str) -> tuple[Declaration, ...]:
        (schemas / "catalog.toml").write_text(text, encoding="utf-8")
        return read_declarations(schemas)

    yield read_text
    (schemas / "catalog.toml").unlink(missing_ok=True)


def faults_of(read: Read, text: str) -> tuple[str, ...]:
    with pytest.raises(BadCatalogue) as caught:
        read(text)
    assert all(fault in caught.value.message for fault in caught.value.faults)
    return caught.value.faults


def test_every_key_of_an_event_feed_is_read(read: Read) -> None:
    (found,) = read(
        """
        [feeds.page-views]
        kind = "source"
        for = "every page view"
        owner = "web"
        schema = "inner/view.avsc"
        key = "user"
        key_format = "avro"
        partitions = 4
        retention = "7d12h"
        event_time = "ms"
        freshness = "10s"
        freshness_window = "2m"
        freshness_of = "records"
        compatibility = "FULL_TRANSITIVE"
        """
    )
    assert found.spec == FeedSpec(
        name="page-views",
        kind=Kind.SOURCE,
        purpose="every page view",
        owner="web",
        schema="inner/view.avsc",
        partitions=4,
        storage=Events(648_000_000),
        key=Key("user", KeyFormat.AVRO),
        event_time="ms",
        freshness_ms=10_000,
        freshness_window_ms=120_000,
        freshness_of=FreshnessOf.RECORDS,
        compatibility="FULL_TRANSITIVE",
    )
    assert found.schema.tree == VIEW


def test_every_key_of_a_derived_table_feed_is_read(read: Read) -> None:
    source, derived = read(
        f"""
        [feeds.views]
        {PLAIN}
        [feeds.users]
        kind = "derived"
        for = "users"
        owner = "web"
        schema = "view.avsc"
        key = "user"
        table = true
        horizon = "2d"
        by = "count"
        inputs = ["views"]
        """
    )
    assert source.spec.name == "views"
    assert derived.spec.storage == Table(172_800_000)
    assert derived.spec.is_table
    assert (derived.spec.by, derived.spec.inputs) == ("count", ("views",))
    assert derived.spec.key == Key("user", KeyFormat.UTF8)


def test_what_is_left_out_has_a_default(read: Read) -> None:
    events, table = read(f"[feeds.a]\n{PLAIN}[feeds.b]\n{PLAIN}table = true\nkey = 'user'")
    assert (events.spec.partitions, events.spec.storage, events.spec.key) == (1, Events(7 * 86_400_000), None)
    assert table.spec.storage == Table(86_400_000)
    assert events.spec.version == 1


def test_a_feed_may_be_kept_for_ever(read: Read) -> None:
    assert read(f"[feeds.a]\n{PLAIN}retention = 'forever'")[0].spec.storage == Events(None)


def test_feeds_keep_the_order_of_the_file(read: Read) -> None:
    names = ["z", "a", "m"]
    assert [one.spec.name for one in read("".join(f"[feeds.{name}]\n{PLAIN}" for name in names))] == names


@pytest.mark.parametrize("text", ["", "[feeds]", "# nothing"])
def test_no_feeds_are_no_fault(read: Read, text: str) -> None:
    assert read(text) == ()


@pytest.mark.parametrize("field", ["user", "ms", "visits", "state", "at"])
def test_a_text_key_may_be_text_a_whole_number_or_an_enum(read: Read, field: str) -> None:
    assert read(f"[feeds.a]\n{PLAIN}key = '{field}'")[0].spec.key == Key(field)


@pytest.mark.parametrize("field", ["load", "maybe", "place", "raw", "user", "ms"])
def test_an_avro_key_may_be_any_type_that_stands_alone(read: Read, field: str) -> None:
    (found,) = read(f"[feeds.a]\n{PLAIN}key = '{field}'\nkey_format = 'avro'")
    assert found.spec.key == Key(field, KeyFormat.AVRO)


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        # values
        ("key = ''", ".key: must be text, got ''"),
        ("key = 5", ".key: must be text, got 5"),
        ("key_format = 'json'", '.key_format: must be "utf8" or "avro", got \'json\''),
        ("partitions = 0", ".partitions: must be a whole number from 1 to 10,000, got 0"),
        ("partitions = 10001", ".partitions: must be a whole number from 1 to 10,000, got 10001"),
        ("partitions = true", ".partitions: must be a whole number from 1 to 10,000, got True"),
        ("partitions = 2.0", ".partitions: must be a whole number from 1 to 10,000, got 2.0"),
        (f"partitions = 0x{'f' * 5000}", ".partitions: holds a number that is too long"),
        ("retention = '0s'", ".retention: must be longer than nothing, got '0s'"),
        ("retention = 'ever'", ".retention: 'ever' is not a duration"),
        ("retention = 7", ".retention: must be text, got 7"),
        (f"retention = '{'9' * 18}w'", f".retention: '{'9' * 18}w' is too long"),
        ("freshness = '0ms'", ".freshness: must be longer than nothing, got '0ms'"),
        ("table = 'yes'", ".table: must be true or false, got 'yes'"),
        ("compatibility = 'full'", ".compatibility: must be one of "),
        ("compatibility = ['FULL']", ".compatibility: must be one of "),
        ("inputs = 'views'", ".inputs: must be a list of names, got 'views'"),
        ("inputs = [1]", ".inputs: must be a list of names, got [1]"),
        # keys
        ("partition = 2", ".partition: unknown key; did you mean partitions?"),
        ("zzz = 2", ".zzz: unknown key; known here: by, compatibility, "),
        # contradictions
        ("key = 'usr'", ".key: view.avsc has no field 'usr'; did you mean user?"),
        ("key = 'zzzz'", ".key: view.avsc has no field 'zzzz'; its fields: user, ms, "),
        ("key = 'load'", ".key: field 'load' is double; a text key is made of string, int, long, enum"),
        ("key = 'maybe'", ".key: field 'maybe' is a union; a text key"),
        ("key = 'raw'", ".key: field 'raw' is bytes; a text key"),
        ("key = 'place'", ".key: field 'place' is record; a text key"),
        ("key = 'home'\nkey_format = 'avro'", ".key: it cannot be the schema of an Avro key: "),
        ("key_format = 'avro'", ".key_format: given without key"),
        ("event_time = 'when'", ".event_time: view.avsc has no field 'when'"),
        ("event_time = 'user'", ".event_time: field 'user' must be a long"),
        ("event_time = 'visits'", ".event_time: field 'visits' must be a long"),
        ("table = true", ".table: a table feed needs key"),
        ("table = true\nkey = 'user'\nretention = '7d'", ".retention: a table feed keeps the last record"),
        ("horizon = '1d'", ".horizon: only a table feed has one"),
        ("table = false\nhorizon = '1d'", ".horizon: only a table feed has one"),
        ("by = 'job'", ".by: only a derived feed has it"),
        ("inputs = []", ".inputs: only a derived feed has it"),
        ("freshness_window = '5m'", ".freshness_window: given without freshness"),
        ("freshness_of = 'records'", ".freshness_of: given without freshness"),
        ("freshness = '5m'\nfreshness_of = 'job'", ".freshness_of: no job makes a source feed"),
        ("freshness = '5m'\nfreshness_of = 'luck'", '.freshness_of: must be "job" or "records"'),
    ],
)
def test_a_contradiction_is_one_fault_under_its_key(read: Read, lines: str, fault: str) -> None:
    (found,) = faults_of(read, f"[feeds.a]\n{PLAIN}{lines}")
    assert found.startswith(f"feeds.a{fault}")


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ("nothing.avsc", "there is no file"),
        ("../outside.avsc", "../outside.avsc lies outside"),
        ("/etc/passwd", "/etc/passwd lies outside"),
        ("link.avsc", "link.avsc lies outside"),
        ("inner/../../outside.avsc", "lies outside"),
        (".", "cannot be read"),
        ("inner", "cannot be read"),
        ("view.avsc/x", "cannot be read"),
        ("x" * 5000, "cannot be read"),
        ("latin.avsc", "cannot be read"),
        ("broken.avsc", "is not JSON"),
        ("unknown.avsc", "uses the type 'strng'"),
        ("enum.avsc", "must be a record"),
        ("union.avsc", "must be a record"),
        ("text.avsc", "must be a record"),
    ],
)
def test_a_schema_is_a_record_in_a_file_of_the_folder(read: Read, schema: str, fault: str) -> None:
    (found,) = faults_of(read, f"[feeds.a]\n{PLAIN.replace('view.avsc', schema)}")
    assert found.startswith("feeds.a.schema: ")
    assert fault in found


def test_a_record_without_fields_is_a_record(read: Read) -> None:
    assert read(f"[feeds.a]\n{PLAIN.replace('view', 'empty')}")[0].schema.field_names == ()


@pytest.mark.parametrize("name", ["Views", "a b", "views.dead", "views.v2", "", "x" * 181])
def test_a_name_that_does_not_do_is_told_why(read: Read, name: str) -> None:
    (found,) = faults_of(read, f'[feeds."{name}"]\n{PLAIN}')
    assert found.startswith(f"feeds.{name}: the name does not do: ")


def test_what_must_be_given_is_named(read: Read) -> None:
    assert faults_of(read, "[feeds.a]") == tuple(
        f"feeds.a.{key}: must be given" for key in ("kind", "for", "owner", "schema")
    )


def test_a_key_that_is_wrong_is_not_also_missing(read: Read) -> None:
    assert faults_of(read, f"[feeds.a]\n{PLAIN.replace('source', 'sauce')}") == (
        'feeds.a.kind: must be "source" (written from outside) or "derived" (written by a job), '
        "got 'sauce'",
    )


def test_the_faults_of_all_feeds_come_at_once(read: Read) -> None:
    faults = faults_of(
        read,
        f"""
        colour = "red"
        [feeds]
        loose = 5
        [feeds.one]
        {PLAIN}
        partitions = 0
        retenton = "1d"
        [feeds.two]
        {PLAIN}
        key = "load"
        horizon = "1d"
        [feeds.three]
        {PLAIN.replace("source", "derived")}
        inputs = ["one", "nobody"]
        """,
    )
    assert [fault.partition(": ")[0] for fault in faults] == [
        "colour",
        "feeds.loose",
        "feeds.one.partitions",
        "feeds.one.retenton",
        "feeds.two.key",
        "feeds.two.horizon",
        "feeds.three.inputs",
    ]
    assert faults[-1] == "feeds.three.inputs: there is no feed 'nobody'"


@pytest.mark.parametrize("text", ["feeds = 5", "feeds = []", "[[feeds]]\nx = 1"])
def test_feeds_are_tables(read: Read, text: str) -> None:
    assert faults_of(read, text) == ("feeds: must be tables, written [feeds.NAME]",)


@pytest.mark.parametrize("text", ["[feeds", "x = " + "9" * 5000, "x = " + "[" * 5000])
def test_what_is_not_toml_is_refused(read: Read, text: str) -> None:
    with pytest.raises(BadCatalogue, match=r"catalog\.toml is not TOML"):
        read(text)


def test_a_missing_catalogue_is_told_where_it_should_be(tmp_path: Path) -> None:
    with pytest.raises(BadCatalogue, match=r"there is no .*catalog\.toml") as caught:
        read_declarations(tmp_path)
    assert "schemas =" in caught.value.hint


def test_a_catalogue_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "catalog.toml").write_bytes(b"\xff")
    with pytest.raises(BadCatalogue, match=r"catalog\.toml cannot be read"):
        read_declarations(tmp_path)
    (tmp_path / "catalog.toml").unlink()
    (tmp_path / "catalog.toml").mkdir()
    with pytest.raises(BadCatalogue, match=r"catalog\.toml cannot be read"):
        read_declarations(tmp_path)


WORDS = [
    *("kind", "for", "owner", "schema", "key", "key_format", "partitions", "retention", "table", "horizon"),
    *("event_time", "freshness", "freshness_window", "freshness_of", "by", "inputs", "compatibility"),
]
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8)
LEAVES = (
    st.booleans()
    | st.integers(-5, 20_000)
    | st.floats()
    | TEXTS
    | st.sampled_from(
        [
            *("source", "derived", "view.avsc", "../outside.avsc", "a\0b", "", "."),
            *("user", "load", "ms", "home"),
            *("utf8", "avro", "7d", "forever", "0s", "9" * 400 + "w", "FULL", "enum.avsc", "a" * 5000),
        ]
    )
    | st.dates()
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2)
)
GOOD = {"kind": "source", "for": "x", "owner": "y", "schema": "view.avsc"}
FEEDS = st.dictionaries(
    st.sampled_from(["a", "views", "a.v2", "A"]) | TEXTS,
    st.dictionaries(st.sampled_from(WORDS) | TEXTS, VALUES, max_size=6).map(lambda more: {**GOOD, **more})
    | VALUES,
    max_size=3,
)


@given(
    st.fixed_dictionaries({"feeds": FEEDS}, optional={"other": VALUES})
    | st.dictionaries(TEXTS, VALUES, max_size=2)
)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example({"feeds": {"a": {**GOOD, "schema": "a\0b"}}})
@example({"feeds": {"a": {**GOOD, "retention": "9" * 400 + "w"}}})
def test_any_toml_is_declarations_or_a_bad_catalogue(read: Read, tree: dict[str, Any]) -> None:
    text = "\n".join(f"{to_toml(key)} = {to_toml(value)}" for key, value in tree.items())
    tomllib.loads(text)
    with contextlib.suppress(BadCatalogue):
        for one in read(text):
            assert spec_from_json(one.spec.name, spec_to_json(one.spec)) == one.spec


# The catalogue that keeps what was declared.

WORD = st.text(min_size=1, max_size=10)
SPECS = st.builds(
    FeedSpec,
    name=WORD,
    kind=st.sampled_from(Kind),
    purpose=WORD,
    owner=WORD,
    schema=WORD,
    partitions=st.integers(1, 10_000),
    storage=st.builds(Events, st.none() | st.integers(1, (1 << 63) - 1))
    | st.builds(Table, st.integers(1, (1 << 63) - 1)),
    key=st.none() | st.builds(Key, WORD, st.sampled_from(KeyFormat)),
    event_time=st.none() | WORD,
    freshness_ms=st.none() | st.integers(1, 1 << 40),
    freshness_window_ms=st.integers(1, 1 << 40),
    freshness_of=st.sampled_from(FreshnessOf),
    by=st.none() | WORD,
    inputs=st.lists(WORD, max_size=3).map(tuple),
    compatibility=st.none() | st.just("FULL"),
    version=st.integers(1, 50),
)


def spec(name: str, **more: Any) -> FeedSpec:
    return FeedSpec(
        **{
            "name": name,
            "kind": Kind.SOURCE,
            "purpose": "x",
            "owner": "web",
            "schema": "view.avsc",
            "partitions": 1,
            "storage": Events(1000),
            **more,
        }
    )


@given(SPECS)
def test_a_feed_survives_being_stored(one: FeedSpec) -> None:
    assert spec_from_json(one.name, spec_to_json(one)) == one


def test_a_feed_is_stored_as_one_line_of_json_that_stays_the_same() -> None:
    assert spec_to_json(spec("é", key=Key("user"))) == (
        '{"name":"é","version":1,"kind":"source","for":"x","owner":"web","schema":"view.avsc","partitions":1,'
        '"events":{"retention_ms":1000},"key":{"field":"user","format":"utf8"},"event_time":null,'
        '"freshness_ms":null,"freshness_window_ms":300000,"freshness_of":"job","by":null,"inputs":[],"compatibility":null}'
    )


STORED: dict[str, Any] = json.loads(spec_to_json(spec("views")))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "5",
        '"table"',
        '["table"]',
        "{}",
        "[" * 100_000,
        *(
            json.dumps({k: v for k, v in STORED.items() if k != gone})
            for gone in STORED
            if gone in ("name", "version", "kind", "for", "owner", "schema", "partitions", "events")
        ),
        json.dumps({**STORED, "kind": "sauce"}),
        json.dumps({**STORED, "partitions": "many"}),
        json.dumps({**STORED, "partitions": float("inf")}),
        json.dumps({**STORED, "events": 5}),
        json.dumps({**STORED, "events": {"retention_ms": "long"}}),
        json.dumps({**STORED, "table": {"horizon_ms": None}}),
        json.dumps({**STORED, "key": "user"}),
        json.dumps({**STORED, "key": {"field": "user"}}),
        json.dumps({**STORED, "key": {"field": "user", "format": "xml"}}),
        json.dumps({**STORED, "freshness_ms": "soon"}),
        json.dumps({**STORED, "freshness_of": "luck"}),
        json.dumps({**STORED, "inputs": 5}),
    ],
)
def test_a_broken_record_of_a_feed_is_corrupt_state_that_names_it(text: str) -> None:
    with pytest.raises(CorruptState, match="the catalogue's record of feed 'views' is broken") as caught:
        specs_of({"views": text})
    assert "stack feeds apply" in caught.value.hint


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | WORD, lambda inner: st.lists(inner, max_size=3)),
    st.data(),
)
def test_any_stored_value_is_a_feed_or_corrupt_state(value: Any, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from([*STORED, "table"]))
    with contextlib.suppress(CorruptState):
        spec_from_json("views", json.dumps({**STORED, key: value}))


class CountingLedger(MemoryLedger):
    """Remembers every change that was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Changes] = []

    def update(self, decide: Decide) -> Entries:
        def note(entries: Entries) -> Changes:
            self.changes.append(decide(entries))
            return self.changes[-1]

        return super().update(note)


def test_feeds_come_in_alphabetical_order() -> None:
    catalogue = Catalogue(MemoryLedger())
    for name in ("b", "c", "a"):
        catalogue.put(spec(name))
    assert list(catalogue.feeds()) == ["a", "b", "c"]
    assert catalogue.feed("b") == spec("b")


def test_putting_a_feed_again_writes_nothing() -> None:
    ledger = CountingLedger()
    catalogue = Catalogue(ledger)
    for _ in range(2):
        catalogue.put(spec("a"))
    assert [list(change) for change in ledger.changes] == [["a"], []]
    catalogue.put(spec("a", owner="other"))
    assert catalogue.feed("a").owner == "other"


def test_removing_a_feed_that_is_not_there_writes_nothing() -> None:
    ledger = CountingLedger()
    catalogue = Catalogue(ledger)
    catalogue.put(spec("a"))
    catalogue.remove("a")
    catalogue.remove("a")
    assert ledger.changes[1:] == [{"a": None}, {}]
    assert catalogue.feeds() == {}


@pytest.mark.parametrize(
    ("names", "asked", "hint"),
    [
        (["page-views", "page-clicks", "users"], "page-view", "Did you mean page-views or page-clicks?"),
        (["users"], "usres", "Did you mean users?"),
        (["users", "clicks"], "zzzzzzz", "There are: clicks, users."),
        ([], "users", "The catalogue is empty"),
    ],
)
def test_a_feed_that_does_not_exist_is_told_the_nearest_names(
    names: list[str], asked: str, hint: str
) -> None:
    catalogue = Catalogue(MemoryLedger())
    for name in names:
        catalogue.put(spec(name))
    with pytest.raises(NotFound, match=f"there is no feed '{asked}'") as caught:
        catalogue.feed(asked)
    assert caught.value.hint.startswith(hint)
