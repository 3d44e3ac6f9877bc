"""Conditions that a person writes about demonstrations: ``length < 100 and return > 0.5``.

A small part of Python's expressions, which is looked at and computed here: nothing is executed.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

ALLOWED = "names, numbers, text, True, False, + - * / // %, < <= == != >= >, and, or, not"
LONGEST = 400  # characters: what those can nest, Python's stack can hold

OPERATORS: dict[type, Callable[..., Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
    **{ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne},
    **{ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos},
}
NODES = (*OPERATORS, ast.And, ast.Or, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Name)
COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
ANY_VALUES = (ast.Eq, ast.NotEq, ast.Not)  # also of text and numbers together
RESERVED = "return"  # a name in conditions, which Python's parser takes for a statement
STANDS_IN = "return_"


class Condition:
    """A condition. ``Condition(text)(values)`` tells whether it holds for the values of its names.

    Raises ``ValueError`` for what is no condition, when made, and for values that it does not fit.
    """

    def __init__(self, text: str):
        self.text = text
        if len(text) > LONGEST:
            raise ValueError(f"the condition has {len(text)} characters; {LONGEST} are allowed")
        try:
            tree = ast.parse(text.replace(RESERVED, STANDS_IN).strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._error("is not understood") from None
        self._tree = tree
        for node in ast.walk(tree):
            is_plain = isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float))
            if not (is_plain or isinstance(node, (*NODES, ast.Load))):
                raise self._error(f"uses {type(node).__name__}")

    def __call__(self, values: Mapping[str, Any]) -> bool:
        return bool(self._value(self._tree, values))

    def _error(self, what: str) -> ValueError:
        return ValueError(
            f"the condition {self.text!r} {what}; allowed are {ALLOWED}, e.g. "
            "'length < 100 and return > 0.5'"
        )

    def _value(self, node: ast.AST, values: Mapping[str, Any]) -> Any:
        if isinstance(node, ast.Constant):
            text = node.value
            return text.replace(STANDS_IN, RESERVED) if isinstance(text, str) else text
        if isinstance(node, ast.Name):
            return self._named(node.id.replace(STANDS_IN, RESERVED), values)
        if isinstance(node, ast.BoolOp):
            decides = isinstance(node.op, ast.Or)  # the value that ends it
            return any(bool(self._value(x, values)) == decides for x in node.values) == decides
        if isinstance(node, ast.UnaryOp):
            return self._apply(node.op, self._value(node.operand, values))
        if isinstance(node, ast.BinOp):
            left, right = (self._value(x, values) for x in (node.left, node.right))
            return self._apply(node.op, left, right)
        assert isinstance(node, ast.Compare)
        found = [self._value(x, values) for x in (node.left, *node.comparators)]
        pairs = zip(node.ops, found, found[1:], strict=False)
        return all(self._apply(op, a, b) for op, a, b in pairs)

    def _named(self, name: str, values: Mapping[str, Any]) -> Any:
        try:
            return values[name]
        except KeyError:
            raise ValueError(
                f"the condition {self.text!r} asks for {name}; known are {', '.join(values)}"
            ) from None

    def _apply(self, kind: ast.AST, *operands: Any) -> Any:
        kinds = {isinstance(x, str) for x in operands}
        suits_text = isinstance(kind, COMPARISONS) and kinds == {True}
        if True in kinds and not (suits_text or isinstance(kind, ANY_VALUES)):
            shown = " and ".join(repr(x) for x in operands)
            raise ValueError(f"the condition {self.text!r} takes {shown:.80} together")
        try:
            return OPERATORS[type(kind)](*operands)
        except (ArithmeticError, TypeError) as error:
            raise ValueError(f"the condition {self.text!r} cannot be computed: {error}") from None
