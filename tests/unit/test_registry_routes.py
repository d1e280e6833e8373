"""The registry over HTTP: the API as written down, then an unmodified client against a real server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from fastapi import APIRouter
from fastapi.testclient import TestClient

from ops.service.app import create_app
from ops.service.registry_requests import MAX_BODY_BYTES
from stack.errors import Unavailable
from stack.feeds.registry.registry import SchemaRegistry
from stack.model.ledger import Decide, Entries, MemoryLedger

ANSWER_TYPE = "application/vnd.schemaregistry.v1+json"


def text(*names: str, **defaults: str) -> str:
    fields: list[dict[str, Any]] = [{"name": name, "type": "string"} for name in names]
    fields += [{"name": name, "type": "string", "default": value} for name, value in defaults.items()]
    return json.dumps({"type": "record", "name": "View", "fields": fields}, separators=(",", ":"))


A = text("a")
A_B = text("a", b="")
A_ZIP = text("a", "zip")


def client_of(ledger: MemoryLedger, *routers: APIRouter) -> TestClient:
    return TestClient(create_app(SchemaRegistry(ledger), *routers), raise_server_exceptions=False)


class ClearableLedger(MemoryLedger):
    """A ledger that can be emptied: making an application for every test takes longer than the tests."""

    def clear(self) -> None:
        self._entries.clear()


@pytest.fixture(scope="module")
def shared() -> tuple[ClearableLedger, TestClient]:
    ledger = ClearableLedger()
    return ledger, client_of(ledger)


@pytest.fixture
def client(shared: tuple[ClearableLedger, TestClient]) -> TestClient:
    ledger, client = shared
    ledger.clear()
    return client


def register(client: TestClient, subject: str, schema: str, **more: Any) -> Any:
    return client.post(f"/subjects/{quote(subject, safe='')}/versions", json={"schema": schema, **more})


def assert_error(answer: Any, status: int, code: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == ANSWER_TYPE
    assert set(answer.json()) == {"error_code", "message"}
    assert answer.json()["error_code"] == code
    assert answer.json()["message"]
    return str(answer.json()["message"])


def test_root_and_health(client: TestClient) -> None:
    assert client.get("/").json() == {}
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/schemas/types").json() == ["AVRO"]


def test_further_routers_are_added_beside() -> None:
    router = APIRouter()
    router.add_api_route("/jobs", lambda: ["one"], methods=["GET"])
    client = client_of(MemoryLedger(), router)
    assert client.get("/jobs").json() == ["one"]
    assert client.get("/subjects").json() == []


def test_register_and_read_back(client: TestClient) -> None:
    answer = register(client, "s", A)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == ANSWER_TYPE
    assert answer.json() == {"id": 1}
    assert register(client, "s", A_B).json() == {"id": 2}
    assert register(client, "s", A).json() == {"id": 1}
    assert client.get("/subjects").json() == ["s"]
    assert client.get("/subjects/s/versions").json() == [1, 2]
    newest = {"subject": "s", "version": 2, "id": 2, "schema": A_B}
    for version in ("2", "latest", "-1"):
        assert client.get(f"/subjects/s/versions/{version}").json() == newest
    assert client.get("/subjects/s/versions/1/schema").text == A
    assert client.get("/subjects/s/versions/1/referencedby").json() == []
    assert client.get("/schemas/ids/2").json() == {"schema": A_B}
    assert client.get("/schemas/ids/2/schema").text == A_B


@pytest.mark.parametrize("content_type", [ANSWER_TYPE, "application/json", "application/octet-stream"])
def test_content_types_of_requests(client: TestClient, content_type: str) -> None:
    body = json.dumps({"schema": A, "schemaType": "AVRO", "references": []})
    headers = {"content-type": content_type}
    answer = client.post("/subjects/s/versions?normalize=True", content=body, headers=headers)
    assert answer.json() == {"id": 1}


def test_where_a_schema_is_used(client: TestClient) -> None:
    for subject in ("b", "a", "gone"):
        register(client, subject, A)
    client.delete("/subjects/gone")
    assert client.get("/schemas/ids/1/subjects").json() == ["a", "b"]
    assert client.get("/schemas/ids/1/subjects?deleted=true").json() == ["a", "b", "gone"]
    assert client.get("/schemas/ids/1/versions").json() == [
        {"subject": "b", "version": 1},
        {"subject": "a", "version": 1},
    ]


def test_lists(client: TestClient) -> None:
    for subject in ("web.a", "web.b", "shop.a"):
        register(client, subject, A)
    register(client, "web.a", A_B)
    client.delete("/subjects/web.b")
    assert client.get("/subjects").json() == ["shop.a", "web.a"]
    assert client.get("/subjects?subjectPrefix=web.").json() == ["web.a"]
    assert client.get("/subjects?subjectPrefix=web.&deleted=true").json() == ["web.a", "web.b"]
    assert client.get("/subjects?deletedOnly=true").json() == ["web.b"]
    assert client.get("/subjects?deleted_only=true").json() == ["web.b"]
    assert client.get("/subjects?offset=1&limit=1").json() == ["web.a"]
    shown = [(one["subject"], one["version"]) for one in client.get("/schemas").json()]
    assert shown == [("shop.a", 1), ("web.a", 1), ("web.a", 2)]
    shown = [(one["subject"], one["version"]) for one in client.get("/schemas?latestOnly=true").json()]
    assert shown == [("shop.a", 1), ("web.a", 2)]


@pytest.mark.parametrize("subject", ["a/b", "a/versions/1", "a b", "é%", "a?b", "a%2Fb", ":.ctx:a"])
def test_subjects_with_any_character(client: TestClient, subject: str) -> None:
    place = quote(subject, safe="")
    assert register(client, subject, A).json() == {"id": 1}
    assert client.get("/subjects").json() == [subject]
    assert client.get(f"/subjects/{place}/versions/1").json()["subject"] == subject
    assert client.post(f"/subjects/{place}", json={"schema": A}).json()["version"] == 1
    assert client.put(f"/config/{place}", json={"compatibility": "NONE"}).json() == {"compatibility": "NONE"}
    assert client.get(f"/config/{place}").json() == {"compatibilityLevel": "NONE"}
    assert client.put(f"/mode/{place}", json={"mode": "READWRITE"}).json() == {"mode": "READWRITE"}
    check = client.post(f"/compatibility/subjects/{place}/versions/1", json={"schema": A_ZIP})
    assert check.json() == {"is_compatible": True}
    assert client.delete(f"/subjects/{place}").json() == [1]


def test_look_up(client: TestClient) -> None:
    assert_error(client.post("/subjects/s", json={"schema": A}), 404, 40401)
    register(client, "s", A)
    assert client.post("/subjects/s", json={"schema": A}).json() == {
        "subject": "s",
        "version": 1,
        "id": 1,
        "schema": A,
    }
    assert_error(client.post("/subjects/s", json={"schema": A_B}), 404, 40403)
    client.delete("/subjects/s")
    assert_error(client.post("/subjects/s", json={"schema": A}), 404, 40401)
    assert client.post("/subjects/s?deleted=true", json={"schema": A}).json()["version"] == 1


def test_deletes(client: TestClient) -> None:
    assert_error(client.delete("/subjects/s"), 404, 40401)
    register(client, "s", A)
    register(client, "s", A_B)
    assert_error(client.delete("/subjects/s?permanent=true"), 404, 40405)
    assert_error(client.delete("/subjects/s/versions/1?permanent=true"), 404, 40407)
    assert client.delete("/subjects/s/versions/1").json() == 1
    assert_error(client.delete("/subjects/s/versions/1"), 404, 40406)
    assert_error(client.get("/subjects/s/versions/1"), 404, 40402)
    assert client.get("/subjects/s/versions/1?deleted=true").json()["id"] == 1
    assert client.get("/subjects/s/versions?deleted=true").json() == [1, 2]
    assert client.delete("/subjects/s/versions/1?permanent=true").json() == 1
    assert_error(client.get("/schemas/ids/1"), 404, 40403)
    assert client.delete("/subjects/s/versions/latest").json() == 2
    assert_error(client.delete("/subjects/s"), 404, 40404)
    assert client.delete("/subjects/s?permanent=true").json() == [2]
    assert_error(client.delete("/subjects/s/versions/2"), 404, 40401)
    assert register(client, "s", A).json() == {"id": 3}


@pytest.mark.parametrize("version", ["0", "-2", "x", "2147483648", "1.5", "²"])
def test_invalid_versions(client: TestClient, version: str) -> None:
    register(client, "s", A)
    place = quote(version)
    assert_error(client.get(f"/subjects/s/versions/{place}"), 422, 42202)
    assert_error(client.delete(f"/subjects/s/versions/{place}"), 422, 42202)
    check = client.post(f"/compatibility/subjects/s/versions/{place}", json={"schema": A})
    assert_error(check, 422, 42202)


@pytest.mark.parametrize("schema_id", ["9", "x", "-1", "99999999999999999999"])
def test_unknown_ids(client: TestClient, schema_id: str) -> None:
    for tail in ("", "/schema", "/subjects", "/versions"):
        assert_error(client.get(f"/schemas/ids/{schema_id}{tail}"), 404, 40403)


def test_unknown_versions(client: TestClient) -> None:
    assert_error(client.get("/subjects/s/versions"), 404, 40401)
    assert_error(client.get("/subjects/s/versions/1"), 404, 40401)
    register(client, "s", A)
    assert_error(client.get("/subjects/s/versions/2"), 404, 40402)
    assert_error(client.get("/subjects/s/versions/2/referencedby"), 404, 40402)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "no schema"),
        ({"schema": 1}, "no schema"),
        ({"schema": ""}, "no schema"),
        ({"schema": "{"}, "not JSON"),
        ({"schema": '{"type":"nonsense"}'}, "nonsense"),
        ({"schema": '{"type":"enum","name":"E","symbols":["A"],"doc":"\\ud800"}'}, "surrogate"),
        ({"schema": A, "schemaType": "PROTOBUF"}, "PROTOBUF"),
        ({"schema": A, "references": [{"name": "a", "subject": "s", "version": 1}]}, "references"),
    ],
)
def test_invalid_schemas(client: TestClient, body: dict[str, Any], says: str) -> None:
    for place in ("/subjects/s", "/subjects/s/versions", "/compatibility/subjects/s/versions"):
        assert says in assert_error(client.post(place, json=body), 422, 42201)
    assert client.get("/subjects").json() == []


def test_a_schema_that_only_fastavro_takes(client: TestClient) -> None:
    assert "two fields 'a'" in assert_error(register(client, "s", text("a", "a")), 422, 42201)
    register(client, "s", A)
    place = "/compatibility/subjects/s/versions/latest"
    assert_error(client.post(place, json={"schema": text("a", "a")}), 422, 42201)


def test_an_incompatible_schema(client: TestClient) -> None:
    register(client, "s", A)
    message = assert_error(register(client, "s", A_ZIP), 409, 409)
    for part in ("'s'", "BACKWARD", "View.zip", "reader-field-missing-default", "version 1"):
        assert part in message


def test_compatibility(client: TestClient) -> None:
    place = "/compatibility/subjects/s/versions"
    bad, good = {"schema": A_ZIP}, {"schema": A_B}
    assert client.post(f"{place}/latest", json=bad).json() == {"is_compatible": True}
    assert client.post(place, json=bad).json() == {"is_compatible": True}
    assert_error(client.post(f"{place}/1", json=bad), 404, 40401)
    register(client, "s", A)
    assert client.post(f"{place}/1", json=bad).json() == {"is_compatible": False}
    assert client.post(f"{place}/1?verbose=true", json=good).json() == {"is_compatible": True, "messages": []}
    for tail in ("/latest", ""):
        told = client.post(f"{place}{tail}?verbose=True", json=bad).json()
        assert told["is_compatible"] is False
        assert len(told["messages"]) == 1
        assert "View.zip" in told["messages"][0]
    assert_error(client.post(f"{place}/2", json=bad), 404, 40402)


def test_config(client: TestClient) -> None:
    assert client.get("/config").json() == {"compatibilityLevel": "BACKWARD"}
    assert client.put("/config", json={"compatibility": "full"}).json() == {"compatibility": "FULL"}
    assert_error(client.get("/config/s"), 404, 40408)
    assert client.get("/config/s?defaultToGlobal=true").json() == {"compatibilityLevel": "FULL"}
    client.put("/config/s", json={"compatibility": "NONE"})
    assert client.get("/config/s").json() == {"compatibilityLevel": "NONE"}
    assert client.delete("/config/s").json() == {"compatibilityLevel": "NONE"}
    assert_error(client.delete("/config/s"), 404, 40401)
    assert client.delete("/config").json() == {"compatibilityLevel": "FULL"}
    assert client.get("/config").json() == {"compatibilityLevel": "BACKWARD"}
    for body in ({}, {"compatibility": None}, {"compatibility": "SOMETIMES"}, {"compatibility": 1}):
        assert_error(client.put("/config", json=body), 422, 42203)
        assert_error(client.put("/config/s", json=body), 422, 42203)


def test_modes(client: TestClient) -> None:
    assert client.get("/mode").json() == {"mode": "READWRITE"}
    assert_error(client.get("/mode/s"), 404, 40409)
    assert client.get("/mode/s?defaultToGlobal=true").json() == {"mode": "READWRITE"}
    register(client, "s", A)
    assert client.put("/mode/s", json={"mode": "READONLY"}).json() == {"mode": "READONLY"}
    assert_error(register(client, "s", A_B), 422, 42205)
    assert_error(client.put("/mode/s", json={"mode": "IMPORT"}), 422, 42205)
    assert client.put("/mode/s?force=true", json={"mode": "IMPORT"}).json() == {"mode": "IMPORT"}
    assert register(client, "s", A_ZIP, id=50, version=9).json() == {"id": 50}
    assert client.get("/subjects/s/versions").json() == [1, 9]
    assert_error(register(client, "s", A_B, id=50), 422, 42205)
    assert_error(register(client, "s", A, id=51), 422, 42207)
    assert client.delete("/mode/s").json() == {"mode": "IMPORT"}
    assert_error(client.delete("/mode/s"), 404, 40401)
    assert_error(register(client, "s", A_B, id=51), 422, 42205)
    assert_error(client.put("/mode", json={"mode": "SOMETIMES"}), 422, 42204)
    assert client.put("/mode", json={"mode": "READONLY"}).json() == {"mode": "READONLY"}
    assert client.delete("/mode").json() == {"mode": "READONLY"}
    assert client.get("/mode").json() == {"mode": "READWRITE"}


@pytest.mark.parametrize("given", [{"id": "1"}, {"version": 1.5}, {"id": True}, {"id": 2**31}])
def test_ids_and_versions_that_are_no_numbers(client: TestClient, given: dict[str, Any]) -> None:
    assert_error(register(client, "s", A, **given), 422, 42202)


@pytest.mark.parametrize("given", [{"id": None}, {"id": -1, "version": -1}, {"version": 0}])
def test_what_clients_send_for_no_id(client: TestClient, given: dict[str, Any]) -> None:
    assert register(client, "s", A, **given).json() == {"id": 1}


def test_a_subject_with_control_characters(client: TestClient) -> None:
    assert_error(register(client, "a\nb", A), 422, 42208)
    assert_error(client.put("/config/a%0Ab", json={"compatibility": "NONE"}), 422, 42208)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_bodies_that_are_no_objects(client: TestClient, body: bytes) -> None:
    assert_error(client.post("/subjects/s/versions", content=body), 400, 400)


def test_bodies_are_bounded(client: TestClient) -> None:
    fits = b'{"schema":1' + b" " * (MAX_BODY_BYTES - 12) + b"}"
    assert len(fits) == MAX_BODY_BYTES
    assert_error(client.post("/subjects/s/versions", content=fits), 422, 42201)
    assert_error(client.post("/subjects/s/versions", content=fits + b" "), 413, 413)


def test_errors_of_the_framework_are_json(client: TestClient) -> None:
    assert_error(client.get("/nowhere"), 404, 404)
    assert_error(client.post("/schemas/types"), 405, 405)
    assert_error(client.get("/subjects?deleted=perhaps"), 422, 422)
    assert_error(client.get("/subjects?offset=-1"), 422, 422)


class FailingLedger(MemoryLedger):
    """A ledger whose every call fails in the same way."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def entries(self) -> Entries:
        raise self.error

    def update(self, decide: Decide) -> Entries:  # noqa: ARG002
        raise self.error


def test_an_unavailable_ledger() -> None:
    answer = client_of(FailingLedger(Unavailable("Kafka does not answer", hint="Is it up?"))).get("/subjects")
    assert assert_error(answer, 503, 503) == "Kafka does not answer Is it up?"
    assert int(answer.headers["retry-after"]) > 0


def test_an_unexpected_error_tells_nothing_of_itself() -> None:
    answer = client_of(FailingLedger(RuntimeError("secret detail"))).get("/subjects")
    assert_error(answer, 500, 500)
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


def test_a_broken_entry_names_its_key() -> None:
    key = '{"keytype":"SCHEMA","subject":"bad","version":1,"magic":1}'
    client = client_of(MemoryLedger({key: "{"}))
    assert key in assert_error(client.get("/subjects/bad/versions"), 500, 50001)
    assert register(client, "good", A).json() == {"id": 1}


@contextmanager
def served(ledger: MemoryLedger) -> Iterator[str]:
    """A real server on a free port of the loopback, in a thread; it listens before this returns."""
    # The protocol is named because asyncio sets TCP_NODELAY only then; without it each answer takes 40 ms.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(create_app(SchemaRegistry(ledger)), log_level="warning", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=10)
    assert not thread.is_alive()


def fresh(url: str) -> SchemaRegistryClient:
    """A client with nothing in its cache."""
    return SchemaRegistryClient({"url": url})


def test_an_unmodified_client_works() -> None:
    subject = "orders/é-value"
    with served(MemoryLedger()) as url:
        client = fresh(url)
        first, second = Schema(A, "AVRO"), Schema(A_B, "AVRO")
        assert client.register_schema(subject, first) == 1
        assert client.register_schema(subject, second, normalize_schemas=True) == 2
        assert fresh(url).register_schema(subject, first) == 1
        assert client.get_schema_types() == ["AVRO"]

        client = fresh(url)
        assert client.get_schema(2).schema_str == A_B
        assert client.get_subjects() == [subject]
        assert client.get_versions(subject) == [1, 2]
        latest = client.get_latest_version(subject)
        assert (latest.schema_id, latest.version, latest.schema.schema_str) == (2, 2, A_B)
        assert client.get_version(subject, 1).schema_id == 1
        assert client.lookup_schema(subject, first).version == 1
        assert client.get_subjects_by_schema_id(1) == [subject]
        assert [one.version for one in client.get_schema_versions(1)] == [1]

        assert client.test_compatibility(subject, second) is True
        assert client.test_compatibility(subject, Schema(A_ZIP, "AVRO"), verbose=True) is False
        assert client.test_compatibility_all_versions(subject, Schema(A_ZIP, "AVRO")) is False
        with pytest.raises(SchemaRegistryError) as refused:
            client.register_schema(subject, Schema(A_ZIP, "AVRO"))
        assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)

        assert client.get_compatibility() == "BACKWARD"
        client.set_compatibility(subject, "NONE")
        assert client.get_compatibility(subject) == "NONE"
        assert client.get_config(subject).compatibility_level == "NONE"
        assert client.register_schema(subject, Schema(A_ZIP, "AVRO")) == 3
        client.delete_config(subject)
        with pytest.raises(SchemaRegistryError) as missing:
            client.get_compatibility(subject)
        assert missing.value.error_code == 40408

        client.update_mode(subject, "READONLY")
        assert client.get_mode(subject) == "READONLY"
        assert client.get_global_mode() == "READWRITE"
        client.delete_mode(subject)

        assert client.delete_version(subject, 3) == 3
        assert client.delete_version(subject, 3, permanent=True) == 3
        assert client.delete_subject(subject) == [1, 2]
        assert client.get_subjects(deleted=True) == [subject]
        assert client.delete_subject(subject, permanent=True) == [1, 2]
        assert client.get_subjects(deleted=True) == []
        with pytest.raises(SchemaRegistryError) as gone:
            fresh(url).get_schema(1)
        assert gone.value.error_code == 40403


def test_many_clients_at_once() -> None:
    with served(MemoryLedger()) as url:
        ids: dict[int, int] = {}

        def work(at: int) -> None:
            ids[at] = fresh(url).register_schema("s", Schema(text("a", **{f"f{at % 4}": ""}), "AVRO"))

        threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(ids.values()) == [1, 1, 2, 2, 3, 3, 4, 4]
        assert all(ids[at] == ids[at + 4] for at in range(4))
        assert fresh(url).get_versions("s") == [1, 2, 3, 4]
