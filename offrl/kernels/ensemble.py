"""The parts of an ensemble's layers that PyTorch's own way makes slow."""

import torch
from torch import Tensor

from offrl.kernels.linear import MKL_IS_SLOW

NARROW = 8  # outputs, up to which MKL's products are slow on AMD unless weights lie by output


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``[N, R, I]`` times ``[N, I, O]`` plus ``[N, O]``; where MKL is slow, products with one
    vector are made of elements: 3 to 11 % of a step on AMD, nothing on Intel. Those with a few
    vectors have these as rows: 4 % of DQN's step."""
    if MKL_IS_SLOW and weight.shape[-1] <= NARROW and x.device.type == "cpu":
        if weight.shape[-1] == 1:
            return (x * weight.mT).sum(-1, keepdim=True) + bias.unsqueeze(1)
        weight = weight.mT.contiguous().mT
    return torch.baddbmm(bias.unsqueeze(1), x, weight)


def first_members(num: int, *parameters: Tensor) -> list[Tensor]:
    """``parameters[:num]``, sliced only if there are more: the gradient of a slice is a copy, 3 %
    of SAC-N's step."""
    return [p if num == len(p) else p[:num] for p in parameters]
