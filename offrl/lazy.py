"""``torch`` and ``Tensor`` for modules that are read without PyTorch, whose import takes seconds: a
config is in the module of its algorithm, and needs no tensors.

PyTorch is imported when something of it is first asked for. Code that runs at the import of such a
module (decorators, defaults, base classes, annotations without quotes) must use nothing but
``Tensor``.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["Tensor", "exporting", "torch"]


def exporting(package: str, modules: Mapping[str, str]) -> tuple[Callable, Callable]:
    """The ``__getattr__`` and ``__dir__`` of a package whose names are imported when they are first
    used.

    modules: the module of each name.
    """

    def get(name: str) -> Any:
        if name in modules:
            return getattr(import_module(modules[name]), name)
        from offrl.registry import did_you_mean

        hint = did_you_mean(name, names())
        raise AttributeError(f"module {package!r} has no attribute {name!r}.{hint}")

    def names() -> list[str]:
        """What is the package's own, and not what it is made with."""
        here = {*modules}
        for name, what in dict(vars(sys.modules[package])).items():
            is_module = isinstance(what, ModuleType)
            home = what.__name__ if is_module else getattr(what, "__module__", None)
            if name.startswith("__") or str(home).startswith("offrl"):
                here.add(name)
        return sorted(here - {"lazy"})

    return get, names


if TYPE_CHECKING or "torch" in sys.modules:
    import torch
    from torch import Tensor
else:
    torch = ModuleType("torch")

    def _import(name: str) -> Any:
        real = import_module("torch")
        vars(torch).update(vars(real))  # so that this happens once
        return getattr(real, name)

    torch.__getattr__ = _import

    class _Lazy(type):
        def __instancecheck__(cls, x: Any) -> bool:
            return isinstance(x, torch.Tensor)

    class Tensor(metaclass=_Lazy):
        """Stands for ``torch.Tensor`` in annotations."""
