"""Networks that turn noise into chunks of actions, for diffusion policies and flows."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offrl.config import Section
from offrl.config.section import options_of
from offrl.kernels.layers import Conv1d, Dropout, Linear
from offrl.models.backbones import with_group_norms
from offrl.models.encoder import Encoder
from offrl.models.transformer import DecoderLayer, initialize
from offrl.specs import ObsSpec

FINAL_GROUPS = 8  # of the last normalisation, as in robomimic, for any n_groups


class Denoiser(nn.Module):
    """An ``encoder`` of observations ``{key: [B, To, ...]}`` to features ``[B, To, F]``, which is
    called once for all denoising steps, and a ``net`` that predicts from noisy actions."""

    def __init__(self, encoder: Encoder, net: nn.Module):
        super().__init__()
        self.encoder, self.net = encoder, net

    def forward(self, actions: Tensor, time: Tensor, seen: Tensor) -> Tensor:
        """Predict the target ``[B, Tp, A]`` from noisy ``actions`` ``[B, Tp, A]`` at ``time``
        ``[B]``, and from the features ``seen``."""
        return self.net(actions, time, seen)


class UNetDenoiser(nn.Module):
    """A U-Net over time (Janner et al., 2022, arXiv:2205.09991) whose blocks are conditioned on the
    denoising time and all joined observations (Chi et al., 2023, arXiv:2303.04137).

    Each level but the last halves the time, so that ``Tp`` is a multiple of
    ``2 ** (len(down_dims) - 1)``.
    """

    def __init__(
        self,
        ac_dim: int,
        obs_dim: int,
        num_frames: int,
        num_steps: int,
        diffusion_step_embed_dim: int,
        down_dims: Sequence[int],
        kernel_size: int,
        n_groups: int,
    ):
        super().__init__()
        step_dim = diffusion_step_embed_dim

        def block(size_in: int, size_out: int) -> FiLMBlock:
            cond_dim = step_dim + num_frames * obs_dim
            return FiLMBlock(size_in, size_out, cond_dim, kernel_size, n_groups)

        def level(size_in: int, size_out: int, resize: nn.Module) -> nn.ModuleList:
            return nn.ModuleList([block(size_in, size_out), block(size_out, size_out), resize])

        first, last = down_dims[0], down_dims[-1]
        pairs = list(zip([ac_dim, *down_dims], down_dims, strict=False))
        halves = (_named(conv=nn.Conv1d(dim, dim, 3, 2, 1)) for dim in down_dims[:-1])
        resizes = [*halves, nn.Identity()]
        self.mid_modules = nn.ModuleList([block(last, last), block(last, last)])
        self.down_modules: Any = nn.ModuleList(
            level(*pair, resize) for pair, resize in zip(pairs, resizes, strict=True)
        )
        self.up_modules: Any = nn.ModuleList(
            level(2 * wide, narrow, _named(conv=nn.ConvTranspose1d(narrow, narrow, 4, 2, 1)))
            for narrow, wide in reversed(pairs[1:])
        )
        self.final_conv = nn.Sequential(
            _conv_block(first, first, kernel_size, FINAL_GROUPS), Conv1d(first, ac_dim, 1)
        )
        self.diffusion_step_encoder = nn.Sequential(
            TimeEmbedding(step_dim),
            Linear(step_dim, 4 * step_dim),
            nn.Mish(),
            Linear(4 * step_dim, step_dim),
        )

    def forward(self, actions: Tensor, time: Tensor, seen: Tensor) -> Tensor:
        cond = torch.cat([self.diffusion_step_encoder(time), seen.flatten(1)], dim=1)
        x, skipped = actions.transpose(1, 2), []
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


class FiLMBlock(nn.Module):
    """Two convolutions with a shortcut. A condition ``[B, C]`` scales and shifts channels."""

    def __init__(self, size_in: int, size_out: int, cond_dim: int, kernel_size: int, n_groups: int):
        super().__init__()
        self.blocks = nn.ModuleList(
            _conv_block(size, size_out, kernel_size, n_groups) for size in (size_in, size_out)
        )
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(cond_dim, 2 * size_out))
        self.residual_conv = nn.Identity() if size_in == size_out else Conv1d(size_in, size_out, 1)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        scale, bias = self.cond_encoder(cond)[..., None].chunk(2, dim=1)
        first, second = self.blocks
        return second(scale * first(x) + bias) + self.residual_conv(x)


def _conv_block(size_in: int, size_out: int, kernel_size: int, n_groups: int) -> nn.Module:
    conv = Conv1d(size_in, size_out, kernel_size)
    return _named(block=nn.Sequential(conv, nn.GroupNorm(n_groups, size_out), nn.Mish()))


def _named(**layers: nn.Module) -> nn.Sequential:
    """Name layers as in robomimic's weights."""
    return nn.Sequential(OrderedDict(layers))


class TransformerDenoiser(nn.Module):
    """A Transformer in which each action is a token that attends to itself and earlier ones, to the
    time, and to observations up to its step (Chi et al., 2023, section 3.1)."""

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
        self.embed_time = TimeEmbedding(embed_dim)
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


class TimeEmbedding(nn.Module):
    """Embeds times ``[B]`` as ``[B, D]``: sines, then cosines, of rates from 1 to 1/10000."""

    rates: Tensor

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
    """Make the network that ``unet`` or ``transformer`` in a section describes.

    num_frames: the number of observations that it sees (To).
    num_steps: the number of actions in a chunk (Tp).
    """
    encoder = with_group_norms(Encoder(spec))
    name = "transformer" if config["transformer"].enabled else "unet"
    kind: Any = {"transformer": TransformerDenoiser, "unet": UNetDenoiser}[name]
    sizes = ac_dim, encoder.output_dim, num_frames, num_steps
    return Denoiser(encoder, kind(*sizes, **options_of(config[name])))
