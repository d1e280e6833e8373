"""Tells a consumer that has nothing to read from one that has fallen silent.

A broker that stood still may for a moment answer that the cluster has no brokers. librdkafka then forgets
all that it knew, and now and then does not begin anew: it hands out nothing any more, tells nobody, and
shows a lag of nothing. Hence partitions of which nothing comes are asked for where they end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from stack.machine import monotonic, start
from stack.model.place import Place

log = logging.getLogger("feedstack.reader")
LOOK_S = 5.0
_ANSWER_S = 1.0
# Each costs a question and a half millisecond: the others have their turn at the next look.
_MOST_ASKED = 8


class Silence:
    """Watches what comes from a consumer. It belongs to the thread that reads."""

    def __init__(self, look_s: float = LOOK_S, clock: Callable[[], float] = monotonic) -> None:
        self._look_s = look_s
        self._clock = clock
        self._next_look = clock() + look_s
        self._heard: dict[Place, float] = {}
        # Partitions that had more to give at an earlier look, and when that was.
        self._waiting: dict[Place, float] = {}
        self._unanswered = 0
        self._turn = 0

    def heard(self, place: Place) -> None:
        """Something came of this partition, if only its end."""
        self._heard[place] = self._clock()

    def is_sick(self, consumer: Consumer, read_up_to: Callable[[], Mapping[Place, int]]) -> bool:
        """Whether the consumer should be made anew; `read_up_to` tells the end of what came per partition.

        Cheap but for one call in a few seconds.
        """
        now = self._clock()
        if now < self._next_look:
            return False
        self._next_look = now + self._look_s
        known = read_up_to()
        quiet = [place for place in known if now - self._heard.get(place, float("-inf")) >= self._look_s]
        self._heard = {place: at for place, at in self._heard.items() if place in known}
        self._waiting = {place: at for place, at in self._waiting.items() if place in quiet}
        sick = self._ask(consumer, self._some_of(quiet), known, now)
        if sick:
            self._waiting, self._unanswered = {}, 0
        return sick

    def _some_of(self, quiet: list[Place]) -> list[Place]:
        """At most a few at a time, in turn; those that are waited for always."""
        if len(quiet) <= _MOST_ASKED:
            return quiet
        self._turn = (self._turn + _MOST_ASKED) % len(quiet)
        some = (quiet[self._turn :] + quiet[: self._turn])[:_MOST_ASKED]
        return [*self._waiting, *(place for place in some if place not in self._waiting)]

    def _ask(self, consumer: Consumer, places: list[Place], known: Mapping[Place, int], now: float) -> bool:
        for place in places:
            try:
                _, end = consumer.get_watermark_offsets(TopicPartition(*place), _ANSWER_S, cached=False)
            except KafkaException:
                # Kafka is away, or the client has forgotten it: a new one finds out.
                self._unanswered += 1
                return self._unanswered > 1
            self._unanswered = 0
            if end <= known[place]:
                self._waiting.pop(place, None)
            elif place in self._waiting:
                return True
            else:
                self._waiting[place] = now
        return False


def put_aside(consumer: Consumer, reading: str) -> None:
    """Close a consumer that has fallen silent, without waiting for it."""
    log.warning("nothing came of %s although there is more: the consumer is made anew", reading)
    start(consumer.close, "close")
