"""What requests to the offset manager carry: bodies and parameters, turned into values or refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from stack.errors import BadInput

_PARTITION = re.compile(r"0|[1-9]\d{0,8}")
_MOST_BY = 200
_COMMIT_KEYS = {"offsets", "name", "annotations", "reason", "by", "expect", "whole", "mirror"}
_POINT_KEYS = {"name", "annotations", "reason", "by"}


@dataclass(frozen=True, slots=True)
class CommitBody:
    """A commit as a client asks for it."""

    offsets: dict[str, dict[int, int]]
    name: str | None
    annotations: dict[str, str]
    reason: str
    by: str
    expect: int | None
    whole: bool
    mirror: bool


@dataclass(frozen=True, slots=True)
class PointBody:
    """A name for the point where a job stands."""

    name: str
    annotations: dict[str, str]
    reason: str
    by: str


def parse_commit(body: Mapping[str, Any], request: Request) -> CommitBody:
    """The commit of a request; BadInput with the key that is wrong."""
    _refuse_unknown(body, _COMMIT_KEYS)
    expect = body.get("expect")
    if expect is not None and (type(expect) is not int or expect < 0):
        raise BadInput(f"'expect' is {expect!r}", hint="Give the number of the newest commit; 0 for none.")
    name = _text(body, "name")
    return CommitBody(
        _offsets(body.get("offsets", {})),
        name or None,
        _annotations(body),
        _text(body, "reason"),
        _by(body, request),
        expect,
        _flag(body, "whole", False),
        _flag(body, "mirror", True),
    )


def parse_point(body: Mapping[str, Any], request: Request) -> PointBody:
    """The name of a request; BadInput with the key that is wrong."""
    _refuse_unknown(body, _POINT_KEYS)
    return PointBody(_text(body, "name"), _annotations(body), _text(body, "reason"), _by(body, request))


def said_in(request: Request, *reserved: str) -> dict[str, str]:
    """What the parameters of a question say of a commit: all but those that mean something else."""
    return {key: value for key, value in request.query_params.items() if key not in reserved}


def one_way(ways: Sequence[tuple[str, str | None]], said: Mapping[str, str]) -> str | None:
    """The startpoint that was meant, by the sign that stands before each way; None if there is none."""
    given = [f"{sign}{word.removeprefix(sign)}" for sign, word in ways if word is not None]
    if len(given) + bool(said) > 1:
        raise BadInput(
            "say in one way which one is meant", hint="One of the parameters, or key=value of what was said."
        )
    return given[0] if given else None


def _refuse_unknown(body: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(body) - known)
    if unknown:
        raise BadInput(f"the body has {unknown[0][:60]!r}", hint=f"Known are {', '.join(sorted(known))}.")


def _offsets(tree: object) -> dict[str, dict[int, int]]:
    hint = 'Such as {"page-views": {"0": 120, "1": 98}}.'
    if not isinstance(tree, dict):
        raise BadInput("'offsets' is no object", hint=hint)
    found: dict[str, dict[int, int]] = {}
    for feed, places in tree.items():
        if not isinstance(places, dict):
            raise BadInput(f"'offsets' of feed {feed[:60]!r} is no object", hint=hint)
        strange = next((number for number in places if not _PARTITION.fullmatch(number)), None)
        if strange is not None:
            raise BadInput(f"feed {feed[:60]!r}: {strange[:60]!r} is no partition", hint=hint)
        found[feed] = {int(number): offset for number, offset in places.items()}
    return found


def _annotations(body: Mapping[str, Any]) -> dict[str, str]:
    found = body.get("annotations", {})
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise BadInput("'annotations' is no object of texts", hint='Such as {"version": "3f2a"}.')
    return found


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise BadInput(f"{key!r} is no text")
    return value or ""


def _flag(body: Mapping[str, Any], key: str, default: bool) -> bool:
    value = body.get(key, default)
    if not isinstance(value, bool):
        raise BadInput(f"{key!r} is neither true nor false")
    return value


def _by(body: Mapping[str, Any], request: Request) -> str:
    """Who asks: what the client says of itself, and where it is."""
    said = _text(body, "by")
    if len(said) > _MOST_BY:
        raise BadInput("'by' is too long", hint=f"It takes {_MOST_BY} characters.")
    host = "unknown" if request.client is None else request.client.host
    return f"{said or 'somebody'} over HTTP from {host}"
