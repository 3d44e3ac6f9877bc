"""``nn.Linear``, with oneDNN's kernels on the CPU.

PyTorch multiplies float32 matrices with MKL, which on AMD processors leaves AVX-512 unused;
oneDNN, which PyTorch ships as well, is about twice as fast there and as fast elsewhere
(``docs/benchmarks.md``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")

# Multiplications (rows x inputs x outputs) from which on its kernels pay for being called from
# Python, see docs/benchmarks.md.
SMALLEST = 2**25

# Rows from which on oneDNN's own gradient of a layer that does not narrow is faster than a plain
# product, whose wide first factor must be transposed; also measured there.
MANY_ROWS = 500


class Linear(nn.Linear):
    """``y = x W^T + b``, ``[..., input_dim]`` to ``[..., output_dim]``."""

    def forward(self, input: Tensor) -> Tensor:
        is_traced = torch.jit.is_tracing() or torch.compiler.is_compiling()  # others must read it
        if is_traced or input.numel() * self.out_features < SMALLEST:
            return super().forward(input)
        if not (HAS_ONEDNN and _is_plain(input) and _is_plain(self.weight)):
            return super().forward(input)
        rows = input.reshape(-1, self.in_features)
        output = _OneDNNLinear.apply(rows, self.weight, self.bias)
        return output.reshape(*input.shape[:-1], self.out_features)


def _is_plain(x: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.numel() > 0
        and not torch.is_autocast_enabled("cpu")
    )


class _OneDNNLinear(Function):
    """``x W^T + b`` of ``x`` ``[N, I]``, ``W`` ``[O, I]`` and ``b`` ``[O]``, or no ``b``.

    The gradients are products of the same kind, so they can be differentiated again; where nobody
    asks for that, the weight's is oneDNN's own if it is the faster.
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
        pays = len(x) >= MANY_ROWS and weight.shape[0] >= weight.shape[1]
        if of_weight and pays and not torch.is_grad_enabled():
            weight_grad, bias_grad = torch.ops.aten.mkldnn_linear_backward_weights(
                grad.to_mkldnn(), x.to_mkldnn(), weight, of_bias
            )
            return x_grad, weight_grad, bias_grad if of_bias else None
        weight_grad = _OneDNNLinear.apply(grad.t(), x.t(), None) if of_weight else None
        return x_grad, weight_grad, grad.sum(0) if of_bias else None
