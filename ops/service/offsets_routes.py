"""The offset manager over HTTP: groups of consumers outside the stack, points of jobs, and the audit feed.

The handlers are plain functions, which FastAPI runs in threads, because Kafka is waited for.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict
from threading import Lock
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from ops.service.offsets_requests import one_way, parse_commit, parse_point, said_in
from ops.service.registry_requests import EncodedPathRoute, read_body
from stack.connection import Stack
from stack.deploy.asking import annotate_job, annotated_json, find_job_point, job_timeline, point_json
from stack.deploy.lag import commit_lags
from stack.errors import BadInput, NotFound
from stack.model.group import GroupCommit
from stack.offsets.audit import last_audit
from stack.offsets.group_index import GroupIndex
from stack.offsets.groups import GroupOffsets

# Each holds a connection to Kafka once it has committed; the one that was asked last is put aside last.
_MOST_OPEN = 16

Body = Annotated[dict[str, Any], Depends(read_body)]
Limit = Annotated[int, Query(ge=1, le=10_000)]


class OffsetsDesk:
    """The groups that were asked for of late, and one index for all of them."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._lock = Lock()
        self._index: GroupIndex | None = None
        self._open: OrderedDict[str, GroupOffsets] = OrderedDict()

    def group(self, name: str) -> GroupOffsets:
        """A group; one that was put aside meanwhile may still be used, and connects again."""
        with self._lock:
            found = self._open.pop(name, None) or GroupOffsets(self.stack, name, index=self.index)
            self._open[name] = found
            aside = self._open.popitem(last=False)[1] if len(self._open) > _MOST_OPEN else None
        if aside is not None:
            aside.close()
        return found

    def index(self) -> GroupIndex:
        """The index; NotFound while there is no group at all."""
        with self._lock:
            if self._index is None:
                self._index = GroupIndex(self.stack, in_memory=self.stack.access.memory is not None)
            return self._index

    def close(self) -> None:
        """Let go of everything."""
        for one in self._open.values():
            one.close()
        if self._index is not None:
            self._index.close()


def offsets_router(desk: OffsetsDesk) -> APIRouter:
    """All routes of the offset manager."""
    router = APIRouter(route_class=EncodedPathRoute, tags=["offsets"])
    _add_groups(router, desk)
    _add_jobs(router, desk.stack)

    @router.get("/audit")
    def audit(job: str | None = None, what: str | None = None, limit: Limit = 100) -> list[dict[str, Any]]:
        return [asdict(one) for one in last_audit(desk.stack, job, what, limit)]

    return router


def _add_groups(router: APIRouter, desk: OffsetsDesk) -> None:
    stack = desk.stack

    @router.get("/offsets/groups")
    def list_groups() -> list[dict[str, Any]]:
        try:
            index = desk.index()
        except NotFound:
            return []
        index.refresh()
        return [one.as_json() for one in index.newest_of_all()]

    @router.get("/offsets/groups/{group}")
    def fetch(
        request: Request, group: str, to: str | None = None, at: str | None = None, name: str | None = None
    ) -> dict[str, Any]:
        said = said_in(request, "to", "at", "name")
        word = one_way([("", to), ("", at), ("@", name)], said)
        known = desk.group(group)
        return _with_lag(stack, known.fetch(annotations=said) if said else known.fetch(word))

    @router.get("/offsets/groups/{group}/commits")
    def history(
        group: str, limit: Limit = 100, before: Annotated[int | None, Query(ge=1)] = None
    ) -> list[dict[str, Any]]:
        return [one.as_json() for one in desk.group(group).history(limit, before)]

    @router.post("/offsets/groups/{group}/commits")
    def commit(request: Request, group: str, body: Body) -> dict[str, Any]:
        asked = parse_commit(body, request)
        done = desk.group(group).commit(
            asked.offsets,
            name=asked.name,
            reason=asked.reason,
            expect=asked.expect,
            whole=asked.whole,
            mirror=asked.mirror,
            by=asked.by,
            annotations=asked.annotations,
        )
        return done.as_json()


def _with_lag(stack: Stack, commit: GroupCommit) -> dict[str, Any]:
    return {**commit.as_json(), "lag": [one.as_json() for one in commit_lags(stack, commit)]}


def _add_jobs(router: APIRouter, stack: Stack) -> None:
    @router.get("/offsets/jobs/{job}")
    def list_points(job: str, limit: Limit = 10) -> list[dict[str, Any]]:
        return [one.as_json() for one in job_timeline(stack, job, limit)[0]]

    @router.get("/offsets/jobs/{job}/point")
    def find_point(  # noqa: PLR0917 - parameters of a question have names
        request: Request,
        job: str,
        to: str | None = None,
        at: str | None = None,
        version: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        said = said_in(request, "to", "at", "version", "name")
        word = one_way([("", to), ("", at), ("v:", version), ("@", name)], said)
        if word is None and not said:
            raise BadInput(
                "say which point is meant", hint="One of to, at, version, name, or what was said of it."
            )
        return point_json(job, find_job_point(stack, job, word, said))

    @router.post("/offsets/jobs/{job}/points")
    def annotate(request: Request, job: str, body: Body) -> dict[str, Any]:
        asked = parse_point(body, request)
        point = annotate_job(stack, job, asked.name, asked.annotations, reason=asked.reason, by=asked.by)
        return annotated_json(point)
