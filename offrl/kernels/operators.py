"""The base of what sees the operators that a program calls, which has no public name in PyTorch."""

from torch.utils._python_dispatch import TorchDispatchMode as OperatorMode

__all__ = ["OperatorMode"]
