"""Every error that Feedstack raises on purpose, named by what to do next.

FeedstackError              the root; carries a message and a `hint`: the next step for the reader
├── BadInput                something the user wrote is wrong; change it, nothing was done
│   ├── BadConfig           stack.toml or a command's options
│   ├── BadCatalogue        schemas/catalog.toml, or a feed that does not fit what exists
│   ├── BadSchema           an Avro schema that does not parse
│   │   └── Incompatible    a schema that parses but breaks the subject's compatibility rule
│   ├── BadExpression       a --where expression
│   ├── BadRecord           one record that cannot be encoded, decoded or accepted
│   ├── NotFound            a feed, subject, schema id or offset that does not exist
│   └── Outdated            what the caller knew is no longer so; look again and decide anew
├── Retryable               raised by the code of a job: the same record may work later
├── Unavailable             Kafka, ZooKeeper, the service or a tool cannot be reached; retry later
├── LostOwnership           another process took over (fenced); stop, do not retry
├── NotDelivered            records that were handed over did not reach the log; the caller must not go on
├── CorruptState            files on disk or records in a stack feed that cannot be what we wrote
└── ClusterFault            the embedded cluster cannot start or run; the hint says what to repair
"""

from __future__ import annotations


class FeedstackError(Exception):
    """Root of all errors raised on purpose. `hint` tells the reader what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.__dict__))


def _rebuild(
    kind: type[FeedstackError], message: str, hint: str, fields: dict[str, object]
) -> FeedstackError:
    error = kind.__new__(kind)
    FeedstackError.__init__(error, message, hint)
    error.__dict__.update(fields)
    return error


class BadInput(FeedstackError):
    """Something the user wrote is wrong."""


class BadConfig(BadInput):
    """Settings are wrong; `faults` lists every one of them, each with its key."""

    def __init__(self, message: str, hint: str = "", faults: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint)
        self.faults = faults


class BadCatalogue(BadConfig):
    """The declared feeds are wrong or do not fit what exists."""


class BadSchema(BadInput):
    """A schema that is not valid Avro."""


class Incompatible(BadSchema):
    """A schema that breaks its subject's compatibility; `breaks` names each field and rule."""

    def __init__(self, message: str, hint: str = "", breaks: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint)
        self.breaks = breaks


class BadExpression(BadInput):
    """An expression that does not parse or does not fit the schema; `position` is a 0-based column."""

    def __init__(self, message: str, hint: str = "", position: int | None = None) -> None:
        super().__init__(message, hint)
        self.position = position


class BadRecord(BadInput):
    """One record that cannot be encoded, decoded or accepted; `field` is a dotted path where known."""

    def __init__(self, message: str, hint: str = "", field: str | None = None) -> None:
        super().__init__(message, hint)
        self.field = field


class NotFound(BadInput):
    """A named thing that does not exist."""


class Outdated(BadInput):
    """What the caller knew is no longer so: look again, and decide anew."""


class Retryable(FeedstackError):
    """For the code of jobs: something outside does not work now, try the same record again."""

    def __init__(self, message: str = "", hint: str = "") -> None:
        super().__init__(message, hint)


class Unavailable(FeedstackError):
    """A service that cannot be reached now; the same call may work later."""


class LostOwnership(FeedstackError):
    """Another process took over and fenced this one."""


class NotDelivered(FeedstackError):
    """Records that were handed over did not reach the log."""


class CorruptState(FeedstackError):
    """Stored data that cannot be what we wrote."""


class ClusterFault(FeedstackError):
    """The embedded cluster cannot start or run."""
