"""The converter of one type, and the choice of a union's branch, from JSON and from values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stack.feeds.rows.json_scalars import Fault, Scalar, shown


def _unset(_value: Any) -> Any:
    raise AssertionError("a converter is used before it is built")


@dataclass(slots=True, eq=False)
class Converter:
    """One type of a schema. Named types are made first and filled later, since they may hold themselves."""

    label: str
    kind: str
    read: Callable[[Any], Any] = _unset
    write: Callable[[Any], Any] = _unset
    exact: Callable[[Any], bool] = _unset
    fits: Callable[[Any], bool] = _unset
    fields: list[Field] = field(default_factory=list)
    branches: list[Converter] = field(default_factory=list)

    def fill(self, scalar: Scalar) -> Converter:
        self.read, self.write, self.exact, self.fits = scalar.read, scalar.write, scalar.exact, scalar.fits
        return self

    @property
    def nullable(self) -> bool:
        """Whether null is a value of this type."""
        return self.kind == "null" or any(branch.kind == "null" for branch in self.branches)


@dataclass(slots=True, eq=False)
class Field:
    """One field of a record; `default` gives a fresh default, None means there is none."""

    name: str
    converter: Converter
    default: Callable[[], Any] | None


def union_converter(branches: list[Converter], *, first_branch_first: bool) -> Converter:
    """The converter of a union; a schema's defaults mean the first branch where that is possible."""
    union = _Union(branches, first_branch_first=first_branch_first)
    return Converter(
        " or ".join(branch.label for branch in branches),
        "union",
        union.read,
        union.write,
        lambda value: any(branch.exact(value) for branch in branches),
        lambda value: any(branch.fits(value) for branch in branches),
        branches=branches,
    )


class _Union:
    def __init__(self, branches: list[Converter], *, first_branch_first: bool) -> None:
        self._branches = branches
        self._first_branch_first = first_branch_first
        self._nullable = any(branch.kind == "null" for branch in branches)
        others = [index for index, branch in enumerate(branches) if branch.kind != "null"]
        self._only = others[0] if len(others) == 1 else None
        self._tags: dict[str, int] = {}
        for index, branch in enumerate(branches):
            self._tags[branch.label] = index
        for index, branch in enumerate(branches):
            self._tags.setdefault(branch.label.rpartition(".")[2], index)

    def read(self, value: Any) -> Any:
        return None if value is None and self._nullable else self._choose(value)[1]

    def write(self, value: Any) -> Any:
        if value is None and self._nullable:
            return None
        index = self._branch_of(value) if self._only is None else self._only
        plain = self._branches[index].write(value)
        tagged = {self._branches[index].label: plain}
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
        order = list(range(len(self._branches)))
        if not self._first_branch_first:
            order.sort(key=lambda index: not self._branches[index].exact(value))
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
        for index, branch in enumerate(self._branches):
            if branch.fits(value):
                return index
        if type(value) is int:
            for index, branch in enumerate(self._branches):
                if branch.kind in ("float", "double"):
                    return index
        raise self._no_branch(value)

    def _no_branch(self, value: Any) -> Fault:
        labels = ", ".join(branch.label for branch in self._branches)
        return Fault(f"must be one of {labels}; got {shown(value)}")
