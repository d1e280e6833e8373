"""The audit feed: who asked what of which job or group, when and why. Only added to, kept for ever."""

from __future__ import annotations

import getpass
import json
import socket
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stack.connection import Stack
from stack.kafka.admin import TopicPlan
from stack.kafka.reader import LogReader
from stack.kafka.writer import LogWriter
from stack.machine import time_ms

_FORMAT = 1
_READ_S = 0.25


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Something that was asked for: by whom, of which job, why, and what it changed from what to what."""

    what: str
    # The job; for a commit of offsets, the group.
    job: str
    by: str
    time_ms: int
    reason: str = ""
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)


def audit_name(stack: str) -> str:
    """The topic of the audit feed."""
    return f"_{stack}.audit"


def audit_plan(stack: str) -> TopicPlan:
    """One partition: all in one order, for ever."""
    return TopicPlan(
        audit_name(stack),
        1,
        {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "message.timestamp.type": "LogAppendTime",
        },
    )


def ensure_audit(stack: Stack) -> None:
    """Make the feed if it is not there."""
    plan = audit_plan(stack.settings.name)
    if plan.name not in stack.admin.describe([plan.name]):
        stack.admin.create([plan])


def person() -> str:
    """Who asks: the user of this process, and the machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def entry_of(
    what: str,
    job: str,
    reason: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> AuditEntry:
    """An entry by whoever runs this, now."""
    return AuditEntry(what, job, person(), time_ms(), reason, before or {}, after or {})


def to_record(entry: AuditEntry) -> tuple[bytes, bytes]:
    """Key and value of an entry."""
    value = json.dumps({"format": _FORMAT, **asdict(entry)}, ensure_ascii=False, separators=(",", ":"))
    return entry.job.encode(), value.encode()


def write_audit(stack: Stack, entry: AuditEntry) -> None:
    """Add an entry. What it tells of has happened: a fault here must be told, too."""
    name = stack.settings.name
    ensure_audit(stack)
    key, value = to_record(entry)
    with LogWriter(stack.access) as writer:
        writer.write(audit_name(name), [{"key": key, "value": value}])
        writer.flush()


def read_audit(stack: Stack) -> Iterator[AuditEntry]:
    """Every entry, the oldest first; what cannot be read is passed over."""
    topic = audit_name(stack.settings.name)
    if topic not in stack.admin.describe([topic]):
        return
    bounds = stack.admin.bounds(topic, [0])[0]
    with LogReader(stack.access, topic) as reader:
        reader.assign({0: bounds.low}, {0: bounds.high})
        while not reader.done:
            for value in reader.read(timeout_s=_READ_S).values:
                entry = _entry(value)
                if entry is not None:
                    yield entry


def last_audit(stack: Stack, job: str | None, what: str | None, limit: int) -> list[AuditEntry]:
    """The last entries of a job or group, of a kind, or of all, the oldest first."""
    fitting = (
        one
        for one in read_audit(stack)
        if (job is None or one.job == job) and (what is None or one.what == what)
    )
    return list(deque(fitting, maxlen=limit))


def _entry(value: bytes | None) -> AuditEntry | None:
    try:
        tree = json.loads(value or b"")
        return AuditEntry(**{name: tree[name] for name in AuditEntry.__slots__})
    except (ValueError, KeyError, TypeError):
        return None
