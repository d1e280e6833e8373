"""The one expression language behind every --where: text in, a plain tree, a quick test per record.

    load > 3 and page like '/p/%' and user.country in ('CH', 'DE') and _timestamp >= '2026-03-01T12:00Z'

Values: numbers, 'text' or "text" (backslash escapes, a doubled quote is a quote), true, false, null,
timestamp '2026-03-01T12:00Z'. Fields: user.name, items[0], `odd name`; about the record: _key,
_partition, _offset, _timestamp. Tests: = == != <> < <= > >=, in (...), between a and b, is null, like,
matches (each with not), and or not (also && || !). Numbers: + - * / %. Functions: see functions.py.

A comparison with null is false (see evaluate.py), and so is one between kinds that do not compare (see
values.py); where the schema or the text shows that beforehand, it is a BadExpression instead.
"""

from __future__ import annotations

from stack.model.expression.check import check_against
from stack.model.expression.evaluate import Predicate, compile_expression
from stack.model.expression.parser import parse_tree
from stack.model.expression.tree import Expression, Node, field_paths
from stack.model.expression.write import format_expression

__all__ = [
    "Expression",
    "Node",
    "Predicate",
    "check_against",
    "compile_expression",
    "field_paths",
    "format_expression",
    "parse_expression",
]


def parse_expression(text: str) -> Expression:
    """Read the text of a condition; BadExpression shows the place where it goes wrong."""
    expression = Expression(text, parse_tree(text))
    check_against(expression, None)
    return expression
