"""The feeds that a group reads, as Kafka has them now."""

from __future__ import annotations

from collections.abc import Iterable

from stack.connection import Stack
from stack.engine.groups import FeedFacts
from stack.errors import NotFound
from stack.kafka.admin import Topic


def topics_of(stack: Stack, feeds: Iterable[str]) -> dict[str, Topic | None]:
    """The topics that hold feeds now; None for what is gone."""
    wanted = list(feeds)
    known = stack.catalogue.feeds()
    names = {feed: stack.topic_of(feed, known[feed].version) for feed in wanted if feed in known}
    about = stack.admin.describe(names.values())
    return {feed: about.get(names[feed]) if feed in names else None for feed in wanted}


def facts_of(stack: Stack, feeds: Iterable[str]) -> dict[str, FeedFacts]:
    """Topics and ends of feeds; NotFound for one that there is not, with the nearest names."""
    wanted = list(feeds)
    for feed in wanted:
        stack.feed(feed)
    topics: dict[str, Topic] = {}
    for feed, topic in topics_of(stack, wanted).items():
        if topic is None:
            raise NotFound(f"feed {feed!r} has no topic", hint="Run `stack feeds apply` to make it.")
        topics[feed] = topic
    ends = stack.admin.all_ends(
        (one.name, number) for one in topics.values() for number in range(one.partitions)
    )
    return {
        feed: FeedFacts(
            one.name, one.id, {number: ends[one.name, number] for number in range(one.partitions)}
        )
        for feed, one in topics.items()
    }
