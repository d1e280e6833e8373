"""The offset manager over HTTP, on a stack in memory: groups, points of jobs, the audit feed, and faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ops.service import offsets_routes
from ops.service.app import create_app
from ops.service.offsets_routes import OffsetsDesk, offsets_router
from ops.service.registry_requests import MAX_BODY_BYTES
from stack.machine import steered_by
from stack.testing import MemoryStack
from tests.unit.test_groups import FEEDS

COMMITS = "/offsets/groups/export/commits"


@pytest.fixture
def client() -> Iterator[TestClient]:
    with MemoryStack(feeds=FEEDS) as kit, steered_by(kit._machine):
        kit.write("clicks", *({"user": f"user-{number}", "n": number} for number in range(40)))
        desk = OffsetsDesk(kit.connection)
        app = create_app(kit.connection.registry, offsets_router(desk))
        yield TestClient(app, raise_server_exceptions=False)
        desk.close()


def commit(client: TestClient, **body: Any) -> Any:
    answer = client.post(COMMITS, json={"offsets": {"clicks": {"0": 3}}, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_group_commits_and_finds_its_commits_again(client: TestClient) -> None:
    assert client.get("/offsets/groups").json() == []
    assert client.get(COMMITS).json() == []
    first = commit(client, annotations={"version": "3f2a"}, name="then", by="exporter 7", reason="nightly")
    assert (first["commit"], first["mirrored"], first["mirror_fault"]) == (1, True, "")
    assert first["by"] == "exporter 7 over HTTP from testclient"
    commit(client, offsets={"clicks": {"1": 4}}, expect=1, mirror=False)
    newest = client.get("/offsets/groups/export").json()
    assert newest["offsets"] == {"clicks": {"0": 3, "1": 4}}
    assert {one["partition"]: one["records"] + one["offset"] for one in newest["lag"]} == {
        one["partition"]: one["end"] for one in newest["lag"]
    }
    for question in ("version=3f2a", "name=then", "name=@then", "to=%40then", "to=%231"):
        assert client.get(f"/offsets/groups/export?{question}").json()["commit"] == 1, question
    assert client.get("/offsets/groups/export?at=-0s").json()["commit"] == 2
    assert [one["commit"] for one in client.get(f"{COMMITS}?limit=1").json()] == [2]
    assert [one["commit"] for one in client.get(f"{COMMITS}?before=2").json()] == [1]
    assert [one["group"] for one in client.get("/offsets/groups").json()] == ["export"]
    told = client.get("/audit?job=export&what=commit&limit=1").json()
    assert [(one["what"], one["after"]["commit"]) for one in told] == [("commit", 2)]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"offsets": {"clicks": {"0": -1}}}, 422, "-1 is no offset"),
        ({"offsets": {"clicks": {"0": 1.5}}}, 422, "1.5 is no offset"),
        ({"offsets": {"clicks": {"0": 99_999}}}, 422, "before 99999"),
        ({"offsets": {"clicks": {"9": 1}}}, 422, "no partition 9"),
        ({"offsets": {"clicks": {"00": 1}}}, 422, "'00' is no partition"),
        ({"offsets": {"clicks": {"x": 1}}}, 422, "'x' is no partition"),
        ({"offsets": {"clics": {"0": 1}}}, 404, "clics"),
        ({"offsets": {"clicks": 3}}, 422, "of feed 'clicks' is no object"),
        ({"offsets": []}, 422, "'offsets' is no object"),
        ({"offsets": {}}, 422, "needs offsets"),
        ({"offset": {}}, 422, "the body has 'offset'"),
        ({"annotations": {"a": 1}}, 422, "'annotations' is no object of texts"),
        ({"annotations": {"a": "x" * 1_001}}, 422, "cannot be kept"),
        ({"name": 3}, 422, "'name' is no text"),
        ({"name": "a b"}, 422, "cannot name a point"),
        ({"expect": "1"}, 422, "'expect' is '1'"),
        ({"expect": 7}, 409, "commit 7 is not the newest"),
        ({"whole": 1}, 422, "'whole' is neither"),
        ({"by": "x" * 201}, 422, "'by' is too long"),
        ({"reason": "x" * 1_001}, 422, "reason is too long"),
    ],
)
def test_what_is_refused_is_told_with_a_hint_and_changes_nothing(
    client: TestClient, body: dict[str, Any], status: int, message: str
) -> None:
    given = {"offsets": {"clicks": {"0": 3}}, **body}
    answer = client.post(COMMITS, json=given)
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert message in told["message"]
    assert told["error_code"] == status
    assert "hint" in told
    assert client.get(COMMITS).json() == []
    assert client.get("/audit").json() == []


@pytest.mark.parametrize(
    ("data", "status"), [(b"no json", 400), (b"[]", 400), (b"x" * (MAX_BODY_BYTES + 1), 413)]
)
def test_a_body_that_is_none_is_told(client: TestClient, data: bytes, status: int) -> None:
    answer = client.post(COMMITS, content=data)
    assert answer.status_code == status
    assert answer.json()["message"]


def test_what_is_not_there_and_what_is_no_name_is_told(client: TestClient) -> None:
    assert client.get("/offsets/groups/export").status_code == 404
    commit(client)
    for path, status, message in (
        ("/offsets/groups/expor", 404, "has no commit at all"),
        ("/offsets/groups/export?name=x", 404, "named 'x'"),
        ("/offsets/groups/export?version=x", 404, "version=x"),
        ("/offsets/groups/export?to=yesterday", 422, "is not a startpoint"),
        ("/offsets/groups/export?to=latest&name=x", 422, "in one way"),
        ("/offsets/groups/a%2Fb", 422, "cannot name a group"),
        ("/offsets/groups/test.count.main", 422, "cannot name a group"),
        (f"{COMMITS}?limit=0", 422, "limit"),
        ("/offsets/jobs/nothing", 404, "nothing"),
        ("/offsets/jobs/nothing/point", 422, "say which point"),
    ):
        answer = client.get(path)
        assert (answer.status_code, message in answer.json()["message"]) == (status, True), answer.text
    assert client.post("/offsets/groups/a b/commits", content=json.dumps({})).status_code == 422


def test_more_groups_than_are_kept_open(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_routes, "_MOST_OPEN", 2)
    for turn in (1, 2):
        for number in range(5):
            answer = client.post(
                f"/offsets/groups/g{number}/commits", json={"offsets": {"clicks": {"0": turn}}}
            )
            assert answer.json()["commit"] == turn
    assert len(client.get("/offsets/groups").json()) == 5
