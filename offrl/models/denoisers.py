"""Networks that turn noise into action chunks, step by step: what diffusion policies and flows
predict with."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from offrl.config import Section
from offrl.config.section import options_of
from offrl.kernels.dropout import Dropout
from offrl.kernels.linear import Linear
from offrl.models.attention import DecoderLayer
from offrl.models.encoder import Encoder
from offrl.models.resnet import with_group_norms
from offrl.models.transformer import initialize
from offrl.models.unet import UNet
from offrl.specs import ObsSpec


class Denoiser(nn.Module):
    """An ``encoder`` of what is observed and a ``net`` that sees noisy actions, a time and that.

    It is called in two parts, as observations are encoded once for all steps of denoising.
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
            Linear(step_embed_dim, 4 * step_embed_dim),
            nn.Mish(),
            Linear(4 * step_embed_dim, step_embed_dim),
        )

    def forward(self, actions: Tensor, time: Tensor, seen: Tensor) -> Tensor:  # type: ignore[override]
        cond = torch.cat([self.diffusion_step_encoder(time), seen.flatten(1)], dim=1)
        return super().forward(actions, cond)


class TransformerDenoiser(nn.Module):
    """Each action is a token that attends to itself and those before it, to the time, and to the
    observations up to its own step (Chi et al., 2023, section 3.1)."""

    def __init__(
        self,
        ac_dim: int,
        obs_dim: int,
        num_frames: int,
        num_steps: int,
        embed_dim: int,
        num_layers: int,
        num_heads: int,
        emb_dropout: float,
        attn_dropout: float,
        causal: bool,
    ):
        super().__init__()
        self.embed_action = Linear(ac_dim, embed_dim)
        self.embed_obs = Linear(obs_dim, embed_dim)
        self.embed_time = Sines(embed_dim)
        self.action_positions = nn.Parameter(torch.zeros(1, num_steps, embed_dim))
        self.seen_positions = nn.Parameter(torch.zeros(1, 1 + num_frames, embed_dim))
        self.dropout = Dropout(emb_dropout)
        self.encoder = nn.Sequential(
            Linear(embed_dim, 4 * embed_dim), nn.Mish(), Linear(4 * embed_dim, embed_dim)
        )
        self.layers = nn.ModuleList(
            DecoderLayer(embed_dim, num_heads, 4 * embed_dim, attn_dropout)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(embed_dim)
        self.head = Linear(embed_dim, ac_dim)
        self.apply(initialize)
        nn.init.normal_(self.action_positions, std=0.02)
        nn.init.normal_(self.seen_positions, std=0.02)
        self.own_mask: Tensor | None
        self.seen_mask: Tensor | None
        steps = torch.arange(num_steps)[:, None]
        hidden = steps < torch.arange(num_steps), steps < torch.arange(1 + num_frames) - 1
        for name, mask in zip(("own_mask", "seen_mask"), hidden, strict=True):
            self.register_buffer(name, mask if causal else None, persistent=False)

    def forward(self, actions: Tensor, time: Tensor, seen: Tensor) -> Tensor:
        tokens = torch.cat([self.embed_time(time)[:, None], self.embed_obs(seen)], dim=1)
        memory = self.encoder(self.dropout(tokens + self.seen_positions))
        x = self.dropout(self.embed_action(actions) + self.action_positions)
        for layer in self.layers:
            x = layer(x, memory, self.own_mask, self.seen_mask)
        return self.head(self.norm(x))


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
    sizes = ac_dim, encoder.output_dim, num_frames
    if config["transformer"].enabled:
        options = options_of(config["transformer"])
        return Denoiser(encoder, TransformerDenoiser(*sizes, num_steps, **options))
    options = options_of(config["unet"])
    step_embed_dim = options.pop("diffusion_step_embed_dim")
    return Denoiser(encoder, UNetDenoiser(*sizes, step_embed_dim, **options))
