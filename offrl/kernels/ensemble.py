"""Linear layers of an ensemble: ``[N, R, I]`` times ``[N, I, O]`` plus ``[N, O]``, per member."""

from __future__ import annotations

import torch
from torch import Tensor

from offrl.kernels.linear import MKL_IS_SLOW


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Leave products with a single vector to ``affine_of_one`` where MKL is slow."""
    if MKL_IS_SLOW and weight.shape[-1] == 1 and x.device.type == "cpu":
        return affine_of_one(x, weight, bias)
    return torch.baddbmm(bias.unsqueeze(1), x, weight)


def affine_of_one(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Multiply by elements and sum: 3 to 11 % of a step on AMD, nothing elsewhere."""
    return (x * weight.mT).sum(-1, keepdim=True) + bias.unsqueeze(1)


def first_members(num: int, *parameters: Tensor) -> list[Tensor]:
    """Slice only where there are more: the gradient of a slice is a copy, 4 % of SAC-N's step."""
    return [p if num == len(p) else p[:num] for p in parameters]
