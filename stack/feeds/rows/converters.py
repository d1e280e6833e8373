"""The converter of one type, and the choice of a union's branch, from JSON and from values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stack.feeds.avro.branches import branch_of
from stack.feeds.avro.fault import Fault
from stack.feeds.avro.nodes import Node
from stack.feeds.avro.writing import find_fault
from stack.feeds.rows.json_scalars import Scalar, shown


def _unset(_value: Any) -> Any:
    raise AssertionError("a converter is used before it is built")


@dataclass(slots=True, eq=False)
class Converter:
    """JSON to values of one type and back. A record's is made first and filled later: it may hold itself.

    `exact` says whether JSON is of this very type. `fields` are the converters of a record's fields.
    """

    node: Node
    read: Callable[[Any], Any] = _unset
    write: Callable[[Any], Any] = _unset
    exact: Callable[[Any], bool] = _unset
    fields: dict[str, Converter] = field(default_factory=dict)
    branches: list[Converter] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.node.kind

    @property
    def tag(self) -> str:
        """What Avro's JSON form calls the type: a full name, or the base type without its logical type."""
        return self.node.name or self.node.kind

    @property
    def nullable(self) -> bool:
        """Whether null is a value of this type."""
        return self.kind == "null" or any(branch.kind == "null" for branch in self.branches)


def scalar_converter(node: Node, scalar: Scalar) -> Converter:
    """The converter of a type that holds no other."""
    return Converter(node, scalar.read, scalar.write, scalar.exact)


def union_converter(node: Node, branches: list[Converter]) -> Converter:
    """The converter of a union."""
    union = _Union(node, branches)
    return Converter(
        node,
        union.read,
        union.write,
        lambda value: any(branch.exact(value) for branch in branches),
        branches=branches,
    )


class _Union:
    def __init__(self, node: Node, branches: list[Converter]) -> None:
        self._node = node
        self._branches = branches
        self._nullable = any(branch.kind == "null" for branch in branches)
        others = [index for index, branch in enumerate(branches) if branch.kind != "null"]
        self._only = others[0] if len(others) == 1 else None
        self._tags = {branch.tag: index for index, branch in enumerate(branches)}
        for index, branch in enumerate(branches):
            self._tags.setdefault(branch.tag.rpartition(".")[2], index)

    def read(self, value: Any) -> Any:
        return None if value is None and self._nullable else self._choose(value)[1]

    def write(self, value: Any) -> Any:
        if value is None and self._nullable:
            return None
        index = self._branch_of(value) if self._only is None else self._only
        plain = self._branches[index].write(value)
        tagged = {self._branches[index].tag: plain}
        if isinstance(plain, dict) and len(plain) == 1 and next(iter(plain)) in self._tags:
            return tagged
        if self._only is not None:
            return plain
        try:
            return plain if self._choose(plain)[0] == index else tagged
        except Fault:
            return tagged

    def _choose(self, value: Any) -> tuple[int, Any]:
        """The branch that JSON stands for: Avro's form, else the nearest type, else any that takes it."""
        if isinstance(value, dict) and len(value) == 1:
            (tag,) = value
            if tag in self._tags:
                try:
                    return self._tags[tag], self._branches[self._tags[tag]].read(value[tag])
                except Fault:
                    # The one field of a record may be called like a branch.
                    pass
        order = sorted(range(len(self._branches)), key=lambda index: not self._branches[index].exact(value))
        faults = []
        for index in order:
            try:
                return index, self._branches[index].read(value)
            except Fault as fault:
                if self._branches[index].kind != "null":
                    faults.append(fault)
        # With one branch beside null, its own fault says more than the list of branches.
        raise faults[0] if len(faults) == 1 and value is not None else self._no_branch(value)

    def _branch_of(self, value: Any) -> int:
        place = branch_of(self._node, value)
        if place is not None:
            return place
        # Not as a decoder would give it, but an encoder takes it: a whole number for a double, say.
        for index, branch in enumerate(self._node.branches):
            if find_fault(branch, value) is None:
                return index
        raise self._no_branch(value)

    def _no_branch(self, value: Any) -> Fault:
        return Fault(f"must be one of {', '.join(one.tag for one in self._branches)}; got {shown(value)}")
