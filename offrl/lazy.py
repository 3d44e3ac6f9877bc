"""``torch`` and ``Tensor`` for modules that are read without PyTorch, whose import takes seconds: a
config is in the module of its algorithm, and needs no tensors.

PyTorch is imported when something of it is first asked for. Code that runs at the import of such a
module (decorators, defaults, base classes, annotations without quotes) must use nothing but
``Tensor``.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["Tensor", "torch"]

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
