"""Offsets of consumers outside the stack: what a commit becomes, how it is found, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack import BadInput, GroupCommit, NotFound, Outdated, Unavailable
from stack.engine.groups import Asked, FeedFacts, judge_offsets, next_commit, refuse_made_anew, refuse_shape
from stack.errors import CorruptState, NotDelivered
from stack.feeds.avro.schema import parse_avro
from stack.kafka.writer import LogWriter
from stack.machine import steered_by
from stack.model.group import MOST_PARTITIONS, FeedOffsets, refuse_bad_group
from stack.model.startpoint import AtAnnotation, AtOffsets, AtTime, Latest
from stack.offsets.audit import read_audit
from stack.offsets.codec import FixedSchemas
from stack.offsets.group_codec import GroupCommitDecoder, GroupCommitEncoder, GroupCommitHeads
from stack.offsets.group_index import GroupIndex
from stack.offsets.group_points import AtNumber, parse_group_startpoint
from stack.offsets.groups import GroupOffsets
from stack.offsets.schemas import GROUP_COMMIT_SCHEMA, GROUP_COMMIT_TREE
from stack.testing import MemoryStack

NOW = 1_700_000_000_000
SCHEMAS = FixedSchemas({1: GROUP_COMMIT_SCHEMA})
FEEDS: dict[str, dict[str, Any]] = {
    "clicks": {"schema": {"user": "string", "n": "long"}, "key": "user", "partitions": 2},
    "views": {"schema": {"user": "string"}, "key": "user", "partitions": 1},
}

# Bytes

words = st.text("abcdefgh-é", min_size=1, max_size=12)
longs = st.integers(0, (1 << 63) - 1)
points = st.builds(FeedOffsets, words, words, st.dictionaries(st.integers(0, 99), longs, max_size=4))
commits = st.builds(
    GroupCommit,
    words,
    longs,
    st.integers(0, 1 << 60),
    words,
    st.dictionaries(words, points, max_size=3),
    st.one_of(st.none(), words),
    st.dictionaries(words, st.text(max_size=20), max_size=3),
    st.text(max_size=20),
    words,
)


@given(commits)
def test_commits_come_back_as_they_were(one: GroupCommit) -> None:
    data = GroupCommitEncoder(1)(one)
    assert GroupCommitDecoder(SCHEMAS)(data) == one
    head = (one.group, one.number, one.time_ms, one.name, one.annotations)
    assert GroupCommitHeads(SCHEMAS)(data) == head
    # Under another schema the whole is read.
    other = parse_avro(json.dumps({**GROUP_COMMIT_TREE, "doc": "another"}))
    assert GroupCommitHeads(FixedSchemas({1: other}))(data) == head


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x00\x00\x01", b"{}"])
def test_what_is_no_commit_is_told(data: bytes) -> None:
    with pytest.raises(CorruptState, match="a commit of a group cannot be read"):
        GroupCommitDecoder(SCHEMAS)(data)
    with pytest.raises(CorruptState, match="a commit of a group cannot be read"):
        GroupCommitHeads(SCHEMAS)(data)


def test_the_schema_for_everybody_else_is_that_of_the_code() -> None:
    file = Path(__file__).parents[2] / "schemas" / "stack" / "group-commit.avsc"
    assert json.loads(file.read_text()) == GROUP_COMMIT_TREE


# Decisions

ASKED = Asked("export", "ada")


def at(topic_id: str = "one", **offsets: int) -> FeedOffsets:
    return FeedOffsets("clicks", topic_id, {int(name[1:]): offset for name, offset in offsets.items()})


def test_what_is_not_named_stays_where_it_is() -> None:
    first = next_commit(None, ASKED, {"clicks": at(p0=1, p1=2)}, NOW, "a")
    assert (first.number, first.time_ms, first.id, first.by) == (1, NOW, "a", "ada")
    second = next_commit(first, ASKED, {"clicks": at(p1=5), "views": at(p0=3)}, NOW - 9, "b")
    assert second.offsets == {"clicks": {0: 1, 1: 5}, "views": {0: 3}}
    # Within a group time does not go back.
    assert (second.number, second.time_ms) == (2, NOW)
    named = next_commit(second, replace(ASKED, name="here"), {}, NOW + 1, "c")
    assert (named.offsets, named.name) == (second.offsets, "here")
    whole = next_commit(named, replace(ASKED, whole=True), {"views": at(p0=4)}, NOW, "d")
    assert whole.offsets == {"views": {0: 4}}
    # Of a feed that was made anew nothing stays.
    anew = next_commit(second, ASKED, {"clicks": at("two", p0=0)}, NOW, "e")
    assert anew.offsets["clicks"] == {0: 0}


def test_a_commit_that_another_came_before_is_refused() -> None:
    asked = replace(ASKED, expect=0)
    first = next_commit(None, asked, {"clicks": at(p0=1)}, NOW, "a")
    with pytest.raises(Outdated, match="commit 0 is not the newest of group 'export': 1 by ada is"):
        next_commit(first, asked, {"clicks": at(p0=2)}, NOW, "b")
    with pytest.raises(Outdated, match="commit 7 is not the newest of group 'export': it has none"):
        next_commit(None, replace(ASKED, expect=7), {"clicks": at(p0=2)}, NOW, "b")
    assert next_commit(first, replace(ASKED, expect=1), {"clicks": at(p0=2)}, NOW, "b").number == 2


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ({"f": {0: -1}}, "-1 is no offset"),
        ({"f": {0: True}}, "True is no offset"),
        ({"f": {0: 1 << 63}}, "is no offset"),
        ({"f": {0: "1"}}, "'1' is no offset"),
        ({"f": {"0": 1}}, "partition '0'"),
        ({"f": {}}, "without any partition"),
        ({"f": dict.fromkeys(range(MOST_PARTITIONS + 1), 0)}, "5,001 partitions are too many"),
        ({f"f{number}": {0: 1} for number in range(201)}, "201 feeds are too many"),
        ({"f": dict.fromkeys(range(9), -1)}, "and 4 more"),
    ],
)
def test_what_cannot_be_offsets_is_told(offsets: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message) as told:
        refuse_shape(offsets)
    assert told.value.hint


def test_all_faults_of_offsets_are_told_at_once() -> None:
    facts = {"clicks": FeedFacts("clicks", "one", {0: 10, 1: 20})}
    assert judge_offsets({"clicks": {0: 10, 1: 0}}, facts) == {"clicks": at(p0=10, p1=0)}
    with pytest.raises(BadInput) as told:
        judge_offsets({"clicks": {0: 11, 1: 20, 2: 0}}, facts)
    assert "partition 0 ends at 10, before 11" in told.value.message
    assert "'clicks' has no partition 2; it has 2" in told.value.message


def test_a_group_grows_no_further_than_a_record_takes() -> None:
    half = FeedOffsets("clicks", "one", dict.fromkeys(range(3_000), 1))
    first = next_commit(None, ASKED, {"clicks": half}, NOW, "a")
    with pytest.raises(BadInput, match="6,000 partitions are too many"):
        next_commit(first, ASKED, {"views": half}, NOW, "b")


def test_offsets_of_a_feed_that_was_made_anew_mean_nothing() -> None:
    one = next_commit(None, ASKED, {"clicks": at(p0=1)}, NOW, "a")
    refuse_made_anew(one, {"clicks": "one"})
    with pytest.raises(Outdated, match="'clicks' was deleted and made anew"):
        refuse_made_anew(one, {"clicks": "two"})
    with pytest.raises(Outdated, match="'clicks' is gone since commit 1"):
        refuse_made_anew(one, {})


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 201, "ä", "a/b", "test.count.main"])
def test_what_cannot_name_a_group(name: str) -> None:
    with pytest.raises(BadInput, match="cannot name a group"):
        refuse_bad_group(name, "test")
    refuse_bad_group("nightly-export:2", "test")


def test_startpoints_of_groups() -> None:
    parse = parse_group_startpoint
    assert (parse("@then", NOW), parse(" #17 ", NOW)) == (AtAnnotation("then"), AtNumber(17))
    assert (parse("latest", NOW), parse("-2h", NOW)) == (Latest(), AtTime(NOW - 7_200_000))
    for text in ("v:abc", "main-0#3", "#", "@", "yesterday"):
        with pytest.raises(BadInput) as told:
            parse(text, NOW)
        assert told.value.hint


# On a stack in memory


@pytest.fixture
def kit() -> Iterator[MemoryStack]:
    with MemoryStack(feeds=FEEDS) as one, steered_by(one._machine):
        one.write("clicks", *({"user": f"user-{number}", "n": number} for number in range(40)))
        one.write("views", *({"user": "a"} for _ in range(5)))
        yield one


@pytest.fixture
def export(kit: MemoryStack) -> GroupOffsets:
    return kit.connection.offsets("export")


def ends(kit: MemoryStack) -> dict[int, int]:
    return kit.connection.admin.ends("clicks", range(2))


def test_a_commit_is_found_by_everything_that_is_known_of_it(kit: MemoryStack, export: GroupOffsets) -> None:
    assert export.newest() is None
    assert export.history() == []
    began = kit.clock.now_ms
    for number in range(1, 6):
        done = export.commit(
            {"clicks": {0: number, 1: 2 * number}},
            name="odd" if number % 2 else None,
            version=f"v{number // 2}",
            kind="plain",
        )
        assert (done.number, done.mirrored, done.mirror_fault) == (number, True, "")
        kit.clock.advance("1s")

    def found(to: Any = None, **said: Any) -> int:
        return export.fetch(to, **said).number

    assert found() == found("latest") == 5
    assert found("oldest") == found("#1") == 1
    assert found("@odd") == found(name="odd") == found(name="@odd") == 5
    assert found(version="v1") == 3
    assert found(version="v1", kind="plain") == 3
    assert found(annotations={"version": "v0"}) == 1
    assert found(AtTime(began + 2_500)) == 3
    assert found("-1500ms") == 4
    assert found("p0=3") == found("p1=7") == found("p0=3,p1=99") == 3
    assert found("4") == 2
    assert [one.number for one in export.history(2)] == [5, 4]
    assert [one.number for one in export.history(9, before=3)] == [2, 1]
    with GroupIndex(kit.connection, in_memory=True) as index:
        index.refresh()
        assert [one.number for one in index.newest_of_all()] == [5]


@pytest.mark.parametrize(
    ("to", "said", "message", "hint"),
    [
        ("#9", {}, "has no commit 9", "1 to 2"),
        ("@before", {}, "named 'before'", "@befor"),
        ("2001-01-01", {}, "at 2001-01-01T00:00:00.000Z or before", "--to oldest"),
        ("p0=0", {}, "at p0=0 or before", "--to oldest"),
        (None, {"version": "zz"}, "of which was said version=zz", "version=3f2a"),
        (None, {"version": 3}, "version=3 cannot be kept", "texts"),
        (None, {"colour": "red"}, "of which was said colour=red", "No commit says"),
        ("latest", {"version": "3f2a"}, "in one way", "startpoint"),
    ],
)
def test_what_is_not_found_is_told_with_what_is_there(
    export: GroupOffsets, to: str | None, said: dict[str, str], message: str, hint: str
) -> None:
    export.commit({"clicks": {0: 1}}, name="befor", version="3f2a")
    export.commit({"clicks": {0: 2}})
    with pytest.raises(BadInput, match=message) as told:
        export.fetch(to, annotations=said)
    assert hint in told.value.hint


def test_an_unknown_group_is_told_with_those_there_are(kit: MemoryStack, export: GroupOffsets) -> None:
    with pytest.raises(NotFound, match="no group has committed anything"):
        export.fetch()
    export.commit({"clicks": {0: 1}})
    with pytest.raises(NotFound, match="'expert' has no commit at all") as told:
        kit.connection.offsets("expert").fetch()
    assert told.value.hint == "Did you mean export?"
    export.commit({"views": {0: 1}})
    with pytest.raises(BadInput, match="reads several feeds"):
        export.fetch("p0=1")


@pytest.mark.parametrize(
    ("offsets", "more", "message"),
    [
        ({"clicks": {0: 1}, "clics": {0: 1}}, {}, "clics"),
        ({"views": {0: 1}, "clicks": {2: 0}}, {}, "has no partition 2"),
        ({"views": {0: 1}, "clicks": {0: 1_000}}, {}, "before 1000"),
        ({"clicks": {0: -1}}, {}, "-1 is no offset"),
        ({"clicks": {0: 2}}, {"name": "a b"}, "cannot name a point"),
        ({"clicks": {0: 2}}, {"annotations": {"k": "x" * 1_001}}, "cannot be kept"),
        ({"clicks": {0: 2}}, {"annotations": {"k": 3}}, "k=3 cannot be kept"),
        ({"clicks": {0: 2}}, {"annotations": {str(n): "" for n in range(51)}}, "51 values are too many"),
        ({"clicks": {0: 2}}, {"reason": "x" * 1_001}, "reason is too long"),
        ({"clicks": {0: 2}}, {"expect": 0}, "commit 0 is not the newest"),
        ({}, {"whole": True}, "needs offsets"),
    ],
)
def test_what_is_refused_changes_nothing(
    kit: MemoryStack, export: GroupOffsets, offsets: Any, more: dict[str, Any], message: str
) -> None:
    export.commit({"clicks": {0: 1}})
    before = list(read_audit(kit.connection)), kit.connection.admin.committed("export")
    with pytest.raises(BadInput, match=message) as told:
        export.commit(offsets, **more)
    assert told.value.hint
    assert export.fetch().number == 1
    assert (list(read_audit(kit.connection)), kit.connection.admin.committed("export")) == before
    assert export.commit({"clicks": {0: 2}}).number == 2


def test_the_audit_feed_tells_from_where_to_where(kit: MemoryStack, export: GroupOffsets) -> None:
    export.commit({"clicks": {0: 7}}, version="a")
    export.by = "ada@desk"
    export.commit({"clicks": {0: 3}}, reason="a bad release", name="again")
    first, second = read_audit(kit.connection)
    assert (first.what, first.job, first.before) == ("commit", "export", {})
    told = {"commit": 1, "offsets": {"clicks": {"0": 7}}}
    assert first.after == {**told, "name": None, "annotations": {"version": "a"}}
    assert (second.by, second.reason) == ("ada@desk", "a bad release")
    assert second.before == told
    assert (second.after["commit"], second.after["name"]) == (2, "again")


def test_kafkas_group_follows_also_back(kit: MemoryStack, export: GroupOffsets) -> None:
    admin = kit.connection.admin
    export.commit({"clicks": {0: 7, 1: 3}})
    assert admin.committed("export") == {("clicks", 0): 7, ("clicks", 1): 3}
    export.commit({"clicks": {0: 2}})
    assert admin.committed("export") == {("clicks", 0): 2, ("clicks", 1): 3}
    done = export.commit({"clicks": {0: 5}}, mirror=False)
    assert (done.mirrored, done.mirror_fault) == (False, "")
    assert admin.committed("export")["clicks", 0] == 2


def test_a_group_that_cannot_follow_is_told_and_the_commit_stands(
    kit: MemoryStack, export: GroupOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise Unavailable("consumers are at work in Kafka's group 'export'")

    monkeypatch.setattr(kit.connection.admin, "move_group", refuse)
    done = export.commit({"clicks": {0: 7}})
    assert not done.mirrored
    assert done.mirror_fault == "Kafka's group 'export' did not follow: " + (
        "consumers are at work in Kafka's group 'export'"
    )
    assert export.fetch().offsets == {"clicks": {0: 7}}


def test_several_processes_commit_in_turns(kit: MemoryStack) -> None:
    offsets = [kit.connection.offsets("export") for _ in range(3)]
    for number in range(1, 13):
        assert offsets[number % 3].commit({"clicks": {number % 2: number}}).number == number
    assert offsets[0].fetch().offsets == {"clicks": {0: 12, 1: 11}}
    with pytest.raises(Outdated, match="11 is not the newest of group 'export': 12"):
        offsets[1].commit({"clicks": {0: 1}}, expect=11)
    assert offsets[1].commit({"clicks": {0: 1}}, expect=12).number == 13


@pytest.mark.parametrize("is_made", [True, False])
def test_a_commit_whose_answer_was_lost_is_made_once(
    kit: MemoryStack, export: GroupOffsets, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    export.commit({"clicks": {0: 1}})
    commit = LogWriter.commit
    lost: list[LogWriter] = []

    def losing(self: LogWriter) -> None:
        if lost:
            commit(self)
            return
        lost.append(self)
        if is_made:
            commit(self)
        raise NotDelivered("nobody answers")

    monkeypatch.setattr(LogWriter, "commit", losing)
    assert export.commit({"clicks": {0: 2}}).number == 2
    assert [one.offsets["clicks"][0] for one in export.history()] == [2, 1]
    assert [one.what for one in read_audit(kit.connection)] == ["commit", "commit"]


def test_a_reader_goes_on_where_a_commit_says(kit: MemoryStack, export: GroupOffsets) -> None:
    stack = kit.connection
    until = ends(kit)
    with stack.reader("clicks") as reader:
        reader.assign({0: 0, 1: 0}, {0: 4, 1: 5})
        first = [record.value["n"] for record in reader.records()]
        export.commit({"clicks": reader.positions}, version="3f2a")
    with stack.reader("clicks") as reader:
        reader.seek(export.fetch(version="3f2a").startpoint("clicks"), until=AtOffsets(until))
        rest = [record.value["n"] for record in reader.records()]
    assert sorted(first + rest) == list(range(40))
    with pytest.raises(NotFound, match="has no offsets of feed 'views'") as told:
        export.fetch().startpoint("views")
    assert "clicks" in told.value.hint


def test_a_feed_that_was_made_anew_is_noticed(kit: MemoryStack, export: GroupOffsets) -> None:
    export.commit({"clicks": {0: 3}, "views": {0: 1}})
    kit.kafka.delete("clicks")
    kit.kafka.create("clicks", 2, {})
    for to in (None, "#1"):
        with pytest.raises(Outdated, match="'clicks' was deleted and made anew") as told:
            export.fetch(to)
        assert "--whole" in told.value.hint
    assert [one.number for one in export.history()] == [1]
    # What is mirrored is only what still means something.
    kit.kafka.groups.clear()
    done = export.commit({"views": {0: 2}})
    assert done.mirrored
    assert kit.connection.admin.committed("export") == {("views", 0): 2}
    export.commit({"clicks": {1: 0}})
    assert export.fetch().offsets == {"clicks": {1: 0}, "views": {0: 2}}


# The index


def test_the_index_is_built_again_where_it_is_broken(kit: MemoryStack, tmp_path: Path) -> None:
    stack = kit.connection
    stack.offsets("export").commit({"clicks": {0: 3}}, name="then", version="a")
    stack.settings = replace(stack.settings, data=tmp_path)
    for _ in range(2):
        with GroupIndex(stack) as index:
            index.refresh()
            found = index.named("export", "then")
            assert found is not None
            assert (found.number, index.groups()) == (1, ["export"])
        (file,) = (tmp_path / "offsets" / "groups").glob("*.sqlite")
        file.write_bytes(b"this is no database" * 100)


def test_where_nothing_can_be_written_the_index_is_in_memory(kit: MemoryStack, tmp_path: Path) -> None:
    stack = kit.connection
    stack.offsets("export").commit({"clicks": {0: 3}})
    (tmp_path / "data").write_text("a file in the way")
    stack.settings = replace(stack.settings, data=tmp_path / "data")
    with GroupIndex(stack) as index:
        index.refresh()
        assert index.groups() == ["export"]


def test_of_many_the_newest_of_which_all_was_said_is_found(kit: MemoryStack, export: GroupOffsets) -> None:
    export.commit({"clicks": {0: 0}})
    with GroupIndex(kit.connection, in_memory=True) as index:
        index.refresh()
        encode = GroupCommitEncoder(kit.connection.registry.latest("_test.groups-feedstack.GroupCommit").id)
        newest = index.newest("export")
        assert newest is not None
        many = [
            replace(newest, number=number, annotations={"two": str(number % 2), "seven": str(number % 7)})
            for number in range(2, 3_000)
        ]
        index._add(iter([(b"export", encode(one), number) for number, one in enumerate(many)]))
        for two in range(2):
            for seven in range(7):
                found = index.said("export", {"two": str(two), "seven": str(seven)})
                assert found is not None
                expected = max(n for n in range(2, 3_000) if (n % 2, n % 7) == (two, seven))
                assert found.number == expected
        assert index.said("export", {"two": "1", "seven": "8"}) is None
