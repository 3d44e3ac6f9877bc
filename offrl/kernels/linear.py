"""``nn.Linear``, with oneDNN's kernels on AMD processors.

PyTorch multiplies with MKL, which on AMD leaves AVX-512 unused; oneDNN, which it ships as well,
takes 0.6 to 0.9 of a training step's time there, and 1.03 to 1.1 on Intel.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

CPU = Path("/proc/cpuinfo")  # on Linux
MKL_IS_SLOW = (
    torch.backends.mkl.is_available() and CPU.is_file() and "AuthenticAMD" in CPU.read_text()
)

# Multiplications (rows x inputs x outputs) from which on oneDNN is faster, called from Python.
SMALLEST = 2**25


class Linear(nn.Linear):
    """A layer ``y = x W^T + b``, ``[..., input_dim]`` to ``[..., output_dim]``."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``torch.nn.functional.linear`` of ``x`` ``[..., I]`` and ``weight`` ``[O, I]``."""
    if not pays(x, weight):
        return F.linear(x, weight, bias)
    rows = _OneDNNLinear.apply(x.reshape(-1, x.shape[-1]), weight, bias)
    return rows.reshape(*x.shape[:-1], len(weight))


def pays(x: Tensor, weight: Tensor) -> bool:
    """Say whether oneDNN's kernel is faster for this product."""
    is_traced = torch.jit.is_tracing() or torch.compiler.is_compiling()  # others must read it
    if is_traced or not MKL_IS_SLOW or x.numel() * len(weight) < SMALLEST:
        return False
    are_plain = all(y.device.type == "cpu" and y.dtype == torch.float32 for y in (x, weight))
    is_there = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return is_there and are_plain and not torch.is_autocast_enabled("cpu")


class _OneDNNLinear(Function):
    """``x W^T + b`` of ``x`` ``[N, I]``, ``W`` ``[O, I]`` and ``b`` ``[O]``, or no ``b``.

    The gradients are products of the same kind, so they can be differentiated again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weight)
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        x_grad = _OneDNNLinear.apply(grad, weight.t(), None) if of_x else None
        weight_grad = _OneDNNLinear.apply(grad.t(), x.t(), None) if of_weight else None
        return x_grad, weight_grad, grad.sum(0) if of_bias else None
