"""A job of two stages for tests: clicks are brought together by page, then counted; and one that reads it."""

from __future__ import annotations

from typing import Any

from stack import Feed, Job
from stack.testing import MemoryStack

FEEDS: dict[str, dict[str, Any]] = {
    "clicks": {"schema": {"user": "string", "page": "string"}, "key": "user", "partitions": 2},
    "by-page": {
        "schema": {"user": "string", "page": "string"},
        "key": "page",
        "partitions": 3,
        "by": "pages",
        "inputs": ["clicks"],
    },
    "per-page": {
        "schema": {"page": "string", "count": "long"},
        "key": "page",
        "partitions": 3,
        "table": True,
        "by": "pages",
        "inputs": ["by-page"],
    },
    "totals": {
        "schema": {"page": "string", "updates": "long", "last": "long"},
        "key": "page",
        "partitions": 3,
        "table": True,
        "by": "watch",
        "inputs": ["per-page"],
    },
}


def paging(step: int = 1, bad: str | None = None) -> Job:
    """Two stages: `main` re-keys and knows how many clicks a user has made, `count` counts by page and may
    fail at one."""
    job = Job("pages")

    @job.task(Feed("clicks"), store="users")
    def by_page(click: dict[str, Any], ctx: Any) -> None:
        ctx.state[click["user"]] = ctx.state.get(click["user"], 0) + 1
        ctx.emit("by-page", click, key=click["page"])

    @job.task(Feed("by-page"), stage="count", store="counts")
    def count(click: dict[str, Any], ctx: Any) -> None:
        if click["page"] == bad:
            raise ValueError(f"page {bad}")
        number = ctx.state.get(click["page"], 0) + step
        ctx.state[click["page"]] = number
        ctx.emit("per-page", {"page": click["page"], "count": number})

    return job


def watching() -> Job:
    """Downstream: how often a page's count was told, and what it was last."""
    job = Job("watch")

    @job.task(Feed("per-page"), store="seen")
    def watch(value: dict[str, Any] | None, ctx: Any) -> None:
        page = ctx.key
        updates = ctx.state.get(page, 0) + 1
        ctx.state[page] = updates
        last = -1 if value is None else value["count"]
        ctx.emit("totals", {"page": page, "updates": updates, "last": last})

    return job


def click(stack: MemoryStack, text: str) -> None:
    """Pairs of a user and a page: "a1 b2"."""
    stack.write("clicks", *({"user": pair[0], "page": pair[1]} for pair in text.split()))


def seen(stack: MemoryStack) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """What both stores and the table hold."""
    table = {key: value["count"] for key, value in stack.table("per-page").items()}
    return stack.state("pages", "users"), stack.state("pages", "counts"), table
