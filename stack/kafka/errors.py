"""Turns what librdkafka says into errors of the stack, named by what to do next."""

from __future__ import annotations

import re
from types import TracebackType

from confluent_kafka import KafkaError, KafkaException

from stack.errors import (
    BadConfig,
    BadRecord,
    FeedstackError,
    LostOwnership,
    NotDelivered,
    NotFound,
    Unavailable,
)

_FENCED = {
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
}
_IS_FENCED = re.compile(r"fenced|epoch|newer (producer )?instance", re.IGNORECASE)
# What passes by itself once a partition has its leader.
PASSING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._NOENT,
    # The client let go of a connection while a question was under way on it.
    KafkaError._DESTROY_BROKER,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
}
_AWAY = PASSING | {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_ENOUGH_REPLICAS,
}
MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
REFUSED = {
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError._SSL,
}


def translate(error: KafkaError, doing: str) -> FeedstackError:
    """Our error for one of Kafka's; `doing` says what was tried, such as 'reading page-views'."""
    code, reason = error.code(), error.str()
    # After a fatal error every call answers with this one; its text holds the first.
    if code in _FENCED or (code == KafkaError._FATAL and _IS_FENCED.search(reason)):
        return LostOwnership(f"{doing}: another process took over", hint="This process must stop.")
    if code in _AWAY:
        return Unavailable(
            f"{doing}: Kafka cannot be reached ({reason})",
            hint="`stack status` and `stack doctor` tell more.",
        )
    if code in MISSING:
        return NotFound(
            f"{doing}: Kafka has no such topic or partition", hint="`stack feeds list` shows what there is."
        )
    if code in _TOO_LARGE:
        return BadRecord(f"{doing}: the record is larger than Kafka takes ({reason})")
    if code == KafkaError.INVALID_TIMESTAMP:
        return BadRecord(
            f"{doing}: the record's time is more than an hour ahead of the broker's clock",
            hint="Correct the event time; Kafka would keep such a record for too long.",
        )
    if code in REFUSED:
        return BadConfig(
            f"{doing}: Kafka refuses this user ({reason})", hint="Check [kafka.settings] in stack.toml."
        )
    if code == KafkaError._MSG_TIMED_OUT:
        return NotDelivered(
            f"{doing}: Kafka did not take it in time", hint="`stack status` and `stack doctor` tell more."
        )
    return NotDelivered(f"{doing}: {reason} ({error.name()})")


class translated:  # noqa: N801 - reads as a function; a generator would take three times as long
    """Translate whatever the client raises inside the block."""

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        if isinstance(error, KafkaException):
            raise translate(error.args[0], self._doing) from error
        if isinstance(error, SystemError):
            # What is left of a fatal error that the client raised into one of its own callbacks.
            said = f"{self._doing}: the client failed for good"
            raise NotDelivered(said, hint="Open it anew.") from error
