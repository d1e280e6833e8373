"""The web application of a stack: its routers, and every error answered as JSON."""

from __future__ import annotations

import logging

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ops.service.registry_routes import ANSWER_TYPE, registry_router
from stack.errors import (
    BadInput,
    BadSchema,
    CorruptState,
    FeedstackError,
    Incompatible,
    NotFound,
    Outdated,
    Unavailable,
)
from stack.feeds.registry.registry import SchemaRegistry
from stack.feeds.registry.state import Code, RegistryNotFound, RegistryRefused

RETRY_AFTER_SECONDS = 2
_STORE_ERROR = 50001
_STATUS_OF_ERRORS: tuple[tuple[type[FeedstackError], int, int], ...] = (
    # The first that fits holds: the error, its HTTP status and its error code.
    (Incompatible, 409, 409),
    (Outdated, 409, 409),
    (BadSchema, 422, Code.INVALID_SCHEMA),
    (NotFound, 404, 404),
    (BadInput, 422, 422),
    (Unavailable, 503, 503),
    (CorruptState, 500, _STORE_ERROR),
    (FeedstackError, 500, 500),
)
# Routes that clients of the registry do not know: they tell the hint, too.
_OWN = ("/offsets", "/audit")

log = logging.getLogger(__name__)


def create_app(registry: SchemaRegistry, *routers: APIRouter) -> FastAPI:
    """The application; `routers` come before the registry's, which answers at the root."""
    app = FastAPI(title="Feedstack", docs_url=None, redoc_url=None)
    app.add_api_route("/health", _health, methods=["GET"])
    for router in routers:
        app.include_router(router)
    app.include_router(registry_router(registry))
    app.add_exception_handler(FeedstackError, _answer_feedstack_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_bad_request)
    app.add_exception_handler(Exception, _answer_unexpected)
    return app


def _health() -> dict[str, str]:
    return {"status": "ok"}


def _error(status: int, code: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    body = {"error_code": code, "message": message}
    return JSONResponse(body, status, headers=headers, media_type=ANSWER_TYPE)


def _answer_feedstack_error(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, FeedstackError):
        raise error
    status, code = next((status, code) for kind, status, code in _STATUS_OF_ERRORS if isinstance(error, kind))
    if isinstance(error, RegistryNotFound | RegistryRefused):
        code = error.code
    if status >= 500:
        log.error("%s %s failed: %s", request.method, request.url.path, error.message)
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == 503 else None
    if request.url.path.startswith(_OWN):
        body = {"error_code": code, "message": error.message, "hint": error.hint}
        return JSONResponse(body, status, headers=headers)
    message = f"{error.message} {error.hint}".strip() if status != 404 else error.message
    return _error(status, code, message, headers)


def _answer_http_error(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    headers = dict(error.headers) if error.headers else None
    return _error(error.status_code, error.status_code, str(error.detail), headers)


def _answer_bad_request(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    faults = (f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors())
    return _error(422, 422, "; ".join(faults))


def _answer_unexpected(_request: Request, _error_raised: Exception) -> JSONResponse:
    # The server logs the traceback itself: Starlette raises the error again after this answer.
    return _error(500, 500, "Internal server error; the log of the service says more.")
