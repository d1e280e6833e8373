"""The Schema Registry REST API, as its clients know it, on top of our registry.

Subjects may hold any character, also slashes, if they are URL-encoded. The handlers are plain functions,
which FastAPI runs in threads, because the registry blocks.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from ops.service.registry_requests import (
    EncodedPathRoute,
    Page,
    parse_level,
    parse_mode,
    parse_number,
    parse_schema,
    parse_schema_id,
    parse_version,
    read_body,
    which_versions,
)
from stack.feeds.registry.compatibility import Break
from stack.feeds.registry.registry import SchemaRegistry
from stack.feeds.registry.state import Code, Registered, RegistryNotFound, Which

ANSWER_TYPE = "application/vnd.schemaregistry.v1+json"


class RegistryAnswer(JSONResponse):
    """JSON under the content type that registry clients expect."""

    media_type = ANSWER_TYPE


Body = Annotated[dict[str, Any], Depends(read_body)]
Paged = Annotated[Page, Depends()]
Chosen = Annotated[Which, Depends(which_versions)]


def describe(one: Registered) -> dict[str, Any]:
    """A version as clients read it; no schemaType means AVRO."""
    return {"subject": one.subject, "version": one.version, "id": one.id, "schema": one.text}


def verdict(breaks: tuple[Break, ...], verbose: bool) -> dict[str, Any]:
    """The answer to a compatibility question."""
    messages = [f"{one.path} ({one.rule}): {one.message}" for one in breaks]
    return {"is_compatible": not breaks, **({"messages": messages} if verbose else {})}


def registry_router(registry: SchemaRegistry) -> APIRouter:
    """All routes of the registry, at the root as clients want them."""
    router = APIRouter(route_class=EncodedPathRoute, default_response_class=RegistryAnswer, tags=["registry"])

    @router.get("/")
    def root() -> dict[str, Any]:
        return {}

    _add_subjects(router, registry)
    _add_versions(router, registry)
    _add_schemas(router, registry)
    _add_compatibility(router, registry)
    _add_levels(router, registry)
    _add_modes(router, registry)
    return router


def _add_subjects(router: APIRouter, registry: SchemaRegistry) -> None:
    @router.get("/subjects")
    def list_subjects(which: Chosen, page: Paged, subjectPrefix: str = "") -> list[str]:  # noqa: N803
        return page.cut(registry.state().subjects(subjectPrefix.removeprefix(":*:"), which))

    @router.post("/subjects/{subject}")
    def look_up(subject: str, body: Body, deleted: bool = False) -> dict[str, Any]:
        return describe(registry.lookup(subject, parse_schema(body), Which.ALL if deleted else Which.LIVE))

    @router.delete("/subjects/{subject}")
    def delete_subject(subject: str, permanent: bool = False) -> list[int]:
        return list(registry.delete_subject(subject, permanent=permanent))


def _add_versions(router: APIRouter, registry: SchemaRegistry) -> None:
    def find(subject: str, version: str, deleted: bool) -> Registered:
        number = parse_version(version)
        return registry.state().version(subject, number, Which.ALL if deleted else Which.LIVE)

    @router.get("/subjects/{subject}/versions")
    def list_versions(subject: str, which: Chosen, page: Paged) -> list[int]:
        return page.cut([one.version for one in registry.state().existing(subject, which)])

    @router.post("/subjects/{subject}/versions")
    def register(subject: str, body: Body) -> dict[str, Any]:
        given = {"schema_id": parse_number(body, "id"), "version": parse_number(body, "version")}
        return {"id": registry.register(subject, parse_schema(body), **given).id}

    @router.get("/subjects/{subject}/versions/{version}")
    def get_version(subject: str, version: str, deleted: bool = False) -> dict[str, Any]:
        return describe(find(subject, version, deleted))

    @router.get("/subjects/{subject}/versions/{version}/schema")
    def get_version_schema(subject: str, version: str, deleted: bool = False) -> Response:
        return Response(find(subject, version, deleted).text, media_type=ANSWER_TYPE)

    @router.get("/subjects/{subject}/versions/{version}/referencedby")
    def list_references(subject: str, version: str) -> list[int]:
        find(subject, version, deleted=True)
        return []

    @router.delete("/subjects/{subject}/versions/{version}")
    def delete_version(subject: str, version: str, permanent: bool = False) -> int:
        return registry.delete_version(subject, parse_version(version), permanent=permanent)


def _add_schemas(router: APIRouter, registry: SchemaRegistry) -> None:
    @router.get("/schemas")
    def list_schemas(
        which: Chosen,
        page: Paged,
        subjectPrefix: str = "",  # noqa: N803
        latestOnly: bool = False,  # noqa: N803
    ) -> list[dict[str, Any]]:
        state = registry.state()
        versions = (state.versions_of(one, which) for one in state.subjects(subjectPrefix, which))
        return page.cut([describe(one) for some in versions for one in (some[-1:] if latestOnly else some)])

    @router.get("/schemas/types")
    def list_types() -> list[str]:
        return ["AVRO"]

    # Not `schema_by_id`, whose cache outlives a permanent delete.
    @router.get("/schemas/ids/{schema_id}")
    def get_schema(schema_id: str) -> dict[str, str]:
        return {"schema": registry.state().with_id(parse_schema_id(schema_id))[0].text}

    @router.get("/schemas/ids/{schema_id}/schema")
    def get_schema_text(schema_id: str) -> Response:
        found = registry.state().with_id(parse_schema_id(schema_id))
        return Response(found[0].text, media_type=ANSWER_TYPE)

    @router.get("/schemas/ids/{schema_id}/subjects")
    def list_schema_subjects(schema_id: str, which: Chosen, page: Paged) -> list[str]:
        found = registry.state().with_id(parse_schema_id(schema_id), which)
        return page.cut(sorted({one.subject for one in found}))

    @router.get("/schemas/ids/{schema_id}/versions")
    def list_schema_versions(schema_id: str, which: Chosen, page: Paged) -> list[dict[str, Any]]:
        found = registry.state().with_id(parse_schema_id(schema_id), which)
        return page.cut([{"subject": one.subject, "version": one.version} for one in found])


def _add_compatibility(router: APIRouter, registry: SchemaRegistry) -> None:
    @router.post("/compatibility/subjects/{subject}/versions")
    def check_all(subject: str, body: Body, verbose: bool = False) -> dict[str, Any]:
        return verdict(registry.find_breaks(subject, parse_schema(body)), verbose)

    @router.post("/compatibility/subjects/{subject}/versions/{version}")
    def check_one(subject: str, version: str, body: Body, verbose: bool = False) -> dict[str, Any]:
        number = parse_version(version)
        return verdict(registry.find_breaks_with(subject, parse_schema(body), number), verbose)


def _add_levels(router: APIRouter, registry: SchemaRegistry) -> None:
    @router.get("/config")
    def get_level() -> dict[str, Any]:
        return {"compatibilityLevel": registry.state().level()}

    @router.put("/config")
    def set_level(body: Body) -> dict[str, Any]:
        return {"compatibility": registry.set_level(None, parse_level(body))}

    @router.delete("/config")
    def drop_level() -> dict[str, Any]:
        return {"compatibilityLevel": registry.set_level(None, None)}

    @router.get("/config/{subject}")
    def get_subject_level(subject: str, defaultToGlobal: bool = False) -> dict[str, Any]:  # noqa: N803
        state = registry.state()
        level = state.level(subject) if defaultToGlobal else state.own_level(subject)
        if level is None:
            raise RegistryNotFound(
                Code.LEVEL_NOT_SET,
                f"Subject '{subject}' does not have subject-level compatibility configured",
            )
        return {"compatibilityLevel": level}

    @router.put("/config/{subject}")
    def set_subject_level(subject: str, body: Body) -> dict[str, Any]:
        return {"compatibility": registry.set_level(subject, parse_level(body))}

    @router.delete("/config/{subject}")
    def drop_subject_level(subject: str) -> dict[str, Any]:
        return {"compatibilityLevel": registry.set_level(subject, None)}


def _add_modes(router: APIRouter, registry: SchemaRegistry) -> None:
    @router.get("/mode")
    def get_mode() -> dict[str, Any]:
        return {"mode": registry.state().mode()}

    @router.put("/mode")
    def set_mode(body: Body, force: bool = False) -> dict[str, Any]:
        return {"mode": registry.set_mode(None, parse_mode(body), force=force)}

    @router.delete("/mode")
    def drop_mode() -> dict[str, Any]:
        return {"mode": registry.set_mode(None, None)}

    @router.get("/mode/{subject}")
    def get_subject_mode(subject: str, defaultToGlobal: bool = False) -> dict[str, Any]:  # noqa: N803
        state = registry.state()
        mode = state.mode(subject) if defaultToGlobal else state.own_mode(subject)
        if mode is None:
            raise RegistryNotFound(
                Code.MODE_NOT_SET, f"Subject '{subject}' does not have subject-level mode configured"
            )
        return {"mode": mode}

    @router.put("/mode/{subject}")
    def set_subject_mode(subject: str, body: Body, force: bool = False) -> dict[str, Any]:
        return {"mode": registry.set_mode(subject, parse_mode(body), force=force)}

    @router.delete("/mode/{subject}")
    def drop_subject_mode(subject: str) -> dict[str, Any]:
        return {"mode": registry.set_mode(subject, None)}
