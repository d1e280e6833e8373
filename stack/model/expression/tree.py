"""The tree of a --where expression: plain frozen nodes that any evaluator can walk.

Two nodes are equal when they mean the same; `position` (the column in the text) only serves messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

LiteralValue = None | bool | int | float | str | datetime

METADATA_NAMES = ("_key", "_partition", "_offset", "_timestamp")


@dataclass(frozen=True, slots=True)
class Literal:
    """A value written in the text. A datetime always carries the zone UTC."""

    value: LiteralValue
    position: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Name:
    """A field of the record: text steps go into records and maps, whole numbers into arrays."""

    path: tuple[str | int, ...]
    position: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Metadata:
    """Something about the record, one of METADATA_NAMES; `path` goes into a key that is a record."""

    name: str
    path: tuple[str | int, ...] = ()
    position: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Negate:
    """A number with its sign changed."""

    operand: Node
    position: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Two numbers and one of + - * / %."""

    operator: str
    left: Node
    right: Node
    position: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A function of FUNCTIONS and its arguments."""

    function: str
    arguments: tuple[Node, ...]
    position: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Compare:
    """Two values and one of = != < <= > >=."""

    operator: str
    left: Node
    right: Node
    position: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class In:
    """Whether a value equals one of the options (negated: differs from all of them)."""

    operand: Node
    options: tuple[Node, ...]
    negated: bool = False
    position: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Between:
    """Whether low <= operand <= high (negated: outside)."""

    operand: Node
    low: Node
    high: Node
    negated: bool = False
    position: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a value is null (negated: is there)."""

    operand: Node
    negated: bool = False
    position: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Like:
    """Whether all of a text fits a pattern in which % is any text and _ any one character."""

    operand: Node
    pattern: str
    negated: bool = False
    position: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Matches:
    """Whether a regular expression (see pattern.py) is found somewhere in a text."""

    operand: Node
    pattern: str
    negated: bool = False
    position: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Not:
    """True where the operand is not true, so also where it is null."""

    operand: Node
    position: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class And:
    """True where all of two or more operands are true."""

    operands: tuple[Node, ...]
    position: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Or:
    """True where one of two or more operands is true."""

    operands: tuple[Node, ...]
    position: int = field(default=0, compare=False, repr=False)


Node = (
    Literal
    | Name
    | Metadata
    | Negate
    | Arithmetic
    | Call
    | Compare
    | In
    | Between
    | IsNull
    | Like
    | Matches
    | Not
    | And
    | Or
)


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression: the text as it was written and its tree. Equal trees make equal expressions."""

    text: str = field(compare=False)
    tree: Node


def children(node: Node) -> tuple[Node, ...]:
    """The nodes right below a node, in the order of the text."""
    match node:
        case Negate(operand=one) | Not(operand=one) | IsNull(operand=one):
            return (one,)
        case Like(operand=one) | Matches(operand=one):
            return (one,)
        case Arithmetic(left=left, right=right) | Compare(left=left, right=right):
            return (left, right)
        case In():
            return (node.operand, *node.options)
        case Between():
            return (node.operand, node.low, node.high)
        case And() | Or():
            return node.operands
        case Call():
            return node.arguments
        case _:
            return ()


def walk(tree: Node) -> Iterator[tuple[Node, int]]:
    """Every node with its depth (the root is 1), without recursion."""
    pending = [(tree, 1)]
    while pending:
        node, depth = pending.pop()
        yield node, depth
        pending.extend((child, depth + 1) for child in children(node))


def field_paths(tree: Node) -> frozenset[tuple[str | int, ...]]:
    """The paths of all fields that an expression reads, so that a reader can decode only those."""
    return frozenset(node.path for node, _ in walk(tree) if isinstance(node, Name))
