"""Compiles an expression into one function per record: closures built once, no tree walked later.

Null follows one simple rule: a comparison, `in`, `between`, `like` or `matches` with null (or between
kinds that do not compare) is false, in its negated form too; arithmetic and functions with null give
null. `not` turns false into true, so `not (x = 1)` holds for a null x, and `x != 1` does not.
A field that a record does not have is null.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from stack.model.expression import tree
from stack.model.expression.like import compile_like
from stack.model.expression.pattern import compile_pattern
from stack.model.expression.routines import ROUTINES
from stack.model.expression.tree import Expression, Node
from stack.model.expression.values import EPOCH, OPERATORS, calculate, compare, convert, kind_of

Evaluator = Callable[[Any, Mapping[str, Any]], Any]
Predicate = Callable[[Any, Mapping[str, Any]], bool]


def compile_expression(expression: Expression) -> Predicate:
    """A function of a record's value and its metadata that says whether the expression holds.

    The metadata has `_key`, `_partition`, `_offset` and `_timestamp` (milliseconds since 1970); what it
    lacks is null. The value of a tombstone is None: all its fields are null.
    """
    return _condition(expression.tree)


def _condition(node: Node) -> Predicate:
    match node:
        case tree.Compare():
            return _comparison(node)
        case tree.Not(operand=operand):
            inner = _condition(operand)
            return lambda value, metadata: not inner(value, metadata)
        case tree.And(operands=operands):
            return _all([_condition(one) for one in operands])
        case tree.Or(operands=operands):
            return _any([_condition(one) for one in operands])
        case tree.IsNull(operand=operand, negated=negated):
            get = _value(operand)
            return lambda value, metadata: (get(value, metadata) is None) != negated
        case tree.In():
            return _membership(node)
        case tree.Between():
            return _range(node)
        case tree.Like():
            return _text_test(node, compile_like(node.pattern))
        case tree.Matches():
            return _text_test(node, compile_pattern(node.pattern))
        case _:
            get = _value(node)
            return lambda value, metadata: get(value, metadata) is True


def _value(node: Node) -> Evaluator:
    match node:
        case tree.Literal(value=literal):
            return lambda _value, _metadata: literal
        case tree.Name(path=path):
            return _field(path)
        case tree.Metadata():
            return _metadata(node)
        case tree.Negate(operand=operand):
            inner = _value(operand)
            return lambda value, metadata: calculate("*", inner(value, metadata), -1)
        case tree.Arithmetic(operator=sign):
            left, right = _value(node.left), _value(node.right)
            return lambda value, metadata: calculate(sign, left(value, metadata), right(value, metadata))
        case tree.Call():
            return _call(node)
        case _:
            return _condition(node)


def _field(path: tuple[str | int, ...]) -> Evaluator:
    first = path[0]
    if len(path) > 1:
        return lambda value, _metadata: follow(value, path, None)

    def get(value: Any, _metadata: Mapping[str, Any]) -> Any:
        try:
            return value[first]
        except (KeyError, TypeError):
            return None

    return get


def follow(value: Any, path: tuple[str | int, ...], missing: Any) -> Any:
    """What a path leads to inside a value, or `missing`."""
    for step in path:
        if isinstance(step, int):
            if not isinstance(value, list | tuple) or step >= len(value):
                return missing
        elif not isinstance(value, Mapping) or step not in value:
            return missing
        value = value[step]
    return value


def _metadata(node: tree.Metadata) -> Evaluator:
    name, path = node.name, node.path
    if name == "_timestamp":
        return lambda _value, metadata: _moment(metadata.get(name))
    if path:
        return lambda _value, metadata: follow(metadata.get(name), path, None)
    return lambda _value, metadata: metadata.get(name)


def _moment(timestamp_ms: Any) -> Any:
    if not isinstance(timestamp_ms, int):
        return timestamp_ms
    try:
        return EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None


def _call(node: tree.Call) -> Evaluator:
    if node.function == "exists":
        return _exists(node.arguments[0])
    getters = [_value(one) for one in node.arguments]
    if node.function == "coalesce":
        return lambda value, metadata: next(
            (found for get in getters if (found := get(value, metadata)) is not None), None
        )
    routine = ROUTINES[node.function]
    if len(getters) == 1:
        only = getters[0]
        return lambda value, metadata: routine(only(value, metadata))
    first, second = getters
    return lambda value, metadata: routine(first(value, metadata), second(value, metadata))


def _exists(node: Node) -> Evaluator:
    """Whether each step of the path is there, even if it ends at null."""
    missing = object()
    if isinstance(node, tree.Metadata):
        path = (node.name, *node.path)
        return lambda _value, metadata: follow(metadata, path, missing) is not missing
    if isinstance(node, tree.Name):
        field_path = node.path
        return lambda value, _metadata: follow(value, field_path, missing) is not missing
    return lambda _value, _metadata: False


def _comparison(node: tree.Compare) -> Predicate:
    test = OPERATORS[node.operator]
    if isinstance(node.right, tree.Literal):
        return _against_literal(node.left, test, node.right.value)
    if isinstance(node.left, tree.Literal):
        return _against_literal(node.right, _MIRRORED[test], node.left.value)
    left, right = _value(node.left), _value(node.right)
    return lambda value, metadata: compare(test, left(value, metadata), right(value, metadata))


_MIRRORED: dict[Callable[[Any, Any], bool], Callable[[Any, Any], bool]] = {
    operator.eq: operator.eq,
    operator.ne: operator.ne,
    operator.lt: operator.gt,
    operator.le: operator.ge,
    operator.gt: operator.lt,
    operator.ge: operator.le,
}


def _against_literal(node: Node, test: Callable[[Any, Any], bool], literal: Any) -> Predicate:
    # Almost every value has a type for which the literal is ready; the rest goes the slow way.
    ready = _ready_forms(literal)
    if isinstance(literal, bool) and test not in (operator.eq, operator.ne):
        ready = {}
    moment = convert(literal, "timestamp") if kind_of(literal) in ("text", "number", "timestamp") else None
    find = ready.get

    def rare(found: Any) -> bool:
        if found is None:
            return False
        if moment is not None and isinstance(found, datetime):
            return compare(test, found, moment)
        return compare(test, found, literal)

    if isinstance(node, tree.Name) and len(node.path) == 1:
        name = node.path[0]

        def of_field(value: Any, _metadata: Mapping[str, Any]) -> bool:
            try:
                found = value[name]
            except (KeyError, TypeError):
                return False
            other = find(type(found))
            return rare(found) if other is None else test(found, other)

        return of_field

    get = _value(node)

    def of_any(value: Any, metadata: Mapping[str, Any]) -> bool:
        found = get(value, metadata)
        other = find(type(found))
        return rare(found) if other is None else test(found, other)

    return of_any


def _ready_forms(literal: Any) -> dict[type, Any]:
    """The literal for each type of value that Python compares with it directly and rightly."""
    if isinstance(literal, bool):
        return {bool: literal}
    if isinstance(literal, int):
        return {int: literal, float: literal, Decimal: literal}
    if isinstance(literal, float):
        return {int: literal, float: literal, Decimal: Decimal(repr(literal))}
    return {str: literal} if isinstance(literal, str) else {}


def _membership(node: tree.In) -> Predicate:
    get, negated = _value(node.operand), node.negated
    options = [_value(one) for one in node.options]
    constants = [one.value for one in node.options if isinstance(one, tree.Literal)]
    texts = frozenset(one for one in constants if isinstance(one, str))
    all_text = len(constants) == len(options) and all(isinstance(one, str) for one in constants)
    equal, differs = operator.eq, operator.ne

    def run(value: Any, metadata: Mapping[str, Any]) -> bool:
        found = get(value, metadata)
        if all_text and type(found) is str:
            return (found in texts) != negated
        if negated:
            return all(compare(differs, found, option(value, metadata)) for option in options)
        return any(compare(equal, found, option(value, metadata)) for option in options)

    return run


def _range(node: tree.Between) -> Predicate:
    get, low, high = _value(node.operand), _value(node.low), _value(node.high)
    negated = node.negated

    def run(value: Any, metadata: Mapping[str, Any]) -> bool:
        found, least, most = get(value, metadata), low(value, metadata), high(value, metadata)
        if negated:
            return compare(operator.lt, found, least) or compare(operator.gt, found, most)
        return compare(operator.ge, found, least) and compare(operator.le, found, most)

    return run


def _text_test(node: tree.Like | tree.Matches, fits: Callable[[str], bool]) -> Predicate:
    get, negated = _value(node.operand), node.negated

    def run(value: Any, metadata: Mapping[str, Any]) -> bool:
        found = get(value, metadata)
        return isinstance(found, str) and fits(found) != negated

    return run


def _all(conditions: list[Predicate]) -> Predicate:
    if len(conditions) == 2:
        first, second = conditions
        return lambda value, metadata: first(value, metadata) and second(value, metadata)

    def run(value: Any, metadata: Mapping[str, Any]) -> bool:
        for condition in conditions:  # noqa: SIM110 - a generator costs more per record
            if not condition(value, metadata):
                return False
        return True

    return run


def _any(conditions: list[Predicate]) -> Predicate:
    if len(conditions) == 2:
        first, second = conditions
        return lambda value, metadata: first(value, metadata) or second(value, metadata)

    def run(value: Any, metadata: Mapping[str, Any]) -> bool:
        for condition in conditions:  # noqa: SIM110 - a generator costs more per record
            if condition(value, metadata):
                return True
        return False

    return run
