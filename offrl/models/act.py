"""The network of ACT (Zhao et al., 2023, arXiv:2304.13705): a conditional VAE of Transformers."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offrl.kernels.layers import Linear
from offrl.models.backbones import with_group_norms
from offrl.models.encoder import Encoder, KeyEncoder, Obs, goal_frame
from offrl.models.transformer import DecoderLayer, EncoderLayer, sines
from offrl.specs import GOAL, LANGUAGE, ObsSpec


class KeyTokens(nn.Module):
    """Turns one observation ``[B, T, ...]`` into tokens ``[B, N, D]``: one per frame of a vector,
    and per place in the feature map of an image whose ``core`` has no pooling or linear layer."""

    places: Tensor

    def __init__(self, core: KeyEncoder, num_frames: int, dim: int):
        super().__init__()
        self.core, self.is_vector = core, core.core is None
        shape: Sequence[int] = getattr(core.core, "map_shape", None) or (core.output_dim,)
        self.size, extent = shape[0], shape[1:]
        self.embed = Linear(self.size, dim)
        self.kind = nn.Parameter(torch.randn(num_frames, 1, dim) * 0.02)
        places = sines_2d(extent, dim) if extent else torch.zeros(1, dim)
        self.register_buffer("places", places, persistent=False)

    def forward(self, x: Tensor, language: Tensor | None) -> Tensor:
        features = self.core(x, language).unflatten(-1, (self.size, -1)).transpose(-1, -2)
        return (self.embed(features) + self.kind + self.places).flatten(1, 2)


class ObservationTokens(nn.Module):
    """Turns observations and goals into tokens, ``[B, N, D]`` of each key."""

    def __init__(self, spec: ObsSpec, num_frames: int, dim: int):
        super().__init__()
        cores = with_group_norms(Encoder(spec, core_relu=False)).cores
        frames = {"obs": num_frames, "goal": 1}
        self.groups: Any = nn.ModuleDict()
        for group, by_key in cores.items():
            tokens = {key: KeyTokens(core, frames[group], dim) for key, core in by_key.items()}
            self.groups[group] = nn.ModuleDict(tokens)

    def forward(self, obs: Obs, vectors_only: bool) -> list[Tensor]:
        """Make tokens of all keys, or of all but images (``vectors_only``)."""
        seen: dict[str, Any] = {"obs": (obs, obs.get(LANGUAGE))}
        if "goal" in self.groups:
            seen["goal"] = goal_frame(obs.get(GOAL), obs.get(LANGUAGE))
        return [
            key_tokens(values[key], language)
            for group, (values, language) in seen.items()
            for key, key_tokens in self.groups[group].items()
            if key_tokens.is_vector or not vectors_only
        ]


class ActionChunkingTransformer(nn.Module):
    """Maps observations and a latent ``z`` to a chunk; ``posterior`` gives ``z`` in training."""

    def __init__(
        self,
        spec: ObsSpec,
        ac_dim: int,
        num_frames: int,
        num_steps: int,
        embed_dim: int,
        feedforward_dim: int,
        num_heads: int,
        num_encoder_layers: int,
        num_decoder_layers: int,
        latent_dim: int,
        dropout: float,
    ):
        super().__init__()
        sizes = embed_dim, num_heads, feedforward_dim, dropout

        self.tokens = ObservationTokens(spec, num_frames, embed_dim)
        self.style = nn.Parameter(torch.randn(1, 1, embed_dim) * 0.02)
        self.embed_action = Linear(ac_dim, embed_dim)
        self.register_buffer("positions", sines(num_steps, embed_dim), persistent=False)
        self.posterior_layers = nn.ModuleList(
            EncoderLayer(*sizes) for _ in range(num_encoder_layers)
        )
        self.posterior_norm = nn.LayerNorm(embed_dim)
        self.latent = Linear(embed_dim, 2 * latent_dim)
        self.embed_latent = Linear(latent_dim, embed_dim)
        encoder = [EncoderLayer(*sizes) for _ in range(num_encoder_layers)]
        self.encoder = nn.Sequential(*encoder, nn.LayerNorm(embed_dim))
        self.decoder = nn.ModuleList(DecoderLayer(*sizes) for _ in range(num_decoder_layers))
        self.norm = nn.LayerNorm(embed_dim)
        self.queries = nn.Parameter(torch.randn(1, num_steps, embed_dim) * 0.02)
        self.head = Linear(embed_dim, ac_dim)

    def posterior(
        self, obs: Any, actions: Tensor, pad_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute mean and log-variance ``[B, Z]`` of the style of a chunk ``[B, T, A]``, from
        observations without images and from steps that are not padded."""
        chunk = self.embed_action(actions) + self.positions
        seen = self.tokens(obs, vectors_only=True)
        known = [self.style.expand(len(actions), -1, -1), *seen]
        hidden = None
        if pad_mask is not None:
            shown = torch.ones(len(actions), sum(x.shape[1] for x in known), device=actions.device)
            hidden = (torch.cat([shown, pad_mask[..., 0]], dim=1) == 0)[:, None, None]
        tokens = torch.cat([*known, chunk], dim=1)
        for layer in self.posterior_layers:
            tokens = layer(tokens, hidden)
        mean, logvar = self.latent(self.posterior_norm(tokens[:, 0])).chunk(2, dim=-1)
        return mean, logvar

    def forward(self, obs: Any, z: Tensor) -> Tensor:
        """Predict the chunk ``[B, T, A]``."""
        tokens = [self.embed_latent(z)[:, None], *self.tokens(obs, vectors_only=False)]
        memory = self.encoder(torch.cat(tokens, dim=1))
        x = self.queries.expand(len(z), -1, -1)
        for layer in self.decoder:
            x = layer(x, memory)
        return self.head(self.norm(x))


def sines_2d(extent: Sequence[int], dim: int) -> Tensor:
    """Make sinusoidal positions ``[H * W, D]``: rows in one half, columns in the other."""
    height, width = extent
    rows, columns = (sines(n, math.ceil(dim / 2))[0] for n in extent)
    grid = [rows[:, None].expand(-1, width, -1), columns[None].expand(height, -1, -1)]
    return torch.cat(grid, dim=-1).flatten(0, 1)[:, :dim]
