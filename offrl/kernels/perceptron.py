"""Fully connected layers with a tanh behind each, forwards and backwards in one piece, on AMD
processors, where MKL's tanh is slow. On Intel's it makes PPO with small networks 4 % slower."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from offrl.kernels.linear import MKL_IS_SLOW

# Elements from which on a tanh made of a sigmoid is quicker.
SMALLEST = 2**12


def tanh_layers(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Map rows ``[R, I]`` to ``[R, O]`` by layers of weights and biases ``W, b, W, b, ...``."""
    if torch.is_grad_enabled():
        return _TanhLayers.apply(x, *parameters)
    return _outputs(x, parameters)[-1]


def pays(x: Tensor) -> bool:
    """Say whether the layers are run in one piece."""
    is_traced = torch.jit.is_tracing() or torch.compiler.is_compiling()  # others must read them
    if is_traced or not MKL_IS_SLOW or x.device.type != "cpu":
        return False
    return not torch.is_autocast_enabled("cpu")


def _outputs(x: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    outputs = [x]
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        outputs.append(_tanh_(torch.addmm(bias, outputs[-1], weight.t())))
    return outputs


def _tanh_(x: Tensor) -> Tensor:
    if x.numel() < SMALLEST:
        return x.tanh_()
    return x.mul_(2).sigmoid_().mul_(2).sub_(1)


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
