"""The registry on a ledger in memory: its answers, what it writes, what it makes of broken entries."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stack.errors import CorruptState, FeedstackError, Incompatible, NotFound
from stack.feeds.avro.schema import AvroSchema, parse_avro
from stack.feeds.registry.compatibility import Level
from stack.feeds.registry.entries import state_from_entries
from stack.feeds.registry.registry import SchemaRegistry
from stack.feeds.registry.state import Code, Mode, RegistryNotFound, RegistryRefused, Which
from stack.model.ledger import Decide, Entries, MemoryLedger


def schema(*names: str, **defaults: Any) -> AvroSchema:
    """A record with string fields: the plain ones by name, those with a default by keyword."""
    fields: list[dict[str, Any]] = [{"name": name, "type": "string"} for name in names]
    fields += [{"name": name, "type": "string", "default": value} for name, value in defaults.items()]
    return parse_avro(json.dumps({"type": "record", "name": "View", "fields": fields}))


A = schema("a")
A_B = schema("a", b="")
A_B_C = schema("a", b="", c="")
A_ZIP = schema("a", "zip")


class CountingLedger(MemoryLedger):
    """A ledger that hands out one mapping until somebody writes, and counts the questions."""

    def __init__(self, entries: Entries | None = None) -> None:
        super().__init__(entries)
        self.reads = self.writes = 0
        self._shown = super().entries()

    def entries(self) -> Entries:
        self.reads += 1
        return self._shown

    def update(self, decide: Decide) -> Entries:
        self.writes += 1
        self._shown = super().update(decide)
        return self._shown


@pytest.fixture
def ledger() -> CountingLedger:
    return CountingLedger()


@pytest.fixture
def registry(ledger: CountingLedger) -> SchemaRegistry:
    return SchemaRegistry(ledger)


def code_of(error: pytest.ExceptionInfo[Any]) -> Code:
    return Code(error.value.code)


def test_entries_have_the_layout_of_the_schemas_topic(
    registry: SchemaRegistry, ledger: CountingLedger
) -> None:
    registry.register("s", A)
    registry.set_level(None, Level.FULL)
    registry.set_mode("s", Mode.READONLY)
    assert ledger.entries() == {
        '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}': (
            '{"subject":"s","version":1,"id":1,"schema":' + json.dumps(A.text) + ',"deleted":false}'
        ),
        '{"keytype":"IDS","magic":0}': '{"highest":1}',
        '{"keytype":"CONFIG","subject":null,"magic":0}': '{"compatibilityLevel":"FULL"}',
        '{"keytype":"MODE","subject":"s","magic":0}': '{"mode":"READONLY"}',
    }


def test_entries_of_another_registry_are_read() -> None:
    text = '{"type":"record","name":"R","fields":[]}'
    registry = SchemaRegistry(
        MemoryLedger(
            {
                '{"keytype":"NOOP","magic":0}': "",
                '{"keytype":"DELETE_SUBJECT","subject":"gone","magic":0}': '{"subject":"gone","version":1}',
                '{"keytype":"SCHEMA","subject":"s","version":3,"magic":1}': json.dumps(
                    {"subject": "s", "version": 3, "id": 9, "schemaType": "AVRO", "schema": text}
                ),
            }
        )
    )
    assert registry.schema_by_id(9) == parse_avro(text)
    assert registry.register("s", A_ZIP.__class__(text, json.loads(text))).version == 3
    assert registry.state().faults == ()


def test_the_same_schema_has_one_id_in_all_subjects(registry: SchemaRegistry) -> None:
    assert registry.register("one", A).id == 1
    assert registry.register("two", A_B).id == 2
    again = registry.register("two", A)
    assert (again.id, again.version) == (1, 2)


def test_registering_again_writes_nothing(registry: SchemaRegistry, ledger: CountingLedger) -> None:
    first = registry.register("s", A)
    before, writes = ledger.entries(), ledger.writes
    assert registry.register("s", A) == first
    assert ledger.entries() is before
    assert ledger.writes == writes


def test_an_incompatible_schema_names_everything(registry: SchemaRegistry, ledger: CountingLedger) -> None:
    registry.register("s", A)
    before = ledger.entries()
    with pytest.raises(Incompatible) as error:
        registry.register("s", A_ZIP)
    for part in ("'s'", "BACKWARD", "View.zip", "reader-field-missing-default", "version 1"):
        assert part in error.value.message
    assert len(error.value.breaks) == 1
    assert ledger.entries() is before


def test_a_subject_has_its_own_level(registry: SchemaRegistry) -> None:
    registry.register("s", A)
    registry.set_level("s", Level.NONE)
    assert registry.register("s", A_ZIP).version == 2
    registry.register("other", A)
    with pytest.raises(Incompatible):
        registry.register("other", A_ZIP)
    assert registry.set_level("s", None) is Level.NONE
    assert registry.state().level("s") is Level.BACKWARD
    with pytest.raises(RegistryNotFound) as error:
        registry.set_level("s", None)
    assert code_of(error) is Code.SUBJECT_NOT_FOUND


def test_the_global_level_can_be_dropped(registry: SchemaRegistry) -> None:
    registry.set_level(None, Level.FULL)
    assert registry.state().level("any") is Level.FULL
    assert registry.set_level(None, None) is Level.FULL
    assert registry.set_level(None, None) is Level.BACKWARD


def test_transitive_levels_look_at_all_live_versions(registry: SchemaRegistry) -> None:
    registry.register("s", A)
    registry.register("s", A_B)
    required = schema("a", "b")
    assert registry.find_breaks("s", required) == ()
    registry.set_level("s", Level.BACKWARD_TRANSITIVE)
    (found,) = registry.find_breaks("s", required)
    assert found.path == "View.b"
    assert "version 1" in found.message
    registry.delete_version("s", 1)
    assert registry.find_breaks("s", required) == ()


def test_one_version_is_checked_alone(registry: SchemaRegistry) -> None:
    registry.register("s", A)
    registry.register("s", A_B)
    required = schema("a", "b")
    assert registry.find_breaks_with("s", required, None) == ()
    assert [one.path for one in registry.find_breaks_with("s", required, 1)] == ["View.b"]
    assert registry.find_breaks_with("new", required, None) == ()
    with pytest.raises(RegistryNotFound) as error:
        registry.find_breaks_with("s", required, 3)
    assert code_of(error) is Code.VERSION_NOT_FOUND


def test_versions_go_on_after_a_soft_delete(registry: SchemaRegistry) -> None:
    registry.register("s", A)
    registry.register("s", A_B)
    assert registry.delete_subject("s") == (1, 2)
    assert registry.state().subjects() == ()
    assert registry.state().subjects(which=Which.DELETED) == ("s",)
    again = registry.register("s", A)
    assert (again.id, again.version) == (1, 3)
    assert [one.version for one in registry.state().versions_of("s", Which.ALL)] == [1, 2, 3]


def test_a_soft_deleted_schema_is_still_read_by_id(registry: SchemaRegistry) -> None:
    registry.register("s", A)
    registry.delete_version("s", 1)
    assert registry.schema_by_id(1) == A
    with pytest.raises(RegistryNotFound) as error:
        registry.latest("s")
    assert code_of(error) is Code.SUBJECT_NOT_FOUND
    assert registry.lookup("s", A, Which.ALL).version == 1


def test_ids_are_not_used_again_after_a_permanent_delete(ledger: CountingLedger) -> None:
    registry = SchemaRegistry(ledger)
    registry.register("s", A)
    assert registry.register("s", A_B).id == 2
    registry.delete_subject("s")
    assert registry.delete_subject("s", permanent=True) == (1, 2)
    assert list(ledger.entries()) == ['{"keytype":"IDS","magic":0}']
    again = SchemaRegistry(ledger).register("s", A)
    assert (again.id, again.version) == (3, 1)
    with pytest.raises(NotFound):
        SchemaRegistry(ledger).schema_by_id(1)


@pytest.mark.parametrize(
    ("permanent", "deleted_before", "expected"),
    [
        (True, False, Code.VERSION_NOT_SOFT_DELETED),
        (False, True, Code.VERSION_SOFT_DELETED),
    ],
)
def test_deletes_of_a_version_in_the_wrong_order(
    registry: SchemaRegistry, permanent: bool, deleted_before: bool, expected: Code
) -> None:
    registry.register("s", A)
    registry.register("s", A_B)
    if deleted_before:
        registry.delete_version("s", 1)
    with pytest.raises(RegistryNotFound) as error:
        registry.delete_version("s", 1, permanent=permanent)
    assert code_of(error) is expected


@pytest.mark.parametrize(
    ("permanent", "deleted_before", "expected"),
    [
        (True, False, Code.SUBJECT_NOT_SOFT_DELETED),
        (False, True, Code.SUBJECT_SOFT_DELETED),
    ],
)
def test_deletes_of_a_subject_in_the_wrong_order(
    registry: SchemaRegistry, permanent: bool, deleted_before: bool, expected: Code
) -> None:
    registry.register("s", A)
    if deleted_before:
        registry.delete_subject("s")
    with pytest.raises(RegistryNotFound) as error:
        registry.delete_subject("s", permanent=permanent)
    assert code_of(error) is expected


def test_deletes_of_what_is_not_there(registry: SchemaRegistry) -> None:
    with pytest.raises(RegistryNotFound) as error:
        registry.delete_subject("s")
    assert code_of(error) is Code.SUBJECT_NOT_FOUND
    registry.register("s", A)
    with pytest.raises(RegistryNotFound) as error:
        registry.delete_version("s", 2)
    assert code_of(error) is Code.VERSION_NOT_FOUND


def test_a_soft_delete_of_a_subject_drops_its_settings(registry: SchemaRegistry) -> None:
    registry.register("s", A)
    registry.set_level("s", Level.NONE)
    registry.set_mode("s", Mode.READWRITE)
    registry.delete_subject("s")
    assert registry.state().own_level("s") is None
    assert registry.state().own_mode("s") is None


def test_the_latest_version_is_deleted_by_none(registry: SchemaRegistry) -> None:
    registry.register("s", A)
    registry.register("s", A_B)
    assert registry.delete_version("s", None) == 2
    assert registry.latest("s").version == 1


@pytest.mark.parametrize("mode", [Mode.READONLY, Mode.READONLY_OVERRIDE])
def test_read_only_refuses_every_write_but_answers_what_is_there(
    registry: SchemaRegistry, mode: Mode
) -> None:
    registry.register("s", A)
    registry.set_mode(None, mode)
    for write in (
        lambda: registry.register("s", A_B),
        lambda: registry.delete_subject("s"),
        lambda: registry.delete_version("s", 1),
        lambda: registry.set_level("s", Level.NONE),
    ):
        with pytest.raises(RegistryRefused) as error:
            write()
        assert code_of(error) is Code.NOT_PERMITTED
    assert registry.register("s", A).id == 1
    assert registry.set_mode(None, Mode.READWRITE) is Mode.READWRITE
    assert registry.register("s", A_B).version == 2


def test_a_subject_may_write_under_readonly_but_not_under_override(registry: SchemaRegistry) -> None:
    registry.set_mode(None, Mode.READONLY)
    registry.set_mode("s", Mode.READWRITE)
    assert registry.register("s", A).version == 1
    registry.set_mode(None, Mode.READONLY_OVERRIDE)
    with pytest.raises(RegistryRefused):
        registry.register("s", A_B)
    with pytest.raises(RegistryRefused) as error:
        registry.set_mode("s", Mode.READONLY_OVERRIDE)
    assert code_of(error) is Code.INVALID_MODE


def test_import_takes_ids_and_versions_and_skips_compatibility(registry: SchemaRegistry) -> None:
    registry.set_mode("s", Mode.IMPORT)
    first = registry.register("s", A, schema_id=40, version=7)
    assert (first.id, first.version) == (40, 7)
    second = registry.register("s", A_ZIP, schema_id=30)
    assert (second.id, second.version) == (30, 8)
    assert registry.register("other", A_B).id == 41


@pytest.mark.parametrize(
    ("new", "schema_id", "version", "expected"),
    [
        (A_B, None, None, Code.NOT_PERMITTED),
        (A_B, 40, None, Code.NOT_PERMITTED),
        (A_B, 41, 7, Code.NOT_PERMITTED),
        (A, 41, None, Code.ID_DOES_NOT_MATCH),
        (A, 41, 8, Code.ID_DOES_NOT_MATCH),
    ],
)
def test_import_overwrites_nothing(
    registry: SchemaRegistry, new: AvroSchema, schema_id: int | None, version: int | None, expected: Code
) -> None:
    registry.set_mode("s", Mode.IMPORT)
    registry.register("s", A, schema_id=40, version=7)
    with pytest.raises(RegistryRefused) as error:
        registry.register("s", new, schema_id=schema_id, version=version)
    assert code_of(error) is expected


def test_import_again_writes_nothing(registry: SchemaRegistry, ledger: CountingLedger) -> None:
    registry.set_mode("s", Mode.IMPORT)
    registry.register("s", A, schema_id=40, version=1)
    registry.register("s", A, schema_id=40, version=2)
    writes = ledger.writes
    assert registry.register("s", A, schema_id=40, version=1).version == 1
    assert registry.register("s", A, schema_id=40).version == 2
    assert ledger.writes == writes


def test_ids_and_versions_are_for_import_only(registry: SchemaRegistry) -> None:
    for given in ({"schema_id": 5}, {"version": 5}):
        with pytest.raises(RegistryRefused) as error:
            registry.register("s", A, **given)
        assert code_of(error) is Code.NOT_PERMITTED


def test_import_on_top_of_schemas_wants_force(registry: SchemaRegistry) -> None:
    registry.register("s", A)
    for subject in (None, "s"):
        with pytest.raises(RegistryRefused) as error:
            registry.set_mode(subject, Mode.IMPORT)
        assert code_of(error) is Code.NOT_PERMITTED
    assert registry.set_mode("s", Mode.IMPORT, force=True) is Mode.IMPORT
    assert registry.set_mode("empty", Mode.IMPORT) is Mode.IMPORT


def test_the_last_id(registry: SchemaRegistry) -> None:
    registry.set_mode("s", Mode.IMPORT)
    registry.register("s", A, schema_id=2**31 - 1)
    with pytest.raises(RegistryRefused, match="All ids"):
        registry.register("other", A_B)


@pytest.mark.parametrize("subject", ["", "a\nb", "a\x00"])
def test_bad_subjects(registry: SchemaRegistry, subject: str) -> None:
    with pytest.raises(RegistryRefused) as error:
        registry.register(subject, A)
    assert code_of(error) is Code.INVALID_SUBJECT


def test_lookup(registry: SchemaRegistry) -> None:
    with pytest.raises(RegistryNotFound) as error:
        registry.lookup("s", A)
    assert code_of(error) is Code.SUBJECT_NOT_FOUND
    registry.register("s", A)
    assert registry.lookup("s", A).version == 1
    with pytest.raises(RegistryNotFound) as error:
        registry.lookup("s", A_B)
    assert code_of(error) is Code.SCHEMA_NOT_FOUND


def test_an_id_is_asked_for_once(registry: SchemaRegistry, ledger: CountingLedger) -> None:
    registry.register("s", A)
    fresh = SchemaRegistry(ledger)
    reads = ledger.reads
    assert fresh.schema_by_id(1) is fresh.schema_by_id(1)
    assert ledger.reads == reads + 1
    with pytest.raises(NotFound):
        fresh.schema_by_id(2)
    SchemaRegistry(ledger).register("s", A_B)
    assert fresh.schema_by_id(2) == A_B


def test_the_state_is_built_only_when_entries_change(registry: SchemaRegistry) -> None:
    registry.register("s", A)
    state = registry.state()
    assert registry.state() is state
    registry.register("s", A_B)
    assert registry.state() is not state


def test_equal_copies_of_the_entries_keep_the_state() -> None:
    registry = SchemaRegistry(MemoryLedger())
    registry.register("s", A)
    assert registry.state() is registry.state()


def test_two_registries_on_one_ledger_see_each_other(ledger: CountingLedger) -> None:
    one, other = SchemaRegistry(ledger), SchemaRegistry(ledger)
    one.register("s", A)
    assert other.register("s", A_B).version == 2
    assert one.latest("s").id == 2


class RacingLedger(MemoryLedger):
    """A ledger in which another writer is always first: `decide` is asked again on what that one wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.rival: SchemaRegistry | None = None

    def update(self, decide: Decide) -> Entries:
        decide(self.entries())
        if self.rival:
            rival, self.rival = self.rival, None
            rival.register("s", A_B)
        return super().update(decide)


def test_a_decision_is_taken_again_when_somebody_else_was_first() -> None:
    ledger = RacingLedger()
    ledger.rival = SchemaRegistry(ledger)
    registered = SchemaRegistry(ledger).register("s", A)
    assert (registered.id, registered.version) == (2, 2)


def test_threads_get_distinct_versions_and_ids(registry: SchemaRegistry) -> None:
    schemas = [schema("a", **{f"f{at}": ""}) for at in range(40)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda one: registry.register("s", one), schemas * 2))
    assert sorted(one.version for one in found[:40]) == list(range(1, 41))
    assert sorted(one.id for one in found[:40]) == list(range(1, 41))
    assert found[:40] == found[40:]


class MeetingLedger(MemoryLedger):
    """A ledger that waits a moment for a second thread to come in, and remembers whether one did."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = Barrier(2)
        self.met = False

    def update(self, decide: Decide) -> Entries:
        try:
            self.barrier.wait(timeout=0.3)
            self.met = True
        except BrokenBarrierError:
            pass
        return super().update(decide)


def test_threads_go_to_the_ledger_one_after_the_other() -> None:
    ledger = MeetingLedger()
    registry = SchemaRegistry(ledger)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda one: registry.register("s", one), [A, A_B]))
    assert not ledger.met
    assert sorted(one.version for one in found) == [1, 2]


BROKEN_KEY = '{"keytype":"SCHEMA","subject":"bad","version":1,"magic":1}'


@pytest.mark.parametrize(
    "value",
    [
        "",
        "not json",
        "[]",
        "{}",
        '{"subject":"bad","version":1,"id":"1","schema":"\\"int\\""}',
        '{"subject":"bad","version":1,"id":0,"schema":"\\"int\\""}',
        '{"subject":"bad","version":1,"id":true,"schema":"\\"int\\""}',
        '{"subject":"bad","version":1,"id":7,"schema":7}',
        '{"subject":"good","version":1,"id":7,"schema":"\\"int\\""}',
        '{"subject":"bad","version":2,"id":7,"schema":"\\"int\\""}',
        '{"subject":"bad","version":1,"id":7,"schema":"\\"int\\"","deleted":"no"}',
        '{"subject":"bad","version":1,"id":7,"schema":"\\"int\\"","schemaType":"JSON"}',
        '{"subject":"bad","version":1,"id":1,"schema":"\\"int\\""}',
    ],
)
def test_a_broken_entry_stops_its_subject_only(
    registry: SchemaRegistry, ledger: CountingLedger, value: str
) -> None:
    registry.register("good", A)
    ledger.update(lambda _: {BROKEN_KEY: value})
    for use in (
        lambda: registry.latest("bad"),
        lambda: registry.register("bad", A),
        lambda: registry.delete_subject("bad"),
        lambda: registry.schema_by_id(7),
    ):
        with pytest.raises(CorruptState) as error:
            use()
        assert BROKEN_KEY in error.value.message
    assert registry.register("good", A_B).version == 2
    assert registry.schema_by_id(1) == A
    assert registry.state().subjects() == ("good",)


def test_a_stored_schema_that_is_none(registry: SchemaRegistry, ledger: CountingLedger) -> None:
    value = '{"subject":"bad","version":1,"id":7,"schema":"{\\"type\\":\\"nonsense\\"}"}'
    ledger.update(lambda _: {BROKEN_KEY: value})
    for use in (lambda: registry.schema_by_id(7), lambda: registry.register("bad", A)):
        with pytest.raises(CorruptState) as error:
            use()
        assert BROKEN_KEY in error.value.message
    assert registry.register("good", A).id == 8


@pytest.mark.parametrize("key", ["nonsense", "[]", '{"magic":1}', '{"keytype":1}'])
def test_a_broken_key_hides_no_ids(registry: SchemaRegistry, ledger: CountingLedger, key: str) -> None:
    registry.register("good", A)
    ledger.update(lambda _: {key: "{}"})
    assert registry.schema_by_id(1) == A
    assert registry.register("good", A_B).version == 2
    with pytest.raises(CorruptState) as error:
        registry.schema_by_id(3)
    assert key in error.value.message


def test_broken_settings_stop_who_needs_them_and_are_repaired_by_setting_them(
    registry: SchemaRegistry, ledger: CountingLedger
) -> None:
    registry.register("s", A)
    ledger.update(
        lambda _: {
            '{"keytype":"CONFIG","subject":null,"magic":0}': '{"compatibilityLevel":"SOMETIMES"}',
            '{"keytype":"MODE","subject":"t","magic":0}': '{"mode":1}',
        }
    )
    with pytest.raises(CorruptState, match="SOMETIMES"):
        registry.register("s", A_B)
    with pytest.raises(CorruptState, match='"MODE"'):
        registry.register("t", A)
    registry.set_level(None, Level.BACKWARD)
    registry.set_mode("t", Mode.READWRITE)
    assert registry.register("s", A_B).version == 2
    assert registry.register("t", A).version == 1


def test_a_broken_mark_of_ids_stops_new_ids_only(registry: SchemaRegistry, ledger: CountingLedger) -> None:
    registry.register("s", A)
    ledger.update(lambda _: {'{"keytype":"IDS","magic":0}': '{"highest":"?"}'})
    with pytest.raises(CorruptState, match="IDS"):
        registry.register("s", A_B)
    assert registry.register("t", A).id == 1


@pytest.mark.parametrize("kind", [RegistryNotFound, RegistryRefused])
def test_errors_survive_a_pickle(kind: type[Any]) -> None:
    error = pickle.loads(pickle.dumps(kind(Code.NOT_PERMITTED, "no", hint="later")))  # noqa: S301
    assert isinstance(error, kind)
    assert (error.code, error.message, error.hint) == (Code.NOT_PERMITTED, "no", "later")


class RegistryMachine(RuleBasedStateMachine):
    """Random registrations and deletes: whatever happens, ids and versions keep their promises."""

    subjects = st.sampled_from(["s", "t"])
    schemas = st.sampled_from([A, A_B, A_B_C, A_ZIP])

    def __init__(self) -> None:
        super().__init__()
        self.ledger = MemoryLedger()
        self.registry = SchemaRegistry(self.ledger)
        self.given: dict[int, str] = {}

    @rule(subject=subjects, new=schemas)
    def register(self, subject: str, new: AvroSchema) -> None:
        try:
            registered = self.registry.register(subject, new)
        except Incompatible:
            assert self.registry.find_breaks(subject, new)
            return
        assert self.given.setdefault(registered.id, new.text) == new.text
        assert self.registry.schema_by_id(registered.id) == new
        assert self.registry.lookup(subject, new) == registered

    @rule(subject=subjects, permanent=st.booleans())
    def delete_subject(self, subject: str, permanent: bool) -> None:
        self._try(lambda: self.registry.delete_subject(subject, permanent=permanent))

    @rule(subject=subjects, version=st.integers(1, 4), permanent=st.booleans())
    def delete_version(self, subject: str, version: int, permanent: bool) -> None:
        self._try(lambda: self.registry.delete_version(subject, version, permanent=permanent))

    @rule(level=st.sampled_from(list(Level)))
    def set_level(self, level: Level) -> None:
        assert self.registry.set_level(None, level) is level

    def _try(self, action: Any) -> None:
        before = self.ledger.entries()
        try:
            action()
        except FeedstackError:
            assert self.ledger.entries() == before

    @invariant()
    def the_ledger_is_all_there_is(self) -> None:
        state = state_from_entries(self.ledger.entries())
        assert state == self.registry.state()
        assert state.faults == ()
        assert state.highest_id == max(self.given, default=0)
        for versions in state.versions.values():
            for one in versions.values():
                assert self.given[one.id] == one.text


TestRegistryMachine = RegistryMachine.TestCase
TestRegistryMachine.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
