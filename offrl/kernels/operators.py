"""Sees the operators that a program calls. PyTorch's base for it has no public name."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode as OperatorMode
from torch.utils._pytree import tree_leaves

__all__ = ["NUMBERS_CHANGE", "Call", "OperatorMode", "Operators", "calls_of"]

NUMBERS_CHANGE = "update goes by numbers that change and are no part of graph_key()"
T = TypeVar("T")
Call = tuple[str, tuple[Any, ...]]  # name of an operator, and its arguments


class Operators(OperatorMode):
    """Sees each operator that PyTorch calls, before it runs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.see(func, tree_leaves((args, kwargs)))
        return func(*args, **(kwargs or {}))

    def see(self, func: Any, arguments: list[Any]) -> None:
        """Look at an operator and its arguments, without the lists that these are in."""
        raise NotImplementedError(type(self).__name__)


class _Calls(Operators):
    """Notes operators, their numbers, and the shapes and kinds of their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def see(self, func: Any, arguments: list[Any]) -> None:
        self.calls.append((func.name(), tuple(map(_sketch, arguments))))


def calls_of(function: Callable[[], T]) -> tuple[T, list[Call]]:
    """Call a function. Returns its result, and the operators that it calls, with their numbers and
    the shapes and kinds of their tensors."""
    with _Calls() as seen:
        result = function()
    return result, seen.calls


def _sketch(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.dtype, argument.shape
    return "generator" if isinstance(argument, Generator) else argument
