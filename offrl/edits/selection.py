"""Edits that keep some demonstrations of a file: by conditions, names, filter key, or at random."""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from offrl.data.separate import SeparateArrays
from offrl.edits.edit import Edit, of_files

ALLOWED = "names, numbers, text, True, False, + - * / // %, < <= == != >= >, and, or, not"
LONGEST = 400  # characters, which bounds nesting by Python's stack

OPERATORS: dict[type, Callable[..., Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
    **{ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne},
    **{ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos},
}
NODES = (*OPERATORS, ast.And, ast.Or, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Name)
COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
ANY_VALUES = (ast.Eq, ast.NotEq, ast.Not)  # also between text and numbers
RESERVED = "return"  # a name in conditions, which Python's parser takes for a statement
STANDS_IN = "return_"


class Condition:
    """A user's condition on demonstrations, such as ``length < 100 and return > 0.5``.
    ``Condition(text)(values)`` evaluates it for the values of its names, or for what functions in
    their place return. It is a small subset of Python's expressions, which is interpreted here: no
    code is executed.

    Raises ``ValueError`` for invalid text, when made, and for values of unsuitable types.
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
            if (name := node.id.replace(STANDS_IN, RESERVED)) not in values:
                words = f"asks for {name}; known are {', '.join(values)}"
                raise ValueError(f"the condition {self.text!r} {words}")
            return values[name]() if callable(values[name]) else values[name]
        if isinstance(node, ast.BoolOp):
            decides = isinstance(node.op, ast.Or)  # the value that decides
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


def facts(file: SeparateArrays, demo: str) -> dict[str, Any]:
    """Return the values that conditions may name: the attributes of a demonstration, and functions
    that read the file for its ``length``, ``return`` and ``success``."""
    attributes: dict[str, Any] = {}
    for key, value in file.attributes(demo).items():
        if isinstance(value, bytes):
            attributes[key] = value.decode(errors="replace")
        elif not isinstance(value, np.ndarray):
            attributes[key] = value.item() if isinstance(value, np.generic) else value

    def success() -> bool:
        found = file.success(attributes | _signs(file, demo))
        return bool(success_steps(file, demo).any()) if found is None else found

    computed: dict[str, Any] = {
        "length": lambda: int(file.lengths([demo])[0]),
        "return": lambda: float(file.steps(demo, "rewards").sum(dtype=np.float64)),
        "success": success,
    }
    return {**computed, **attributes, **computed}


def _signs(file: SeparateArrays, demo: str) -> dict[str, Any]:
    """Read the arrays of a demonstration that tell of success."""
    return {k: file.steps(demo, k) for k in ("rewards", "dones") if file.has(demo, k)}


def success_steps(file: SeparateArrays, demo: str) -> np.ndarray:
    """Say whether the task was done at each step ``[T]``; ``ValueError`` if that is unknown."""
    steps = file.success_steps(_signs(file, demo))
    if steps is None:
        raise ValueError(
            f"{file.path}: {file.root}{demo} does not say where it succeeded: its rewards are not "
            "0 before and 1 at success, and its dones may be failures; give it the attribute "
            "success"
        )
    return steps


def subset(
    file: SeparateArrays,
    filter_key: str | None = None,
    demos: Sequence[str] | None = None,
    n: int | None = None,
    seed: int | None = None,
) -> Edit:
    """Keep some demonstrations, in order: those under a filter key, with the names ``demos``, and
    of these only ``n``: the first, or with a seed random ones."""
    if not (filter_key or demos or n):
        raise ValueError("offrl edit subset: give --n, --filter-key, or --demos")
    chosen = file.demos(filter_key)
    if demos is not None:
        if missing := [name for name in demos if name not in chosen]:
            where = "data" if filter_key is None else f"mask/{filter_key}"
            words = f"it has {len(chosen)} demonstrations, {chosen[0]} to {chosen[-1]}"
            raise ValueError(f"{file.path}: {where} has no {missing[0]}; {words}")
        chosen = [demo for demo in chosen if demo in demos]
    if n is not None and n > len(chosen):
        words = f"{n} demonstrations are asked for, but there are {len(chosen)}; lower --n"
        raise ValueError(f"{file.path}: {words}")
    order = np.arange(len(chosen))
    if seed is not None:
        # Draw independently of a split by the same seed.
        order = np.random.default_rng([seed, 1]).permutation(len(chosen))
    return of_files([file], [(file, chosen[i]) for i in sorted(order[:n])])


def keep(
    file: SeparateArrays,
    min_length: int | None = None,
    max_length: int | None = None,
    min_return: float | None = None,
    max_return: float | None = None,
    success: bool = False,
    where: str | None = None,
) -> Edit:
    """Keep the demonstrations that fulfil all conditions that are given; ``where`` is the text of a
    ``Condition``. ``ValueError`` if none does."""
    limits = {
        "length >= {}": min_length,
        "length <= {}": max_length,
        "return >= {!r}": min_return,
        "return <= {!r}": max_return,
        "success": success or None,
        "{}": where,
    }
    texts = [text.format(value) for text, value in limits.items() if value is not None]
    if not texts:
        raise ValueError("offrl edit filter: no condition is given; see offrl edit filter --help")
    conditions, kept = [Condition(text) for text in texts], []
    for demo in file.demos():
        values = facts(file, demo)
        try:
            if all(condition(values) for condition in conditions):
                kept.append((file, demo))
        except ValueError as error:
            if str(error).startswith(f"{file.path}: "):
                raise
            raise ValueError(f"{file.path}: {file.root}{demo}: {error}") from None
    if not kept:
        raise ValueError(f"{file.path}: no demonstration fulfils {' and '.join(texts)}")
    return of_files([file], kept)
