"""Two stacks of different names on one Kafka do not touch each other."""

from __future__ import annotations

import pytest

from stack import Latest, Oldest, Stack
from stack.errors import BadCatalogue, NotFound
from stack.zookeeper.session import session, stack_node
from tests.cluster.conftest import MakeSettings, apply

pytestmark = pytest.mark.cluster
VALUE = {"user": "ada", "page": "/", "ms": 1, "load": 1.0}


def test_catalogues_schemas_and_records_are_apart(make_settings: MakeSettings) -> None:
    with Stack.connect(make_settings("a")) as first, Stack.connect(make_settings("b")) as second:
        apply(first)
        assert second.catalogue.feeds() == {}
        assert second.registry.state().subjects() == ()
        with pytest.raises(NotFound):
            second.feed("views")
        file = second.settings.schemas / "view.avsc"
        file.write_text(file.read_text().replace('"double"', '"float"'))
        apply(second)
        assert first.schema("views").schema != second.schema("views").schema
        with first.writer("views") as writer:
            writer.write(VALUE)
        with second.reader("views") as reader:
            reader.seek(Oldest(), until=Latest())
            assert list(reader.records()) == []
        apply(second, destroy=True)
        assert apply(first) == {"views": "keep", "users": "keep"}


def test_the_same_topic_names_are_refused_with_the_name_of_the_other_stack(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings("a")
    with Stack.connect(settings) as first:
        apply(first)
        with Stack.connect(make_settings("b", prefix=settings.topic_prefix)) as second:
            with pytest.raises(BadCatalogue, match=f"stack '{settings.name}' has it"):
                apply(second)
            assert second.catalogue.feeds() == {}
        with first.writer("views") as writer:
            writer.write(VALUE)


def test_transactional_ids_of_equal_name_do_not_fence_each_other(make_settings: MakeSettings) -> None:
    with Stack.connect(make_settings("a")) as first, Stack.connect(make_settings("b")) as second:
        apply(first)
        apply(second)
        with (
            first.writer("views", transactional_id="w") as one,
            second.writer("views", transactional_id="w") as two,
        ):
            with one.transaction():
                one.write(VALUE)
            with two.transaction():
                two.write(VALUE)
            with one.transaction():
                one.write(VALUE)
        with first.reader("views") as reader:
            reader.seek(Oldest(), until=Latest())
            assert len(list(reader.records())) == 2


def test_zookeeper_nodes_of_stacks_are_apart(make_settings: MakeSettings) -> None:
    settings = make_settings("a")
    assert settings.zookeeper_hosts
    with session(settings.zookeeper_hosts) as client:
        client.ensure_path(stack_node(settings.name))
        assert client.exists(stack_node(settings.name))
        assert not client.exists(stack_node(make_settings("b").name))
