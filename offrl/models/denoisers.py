"""Networks that turn noise into action chunks, step by step: what diffusion policies and flows
predict with."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from offrl.config import Section
from offrl.models.encoder import Encoder
from offrl.models.resnet import with_group_norms
from offrl.models.unet import UNet
from offrl.specs import ObsSpec


class Denoiser(nn.Module):
    """An ``encoder`` of what is observed and a ``net`` that sees noisy actions, a time and that.

    ``net(denoiser.encode(obs, goal), ...)`` is split in two, as sampling encodes once.
    """

    def __init__(self, encoder: Encoder, net: nn.Module):
        super().__init__()
        self.encoder, self.net = encoder, net

    def encode(self, obs: Any, goal: Any) -> Tensor:
        """Observations ``{key: [B, To, ...]}`` to what ``forward`` takes, ``[B, To, F]``."""
        return self.encoder(obs, goal)

    def forward(self, actions: Tensor, time: Tensor, seen: Tensor) -> Tensor:
        """Predict, for noisy ``actions`` ``[B, Tp, A]`` at ``time`` ``[B]``, what is shaped as
        they are."""
        return self.net(actions, time, seen)


class UNetDenoiser(UNet):
    """The condition is the time and all observations, end to end."""

    def __init__(
        self, ac_dim: int, obs_dim: int, num_frames: int, step_embed_dim: int, **options: Any
    ):
        super().__init__(ac_dim, step_embed_dim + num_frames * obs_dim, **options)
        self.diffusion_step_encoder = nn.Sequential(
            Sines(step_embed_dim),
            nn.Linear(step_embed_dim, 4 * step_embed_dim),
            nn.Mish(),
            nn.Linear(4 * step_embed_dim, step_embed_dim),
        )

    def forward(self, actions: Tensor, time: Tensor, seen: Tensor) -> Tensor:  # type: ignore[override]
        cond = torch.cat([self.diffusion_step_encoder(time), seen.flatten(1)], dim=1)
        return super().forward(actions, cond)


class Sines(nn.Module):
    """Times ``[B]`` to ``[B, D]``: sines, then cosines, of rates from 1 to 1/10000."""

    def __init__(self, dim: int):
        super().__init__()
        half = dim // 2
        rates = torch.exp(torch.arange(half) * (-math.log(10000) / (half - 1)))
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, time: Tensor) -> Tensor:
        angles = time[:, None] * self.rates
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


def denoiser_from_config(
    config: Section, spec: ObsSpec, ac_dim: int, num_frames: int, num_steps: int
) -> Denoiser:
    """The network that ``unet`` or ``transformer`` in a section describes.

    num_frames: the number of observations that it sees (To).
    num_steps: the number of actions in a chunk (Tp).
    """
    encoder = with_group_norms(Encoder(spec))
    unet = config["unet"]
    net = UNetDenoiser(
        ac_dim,
        encoder.output_dim,
        num_frames,
        unet.diffusion_step_embed_dim,
        down_dims=unet.down_dims,
        kernel_size=unet.kernel_size,
        n_groups=unet.n_groups,
    )
    return Denoiser(encoder, net)
