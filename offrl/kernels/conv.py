"""``torch.nn.Conv1d`` as one matrix product in training, where there are fewer steps than channels.

It saves a sixth of the step of a large U-Net over time on a CPU, whose own kernels rearrange all
weights. While acting, PyTorch's own form is used, as denoising adds rounding errors up.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offrl.kernels.linear import linear


class Conv1d(nn.Conv1d):
    """As ``torch.nn.Conv1d``, with ``stride`` 1 and zeros as padding that keeps the length."""

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
