"""Reads the text of a --where expression into its tree.

From loose to tight: or, and, not, one comparison, + -, * / %, unary minus.
"""

from __future__ import annotations

from datetime import UTC, datetime
from difflib import get_close_matches
from typing import NoReturn

from stack.errors import BadExpression
from stack.model.expression import tree
from stack.model.expression.functions import FUNCTIONS, MANY
from stack.model.expression.pattern import compile_pattern
from stack.model.expression.tokens import Token, fail, tokenize
from stack.model.expression.tree import Node

MAX_DEPTH = 100
RESERVED = frozenset({"and", "or", "not", "in", "between", "is", "null", "like", "matches", "true", "false"})

_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _UNARY = range(1, 8)
_WORD_SIGNS = {"&&": "and", "||": "or", "!": "not"}
_COMPARISONS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_PREDICATES = frozenset({"in", "between", "like", "matches"})
_LITERALS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_HINT = (
    "Write a condition such as: load > 3 and page like '/p/%'. Text stands in single quotes, odd names in `."
)


def parse_tree(text: str) -> Node:
    """The tree of `text` by grammar alone; types are not looked at. BadExpression if it does not parse."""
    parser = _Parser(text)
    tree_ = parser.expression(_OR)
    parser.expect_end()
    for node, depth in tree.walk(tree_):
        if depth > MAX_DEPTH:
            fail(text, node.position, f"this is nested more than {MAX_DEPTH} deep")
    return tree_


class _Parser:
    """A cursor over the tokens. Few calls per level of nesting, so that MAX_DEPTH fits Python's stack."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._index = 0
        self._depth = 0

    @property
    def _token(self) -> Token:
        return self._tokens[self._index]

    def _sign(self) -> str:
        """The token as grammar sees it: a symbol, a reserved word in lower case, or nothing."""
        token = self._token
        if token.kind == "symbol":
            return _WORD_SIGNS.get(token.raw, token.raw)
        if token.kind == "word" and (word := token.raw.lower()) in RESERVED:
            return word
        return ""

    def _take(self, sign: str) -> bool:
        if self._sign() != sign:
            return False
        self._index += 1
        return True

    def _next(self) -> Token:
        token = self._token
        self._index += 1
        return token

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            self._unexpected(f"expected {sign!r}")

    def _unexpected(self, wish: str) -> NoReturn:
        found = "the end" if self._token.kind == "end" else repr(self._token.raw)
        fail(self._text, self._token.position, f"{wish} here, found {found}", _HINT)

    def expect_end(self) -> None:
        if self._token.kind != "end":
            self._unexpected("expected and, or, an operator or the end")

    def expression(self, lowest: int) -> Node:
        """An expression whose operators all bind at least as tightly as `lowest`."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            fail(self._text, self._token.position, f"this is nested more than {MAX_DEPTH} deep")
        left = self._prefix(lowest)
        compared = False
        while True:
            position, sign = self._token.position, self._sign()
            if sign in ("and", "or") and lowest <= (_AND if sign == "and" else _OR):
                left = self._chain(sign, left, position)
            elif sign in ("+", "-") and lowest <= _SUM:
                self._index += 1
                left = tree.Arithmetic(sign, left, self.expression(_PRODUCT), position)
            elif sign in ("*", "/", "%") and lowest <= _PRODUCT:
                self._index += 1
                left = tree.Arithmetic(sign, left, self.expression(_UNARY), position)
            elif self._compares(sign) and lowest <= _COMPARISON:
                if compared:
                    fail(self._text, position, "comparisons do not chain; join two of them with and", _HINT)
                left, compared = self._comparison(sign, left, position), True
            else:
                break
        self._depth -= 1
        return left

    def _compares(self, sign: str) -> bool:
        if sign != "not":
            return sign in _COMPARISONS or sign in _PREDICATES or sign == "is"
        following = self._tokens[self._index + 1]
        return following.kind == "word" and following.raw.lower() in _PREDICATES

    def _chain(self, sign: str, first: Node, position: int) -> Node:
        operands = [first]
        while self._take(sign):
            operands.append(self.expression(_NOT if sign == "and" else _AND))
        return (tree.And if sign == "and" else tree.Or)(tuple(operands), position)

    def _comparison(self, sign: str, left: Node, position: int) -> Node:
        self._index += 1
        if sign in _COMPARISONS:
            return tree.Compare(_COMPARISONS[sign], left, self.expression(_SUM), position)
        if sign == "is":
            negated = self._take("not")
            self._need("null")
            return tree.IsNull(left, negated, position)
        negated = sign == "not"
        predicate = self._next().raw.lower() if negated else sign
        if predicate == "in":
            return tree.In(left, self._list(), negated, position)
        if predicate == "between":
            low = self.expression(_SUM)
            self._need("and")
            return tree.Between(left, low, self.expression(_SUM), negated, position)
        if predicate == "like":
            return tree.Like(left, self._quoted()[0], negated, position)
        return tree.Matches(left, self._regular_expression(), negated, position)

    def _list(self) -> tuple[Node, ...]:
        self._need("(")
        options = [self.expression(_SUM)]
        while self._take(","):
            options.append(self.expression(_SUM))
        self._need(")")
        return tuple(options)

    def _quoted(self) -> tuple[str, int]:
        token = self._token
        if token.kind != "text" or not isinstance(token.value, str):
            self._unexpected("expected text in quotes")
        self._index += 1
        return token.value, token.position

    def _regular_expression(self) -> str:
        pattern, position = self._quoted()
        try:
            compile_pattern(pattern)
        except BadExpression as error:
            fail(
                self._text,
                position,
                f"character {(error.position or 0) + 1} of this pattern: {error.message}",
                "Patterns take letters, . [a-z] \\d \\w \\s ( ) | * + ? {2,5} ^ $ and a leading (?i).",
            )
        return pattern

    def _prefix(self, lowest: int) -> Node:
        position, sign = self._token.position, self._sign()
        if sign == "not" and lowest <= _NOT:
            self._index += 1
            return tree.Not(self.expression(_NOT), position)
        if sign == "-":
            self._index += 1
            token = self._token
            if token.kind == "number" and not isinstance(token.value, str):
                self._index += 1
                return tree.Literal(-token.value, position)
            return tree.Negate(self.expression(_UNARY), position)
        if sign == "(":
            self._index += 1
            inner = self.expression(_OR)
            self._need(")")
            return inner
        return self._value(sign)

    def _value(self, sign: str) -> Node:
        token = self._token
        if token.kind in ("number", "text"):
            self._index += 1
            return tree.Literal(token.value, token.position)
        if sign in _LITERALS:
            self._index += 1
            return tree.Literal(_LITERALS[sign], token.position)
        if token.kind == "quoted":
            return self._name()
        if token.kind != "word" or sign:
            self._unexpected("expected a value")
        following = self._tokens[self._index + 1]
        if following.kind == "text" and token.raw.lower() == "timestamp":
            return self._timestamp()
        if following.raw == "(":
            return self._call()
        return self._name()

    def _timestamp(self) -> Node:
        position = self._next().position
        written, written_position = self._quoted()
        try:
            moment = datetime.fromisoformat(written)
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, OverflowError):
            fail(
                self._text,
                written_position,
                "this is not an ISO 8601 time",
                "Write it like timestamp '2026-03-01T12:00Z'; without a zone it is UTC.",
            )
        return tree.Literal(moment, position)

    def _call(self) -> Node:
        token = self._next()
        function = token.raw.lower()
        if function not in FUNCTIONS:
            near = get_close_matches(function, FUNCTIONS, n=1)
            fail(
                self._text,
                token.position,
                f"there is no function {token.raw!r}" + (f"; did you mean {near[0]}?" if near else ""),
                f"The functions are {', '.join(FUNCTIONS)}.",
            )
        self._need("(")
        arguments: list[Node] = []
        if self._sign() != ")":
            arguments.append(self.expression(_OR))
            while self._take(","):
                arguments.append(self.expression(_OR))
        self._need(")")
        signature = FUNCTIONS[function]
        if not signature.least <= len(arguments) <= signature.most:
            count = str(signature.least)
            if signature.most != signature.least:
                count += " or more" if signature.most == MANY else f" to {signature.most}"
            fail(self._text, token.position, f"{function} takes {count} arguments, got {len(arguments)}")
        if function == "exists" and not isinstance(arguments[0], tree.Name | tree.Metadata):
            fail(self._text, token.position, "exists takes the name of a field")
        return tree.Call(function, tuple(arguments), token.position)

    def _name(self) -> Node:
        first = self._next()
        path: list[str | int] = []
        while True:
            if self._take("."):
                step = self._token
                if step.kind not in ("word", "quoted"):
                    self._unexpected("expected a name")
                path.append(str(self._next().value))
            elif self._take("["):
                index = self._token
                if index.kind != "number" or not isinstance(index.value, int):
                    self._unexpected("expected a whole number")
                path.append(index.value)
                self._index += 1
                self._need("]")
            else:
                break
        if first.kind == "word" and first.raw in tree.METADATA_NAMES:
            if path and first.raw != "_key":
                fail(self._text, first.position, f"{first.raw} is a plain value, it has no fields")
            return tree.Metadata(first.raw, tuple(path), first.position)
        return tree.Name((str(first.value), *path), first.position)
