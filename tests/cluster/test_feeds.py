"""Making feeds what the files declare, on real Kafka."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stack import Latest, Oldest, Stack
from stack.errors import BadCatalogue, NotFound
from stack.feeds.declare import read_declarations
from stack.feeds.plan import Allowed
from stack.kafka.admin import TopicPlan
from tests.cluster.conftest import apply

pytestmark = pytest.mark.cluster


def change(stack: Stack, old: str, new: str, name: str = "catalog.toml") -> None:
    file = stack.settings.schemas / name
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def plan(stack: Stack) -> dict[str, str]:
    steps = stack.applier.plan(read_declarations(stack.settings.schemas), Allowed())
    return {step.feed: str(step.action) for step in steps}


def test_apply_makes_topics_schemas_and_catalogue(stack: Stack) -> None:
    assert apply(stack) == {"views": "create", "users": "create"}
    topics = stack.admin.describe([stack.topic_of("views"), stack.topic_of("users")])
    assert {topic.partitions for topic in topics.values()} == {3, 2}
    settings = stack.admin.settings([stack.topic_of("users"), stack.topic_of("views")])
    users, views = settings[stack.topic_of("users")], settings[stack.topic_of("views")]
    assert users["cleanup.policy"] == "compact"
    assert users["min.compaction.lag.ms"] == "3600000"
    assert int(users["delete.retention.ms"]) >= 3_600_000
    assert users["message.timestamp.type"] == "LogAppendTime"
    assert views["cleanup.policy"] == "delete"
    assert views["retention.ms"] == "-1"
    assert set(stack.catalogue.feeds()) == {"views", "users"}
    assert stack.schema("views").version == 1


def test_apply_again_changes_nothing(filled: Stack) -> None:
    before = filled.registry.state()
    assert apply(filled) == {"views": "keep", "users": "keep"}
    assert filled.registry.state() == before


def test_a_plan_changes_nothing(stack: Stack) -> None:
    assert plan(stack) == {"views": "create", "users": "create"}
    assert stack.catalogue.feeds() == {}
    assert not stack.admin.describe([stack.topic_of("views")])


def test_a_refusal_leaves_everything_as_it_was(filled: Stack) -> None:
    change(filled, "partitions = 3", "partitions = 2")
    change(filled, 'horizon = "1h"', 'horizon = "2h"')
    with pytest.raises(BadCatalogue, match="views: 3 partitions become 2"):
        apply(filled)
    topic = filled.topic_of("users")
    assert filled.admin.settings([topic])[topic]["min.compaction.lag.ms"] == "3600000"


def test_harmless_changes_are_made(filled: Stack) -> None:
    change(filled, 'horizon = "1h"', 'horizon = "2h"')
    change(filled, 'for = "page views"', 'for = "all page views"')
    assert apply(filled) == {"views": "change", "users": "change"}
    topic = filled.topic_of("users")
    assert filled.admin.settings([topic])[topic]["min.compaction.lag.ms"] == "7200000"
    assert filled.feed("views").purpose == "all page views"


def test_a_keyed_feed_grows_only_if_allowed(filled: Stack) -> None:
    change(filled, "partitions = 3", "partitions = 5")
    with pytest.raises(BadCatalogue, match="keys would move"):
        apply(filled)
    assert apply(filled, grow=True)["views"] == "change"
    assert filled.admin.describe([filled.topic_of("views")])[filled.topic_of("views")].partitions == 5


def test_shrinking_makes_the_topic_anew_only_if_allowed(filled: Stack) -> None:
    value = {"user": "ada", "page": "/", "ms": 1, "load": 1.0}
    with filled.writer("views") as writer:
        writer.write(value)
    change(filled, "partitions = 3", "partitions = 1")
    assert apply(filled, destroy=True)["views"] == "change"
    with filled.reader("views") as reader:
        assert {n: (b.low, b.high) for n, b in reader.bounds().items()} == {0: (0, 0)}


def test_a_feed_that_is_no_longer_declared_stays_unless_destruction_is_allowed(filled: Stack) -> None:
    file = filled.settings.schemas / "catalog.toml"
    file.write_text(file.read_text().split("[feeds.users]")[0])
    assert apply(filled) == {"views": "keep", "users": "keep"}
    assert filled.feed("users").name == "users"
    assert apply(filled, destroy=True) == {"views": "keep", "users": "remove"}
    with pytest.raises(NotFound):
        filled.feed("users")
    assert not filled.admin.describe([filled.topic_of("users")])


def test_a_topic_that_somebody_deleted_is_made_anew(filled: Stack) -> None:
    filled.admin.delete([filled.topic_of("views")])
    with filled.reader("views") as reader:
        with pytest.raises(NotFound) as error:
            reader.seek(Oldest())
        assert "stack feeds apply" in error.value.hint
    assert apply(filled) == {"views": "create", "users": "keep"}


def test_a_topic_of_nobody_is_taken_over_only_if_asked(stack: Stack) -> None:
    stack.admin.create([TopicPlan(stack.topic_of("views"), 3)])
    with pytest.raises(BadCatalogue, match="exists already"):
        apply(stack)
    assert stack.catalogue.feeds() == {}
    assert apply(stack, adopt=True, destroy=True)["views"] == "change"


def test_old_records_stay_readable_after_evolution(filled: Stack) -> None:
    old = {"user": "ada", "page": "/", "ms": 1, "load": 1.0}
    with filled.writer("views") as writer:
        writer.write(old)
    schema = json.loads((filled.settings.schemas / "view.avsc").read_text())
    schema["fields"][2]["type"] = "long"
    schema["fields"].append({"name": "country", "type": ["null", "string"], "default": None})
    del schema["fields"][1]
    (filled.settings.schemas / "view.avsc").write_text(json.dumps(schema))
    _with_required_field(filled.settings.schemas / "view.avsc", schema)
    with pytest.raises(BadCatalogue) as refused:
        apply(filled)
    assert "PageView.city" in refused.value.message
    (filled.settings.schemas / "view.avsc").write_text(json.dumps(schema))
    assert apply(filled)["views"] == "change"
    new = {"user": "bob", "ms": 2, "load": 2.0, "country": "CH"}
    with filled.writer("views") as writer:
        writer.write(new)
    with filled.reader("views") as reader:
        reader.seek(Oldest(), until=Latest())
        values = sorted((record.value for record in reader.records()), key=lambda value: int(value["ms"]))
    assert values == [{"user": "ada", "ms": 1, "load": 1.0, "country": None}, new]
    with filled.reader("views") as reader:
        reader.seek(Oldest(), until=Latest())
        rows = [row for batch in reader.batches() for row in batch.arrow().to_pylist()]
    assert sorted(rows, key=lambda row: int(row["ms"])) == values


def _with_required_field(file: Path, schema: dict[str, object]) -> None:
    fields = [*schema["fields"], {"name": "city", "type": "string"}]  # type: ignore[misc]
    file.write_text(json.dumps({**schema, "fields": fields}))


def test_declared_compatibility_rules(filled: Stack) -> None:
    change(filled, 'key = "user"\npartitions = 3', 'key = "user"\ncompatibility = "FULL"\npartitions = 3')
    apply(filled)
    change(filled, '{"name":"page","type":"string"},', "", "view.avsc")
    with pytest.raises(BadCatalogue, match="page"):
        apply(filled)
