"""The registry over HTTP, with an unmodified client, against our reader and writer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from ops.service.app import create_app
from stack import Latest, Oldest, Stack
from stack.model.feed import value_subject
from stack.settings import Endpoints
from tests.clusters import wait_for

pytestmark = pytest.mark.cluster
VALUES = [{"user": f"u{n}", "page": "/", "ms": n, "load": n / 4} for n in range(50)]


@pytest.fixture
def client(filled: Stack) -> Iterator[SchemaRegistryClient]:
    """Confluent's own client, against the service on this test's stack."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(create_app(filled.registry), log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            wait_for(lambda: server.started, "the service")
            yield SchemaRegistryClient({"url": f"http://127.0.0.1:{listening.getsockname()[1]}"})
        finally:
            server.should_exit = True
            thread.join()


def test_their_serializer_writes_what_our_reader_reads(filled: Stack, client: SchemaRegistryClient) -> None:
    schema = filled.schema("views").schema.text
    serialize = AvroSerializer(client, schema, conf={"auto.register.schemas": False})
    producer = Producer({"bootstrap.servers": filled.access.bootstrap})
    topic = filled.topic_of("views")
    for value in VALUES:
        # Subjects are named by feed, topics carry this stack's prefix.
        producer.produce(topic, serialize(value, SerializationContext("views", MessageField.VALUE)))
    producer.flush()
    with filled.reader("views") as reader:
        reader.seek(Oldest(), until=Latest())
        seen = sorted((record.value for record in reader.records()), key=lambda value: int(value["ms"]))
    assert seen == VALUES


def test_their_deserializer_reads_what_our_writer_writes(filled: Stack, client: SchemaRegistryClient) -> None:
    with filled.writer("views") as writer:
        writer.write_many(VALUES)
    deserialize = AvroDeserializer(client)
    topic = filled.topic_of("views")
    consumer = Consumer({"bootstrap.servers": filled.access.bootstrap, "group.id": "theirs"})
    seen: list[Any] = []
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(topic, number, 0) for number in range(3)])
        while len(seen) < len(VALUES):
            message = consumer.poll(10)
            assert message is not None
            assert message.error() is None
            seen.append(deserialize(message.value(), SerializationContext(topic, MessageField.VALUE)))
    assert sorted(seen, key=lambda value: int(value["ms"])) == VALUES


def test_a_schema_that_their_client_registers_is_ours_at_once(
    filled: Stack, client: SchemaRegistryClient
) -> None:
    subject = value_subject("views")
    text = filled.schema("views").schema.text.replace(
        "]}", ',{"name":"country","type":"string","default":"?"}]}'
    )
    schema_id = client.register_schema(subject, Schema(text, "AVRO"))
    assert filled.schema("views").id == schema_id
    assert filled.schema("views").version == 2
    assert client.get_latest_version(subject).version == 2
    assert client.get_versions(subject) == [1, 2]


def test_an_incompatible_schema_is_refused_with_field_and_rule(
    filled: Stack, client: SchemaRegistryClient
) -> None:
    text = filled.schema("views").schema.text.replace("]}", ',{"name":"country","type":"string"}]}')
    subject = value_subject("views")
    assert not client.test_compatibility(subject, Schema(text, "AVRO"))
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(subject, Schema(text, "AVRO"))
    assert refused.value.http_status_code == 409
    assert "country" in str(refused.value)
    assert "reader-field-missing-default" in str(refused.value)


def test_compatibility_set_by_their_client_rules_our_apply(
    filled: Stack, client: SchemaRegistryClient
) -> None:
    from stack.feeds.registry.compatibility import Level

    subject = value_subject("views")
    client.set_compatibility(subject_name=subject, level="NONE")
    assert filled.registry.state().level(subject) is Level.NONE


def test_the_embedded_service_answers_too(cluster: Endpoints) -> None:
    assert cluster.http
    client = SchemaRegistryClient({"url": cluster.http})
    schema = Schema('{"type":"record","name":"R","fields":[{"name":"a","type":"long"}]}', "AVRO")
    schema_id = client.register_schema("embedded-value", schema)
    assert client.get_schema(schema_id).schema_str == schema.schema_str
    assert "embedded-value" in client.get_subjects()
