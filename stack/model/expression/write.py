"""Writes a tree back as text, the shortest way that reads back as the same tree."""

from __future__ import annotations

from datetime import datetime

from stack.model.expression import tree
from stack.model.expression.parser import RESERVED
from stack.model.expression.tokens import quote_name, quote_text
from stack.model.expression.tree import Node

_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _UNARY, _VALUE = range(1, 9)
_QUOTED_FIRST = RESERVED | frozenset(tree.METADATA_NAMES)


def format_expression(node: Node) -> str:
    """The text of a tree; `parse_tree` makes the same tree of it."""
    return _write(node)[0]


def _write(node: Node) -> tuple[str, int]:
    """The text and how tightly its outermost operator binds."""
    match node:
        case tree.Literal():
            return _literal(node)
        case tree.Name(path=path):
            return quote_name(str(path[0]), _QUOTED_FIRST) + _steps(path[1:]), _VALUE
        case tree.Metadata(name=name, path=path):
            return name + _steps(path), _VALUE
        case tree.Call():
            return f"{node.function}({', '.join(_write(one)[0] for one in node.arguments)})", _VALUE
        case tree.Negate(operand=operand):
            # -5 is a literal and -(5) is a negation, so a number behind the sign keeps its parentheses.
            text = _at(operand, _UNARY)
            return (f"-({text})" if text[0].isdigit() else f"-{text}"), _UNARY
        case tree.Arithmetic():
            level = _SUM if node.operator in "+-" else _PRODUCT
            return f"{_at(node.left, level)} {node.operator} {_at(node.right, level + 1)}", level
        case tree.Not(operand=operand):
            return f"not {_at(operand, _NOT)}", _NOT
        case tree.And(operands=operands):
            return " and ".join(_at(one, _NOT) for one in operands), _AND
        case tree.Or(operands=operands):
            return " or ".join(_at(one, _AND) for one in operands), _OR
        case _:
            return _comparison(node), _COMPARISON


def _comparison(node: Node) -> str:
    match node:
        case tree.Compare():
            return f"{_at(node.left, _SUM)} {node.operator} {_at(node.right, _SUM)}"
        case tree.IsNull():
            return f"{_at(node.operand, _SUM)} is {'not ' if node.negated else ''}null"
        case tree.In():
            options = ", ".join(_at(one, _SUM) for one in node.options)
            return f"{_subject(node)} in ({options})"
        case tree.Between():
            return f"{_subject(node)} between {_at(node.low, _SUM)} and {_at(node.high, _SUM)}"
        case tree.Like():
            return f"{_subject(node)} like {quote_text(node.pattern)}"
        case tree.Matches():
            return f"{_subject(node)} matches {quote_text(node.pattern)}"
        case _:
            raise TypeError(f"not a node of an expression: {type(node).__name__}")


def _subject(node: tree.In | tree.Between | tree.Like | tree.Matches) -> str:
    return _at(node.operand, _SUM) + (" not" if node.negated else "")


def _at(node: Node, lowest: int) -> str:
    text, level = _write(node)
    return text if level >= lowest else f"({text})"


def _literal(node: tree.Literal) -> tuple[str, int]:
    match node.value:
        case None:
            return "null", _VALUE
        case bool(value):
            return ("true" if value else "false"), _VALUE
        case str(value):
            return quote_text(value), _VALUE
        case datetime() as moment:
            return f"timestamp '{moment.isoformat().replace('+00:00', 'Z')}'", _VALUE
        case number:
            return repr(number), _UNARY if repr(number).startswith("-") else _VALUE


def _steps(path: tuple[str | int, ...]) -> str:
    return "".join(
        f"[{step}]" if isinstance(step, int) else f".{quote_name(step, frozenset())}" for step in path
    )
