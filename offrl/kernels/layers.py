"""Layers of networks that compute the same as PyTorch's in less time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

CPU = Path("/proc/cpuinfo")  # on Linux
IS_AMD = CPU.is_file() and "AuthenticAMD" in CPU.read_text()
# MKL does not use AVX-512 on AMD. With oneDNN, which PyTorch ships as well, a training step takes
# 0.6 to 0.9 of the time there, and 1.03 to 1.1 on Intel.
MKL_IS_SLOW = IS_AMD and torch.backends.mkl.is_available()

# Multiplications (rows x inputs x outputs) from which on oneDNN is faster, called from Python, ...
LARGE_PRODUCT = 2**25
# ... and up to which PyTorch's call takes longer than NumPy's.
SMALL_PRODUCT = 2**17
LARGE_TANH = 2**12  # elements from which a tanh by a sigmoid is faster
NARROW = 8  # most outputs for which MKL on AMD is slow unless weights lie by output
IN_PLACE = {"tanh": lambda x: np.tanh(x, out=x), "relu": lambda x: np.maximum(x, 0, out=x)}


def replaces_mkl() -> bool:
    """Say whether layers on the CPU may run without MKL; not while tracing, for portability."""
    return MKL_IS_SLOW and not (torch.jit.is_tracing() or torch.compiler.is_compiling())


class Linear(nn.Linear):
    """A layer ``y = x W^T + b``, ``[..., input_dim]`` to ``[..., output_dim]``."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``torch.nn.functional.linear`` of ``x`` ``[..., I]`` and ``weight`` ``[O, I]``."""
    if not onednn_pays(x, weight):
        return F.linear(x, weight, bias)
    rows = _OneDNNLinear.apply(x.reshape(-1, x.shape[-1]), weight, bias)
    return rows.reshape(*x.shape[:-1], len(weight))


def onednn_pays(x: Tensor, weight: Tensor) -> bool:
    """Say whether oneDNN's kernel is faster for this product."""
    if not replaces_mkl() or x.numel() * len(weight) < LARGE_PRODUCT:
        return False
    are_plain = all(y.device.type == "cpu" and y.dtype == torch.float32 for y in (x, weight))
    is_there = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return is_there and are_plain and not torch.is_autocast_enabled("cpu")


class _OneDNNLinear(Function):
    """``x W^T + b`` of ``x`` ``[N, I]``, ``W`` ``[O, I]`` and ``b`` ``[O]``, or no ``b``.

    The gradients are products of the same kind, and so can be differentiated again.
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


def tanh_layers(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Map rows ``[R, I]`` to ``[R, O]`` by layers of weights and biases ``W, b, W, b, ...`` with a
    tanh after each, as one autograd function."""
    if torch.is_grad_enabled():
        return _TanhLayers.apply(x, *parameters)
    return _outputs(x, parameters)[-1]


def tanh_layers_pay(x: Tensor) -> bool:
    """Say whether ``tanh_layers`` is faster: on AMD. On Intel PPO's step gets 4 % slower."""
    return replaces_mkl() and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def _outputs(x: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    outputs = [x]
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        x = torch.addmm(bias, outputs[-1], weight.t())
        is_large = x.numel() >= LARGE_TANH
        outputs.append(x.mul_(2).sigmoid_().mul_(2).sub_(1) if is_large else x.tanh_())
    return outputs


class _TanhLayers(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:  # type: ignore[override]
        outputs = _outputs(x, parameters)
        ctx.save_for_backward(*outputs, *parameters[::2])
        return outputs[-1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        num_layers = len(ctx.saved_tensors) // 2
        outputs, weights = ctx.saved_tensors[: num_layers + 1], ctx.saved_tensors[num_layers + 1 :]
        grads: list[Tensor | None] = []
        for layer in reversed(range(num_layers)):
            before = torch.ops.aten.tanh_backward(grad, outputs[layer + 1])
            grads = [before.t().mm(outputs[layer]), before.sum(0), *grads]
            if layer or ctx.needs_input_grad[0]:
                grad = before.mm(weights[layer])
        return (grad if ctx.needs_input_grad[0] else None, *grads)


class SmallBatchLayers:
    """Fully connected layers with an activation after each but the last, for the few rows of a
    policy that acts. Their weights are read at each call.

    NumPy's calls take a third of PyTorch's time, which saves 10 % of A2C's round and 6 % of PPO's.
    """

    def __init__(self, layers: Sequence[nn.Linear], activation: str):
        self._layers = [(layer.weight, layer.bias) for layer in layers]
        self._activation = activation
        self._size = max(weight.numel() for weight, _ in self._layers)

    def pays(self, num_rows: int) -> bool:
        """Say whether so many rows are computed faster here than in PyTorch."""
        is_small = num_rows * self._size <= SMALL_PRODUCT
        return is_small and self._layers[0][0].device.type == "cpu"

    def __call__(self, x: Tensor) -> NDArray[np.float32]:
        """Map rows ``[R, I]`` to ``[R, O]``."""
        rows = x.numpy()
        for i, (weight, bias) in enumerate(self._layers):
            if i:
                IN_PLACE[self._activation](rows)
            rows = rows @ weight.detach().numpy().T
            rows += bias.detach().numpy()
        return rows


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Multiply ``[N, R, I]`` by ``[N, I, O]`` and add ``[N, O]``. Where MKL is slow, products with
    one vector are sums over elements, which saves 3 to 11 % of a step on AMD and nothing on Intel;
    those with a few vectors have these as rows, which saves 4 % of DQN's step."""
    if MKL_IS_SLOW and weight.shape[-1] <= NARROW and x.device.type == "cpu":
        if weight.shape[-1] == 1:
            return (x * weight.mT).sum(-1, keepdim=True) + bias.unsqueeze(1)
        weight = weight.mT.contiguous().mT
    return torch.baddbmm(bias.unsqueeze(1), x, weight)


def first_members(num: int, *parameters: Tensor) -> list[Tensor]:
    """Take ``parameters[:num]``, sliced only if need be: the copy costs 3 % of SAC-N's step."""
    return [p if num == len(p) else p[:num] for p in parameters]


class Conv1d(nn.Conv1d):
    """``torch.nn.Conv1d`` with ``stride`` 1 and zeros as padding that keeps the length.

    With fewer steps than channels, it is one matrix product in training. This saves a sixth of the
    step of a large U-Net over time on a CPU, where PyTorch's kernels rearrange all weights. While
    acting, PyTorch's form is used, as denoising accumulates rounding errors.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int):
        super().__init__(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def forward(self, input: Tensor) -> Tensor:
        batch_size, channels, steps = input.shape
        is_large = batch_size * steps >= min(channels, self.out_channels)
        if is_large or input.is_cuda or not torch.is_grad_enabled():
            return super().forward(input)
        (size,), margin = self.kernel_size, self.kernel_size[0] // 2
        windows = F.pad(input, (margin, margin)).unfold(2, size, 1).transpose(1, 2)  # [B, T, C, K]
        return linear(windows.flatten(2), self.weight.flatten(1), self.bias).transpose(1, 2)


class Dropout(nn.Dropout):
    """Each element is zeroed with probability ``p``, to the nearest 1/65536, in training.

    PyTorch draws a 64-bit random number per element, which on the CPU costs more than the layers
    around it; here four elements share one, which saves 4 % of a Transformer's step.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0 or input.device.type != "cpu":
            return super().forward(input)
        kept = round((1 - self.p) * 2**16)  # out of 2^16
        if kept == 0:
            return torch.zeros_like(input)
        words = torch.empty((input.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: input.numel()].view(input.shape)
        stays = torch.le(bits, kept - 2**15 - 1, out=torch.empty_like(input))
        return input * stays.mul_(2**16 / kept)
