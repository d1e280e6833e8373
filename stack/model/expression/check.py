"""Finds what an expression cannot mean: unknown fields, and kinds that do not go together."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NoReturn

from stack.errors import BadExpression
from stack.model.expression import tree
from stack.model.expression.functions import FUNCTIONS
from stack.model.expression.shapes import UNKNOWN, SchemaShapes, Shape, either
from stack.model.expression.tokens import fail
from stack.model.expression.tree import Expression, Node
from stack.model.expression.values import convert, may_compare
from stack.model.expression.write import format_expression

_NUMBER = Shape(frozenset({"number"}), "a number")
_BOOLEAN = Shape(frozenset({"boolean"}), "true or false")
_METADATA = {
    "_key": UNKNOWN,
    "_partition": _NUMBER,
    "_offset": _NUMBER,
    "_timestamp": Shape(frozenset({"timestamp"}), "timestamp"),
}
_MAX_QUOTED_LENGTH = 40


def check_against(expression: Expression, schema_tree: Any) -> None:
    """Raise BadExpression unless the expression fits a schema, given as the JSON tree of an Avro schema.

    None stands for a schema that is not known: only what the text itself tells is checked then.
    """
    _Check(expression.text, None if schema_tree is None else SchemaShapes(schema_tree)).condition(
        expression.tree
    )


class _Check:
    """Works out the shape of each node from below; a shape without kinds fits everything."""

    def __init__(self, text: str, schema: SchemaShapes | None) -> None:
        self._text = text
        self._schema = schema

    def _fail(self, node: Node, message: str, hint: str = "") -> NoReturn:
        fail(self._text, min(node.position, len(self._text)), message, hint)

    def condition(self, node: Node) -> None:
        """A node that must be true or false."""
        self._need(node, _BOOLEAN.kinds, "a condition")

    def _need(self, node: Node, kinds: frozenset[str], wish: str) -> Shape:
        shape = self._shape(node)
        known = shape.kinds - {"null"}
        if known and not known & kinds:
            self._fail(node, f"expected {wish}; {_words(node)} is {shape.label}")
        return shape

    def _shape(self, node: Node) -> Shape:
        match node:
            case tree.Literal(value=value):
                return _literal_shape(value)
            case tree.Name(path=path):
                return self._field(node, path)
            case tree.Metadata(name=name):
                return UNKNOWN if node.path else _METADATA[name]
            case tree.Negate() | tree.Arithmetic():
                for one in tree.children(node):
                    self._need(one, _NUMBER.kinds, "a number")
                return _NUMBER
            case tree.Call():
                return self._call(node)
            case _:
                self._test(node)
                return _BOOLEAN

    def _field(self, node: Node, path: tuple[str | int, ...]) -> Shape:
        if self._schema is None:
            return UNKNOWN
        try:
            return self._schema.shape_of(path)
        except BadExpression as error:
            self._fail(node, error.message, "Metadata is named _key, _partition, _offset and _timestamp.")

    def _call(self, node: tree.Call) -> Shape:
        # Each argument is looked at exactly once: twice per level would double the work with each nesting.
        signature = FUNCTIONS[node.function]
        shapes = []
        for index, argument in enumerate(node.arguments):
            allowed = signature.kinds_of(index)
            if allowed:
                wish = f"{' or '.join(sorted(allowed))} for {node.function}"
                shapes.append(self._need(argument, allowed, wish))
            else:
                shapes.append(self._shape(argument))
        if node.function == "coalesce":
            return either(shapes)
        return Shape(signature.gives, " or ".join(signature.gives))

    def _test(self, node: Node) -> None:
        match node:
            case tree.Not() | tree.And() | tree.Or():
                for one in tree.children(node):
                    self.condition(one)
            case tree.Compare():
                ordered = node.operator not in ("=", "!=")
                self._comparison(node, node.left, self._shape(node.left), node.right, ordered=ordered)
            case tree.In():
                shape = self._shape(node.operand)
                for option in node.options:
                    self._comparison(option, node.operand, shape, option, ordered=False)
            case tree.Between():
                shape = self._shape(node.operand)
                for bound in (node.low, node.high):
                    self._comparison(bound, node.operand, shape, bound, ordered=True)
            case tree.Like() | tree.Matches():
                self._need(node.operand, frozenset({"text"}), "text")
            case tree.IsNull():
                self._shape(node.operand)

    def _comparison(self, at: Node, left: Node, first: Shape, right: Node, *, ordered: bool) -> None:
        second = self._shape(right)
        if first.unknown or second.unknown or "null" in (first.kinds & second.kinds):
            return
        pairs = [(one, other) for one in first.kinds - {"null"} for other in second.kinds - {"null"}]
        fitting = [(one, other) for one, other in pairs if may_compare(one, other, ordered=ordered)]
        if pairs and not fitting:
            self._fail(at, f"{_words(left)} is {first.label}, {_words(right)} is {second.label}")
        for literal, partner, other_kinds in (
            (left, right, {other for _, other in fitting}),
            (right, left, {one for one, _ in fitting}),
        ):
            self._readable(literal, partner, other_kinds)

    def _readable(self, node: Node, partner: Node, kinds: set[str]) -> None:
        """A text that is compared with a time, a date or a UUID must read as one."""
        if not isinstance(node, tree.Literal) or not isinstance(node.value, str):
            return
        if kinds and "text" not in kinds and all(convert(node.value, kind) is None for kind in kinds):
            names = " or ".join(sorted(kinds))
            self._fail(node, f"{_words(partner)} is {names}, and {_words(node)} does not read as one")


def _literal_shape(value: tree.LiteralValue) -> Shape:
    match value:
        case None:
            return Shape(frozenset({"null"}), "null")
        case bool():
            return _BOOLEAN
        case str():
            return Shape(frozenset({"text"}), "text")
        case datetime():
            return Shape(frozenset({"timestamp"}), "timestamp")
        case _:
            return _NUMBER


def _words(node: Node) -> str:
    text = format_expression(node)
    return text if len(text) <= _MAX_QUOTED_LENGTH else text[: _MAX_QUOTED_LENGTH - 1] + "…"
