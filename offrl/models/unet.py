"""A U-Net over time whose every block is told the condition (Janner et al., 2022,
arXiv:2205.09991; with FiLM as in Chi et al., 2023, arXiv:2303.04137)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from offrl.kernels.conv import Conv1d

FINAL_GROUPS = 8  # of the last normalisation, in robomimic and its origin, whatever n_groups is


class UNet(nn.Module):
    """Sequences ``[B, T, size]`` to sequences of the same shape, given conditions ``[B, C]``.

    Each level but the last halves the time, so that ``T`` is a multiple of
    ``2 ** (len(down_dims) - 1)``.
    """

    def __init__(
        self,
        size: int,
        cond_dim: int,
        down_dims: Sequence[int],
        kernel_size: int,
        n_groups: int,
    ):
        super().__init__()

        def block(size_in: int, size_out: int) -> Residual:
            return Residual(size_in, size_out, cond_dim, kernel_size, n_groups)

        def level(size_in: int, size_out: int, resize: nn.Module) -> nn.ModuleList:
            return nn.ModuleList([block(size_in, size_out), block(size_out, size_out), resize])

        first, last = down_dims[0], down_dims[-1]
        pairs = list(zip([size, *down_dims], down_dims, strict=False))
        halves = (Resize(nn.Conv1d(dim, dim, 3, 2, 1)) for dim in down_dims[:-1])
        resizes = [*halves, nn.Identity()]
        self.mid_modules = nn.ModuleList([block(last, last), block(last, last)])
        self.down_modules = nn.ModuleList(
            level(*pair, resize) for pair, resize in zip(pairs, resizes, strict=True)
        )
        self.up_modules = nn.ModuleList(
            level(2 * wide, narrow, Resize(nn.ConvTranspose1d(narrow, narrow, 4, 2, 1)))
            for narrow, wide in reversed(pairs[1:])
        )
        self.final_conv = nn.Sequential(
            ConvBlock(first, first, kernel_size, FINAL_GROUPS), Conv1d(first, size, 1)
        )

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        x, skipped = x.transpose(1, 2), []
        for enter, leave, resize in self.down_modules:
            x = leave(enter(x, cond), cond)
            skipped.append(x)
            x = resize(x)
        for block in self.mid_modules:
            x = block(x, cond)
        for enter, leave, resize in self.up_modules:
            x = torch.cat([x, skipped.pop()], dim=1)
            x = resize(leave(enter(x, cond), cond))
        return self.final_conv(x).transpose(1, 2)


class ConvBlock(nn.Module):
    def __init__(self, size_in: int, size_out: int, kernel_size: int, n_groups: int):
        super().__init__()
        self.block = nn.Sequential(
            Conv1d(size_in, size_out, kernel_size),
            nn.GroupNorm(n_groups, size_out),
            nn.Mish(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class Residual(nn.Module):
    """Two convolutions with a shortcut around them; the condition scales and shifts the channels
    between them."""

    def __init__(self, size_in: int, size_out: int, cond_dim: int, kernel_size: int, n_groups: int):
        super().__init__()
        self.blocks = nn.ModuleList(
            ConvBlock(size, size_out, kernel_size, n_groups) for size in (size_in, size_out)
        )
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(cond_dim, 2 * size_out))
        self.residual_conv = nn.Identity() if size_in == size_out else Conv1d(size_in, size_out, 1)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        scale, bias = self.cond_encoder(cond)[..., None].chunk(2, dim=1)
        first, second = self.blocks
        return second(scale * first(x) + bias) + self.residual_conv(x)


class Resize(nn.Module):
    """Half or twice the time, as weights are called since they are robomimic's."""

    def __init__(self, conv: nn.Module):
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)
