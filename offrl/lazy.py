"""``torch`` and ``Tensor`` for modules that are imported without PyTorch, which takes seconds: a
config is in the module of its algorithm, and needs no tensors.

PyTorch is imported when something of it is first asked for. Code that runs at the import of such a
module (decorators, defaults, base classes, unquoted annotations) must use nothing but ``Tensor``.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["Tensor", "exporting", "needed", "torch"]


def exporting(
    package: str, exports: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make ``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports names on use.

    exports: the names that each module has, with spaces between them.
    """
    modules = {name: module for module, names in exports.items() for name in names.split()}

    def get(name: str) -> Any:
        if name in modules:
            return getattr(import_module(modules[name]), name)
        from offrl.registry import did_you_mean

        hint = did_you_mean(name, names())
        raise AttributeError(f"module {package!r} has no attribute {name!r}.{hint}")

    def names() -> list[str]:
        made_with = {"TYPE_CHECKING", "lazy"}
        return sorted({*modules, *vars(sys.modules[package])} - made_with)

    return get, names, sorted(modules)


def needed(module: str, extra: str, what: str) -> Any:
    """Import an optional package. Raises ``ImportError`` that begins with ``what`` and names the
    ``extra`` of offrl that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} ({error}); pip install 'offrl[{extra}]'") from None


if TYPE_CHECKING or "torch" in sys.modules:
    import torch
    from torch import Tensor
else:
    torch = ModuleType("torch")

    def _import(name: str) -> Any:
        """Import PyTorch, and put it into the modules that hold its placeholders."""
        real = import_module("torch")
        stands = {"torch": (torch, real), "Tensor": (Tensor, real.Tensor)}
        for module in [*sys.modules.values()]:
            for key, (stand_in, own) in stands.items():
                if getattr(module, "__dict__", {}).get(key) is stand_in:
                    setattr(module, key, own)
        return getattr(real, name)

    torch.__getattr__ = _import

    class _Lazy(type):
        def __instancecheck__(cls, x: Any) -> bool:
            return isinstance(x, torch.Tensor)

    class Tensor(metaclass=_Lazy):
        """Stands for ``torch.Tensor`` in annotations."""
